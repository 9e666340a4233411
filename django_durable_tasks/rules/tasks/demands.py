"""What one claim asks of each queue. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Demand(NamedTuple):
    """How many due tasks of a queue to claim at most, of this priority or a higher one."""

    queue: str
    limit: int
    least: int = 0
