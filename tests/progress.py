"""The progress of a test run: the number of finished runs, and the estimated remaining time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from threading import Lock
from time import monotonic

from tests.runs import Run


class Progress:
    """Counts runs that begin and end in parallel. Thread-safe."""

    def __init__(self, runs: Sequence[Run], parallel: int) -> None:
        self._lock, self._parallel, self._total = Lock(), parallel, len(runs)
        self._waiting = list(runs)
        self._began: dict[Run, float] = {}

    def begins(self, run: Run) -> str:
        """Record the beginning of a run, and return the line that announces it."""
        with self._lock:
            self._waiting.remove(run)
            self._began[run] = monotonic()
        return f"{run.title} (expected {about(run.seconds)}); {self.state()}"

    def ends(self, run: Run) -> None:
        """Record the end of a run, whether it began or not."""
        with self._lock:
            if self._began.pop(run, None) is None:
                self._waiting.remove(run)

    def state(self) -> str:
        """Return how many runs have finished, and the estimated remaining time."""
        with self._lock:
            return self._state()

    def _state(self) -> str:
        now = monotonic()
        over = self._total - len(self._waiting) - len(self._began)
        left = [max(0.0, run.seconds - (now - began)) for run, began in self._began.items()]
        seconds = seconds_left(left, [run.seconds for run in self._waiting], self._parallel)
        return f"{over} of {self._total} runs are over" + (
            f", about {about(seconds)} left" if seconds else ""
        )


def seconds_left(under_way: Iterable[float], waiting: Iterable[float], parallel: int) -> float:
    """Return when the last of these runs ends, if each waiting run begins when another one ends."""
    ends = heapq.nlargest(parallel, under_way)
    ends += [0.0] * (parallel - len(ends))
    heapq.heapify(ends)
    for seconds in waiting:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)


def about(seconds: float) -> str:
    """Return a duration in minutes, and in seconds below one minute."""
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{round(seconds)} s"
