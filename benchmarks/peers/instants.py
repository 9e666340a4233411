"""Due times of tasks."""

from __future__ import annotations

import time


def instants(n: int, rate: int, ahead: float) -> list[float]:
    """Return the due times (Unix time) of n tasks: the first in ``ahead`` seconds, then ``rate``
    per second.
    """
    first = time.time() + ahead
    return [first + number / rate for number in range(n)]
