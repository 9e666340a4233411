"""The circuit breaker of an endpoint: when it opens, for how long, and when a request may probe.

While it is open, tasks wait as PENDING. No attempt is started and no failure is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

_LONGEST = 20
"""The longest pause, as a multiple of the first one."""
_PROBING = 5.0
"""Seconds for which other tasks wait at most while one request probes the endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointHealth:
    """What is known about an endpoint: failures in a row, how often the breaker opened since the
    last success, and until when it is open.
    """

    failures: int = 0
    openings: int = 0
    open_until: datetime | None = None

    def waits(self, now: datetime) -> float:
        """Return the seconds for which the breaker is still open."""
        if self.open_until is None:
            return 0.0
        return max(0.0, (self.open_until - now).total_seconds())


def pause_after(health: EndpointHealth, now: datetime, threshold: int, pause: float) -> float:
    """Return for how many seconds the breaker opens after one more failure; 0 if it does not.

    A failure while it is open, of a request that was in progress, does not extend the pause.
    """
    if not threshold or health.failures + 1 < threshold or health.waits(now):
        return 0.0
    return min(pause * 2.0 ** min(health.openings, 10), pause * _LONGEST)


def spread(wait: float, draw: float) -> float:
    """Return when a task tries again that was not started because of an open breaker.

    ``draw`` in [0, 1) spreads the tasks over a quarter more, so that they are not all due at once.
    """
    return wait * (1 + draw / 4)


def while_probing(draw: float) -> float:
    """Return how many seconds a task waits while another one probes the endpoint."""
    return _PROBING * (0.5 + draw / 2)
