"""What is run, in which order, on which database and broker."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from tests.vendors import BROKERS, DATABASES

ROOT = Path(__file__).resolve().parent.parent
SERVERS = ("postgresql", "mariadb", "redis", "rabbitmq")
PAIRS = [("postgresql", broker) for broker in BROKERS] + [("mariadb", "rabbitmq"), ("sqlite", "filesystem")]
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
}  # fmt: skip
"""About how long a run takes: which is begun first goes by it, nothing else."""
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

    @property
    def servers(self) -> list[str]:
        """Name the servers without which it cannot run; files need none."""
        return [name for name in (self.database, self.broker) if name in SERVERS]

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
    """Give those that need quiet or the others: long ones first, and by turns what computes and what mostly waits."""
    wanted = sorted((run for run in runs if run.alone == alone), key=_seconds, reverse=True)
    computing, waiting = ([run for run in wanted if (run.broker is not None) == waits] for waits in (False, True))
    return [run for pair in zip_longest(computing, waiting) for run in pair if run is not None]


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
    for database in DATABASES:
        yield _pytest("database", ("database", "concurrency", "crash_points"), database)
    for broker in BROKERS:
        yield _pytest("broker", ("broker",), "postgresql", broker)
    for database, broker in PAIRS:
        yield _pytest("processes", ("processes",), database, broker)
    yield _pytest("mutants", ("mutants",), "postgresql", "redis")
    yield _pytest("chaos", ("chaos",), "postgresql", "rabbitmq")
    yield _pytest("browser", ("browser",), "sqlite")


def _pytest(suite: str, names: tuple[str, ...], database: str | None = None, broker: str | None = None) -> Run:
    folders = tuple(f"tests/{name}" for name in names if any((ROOT / "tests" / name).rglob("test_*.py")))
    place = " × ".join(filter(None, (database, broker)))
    title = f"pytest {' '.join(folders)}" + (f" on {place}" if place else "")
    return Run(title, suite, (), folders, database, broker)


def _last(folder: str) -> str:
    return folder.rpartition("/")[2]
