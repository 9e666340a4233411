"""The runs of `python -m tests` without `--all`: the part of the matrix that is worth its time
before each commit.

Everything runs once on PostgreSQL. The tests that depend on the database also run on MariaDB and
SQLite. One broker and one pair of processes run completely, and the tests marked `smoke` on each
other pair. Versions, crash points, mutants, chaos, the portable tests on further databases and the
complete suites of the other pairs need `--all`, which also repeats races and generated examples
more often (`tests.repetitions`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.runs import PAIRS, PORTABLE, Run, planned, smoke

COMPLETE_BROKER = "redis"
"""It has the most tests of its own: those of the due index and of its notifications."""
COMPLETE_PAIR = ("postgresql", "rabbitmq")
POOLED_PAIR = ("postgresql", "redis")
"""The run through PgBouncer is the smoke set of this pair."""
ONLY_WITH_ALL = {"chaos", "crash_points", "mutants", "newest", PORTABLE}


def default_runs() -> list[Run]:
    """Return the runs without `--all`."""
    chosen = [*filter(_is_default, planned()), *_smoke_runs()]
    return [replace(run, few=True) for run in chosen]


def left_out_by(runs: Sequence[Run]) -> list[Run]:
    """Return the runs of the whole matrix that are not among these."""
    return [run for run in planned() if run not in runs]


def _is_default(run: Run) -> bool:
    if run.suite == "broker":
        return run.broker == COMPLETE_BROKER
    if run.suite == "processes":
        return (run.database, run.broker) == COMPLETE_PAIR
    return run.suite not in ONLY_WITH_ALL


def _smoke_runs() -> Iterator[Run]:
    """Yield the smoke runs of each pair of which a suite does not run completely."""
    for database, broker in PAIRS:
        wanted = {
            "broker": database == "postgresql" and broker != COMPLETE_BROKER,
            "processes": (database, broker) != COMPLETE_PAIR,
        }
        if (database, broker) != POOLED_PAIR:
            yield smoke(tuple(name for name in wanted if wanted[name]), database, broker)
