"""The fleet, the servers and the wires between them, as the faults see them."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from django.db import Error, connections

from tests.chaos import bodies
from tests.chaos.apps import VARIABLE
from tests.chaos.plan import SETTINGS, Plan
from tests.chaos.servers import RabbitMQ, Server
from tests.processes.fleet import Fleet, Program
from tests.processes.proxy import Proxy
from tests.runs import ROOT
from tests.servers import variable_of
from tests.vendors import address
from tests.waiting import until

T = TypeVar("T")
ROLES = ("scheduler", "worker", "web")
SECOND_BROKER = "CHAOS_SECOND_BROKER"
"""The environment variable with the second address of the broker list."""


class Stage:
    """Where a lane plays."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        postgres: Server | None,
        broker: Server | RabbitMQ | None,
        wires: dict[str, Proxy],
    ) -> None:
        self.plan, self.folder, self.postgres, self.broker, self.wires = (
            plan,
            folder,
            postgres,
            broker,
            wires,
        )
        self.random = random.Random(f"{plan.seed}/{plan.broker}")
        self.orders, self.book, self.stop = (
            folder / "rings.json",
            folder / "enqueued.jsonl",
            folder / "stop",
        )
        self.schedulers, self.workers, self.gone = list[Program](), list[Program](), list[Program]()
        self.notes: Counter[str] = Counter()
        self.loader: Program | None = None
        self.roles, self._numbers = dict[str, str](), count(1)
        self.fleet = Fleet(
            folder,
            SETTINGS,
            DJANGO_SETTINGS_MODULE="tests.chaos.settings",
            **{VARIABLE: str(self.orders)},
        )

    # Who plays ------------------------------------------------------------------------------------

    def scheduler(self, **environment: str) -> Program:
        """Start one more scheduler."""
        role = f"scheduler-{next(self._numbers)}"
        program = self.fleet.scheduler(
            **{**self.wired("scheduler"), "CHAOS_ROLE": role, **environment}
        )
        self.roles[program.name] = role
        self.schedulers.append(program)
        return program

    def worker(self, pool: str = "prefork", slots: int = 2, **environment: str) -> Program:
        """Start one more worker."""
        wired = self.wired("worker")
        self.workers.append(self.fleet.worker(pool=pool, slots=slots, **wired, **environment))
        return self.workers[-1]

    def load(self) -> Program:
        """Start the process that asks for tasks."""
        seed = f"{self.plan.seed}/load/{next(self._numbers)}"
        program = Program(
            "load",
            ["-m", "tests.chaos.load", str(self.plan.rate), seed, str(self.book), str(self.stop)],
            {
                "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
                **self.wired("web"),
                VARIABLE: str(self.orders),
            },
            self.folder,
        )
        self.fleet.programs.append(program)
        self.loader = program
        return program

    def wired(self, role: str) -> dict[str, str]:
        """Name the addresses at which a process of this role finds its servers."""
        kinds = {
            "postgresql": self.wires[f"{role} postgresql"],
            self.plan.broker: self.wires[f"{role} broker"],
        }
        addresses = {variable_of(kind): wire.url for kind, wire in kinds.items()}
        return {
            "CHAOS_ROLE": role,
            SECOND_BROKER: self.wires[f"{role} second broker"].url,
            **addresses,
        }

    def shifted(self, seconds: float) -> dict[str, str]:
        """Name what sets the wall clock of a process off."""
        return {"CHAOS_CLOCK": str(seconds), "PYTHONPATH": f"{ROOT / 'tests' / 'chaos' / 'clock'}"}

    @property
    def database_url(self) -> str:
        """Where the database is, without a wire between."""
        return address("postgresql")

    def times(self, number: int) -> int:
        """Return how often a fault strikes, at the pace of this run."""
        return max(1, round(number * self.plan.pace))

    def databases(self) -> list[Proxy]:
        """Give the wires to the database."""
        return [self.wires[f"{role} postgresql"] for role in ROLES]

    def brokers(self) -> list[Proxy]:
        """Give the wires to the broker, by both addresses of the list that each process
        is given.
        """
        return [*self.first_brokers(), *(self.wires[f"{role} second broker"] for role in ROLES)]

    def first_brokers(self) -> list[Proxy]:
        """Give the wires to the broker by the first address of the list."""
        return [self.wires[f"{role} broker"] for role in ROLES]

    def leader(self) -> Program | None:
        """Return the scheduler that leads; waits for one for a while."""
        for _ in range(3):
            try:
                return until(lambda: ask(self.fleet.leading), within=10)
            except AssertionError:
                continue
        return None

    def kill(self, program: Program) -> None:
        """End a process by SIGKILL, and strike it off."""
        program.kill()
        self.notes["kills"] += 1
        self.struck(program)

    def struck(self, program: Program) -> None:
        """Strike a process off that is gone."""
        for group in (self.schedulers, self.workers):
            if program in group:
                group.remove(program)
        self.gone.append(program)

    def mend(self, after: str) -> None:
        """Replace what ended by itself, as a supervisor would; how often that was needed, after
        what, is told.
        """
        if self.loader is not None and not self.loader.alive():
            self.notes["loads that ended by themselves"] += 1
            self.load()
        for program in [one for one in [*self.schedulers, *self.workers] if not one.alive()]:
            scheduler = program in self.schedulers
            self.notes[
                f"{'schedulers' if scheduler else 'workers'} that ended by themselves, {after}"
            ] += 1
            sys.stderr.write(
                f"{program.name} ended by itself, {after}:\n{program.said()[-1500:]}\n"
            )
            self.struck(program)
            if scheduler:
                self.scheduler()
            elif "threads" in program.arguments:
                self.worker("threads", 8)
            else:
                self.worker()

    def plain_workers(self) -> list[Program]:
        """Give the workers whose bodies run in children."""
        return [worker for worker in self.workers if "prefork" in worker.arguments]

    # What happens ---------------------------------------------------------------------------------

    def linger(self, seconds: float) -> None:
        """Let a fault last."""
        end = time.monotonic() + seconds * self.plan.pace
        threading.Event().wait(max(0.0, end - time.monotonic()))

    def again_and_again(self, seconds: float, every: float, act: Callable[[], object]) -> None:
        """Do something every so many seconds, for so long."""
        end = time.monotonic() + seconds * self.plan.pace
        while time.monotonic() < end:
            act()
            threading.Event().wait(every)

    @contextmanager
    def on_the_wire(self, orders: str) -> Iterator[None]:
        """Let every publisher do with its rings what these orders say."""
        spare = self.orders.with_suffix(".new")
        spare.write_text(orders)
        spare.replace(self.orders)
        try:
            yield
        finally:
            self.orders.unlink()

    def enqueue(self, kind: str, task: Any, *args: Any, **options: Any) -> str:
        """Ask for one task on a sound connection, and write it down as acknowledged."""
        row = task.using(**options).schedule(*args)
        with self.book.open("a") as book:
            book.write(f'{{"task": "{row.pk}", "kind": "{kind}"}}\n')
        return str(row.pk)


def ask(question: Callable[[], T]) -> T | None:
    """Ask the database; None where a fault has broken the connection, which is made anew then."""
    try:
        return question()
    except Error:
        connections.close_all()
        return None


def children(program: Program) -> list[int]:
    """Return the children of a worker's first process."""
    try:
        told = Path(f"/proc/{program.process.pid}/task/{program.process.pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in told.split()]


def set_origin(folder: Path) -> None:
    """Agree on the hour with all processes that are started from here on."""
    os.environ[bodies.ORIGIN] = repr(time.time() - time.monotonic())
    os.environ[bodies.LEDGER] = str(folder / "ledger.jsonl")
