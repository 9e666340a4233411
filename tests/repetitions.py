"""How often races and generated examples are repeated, and how many rows plan tests insert.

The default selection of `make test` has less of both. `--all`, `--only`, `--changed` and a direct call
of pytest have all.
"""

import os

VARIABLE = "TEST_REPETITIONS"
FEW = "few"
SHARE = 4
SHARE_OF_ROWS = 10


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
