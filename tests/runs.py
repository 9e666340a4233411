"""The runs of the test matrix: commands with their databases and brokers, and the order in which
they begin.
"""

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

from tests.backends import BROKERS, DATABASES
from tests.durations import CHECK_SECONDS, SECONDS
from tests.environments import ALTERNATIVES, NEWEST, OTHERS

ROOT = Path(__file__).resolve().parent.parent
PGBOUNCER = "pgbouncer"
# Servers that a run uses instead of the one with this name.
WHEELS = {"postgresql-wheel": "postgresql", "valkey-wheel": "redis"}
SERVERS = ("postgresql", "mariadb", "redis", "rabbitmq", PGBOUNCER)
PAIRS = [("postgresql", broker) for broker in BROKERS] + [
    ("mariadb", "rabbitmq"),
    ("sqlite", "filesystem"),
]
COMPLETE_BROKER = "redis"
"""It has the most tests of its own: those of the due index and of its notifications."""
COMPLETE_PAIR = ("postgresql", "rabbitmq")
"""The other pairs run completely after all else, and their smoke tests before that."""
POOLED_PAIR = ("postgresql", "redis")
"""The run through PgBouncer is the smoke set of this pair."""
KILL_PAIRS = [
    ("postgresql", "redis"),
    ("postgresql", "rabbitmq"),
    ("mariadb", "rabbitmq"),
    ("sqlite", "filesystem"),
]
KILL_TRIALS = "kill trials"
SMOKE = "smoke"
PORTABLE = "portable"
_DATABASE_FOLDERS = ("database", "concurrency")
TYPED = ("django_durable_tasks", "tests", "benchmarks")


@dataclass(frozen=True, slots=True)
class Run:
    """One command. A run of pytest names the folders of its tests, a check does not."""

    title: str
    suite: str
    command: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    database: str | None = None
    broker: str | None = None
    # it measures time or interrupts processes, so it begins after the others, and no more runs
    # than processors are beside it
    quiet: bool = False
    # of `tests.environments`; None: the one with the oldest supported Django and Celery
    environment: str | None = None
    marks: str = ""
    pooled: bool = False  # through PgBouncer, in transaction mode
    # its tests run on another pair too: it begins after the others, within a time limit if given
    last: bool = False
    share: float = 1.0  # the part of its suite that ``folders`` name, for the expected duration
    may_be_empty: bool = False  # a part of a suite may have no test for this database or broker
    # races and generated examples are repeated less; it is the same run of the matrix
    few: bool = field(default=False, compare=False)

    @property
    def servers(self) -> list[str]:
        """Return the servers and the interpreter that it needs; files need none."""
        named = [self.database, self.broker, PGBOUNCER if self.pooled else None]
        if self.environment == ALTERNATIVES.name:
            named = [*WHEELS]
        return [name for name in [*named, self.environment] if name in {*SERVERS, *WHEELS, *OTHERS}]

    @property
    def seconds(self) -> float:
        """Return the expected duration in seconds."""
        known = (
            SECONDS.get((self.suite, self.database, self.broker), 0)
            if self.folders
            else CHECK_SECONDS
        )
        return known * self.share

    @property
    def by_hand(self) -> str:
        """Return the shell command that runs it alone, in the root of the project."""
        if self.environment or self.pooled or not self.folders:
            return f'make test ARGS="--only {self.suite}"'
        marks = f" -m {shlex.quote(self.marks)}" if self.marks else ""
        place = f"TEST_DATABASE={self.database or 'sqlite'} TEST_BROKER={self.broker or 'memory'}"
        return f"{place} .venv/bin/python -m pytest{marks} {' '.join(self.folders)}"

    def chosen(self, names: frozenset[str]) -> bool:
        """Return whether `--only names` keeps it: one name is its own, and none is that of another
        server of the same kind.
        """
        for mine, rivals in ((self.database, DATABASES), (self.broker, BROKERS)):
            if mine and names.intersection(rivals) and mine not in names:
                return False
        return bool(
            names.intersection({self.suite, self.database, self.broker, *map(_last, self.folders)})
        )


def planned() -> list[Run]:
    """Return the whole matrix of `python -m tests --all`, without suites that have no tests yet."""
    return [run for run in [*_checks(), *_suites()] if run.command or run.folders]


def smoke(names: tuple[str, ...], database: str, broker: str) -> Run:
    """Return the tests of these folders with the mark `smoke`, on one pair."""
    return _marked(_pytest(SMOKE, names, database, broker), "smoke")


def _smoke_runs() -> Iterator[Run]:
    """Yield the smoke runs of each pair of which a suite does not run completely at first."""
    for database, broker in PAIRS:
        wanted = {
            "broker": database == "postgresql" and broker != COMPLETE_BROKER,
            "processes": (database, broker) != COMPLETE_PAIR,
        }
        if (database, broker) != POOLED_PAIR:
            yield smoke(tuple(name for name in wanted if wanted[name]), database, broker)


