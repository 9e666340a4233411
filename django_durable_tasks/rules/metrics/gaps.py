"""Ids that a reader of a table has passed over, because their rows were not committed yet.

A reader continues after the largest id that it has read. Transactions commit in another order than
they take ids, so a smaller id may become visible later. Such ids are kept as gaps and read again.
The ids of transactions that were rolled back stay gaps until they are given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

GAPS_MAX = 200
"""How many gaps are kept. Beyond it the oldest are given up."""
GAP_IDS_MAX = 10_000
"""How many ids of one gap are kept, the largest ones. A larger gap is one of deleted rows."""
GAP_KEPT = 3_600.0
"""Seconds after which a gap is given up."""


class IdGap(NamedTuple):
    """Ids from ``first`` to ``last``, and when they were passed over (seconds since 1970)."""

    first: int
    last: int
    seen_at: float


def new_gaps(after: int, ids: Sequence[int], now: float) -> list[IdGap]:
    """Return the ids between ``after`` and the last of ``ids`` that are not among them.

    ``ids`` are in ascending order and greater than ``after``.
    """
    found, past = list[IdGap](), after
    for number in ids:
        if number > past + 1:
            found.append(IdGap(max(past + 1, number - GAP_IDS_MAX), number - 1, now))
        past = number
    return found


def without(gaps: Iterable[IdGap], ids: Iterable[int]) -> list[IdGap]:
    """Return the gaps without these ids."""
    found, read = list[IdGap](), sorted(ids)
    for gap in gaps:
        first = gap.first
        for number in read:
            if first <= number <= gap.last:
                if number > first:
                    found.append(IdGap(first, number - 1, gap.seen_at))
                first = number + 1
        if first <= gap.last:
            found.append(IdGap(first, gap.last, gap.seen_at))
    return found


def kept(gaps: Iterable[IdGap], now: float) -> list[IdGap]:
    """Return the gaps that are still read again, the oldest first.

    A gap from the future, after a change of the clock, is treated as new.
    """
    recent = [gap._replace(seen_at=min(gap.seen_at, now)) for gap in gaps]
    return [gap for gap in recent if now - gap.seen_at < GAP_KEPT][-GAPS_MAX:]
