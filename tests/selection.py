"""The runs of `python -m tests` without `--all`: the part of the matrix that is worth its time
before each commit.

Everything runs once on PostgreSQL. The tests that depend on the database also run on MariaDB and
SQLite. One broker and one pair of processes run completely, and the tests marked `smoke` on each
other pair. Versions, crash points, mutants, chaos, the portable tests on further databases and the
complete suites of the other pairs need `--all`, which also repeats races and generated examples
more often (`tests.repetitions`).
"""

from collections.abc import Sequence
from dataclasses import replace

from tests.environments import OTHERS
from tests.runs import COMPLETE_BROKER, COMPLETE_PAIR, PORTABLE, SMOKE, Run, planned

ONLY_WITH_ALL = {"chaos", "crash_points", "mutants", PORTABLE, *OTHERS}


def default_runs() -> list[Run]:
    """Return the runs without `--all`."""
    return [replace(run, few=True) for run in planned() if _is_default(run)]


def left_out_by(runs: Sequence[Run]) -> list[Run]:
    """Return the runs of the whole matrix that are not among these."""
    return [run for run in planned() if run not in runs]


def _is_default(run: Run) -> bool:
    if run.suite == SMOKE:
        return True
    if run.suite == "broker":
        return run.broker == COMPLETE_BROKER
    if run.suite == "processes":
        return (run.database, run.broker) == COMPLETE_PAIR
    return run.suite not in ONLY_WITH_ALL
