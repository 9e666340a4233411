"""When tasks are due."""

from __future__ import annotations

import time


def instants(n: int, rate: int, ahead: float) -> list[float]:
    """Return when (Unix time) each of n tasks is due: the first ``ahead`` seconds from now, so many
    a second.
    """
    first = time.time() + ahead
    return [first + number / rate for number in range(n)]
