"""What is run, in which order, on which database and broker."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from tests.environments import NEWEST
from tests.vendors import BROKERS, DATABASES

ROOT = Path(__file__).resolve().parent.parent
PGBOUNCER = "pgbouncer"
SERVERS = ("postgresql", "mariadb", "redis", "rabbitmq", PGBOUNCER)
PAIRS = [("postgresql", broker) for broker in BROKERS] + [("mariadb", "rabbitmq"), ("sqlite", "filesystem")]
LAST_PAIRS = [("postgresql", "filesystem"), ("mariadb", "rabbitmq")]
"""Pairs whose database and whose broker have run with others before."""
KILL_PAIRS = [("postgresql", "redis"), ("postgresql", "rabbitmq"), ("mariadb", "rabbitmq"), ("sqlite", "filesystem")]
KILL_TRIALS = "kill trials"
SECONDS: dict[tuple[str, str | None, str | None], int] = {
    ("database", "postgresql", None): 400, ("database", "mariadb", None): 400, ("database", "sqlite", None): 350,
    ("processes", "postgresql", "rabbitmq"): 300, ("processes", "postgresql", "redis"): 300,
    ("processes", "mariadb", "rabbitmq"): 300, ("processes", "sqlite", "filesystem"): 450,
    ("processes", "postgresql", "filesystem"): 150, ("mutants", "postgresql", "redis"): 250,
    ("broker", "postgresql", "rabbitmq"): 100, ("broker", "postgresql", "redis"): 200,
    ("broker", "postgresql", "filesystem"): 100, ("house", None, None): 150, ("chaos", "postgresql", "rabbitmq"): 100,
    ("browser", "sqlite", None): 60,
    ("admin", "mariadb", None): 90, ("admin", "sqlite", None): 60, ("newest", None, None): 150,
    ("newest", "sqlite", None): 300, ("newest", "postgresql", "redis"): 80, (PGBOUNCER, "postgresql", "redis"): 90,
}  # fmt: skip
"""About how long a run takes: which is begun first goes by it, nothing else."""
_DATABASE_FOLDERS = ("database", "concurrency", "crash_points")
TYPED = ("django_durable_tasks", "tests")


@dataclass(frozen=True, slots=True)
class Run:
    """One command; a run of pytest names the folders of its tests, a check does not."""

    title: str
    suite: str
    command: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    database: str | None = None
    broker: str | None = None
    alone: bool = False
    newest: bool = False  # with the newest Python, Django and Celery, not with the oldest that are supported
    marks: str = ""
    pooled: bool = False  # through PgBouncer, in transaction mode
    without: tuple[str, ...] = ()  # folders inside of ``folders`` that another run has
    last: bool = False  # its tests run on another pair too: it begins after the others, within a limit if one is given

    @property
    def servers(self) -> list[str]:
        """Name the servers, and the interpreter, without which it cannot run; files need none."""
        named = (self.database, self.broker, PGBOUNCER if self.pooled else None)
        return [name for name in named if name in SERVERS] + [NEWEST.name] * self.newest

    def chosen(self, names: frozenset[str]) -> bool:
        """Tell whether `--only names` keeps it: a name is its own, and none is that of a rival of its servers alone."""
        for mine, rivals in ((self.database, DATABASES), (self.broker, BROKERS)):
            if mine and names.intersection(rivals) and mine not in names:
                return False
        return bool(names.intersection({self.suite, self.database, self.broker, *map(_last, self.folders)}))


def planned() -> list[Run]:
    """Give everything that `python -m tests` runs, in order, without what has no tests yet."""
    return [run for run in [*_checks(), *_suites()] if run.command or run.folders]


def kill_trials() -> list[Run]:
    """Give the long kill trials at default settings, on the pairs of the published figures."""
    trials = [_pytest(KILL_TRIALS, ("kill_trials",), database, broker) for database, broker in KILL_PAIRS]
    return [run for run in trials if run.folders]


def in_turn(runs: Sequence[Run], *, alone: bool) -> list[Run]:
    """Give those that need quiet or the others: long ones first, and by turns what computes and what mostly waits.

    Runs that are marked ``last`` come after all others.
    """
    wanted = sorted((run for run in runs if run.alone == alone), key=_seconds, reverse=True)
    first, last = ([run for run in wanted if run.last == late] for late in (False, True))
    computing, waiting = ([run for run in first if (run.broker is not None) == waits] for waits in (False, True))
    return [run for pair in zip_longest(computing, waiting) for run in pair if run is not None] + last


def _seconds(run: Run) -> int:
    return SECONDS.get((run.suite, run.database, run.broker), 0)


def _checks() -> Iterator[Run]:
    tool = str(Path(sys.executable).parent)
    yield Run("ruff check", "checks", (f"{tool}/ruff", "check", "--quiet", "--output-format=concise", "."))
    yield Run(
        "ruff format --check",
        "checks",
        (f"{tool}/ruff", "format", "--check", "--output-format=concise", "--quiet", "."),
    )
    yield Run("mypy --strict", "checks", (f"{tool}/mypy", "--strict", *TYPED))
    yield Run("lint-imports", "checks", (f"{tool}/lint-imports",))


def _suites() -> Iterator[Run]:
    yield _pytest("house", ("house", "unit", "documentation"))
    yield _pytest("database", _DATABASE_FOLDERS, "postgresql")
    for database in ("mariadb", "sqlite"):
        run = _pytest("database", _DATABASE_FOLDERS, database)
        yield replace(run, title=f"{run.title} but for the admin", without=("tests/database/admin",))
        yield replace(_pytest("admin", ("database/admin",), database), last=True)
    for broker in BROKERS:
        yield replace(_pytest("broker", ("broker",), "postgresql", broker), last=broker == "filesystem")
    for database, broker in PAIRS:
        pair = _pytest("processes", ("processes",), database, broker)
        yield replace(pair, last=(database, broker) in LAST_PAIRS)
    yield replace(_pytest("mutants", ("mutants",), "postgresql", "redis"), last=True)
    yield _pytest("chaos", ("chaos",), "postgresql", "rabbitmq")
    yield _pytest("browser", ("browser",), "sqlite")
    pooled = _pytest(PGBOUNCER, ("broker", "processes"), "postgresql", "redis")
    yield replace(pooled, title=f"{pooled.title} -m smoke through PgBouncer", pooled=True, marks="smoke")
    yield _newest(("unit", "documentation"))
    yield _newest(("database",), "sqlite")
    yield _newest(("broker", "processes"), "postgresql", "redis", marks="smoke")


def _newest(names: tuple[str, ...], database: str | None = None, broker: str | None = None, marks: str = "") -> Run:
    run = _pytest("newest", names, database, broker)
    only = f" -m {marks}" if marks else ""
    return replace(run, title=f"{run.title}{only} with the newest versions", newest=True, marks=marks)


def _pytest(suite: str, names: tuple[str, ...], database: str | None = None, broker: str | None = None) -> Run:
    folders = tuple(f"tests/{name}" for name in names if any((ROOT / "tests" / name).rglob("test_*.py")))
    place = " × ".join(filter(None, (database, broker)))
    title = f"pytest {' '.join(folders)}" + (f" on {place}" if place else "")
    return Run(title, suite, (), folders, database, broker)


def _last(folder: str) -> str:
    return folder.rpartition("/")[2]
