"""The progress of a test run: how many runs are over, and about how long the others need."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from threading import Lock
from time import monotonic

from tests.runs import Run


class Progress:
    """Counts runs that begin and end in several lanes; can be used by several threads."""

    def __init__(self, runs: Sequence[Run], lanes: int) -> None:
        self._lock, self._lanes, self._total = Lock(), lanes, len(runs)
        self._waiting = list(runs)
        self._began: dict[Run, float] = {}

    def begins(self, run: Run) -> str:
        """Note the beginning of a run, and return the line that announces it."""
        with self._lock:
            self._waiting.remove(run)
            self._began[run] = monotonic()
        return f"{run.title} (expected {about(run.seconds)}); {self.state()}"

    def ends(self, run: Run) -> None:
        """Note the end of a run, whether it began or not."""
        with self._lock:
            if self._began.pop(run, None) is None:
                self._waiting.remove(run)

    def state(self) -> str:
        """Return how many runs are over, and about how long the others need."""
        with self._lock:
            return self._state()

    def _state(self) -> str:
        now = monotonic()
        over = self._total - len(self._waiting) - len(self._began)
        left = [max(0.0, run.seconds - (now - began)) for run, began in self._began.items()]
        seconds = seconds_left(left, [run.seconds for run in self._waiting], self._lanes)
        return f"{over} of {self._total} runs are over" + (
            f", about {about(seconds)} left" if seconds else ""
        )


def seconds_left(under_way: Iterable[float], waiting: Iterable[float], lanes: int) -> float:
    """Return when the last of these runs ends, if each waiting run begins in the lane that is free
    first.
    """
    ends = heapq.nlargest(lanes, under_way)
    ends += [0.0] * (lanes - len(ends))
    heapq.heapify(ends)
    for seconds in waiting:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)


def about(seconds: float) -> str:
    """Return a duration in minutes, and in seconds below one minute."""
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{round(seconds)} s"
