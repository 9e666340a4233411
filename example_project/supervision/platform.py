"""A small production setup: the site, two schedulers, two workers, and the customers' servers."""

import itertools
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from billing.tasks import build_usage_report
from django.conf import settings
from django.utils import timezone

from django_durable_tasks.models import Node, SchedulerLease, Task
from supervision.processes import STOPPING, Interrupted, Patience, Program, free_port, listens

STARTING = 60.0


class NotStarted(Exception):
    """A process did not start; the message ends with its output."""


class Platform:
    """All processes, as a context manager that ends them in any case."""

    def __init__(self, patience: Patience, log: Callable[[str], None], port: int = 0) -> None:
        self.patience, self.log, self.port = patience, log, free_port(port)
        self.programs: list[Program] = []
        self.problems: list[str] = []
        self._logs = Path(settings.FOLDER) / "logs"
        self._environment = {"BILLING_FOLDER": str(settings.FOLDER), "PYTHONUNBUFFERED": "1"}
        self._numbers = {kind: itertools.count(1) for kind in ("scheduler", "worker")}

    def __enter__(self) -> Self:
        self.patience.on_second_signal = self.kill
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is Interrupted:
            self.log(
                "Stopping: runs in progress may end. A second Ctrl-C kills everything at once."
            )
        self.stop()

    @property
    def address(self) -> str:
        """The URL of the site."""
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        """Start everything and wait until it is ready; raises NotStarted and Interrupted."""
        self._run("site", "manage.py", "runserver", "--noreload", f"127.0.0.1:{self.port}")
        self._run("customers", "-m", "customers.server", str(settings.CUSTOMERS_PORT))
        for _ in range(2):
            self.add_scheduler()
            self.add_worker()
        for program in self.programs:
            self.wait_ready(program)

    def add_scheduler(self) -> Program:
        """Start one more scheduler."""
        name = f"scheduler-{next(self._numbers['scheduler'])}"
        return self._run(name, "manage.py", "run_scheduler", "--node-id", name)

    def add_worker(self) -> Program:
        """Start one more Celery worker with two processes."""
        name = f"worker-{next(self._numbers['worker'])}"
        quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
        return self._run(
            name,
            "-m",
            "celery",
            "-A",
            "config",
            "worker",
            "-n",
            f"{name}@billing",
            "-c",
            "2",
            "-l",
            "INFO",
            *quiet,
        )

    def _run(self, name: str, *arguments: str) -> Program:
        program = Program(name, arguments, self._environment, self._logs)
        self.programs.append(program)
        return program

    def wait_ready(self, program: Program) -> None:
        """Wait until a process is ready; raises NotStarted and Interrupted."""

        def there() -> bool:
            return not program.alive or self.is_ready(program)

        if not self.patience.until(there, STARTING) or not program.alive:
            raise NotStarted(
                f"{program.name} did not start:\n{program.log.read_text(errors='replace')[-2000:]}"
            )

    def is_ready(self, program: Program) -> bool:
        """Return whether a process is ready."""
        ports = {"site": self.port, "customers": settings.CUSTOMERS_PORT}
        if program.name in ports:
            return listens(ports[program.name])
        return self.node_of(program) is not None

    def node_of(self, program: Program) -> Node | None:
        """Return the Node of a scheduler or worker."""
        return Node.objects.alive().filter(pid=program.pid).order_by("-started_at").first()

    def leader(self) -> tuple[Program | None, int]:
        """Return the scheduler that is the leader, and its term."""
        lease = SchedulerLease.objects.get(name="leader")
        node = (
            Node.objects.filter(pk=lease.holder).first()
            if lease.expires_at > timezone.now()
            else None
        )
        pid = node.pid if node else None
        return next(
            (program for program in self.programs if program.pid == pid and program.alive), None
        ), lease.term

    def busy_worker(self) -> Program | None:
        """Return a worker that is executing a long run."""
        before = timezone.now() - timedelta(seconds=0.5)
        long_run = (
            Task.objects.running()
            .filter(name=build_usage_report.name, started_at__lt=before)
            .first()
        )
        if long_run is None:
            return None
        node = Node.objects.alive().filter(pk=long_run.node).first()
        return next(
            (program for program in self.programs if node and program.pid == node.pid), None
        )

    def runs_of(self, program: Program) -> int:
        """Return how many runs a worker has in progress."""
        node = self.node_of(program)
        return Task.objects.running().filter(node=node.pk).count() if node else 0

    def fallen(self) -> list[Program]:
        """Return the processes that ended without being killed."""
        return [program for program in self.programs if not program.alive and not program.killed]

    def kill(self) -> None:
        """End everything at once."""
        for program in self.programs:
            program.signal_group(signal.SIGKILL)

    def stop(self) -> None:
        """Stop everything: with SIGTERM, then by force; `problems` lists where force was
        required.
        """
        for program in self.programs:
            program.ask_to_stop()
        deadline = time.monotonic() + STOPPING
        endings = [program.wait_stopped(deadline) for program in self.programs]
        self.problems += [problem for problem in endings if problem]
