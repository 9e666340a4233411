"""How often races and generated examples are repeated.

The default selection of `make test` repeats them less. `--all`, `--only`, `--changed` and a direct
call of pytest repeat them fully.
"""

import os

VARIABLE = "TEST_REPETITIONS"
FEW = "few"
SHARE = 4


def repeats_less() -> bool:
    """Return whether this run repeats less."""
    return os.environ.get(VARIABLE) == FEW


def repetitions(number: int, *, least: int = 2) -> int:
    """Return `number`, or a quarter of it, at least `least`, in a run that repeats less."""
    return max(least, number // SHARE) if repeats_less() else number