def kill_trials() -> list[Run]:
    """Return the long kill trials with default settings, on the pairs of the published figures."""
    trials = [
        _pytest(KILL_TRIALS, ("kill_trials",), database, broker) for database, broker in KILL_PAIRS
    ]
    return [run for run in trials if run.folders]


def in_turn(runs: Sequence[Run], *, quiet: bool) -> list[Run]:
    """Return the runs that need quiet, or the others: long ones first, alternating between
    computing and waiting ones.

    Runs that are marked ``last`` come after all others.
    """
    wanted = sorted(
        (run for run in runs if run.quiet == quiet), key=lambda run: run.seconds, reverse=True
    )
    first, last = ([run for run in wanted if run.last == late] for late in (False, True))
    computing, waiting = (
        [run for run in first if (run.broker is not None) == waits] for waits in (False, True)
    )
    return [
        run for pair in zip_longest(computing, waiting) for run in pair if run is not None
    ] + last


def _checks() -> Iterator[Run]:
    tool = str(Path(sys.executable).parent)
    yield Run(
        "ruff check", "checks", (f"{tool}/ruff", "check", "--quiet", "--output-format=concise", ".")
    )
    yield Run(
        "ruff format --check",
        "checks",
        (f"{tool}/ruff", "format", "--check", "--output-format=concise", "--quiet", "."),
    )
    yield Run("mypy --strict", "checks", (f"{tool}/mypy", "--strict", *TYPED))
    yield Run("lint-imports", "checks", (f"{tool}/lint-imports",))


def _suites() -> Iterator[Run]:
    for name in ("architecture", "unit", "documentation"):
        yield _pytest(name, (name,))
    yield _pytest("database", _DATABASE_FOLDERS, "postgresql")
    for database in ("mariadb", "sqlite"):
        # what is repeated often on PostgreSQL is repeated less here
        here = _marked(_pytest("database", _DATABASE_FOLDERS, database), "not portable")
        yield replace(here, few=True)
        yield replace(_marked(_pytest(PORTABLE, ("database",), database), "portable"), last=True)
    for database in DATABASES:
        points = _pytest("crash_points", ("crash_points",), database)
        yield replace(points, quiet=True, last=database != "postgresql")
    for broker in BROKERS:
        run = _pytest("broker", ("broker",), "postgresql", broker)
        yield replace(run, last=broker != COMPLETE_BROKER)
    for pair in PAIRS:
        yield replace(_pytest("processes", ("processes",), *pair), last=pair != COMPLETE_PAIR)
    yield from _smoke_runs()
    yield _quiet(_pytest("mutants", ("mutants",), "postgresql", "redis"))
    yield _quiet(_pytest("chaos", ("chaos",), "postgresql", "rabbitmq"))
    yield _pytest("browser", ("browser",), "sqlite")
    pooled = _marked(_pytest(PGBOUNCER, ("broker", "processes"), "postgresql", "redis"), "smoke")
    yield replace(pooled, title=f"{pooled.title} through PgBouncer", pooled=True)
    yield _other(NEWEST.name, ("unit", "documentation"))
    yield replace(_other(NEWEST.name, ("database",), "sqlite"), last=True)
    for name in OTHERS:
        yield _other(name, ("broker", "processes"), "postgresql", "redis", marks="smoke")


def _other(
    name: str,
    names: tuple[str, ...],
    database: str | None = None,
    broker: str | None = None,
    marks: str = "",
) -> Run:
    """Return a run in another environment. Its suite has the name of the environment."""
    run = _pytest(name, names, database, broker)
    run = _marked(run, marks) if marks else run
    versions = {
        NEWEST.name: "the newest versions",
        ALTERNATIVES.name: "Django 6.0, psycopg 2, PostgreSQL 18 and Valkey",
    }
    title = f"{run.title} with {versions[name]}"
    return replace(run, title=title, environment=name, few=True)


def _quiet(run: Run) -> Run:
    return replace(run, quiet=True)


def _marked(run: Run, marks: str) -> Run:
    return replace(run, title=f"{run.title} -m {shlex.quote(marks)}", marks=marks)


def _pytest(
    suite: str, names: tuple[str, ...], database: str | None = None, broker: str | None = None
) -> Run:
    folders = tuple(
        f"tests/{name}" for name in names if any((ROOT / "tests" / name).rglob("test_*.py"))
    )
    place = " × ".join(filter(None, (database, broker)))
    title = f"pytest {' '.join(folders)}" + (f" on {place}" if place else "")
    return Run(title, suite, (), folders, database, broker)


def _last(folder: str) -> str:
    return folder.rpartition("/")[2]
