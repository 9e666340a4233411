"""Matches actual runs with expected ones, as Jepsen's test of Chronos does: each target window
needs one run.

A count could hide a missing run behind a duplicate one; a matching cannot.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Window:
    """A target: one run of this name that starts within the window, both ends included."""

    name: Hashable
    opens: datetime
    closes: datetime


@dataclass(frozen=True, slots=True)
class Seen:
    """A run that was observed to start."""

    name: Hashable
    at: datetime


@dataclass(frozen=True, slots=True)
class Matched:
    """The largest matching: which window had which run, which windows had none (missing), and which
    runs had no window (surplus).
    """

    pairs: tuple[tuple[Window, Seen], ...]
    missing: tuple[Window, ...]
    surplus: tuple[Seen, ...]

    def lags(self) -> list[float]:
        """Return how long after its window opened each run started (seconds), the shortest first."""
        return sorted((seen.at - window.opens).total_seconds() for window, seen in self.pairs)


def windows(name: Hashable, times: Iterable[datetime], lateness: timedelta) -> list[Window]:
    """Return a window for each time, which opens at it and closes `lateness` later."""
    return [Window(name, time, time + lateness) for time in times]


def matched(targets: Iterable[Window], runs: Iterable[Seen]) -> Matched:
    """Return the largest matching of runs to windows of their name, one to one."""
    open_later, observed = (
        defaultdict[Hashable, list[Window]](list),
        defaultdict[Hashable, list[Seen]](list),
    )
    for target in targets:
        open_later[target.name].append(target)
    for run in runs:
        observed[run.name].append(run)
    found = [_matched(open_later[name], observed[name]) for name in {**open_later, **observed}]
    return Matched(
        tuple(pair for one in found for pair in one.pairs),
        tuple(window for one in found for window in one.missing),
        tuple(run for one in found for run in one.surplus),
    )


def _matched(targets: Sequence[Window], runs: Sequence[Seen]) -> Matched:
    """Assign each run, in the order of starts, the open window that closes first. No matching is
    larger.
    """
    waiting = sorted(targets, key=lambda window: window.opens, reverse=True)
    opened: list[tuple[datetime, int, Window]] = []
    pairs, missing, surplus = list[tuple[Window, Seen]](), list[Window](), list[Seen]()
    for run in sorted(runs, key=lambda run: run.at):
        while waiting and waiting[-1].opens <= run.at:
            window = waiting.pop()
            heapq.heappush(opened, (window.closes, len(waiting), window))
        while opened and opened[0][0] < run.at:
            missing.append(heapq.heappop(opened)[2])
        if opened:
            pairs.append((heapq.heappop(opened)[2], run))
        else:
            surplus.append(run)
    return Matched(
        tuple(pairs), (*missing, *(window for *_, window in opened), *waiting), tuple(surplus)
    )


def noted(notebook: Path) -> list[Seen]:
    """Return the runs that bodies recorded, one per line: a name, a space, and when it started."""
    lines = notebook.read_text().splitlines() if notebook.exists() else []
    return [
        Seen(name, datetime.fromisoformat(at))
        for name, _, at in (line.rpartition(" ") for line in lines)
    ]
