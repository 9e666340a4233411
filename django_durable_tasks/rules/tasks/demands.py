"""The number of tasks that one claim requests of each queue. Pure."""

from __future__ import annotations

from typing import NamedTuple


class QueueDemand(NamedTuple):
    """The maximum number of due tasks of a queue to claim, and their lowest priority."""

    queue: str
    limit: int
    least: int = 0
