"""Compares the fire times of this package with the fires of beat.

A fire of beat belongs to the last fire time before it: beat sends one message for all fire times
that it missed. A message that is early by less than the difference of two clocks belongs to the
next fire time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

EARLY = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class FireMatch:
    """Fire times with their lags (seconds that beat was late), and the fires of one side only."""

    lags: dict[datetime, float]
    only_here: list[datetime]
    only_beat: list[datetime]


def matched(here: Sequence[datetime], beat: Sequence[datetime], tolerance: timedelta) -> FireMatch:
    """Pair fire times with fires of beat one to one; ``tolerance`` is the longest lag."""
    lags: dict[datetime, float] = {}
    only_beat = []
    for fire in beat:
        last = bisect_right(here, fire + EARLY) - 1
        if last < 0 or here[last] in lags or fire - here[last] > tolerance:
            only_beat.append(fire)
        else:
            lags[here[last]] = (fire - here[last]).total_seconds()
    return FireMatch(lags, [at for at in here if at not in lags], only_beat)
