"""The contenders, and how each is measured once."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.accounting import Accounts
from benchmarks.peers import tally
from benchmarks.processes import Failed, figures, output, running, wait_until
from benchmarks.servers import Servers, depth

WORKER = [
    "-P",
    "prefork",
    "-c",
    "2",
    "-l",
    "WARNING",
    "--without-gossip",
    "--without-mingle",
    "--without-heartbeat",
    "-n",
]
# Larger than any n, so that no measurement is limited by the window of a queue without a worker.
WIDE_WINDOW = {"QUEUE_WINDOW": 10_000_000, "PAYLOAD_MAX_BYTES": 65_536}
# Without workers no task ends. Therefore the windows are large, and tasks that are not started are
# not republished during the measurement.
UNWORKED = {"QUEUE_WINDOW": 10_000_000, "REPUBLISH_AFTER": 3_600}
_RAN = """
    SELECT count(*), extract(epoch FROM max(completed_at) - min(started_at))::float8, (
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'durable worker%'
    )
    FROM durable_tasks_execution_log WHERE status = 'SUCCESS'
"""
_MESSAGES = """
    SELECT sum(publish_count)::float8 / count(*) FROM durable_tasks_task WHERE publish_count > 0
"""


def patience(n: int) -> float:
    """Return the time limit of a measurement of n, in seconds."""
    return 60 + n / 50


@dataclass
class Ours:
    """This package on PostgreSQL and one broker."""

    servers: Servers
    broker: str
    ready: bool = field(default=False, init=False)
    accounts: Accounts = field(default_factory=Accounts, init=False)
    switched_off: tuple[Any, ...] = field(default=(), init=False)
    """Module, name and value of a condition of this package, without which a mechanism is off."""
    messages: float = field(default=0.0, init=False)
    """The messages per published task of the last call of ``run``."""
    connections: int = field(default=0, init=False)
    """The most connections to the database that the worker had during the last call of ``run``."""

    @property
    def name(self) -> str:
        """The name of the database."""
        return "ours"

    def variable(self, **durable: Any) -> dict[str, str]:
        """Return the environment variable that the project's settings read."""
        given = {
            "database": self.servers.database(self.name),
            "broker": self.servers.broker(self.broker),
            "queue": self.servers.queue("ours"),
            "durable": durable,
            "switched_off": self.switched_off,
        }
        return {
            "BENCHMARK": json.dumps(given),
            "DJANGO_SETTINGS_MODULE": "benchmarks.project.settings",
        }

    def prepare(self) -> None:
        """Create the database, once."""
        if not self.ready:
            self.servers.make_database("ours")
            figures(
                [sys.executable, "-m", "benchmarks.ours", "prepare"], {}, 120, **self.variable()
            )
            self.ready = True

    def profile(self, command: str, n: int) -> str:
        """Return a profile of a command of ``benchmarks.profiling``."""
        self.prepare()
        try:
            program = [sys.executable, "-m", "benchmarks.profiling", command]
            variables = self.variable(**WIDE_WINDOW)
            unsynced = output(
                program,
                {"n": n, "deep": False},
                patience(n),
                **variables,
                PGOPTIONS="-c synchronous_commit=off",
            )
            found = output(program, {"n": n}, patience(n), **variables)
            return (
                f"{found}-- the same with synchronous_commit=off: the difference is the wait for"
                f" the disk\n{unsynced}"
            )
        finally:
            self.servers.clear_broker(self.broker)

    def run_command(
        self, command: str, given: dict[str, Any], seconds: float, **durable: Any
    ) -> float:
        """Run a command of ``benchmarks.ours``; return its seconds."""
        program = [sys.executable, "-m", "benchmarks.ours"]
        self.prepare()
        return float(
            figures([*program, command], given, seconds, **self.variable(**durable))["seconds"]
        )

    def enqueue(
        self, n: int, command: str = "enqueue", task: str = "noop", **durable: Any
    ) -> float:
        """Time ``.delay()``, each in its own transaction or, with the command ``transactions``, in
        transactions of ten calls. ``task``: the name of the function.
        """
        given = {"n": n, "task": task}
        try:
            return self.run_command(command, given, patience(n), **(WIDE_WINDOW | durable))
        finally:
            self.servers.clear_broker(self.broker)

    def bulk(self, n: int) -> float:
        """Time ``schedule_many``."""
        return self.run_command("bulk", {"n": n}, patience(n), **WIDE_WINDOW)

    def dispatch(self, n: int, *, keep: bool = False) -> float:
        """Time the loop of one scheduler from its start until n messages have been published."""
        self.servers.clear_broker(self.broker)
        self.run_command("bulk", {"n": n}, patience(n))
        variable = self.variable(**WIDE_WINDOW)
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            begin = Path(folder, "begin")
            command = [
                sys.executable,
                "-m",
                "benchmarks.ours",
                "loop",
                json.dumps({"begin": str(begin)}),
            ]
            with running(command, **variable) as loop:
                queue = self.servers.queue("ours")
                wait_until(
                    lambda: depth(self.servers, self.broker, queue) >= n,
                    loop,
                    within=patience(n),
                    every=0.01,
                )
                seconds = time.monotonic() - float(begin.read_text())
        if not keep:
            self.servers.clear_broker(self.broker)
        return seconds

    def run(
        self,
        n: int,
        prefetch: int,
        *,
        published: bool,
        task: str = "noop",
        children: int = 2,
        pool: str = "prefork",
        pause: float = 0.0,
        enough: int | None = None,
    ) -> float:
        """Time n tasks with one scheduler and one worker, from the first start to the last success.
        ``task``: the name of the function. ``children``: the number of processes or threads of the
        worker. ``pause``: how long (seconds) each function runs. ``enough``: only this many of the n tasks.
        """
        wanted, within = enough or n, patience(n) + 10 * pause * (enough or n) / children
        if published:
            self.dispatch(n, keep=True)
        else:
            self.servers.clear_broker(self.broker)
            self.run_command("bulk", {"n": n, "task": task, "pause": pause}, patience(n))
        variable = self.variable()
        loop = [sys.executable, "-m", "django", "run_scheduler"]
        worker = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "benchmarks.project",
            "worker",
            *WORKER,
            f"bench-{self.servers.run}@%h",
        ]
        worker += [f"--pool={pool}", f"--concurrency={children}"]
        worker += [f"--prefetch-multiplier={prefetch}"]
        self.connections = 0
        try:
            with (
                running(loop, **variable) as scheduler,
                running(worker, **variable) as process,
                psycopg.connect(self.servers.database("ours"), autocommit=True) as database,
            ):
                with self.accounts.of({scheduler.pid: "scheduler", process.pid: "worker"}) as look:
                    wait_until(
                        lambda: look(self._ran(database)[0]) >= wanted,
                        scheduler,
                        process,
                        within=within,
                    )
                number, seconds = self._ran(database)
                self.messages = self._messages(database)
        finally:
            self.servers.clear_broker(self.broker)
        if number > n:
            raise Failed(f"{number} successes were recorded for {n} tasks")
        return seconds * wanted / number

    @staticmethod
    def _messages(database: psycopg.Connection) -> float:
        found = database.execute(_MESSAGES).fetchone() or (0.0,)
        return float(found[0] or 0.0)

    def _ran(self, database: psycopg.Connection) -> tuple[int, float]:
        found = database.execute(_RAN).fetchone() or (0, 0.0, 0)
        self.connections = max(self.connections, int(found[2]))
        return int(found[0]), float(found[1] or 0.0)


