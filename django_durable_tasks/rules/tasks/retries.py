"""The delay before the next attempt of a failed task.

Delay before attempt n+1, after n failures: FIXED base; LINEAR base x n; EXPONENTIAL min(base x
2^(n-1), max); a list by index, its last element for all later ones; a callable receives n. Jitter
multiplies by a random number from 0.5 to 1.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.rules.tasks.durations import maybe_seconds, seconds


class Backoff(StrEnum):
    """The named backoff functions."""

    FIXED = "FIXED"
    LINEAR = "LINEAR"
    EXPONENTIAL = "EXPONENTIAL"


class Retry(Exception):
    """Raised by a task function to request a retry, ``after`` this many seconds (or a timedelta);
    None uses the retry policy.

    It counts as a failed attempt, so the number of attempts stays limited.
    """

    queue: str | None = None
    """The queue of the next attempts, if it is another one. Set by tasks of this package."""

    def __init__(self, after: float | timedelta | None = None, reason: str = "") -> None:
        self.after = maybe_seconds("Retry.after", after)
        self.reason = reason
        super().__init__(self.after, reason)

    def __str__(self) -> str:
        return self.reason or "the task function requested a retry"


BackoffOption = str | Sequence[float | timedelta] | Callable[[int], float | timedelta]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The retry policy; all numbers in seconds."""

    backoff: Backoff | tuple[float, ...] | Callable[[int], float | timedelta] = Backoff.EXPONENTIAL
    base: float = 1.0
    maximum: float = 3600.0
    jitter: bool = True

    def delay(self, failures: int, draw: float) -> float:
        """Return the seconds to wait after ``failures`` failed attempts (1 or more); ``draw`` is
        random in [0, 1).
        """
        return self._plain(failures) * (0.5 + draw if self.jitter else 1.0)

    def _plain(self, failures: int) -> float:
        if isinstance(self.backoff, tuple):
            return self.backoff[min(failures, len(self.backoff)) - 1]
        if not isinstance(self.backoff, Backoff):
            return seconds("backoff", self.backoff(failures))
        if self.backoff is Backoff.EXPONENTIAL:
            return min(self.base * 2.0 ** min(failures - 1, 60), self.maximum)
        return self.base * (failures if self.backoff is Backoff.LINEAR else 1)


def policy(backoff: BackoffOption, base: object, maximum: object, jitter: bool) -> RetryPolicy:
    """Return the validated policy; raises InvalidOption."""
    checked: Backoff | tuple[float, ...] | Callable[[int], float | timedelta]
    if isinstance(backoff, str):
        if backoff not in set(Backoff):
            raise InvalidOption(
                f"backoff={backoff!r}: give FIXED, LINEAR, EXPONENTIAL, a list or a callable."
            )
        checked = Backoff(backoff)
    elif callable(backoff):
        checked = backoff
    else:
        if not isinstance(backoff, list | tuple) or not backoff:
            raise InvalidOption(
                f"backoff={backoff!r}: give a name, a callable, or a list of at least one wait."
            )
        checked = tuple(seconds("backoff", wait) for wait in backoff)
    return RetryPolicy(
        backoff=checked,
        base=seconds("backoff_base", base),
        maximum=seconds("backoff_max", maximum),
        jitter=bool(jitter),
    )
