"""Workers and schedulers as process groups, which a test may kill, freeze and stop. They are always
ended with the test.
"""

import ctypes
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Self

from django.conf import settings
from django.db import connection

from django_durable_tasks.models import Node, SchedulerLease
from tests.runs import ROOT
from tests.waiting import until

SHORT: Mapping[str, float] = {
    "LEASE": 6,
    "HEARTBEAT": 1.5,
    "NODE_HEARTBEAT": 1,
    "NODE_TIMEOUT": 4,
    "LEADER_LEASE": 2,
    "REPUBLISH_AFTER": 3,
    "POLL": 0.2,
    "BROKER_BACKOFF": 1,
    "RESULT_WRITE_TIMEOUT": 30,
}
STARTING, STOPPING = 90, 60
_numbers = itertools.count(1)


def _die_with_the_tests() -> None:
    """Ask Linux to kill this process when the test process is killed and cannot end it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _sqlite_can_be_written() -> bool:
    with closing(
        sqlite3.connect(connection.settings_dict["NAME"], timeout=2, isolation_level=None)
    ) as file:
        try:
            file.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        file.execute("ROLLBACK")
        return True


class Program:
    """One process with its children as a group of its own. Its output goes to a log file."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        cwd: Path = ROOT,
    ) -> None:
        self.name, self.arguments, self.log = name, list(arguments), folder / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=cwd,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_the_tests,  # noqa: PLW1509 - two system calls, no locks
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """End the group with SIGKILL and wait for it."""
        self.signal(signal.SIGKILL)
        self.process.wait(STOPPING)

    def freeze(self) -> None:
        """Stop the group with SIGSTOP. On SQLite never during a write, which would block all other
        processes.
        """
        until(
            self._stands_still,
            within=STOPPING,
            message=f"{self.name} stands still and lets others write",
        )

    def _stands_still(self) -> bool:
        self.signal(signal.SIGSTOP)
        if connection.vendor != "sqlite" or _sqlite_can_be_written():
            return True
        self.thaw()
        return False

    def thaw(self) -> None:
        """Continue a frozen group."""
        self.signal(signal.SIGCONT)

    def terminate(self) -> int:
        """Send SIGTERM to the first process, as an operator does, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOPPING)

    def alive(self) -> bool:
        """Return whether the first process is running."""
        return self.process.poll() is None

    def output(self) -> str:
        """Return its output so far."""
        return self.log.read_text(errors="replace")

    def node(self) -> Node | None:
        """Return its Node row."""
        found: Node | None = (
            Node.objects.alive().filter(name=self.name).order_by("-started_at").first()
        )
        return found

    def ready(self) -> Self:
        """Wait until it has registered as a node. Raises AssertionError with the end of its log."""

        def registered_or_dead() -> bool:
            return self.node() is not None or not self.alive()

        until(
            registered_or_dead,
            within=STARTING,
            message=f"{self.name} is ready:\n{self.output()[-3000:]}",
        )
        assert self.alive(), f"{self.name} ended:\n{self.output()[-3000:]}"
        return self


class Cluster:
    """The processes of one test or of one test file."""

    def __init__(
        self, folder: Path, short: Mapping[str, object] = SHORT, **environment: str
    ) -> None:
        self.folder, self.programs = folder, list[Program]()
        folder.mkdir(parents=True, exist_ok=True)
        self._environment = {"TEST_DURABLE_TASKS": json.dumps(dict(short)), **environment}

    def worker(
        self,
        *options: str,
        pool: str = "prefork",
        slots: int = 2,
        queues: Sequence[str] = (),
        **environment: str,
    ) -> Program:
        """Start a Celery worker; ``ready()`` waits for it."""
        name = f"worker{next(_numbers)}@{os.environ['TEST_RUN']}"
        names = ",".join(queues or [settings.CELERY_TASK_DEFAULT_QUEUE])
        return self._start(
            name,
            environment,
            "-m",
            "celery",
            "-A",
            "tests.project",
            "worker",
            "-n",
            name,
            "--pool",
            pool,
            "-c",
            str(slots),
            "-Q",
            names,
            "--loglevel",
            "INFO",
            "--without-gossip",
            "--without-mingle",
            *options,
        )

    def scheduler(self, *options: str, **environment: str) -> Program:
        """Start a scheduler; ``ready()`` waits for it."""
        name = f"scheduler{next(_numbers)}@{os.environ['TEST_RUN']}"
        command = ("-m", "django", "run_scheduler", "--node-id", name, *options)
        return self._start(name, environment, *command)

    def beat(self, module: str, folder: Path) -> Program:
        """Start Celery's beat with the settings of this module."""
        own = {"DJANGO_SETTINGS_MODULE": module}
        return self._start(
            f"beat{next(_numbers)}",
            own,
            "-m",
            "celery",
            "-A",
            "tests.project",
            "beat",
            "--loglevel",
            "INFO",
            "--schedule",
            str(folder / "beat"),
            "--pidfile",
            "",
            "--max-interval",
            "1",
        )

    def _start(self, name: str, environment: Mapping[str, str], *arguments: str) -> Program:
        own = {"DJANGO_SETTINGS_MODULE": "tests.settings", "TEST_LOUD": "yes"}
        program = Program(name, arguments, {**own, **self._environment, **environment}, self.folder)
        self.programs.append(program)
        return program

    def leading(self) -> Program | None:
        """Return the scheduler that is the leader, or None."""
        holder = SchedulerLease.objects.values_list("holder", flat=True).first()
        names = (
            set(Node.objects.filter(pk=holder).values_list("name", flat=True)) if holder else set()
        )
        return next(
            (program for program in self.programs if program.name in names and program.alive()),
            None,
        )

    def ready(self) -> Self:
        """Wait until all nodes have registered, and one leads if there is a scheduler."""
        for program in self.programs:
            program.ready()
        if any(program.name.startswith("scheduler") for program in self.programs):
            until(lambda: self.leading() is not None, within=STARTING, message="a scheduler leads")
        return self

    def end(self) -> None:
        """Kill the remaining processes and print the end of each log, which pytest shows if the
        test failed.
        """
        for program in self.programs:
            sys.stdout.write(
                f"--- {program.name},"
                f" {'alive' if program.alive() else 'ended'}:\n{program.output()[-3000:]}\n"
            )
            program.kill()


@contextmanager
def cluster_in(
    folder: Path, short: Mapping[str, object] = SHORT, **environment: str
) -> Iterator[Cluster]:
    """Provide a cluster, and end it in any case."""
    cluster = Cluster(folder, short, **environment)
    try:
        yield cluster
    finally:
        cluster.end()