@dataclass
class BareCelery:
    """Celery without this package, on one broker."""

    servers: Servers
    broker: str
    python: str
    accounts: Accounts = field(default_factory=Accounts, init=False)

    def variable(self, folder: str = "") -> dict[str, str]:
        """Return the environment variables that its app reads."""
        return {
            "BENCHMARK_BROKER": self.servers.broker(self.broker),
            "BENCHMARK_QUEUE": self.servers.queue("celery"),
            "BENCHMARK_TALLY": folder,
        }

    def _publish(self, n: int, pause: float = 0.0) -> float:
        command, given = (
            [self.python, "-m", "benchmarks.peers.bare_celery", "publish"],
            {"n": n, "pause": pause},
        )
        return float(figures(command, given, patience(n), **self.variable())["seconds"])

    def enqueue(self, n: int) -> float:
        """Time ``.delay()``."""
        try:
            return self._publish(n)
        finally:
            self.servers.clear_broker(self.broker)

    def run(self, n: int, prefetch: int, *, pause: float = 0.0, enough: int | None = None) -> float:
        """Time n published tasks of one worker, from the first start to the last end. ``pause``: how
        long (seconds) each function runs. ``enough``: only this many of the n tasks.
        """
        wanted = enough or n
        folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self.servers.clear_broker(self.broker)
        self._publish(n, pause)
        command = [
            self.python,
            "-m",
            "celery",
            "-A",
            "benchmarks.peers.bare_celery",
            "worker",
            *WORKER,
            f"bench-{self.servers.run}@%h",
        ]
        command.append(f"--prefetch-multiplier={prefetch}")
        try:
            with (
                running(command, **self.variable(str(folder))) as worker,
                self.accounts.of({worker.pid: "worker"}) as look,
            ):
                wait_until(
                    lambda: look(tally.count(folder)) >= wanted,
                    worker,
                    within=patience(n) + pause * wanted,
                )
                number, seconds = tally.count(folder), tally.seconds(folder)
            return seconds * wanted / number
        finally:
            shutil.rmtree(folder)
            self.servers.clear_broker(self.broker)


@dataclass
class DatabaseQueue:
    """A contender that uses PostgreSQL as its queue: a program with the commands prepare, enqueue,
    bulk and run.
    """

    servers: Servers
    name: str
    program: str
    python: str
    settings: str = ""
    ready: bool = field(default=False, init=False)

    def run_command(self, command: str, n: int, **more: int | str) -> float:
        """Run a command of the peer's program; return its seconds. Creates the database first."""
        program = [self.python, "-m", self.program]
        variables = {
            "BENCHMARK_DATABASE": self.servers.database(self.name),
            "DJANGO_SETTINGS_MODULE": self.settings,
        }
        if not self.ready:
            self.servers.make_database(self.name)
            figures([*program, "prepare"], {}, 120, **variables)
            self.ready = True
        return float(
            figures([*program, command], {"n": n, **more}, patience(n), **variables)["seconds"]
        )
