"""Tasks that do almost nothing, so that the overhead of this package is measured."""

import asyncio
import os
import time

from benchmarks.peers import stamps
from benchmarks.project.limited import LIMIT, PAUSE
from django_durable_tasks import PerKey, durable_task


@durable_task
def noop(n: int) -> None:
    """Do nothing."""


@durable_task
def lasting(n: int, pause: float = 0.0) -> None:
    """Do nothing, for ``pause`` seconds."""
    if pause:
        time.sleep(pause)


@durable_task
async def waiting(n: int, pause: float = 0.0) -> None:
    """Wait for ``pause`` seconds on the event loop."""
    await asyncio.sleep(pause)


@durable_task(batch=100)
def batched_noop(n: int) -> None:
    """Do nothing, in batches."""


@durable_task(max_concurrency=PerKey(1_000_000, "{0}"))
def keyed(key: str) -> None:
    """Do nothing, limited by key."""


@durable_task(max_concurrency=LIMIT)
def limited(n: int) -> None:
    """Wait as long as a short task would take."""
    time.sleep(PAUSE)


@durable_task
def stamp(due: float) -> None:
    """Record how late it starts."""
    stamps.stamp(os.environ["BENCHMARK_STAMPS"], due)


@durable_task(batch=100)
def batched_stamp(due: float) -> None:
    """Record how late it starts, in batches."""
    stamps.stamp(os.environ["BENCHMARK_STAMPS"], due)
