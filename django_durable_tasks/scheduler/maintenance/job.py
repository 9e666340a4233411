"""The type of a maintenance job, and the time slice of jobs that work in batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor

SLICE = 0.2
"""Seconds after which a job that works in batches returns, so that other due jobs can run."""


@dataclass(frozen=True, slots=True)
class Job:
    """A maintenance job of the leader. ``run`` returns how many rows it changed.

    It runs every ``every`` seconds. If it changed something, it runs again after ``pause_factor``
    times its last duration. A run longer than ``time_limit`` seconds makes the leader resign. If
    ``dispatches``, tasks are dispatched at once after a run that changed something.
    """

    name: str
    run: Callable[[datetime, HeartbeatMonitor], int]
    every: float
    time_limit: float = 30.0
    pause_factor: float = 1.0
    dispatches: bool = True
