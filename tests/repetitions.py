"""How often races and generated examples are repeated, and how many rows plan tests insert.

The default selection of `make test` has less of both, and of large tables of cases only the part of
the day. `--all`, `--only`, `--changed` and a direct call
of pytest have all.
"""

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TypeVar

VARIABLE = "TEST_REPETITIONS"
FEW = "few"
SHARE = 4
SHARE_OF_ROWS = 10
# The processes of pytest-xdist inherit it, so that all collect the same cases. It repeats the draw of
# another day.
DAY = int(os.environ.setdefault("TEST_DAY", str(datetime.now(UTC).toordinal())))

Case = TypeVar("Case")


def repeats_less() -> bool:
    """Return whether this run repeats less."""
    return os.environ.get(VARIABLE) == FEW


def repetitions(number: int, *, least: int = 2) -> int:
    """Return `number`, or a quarter of it, at least `least`, in a run that repeats less."""
    return max(least, number // SHARE) if repeats_less() else number


def rows(number: int) -> int:
    """Return `number`, or a tenth of it in a run that repeats less: enough rows for the planner to
    choose the same indexes.
    """
    return number // SHARE_OF_ROWS if repeats_less() else number


def drawn(cases: Iterable[Case], share: int = SHARE) -> list[Case]:
    """Return all `cases`, or every `share`th of them in a run that repeats less, different ones each
    day. All cases are drawn within `share` days.
    """
    all_cases = list(cases)
    if not repeats_less() or len(all_cases) < share:
        return all_cases
    return all_cases[DAY % share :: share]
