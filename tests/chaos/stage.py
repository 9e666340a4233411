"""The cluster, the servers and the proxies between them, as used by the faults."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from django.conf import settings
from django.db import Error, connections

from tests.backends import POOLED_ADDRESS, address, variable_of
from tests.chaos import bodies
from tests.chaos.apps import VARIABLE
from tests.chaos.notified import create_settings
from tests.chaos.plan import CALLBACKS, Plan, further_queues
from tests.chaos.receiver import PORT
from tests.chaos.records import Worker
from tests.chaos.servers import RabbitMQ, Server
from tests.processes.cluster import Cluster, Program
from tests.processes.proxy import Proxy
from tests.runs import ROOT
from tests.waiting import until

T = TypeVar("T")
# Seconds between two heartbeats of the suite: a twentieth of the shortest stall that it must see.
BEAT = 0.5
NEVER = float("inf")
READY = " ready."
"""The end of the line with which a worker reports that it consumes its queues."""
ROLES = ("scheduler", "worker", "web")
SECOND_BROKER, INDEX = "CHAOS_SECOND_BROKER", "CHAOS_INDEX"
"""The environment variables with the second address of the broker list, and with the address of the
Redis that contains the due index.
"""


class Stage:
    """The environment of a run."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        database: Server | None,
        broker: Server | RabbitMQ | None,
        proxies: dict[str, Proxy],
        pooler: str | None = None,
    ) -> None:
        self.plan, self.folder, self.database, self.broker, self.proxies, self.pooler = (
            plan,
            folder,
            database,
            broker,
            proxies,
            pooler,
        )
        self.random = random.Random(f"{plan.seed}/{plan.broker}")
        self.orders, self.book, self.stop = (
            folder / "orders.json",
            folder / "enqueued.jsonl",
            folder / "stop",
        )
        self.schedulers, self.workers, self.gone = list[Program](), list[Program](), list[Program]()
        self.notes: Counter[str] = Counter()
        self.loader: Program | None = None
        self.receiver: Program | None = None
        self.callbacks = ""
        self.roles, self._numbers = dict[str, str](), count(1)
        self._replacements = dict[str, Callable[[], Program]]()
        self.watch = Watch()
        self.cluster = Cluster(
            folder,
            plan.settings,
            DJANGO_SETTINGS_MODULE="tests.chaos.settings",
            **{VARIABLE: str(self.orders)},
        )

    # Processes ------------------------------------------------------------------------------------

    def scheduler(self, **environment: str) -> Program:
        """Start another scheduler."""
        role = f"scheduler-{next(self._numbers)}"
        program = self.cluster.scheduler(
            **{**self.wired("scheduler"), "CHAOS_ROLE": role, **environment}
        )
        self.roles[program.name] = role
        self.schedulers.append(program)
        return program

    def worker(
        self, pool: str = "prefork", slots: int = 2, queues: Sequence[str] = (), **environment: str
    ) -> Program:
        """Start another worker. Without ``queues`` it serves those of the load; on several workers of
        different pools only one with threads serves the further queues.
        """
        wired, default = self.wired("worker"), settings.CELERY_TASK_DEFAULT_QUEUE
        further = self.plan.configuration is not None or pool == "threads"
        served = list(queues) or [
            default,
            *(further_queues(default, self.plan.broker) if further else ()),
        ]
        own = {**wired, **environment}
        program = self.cluster.worker(pool=pool, slots=slots, queues=served, **own)
        self._replacements[program.name] = lambda: self.worker(pool, slots, queues, **environment)
        self.workers.append(program)
        unknown = own["CHAOS_ROLE"] not in bodies.ROLES_THAT_KNOW
        self.watch.add(program, slots, served, [bodies.REMOVED] if unknown else [])
        return program

    def replace(self, program: Program) -> Program:
        """Start another worker of the same kind."""
        return self._replacements[program.name]()

    def start_workers(self, **environment: str) -> list[Program]:
        """Start the workers of the plan."""
        drawn = self.plan.configuration
        if drawn is None:
            return [self.worker(), self.worker(), self.worker("threads", 8)]
        return [self.worker(drawn.pool, drawn.slots, **environment) for _ in range(drawn.workers)]

    def load(self) -> Program:
        """Start the process that creates tasks."""
        seed = f"{self.plan.seed}/load/{next(self._numbers)}"
        program = Program(
            "load",
            ["-m", "tests.chaos.load", str(self.plan.rate), seed, str(self.book), str(self.stop)],
            {
                "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
                **self.wired("web"),
                CALLBACKS: self.callbacks,
                VARIABLE: str(self.orders),
            },
            self.folder,
        )
        self.cluster.programs.append(program)
        self.loader = program
        return program

    def receive(self) -> None:
        """Start the receiver of callbacks and notifications, and create the settings."""
        arguments = ["-m", "tests.chaos.receiver", str(self.folder), self.plan.seed]
        self.receiver = Program("receiver", arguments, {}, self.folder)
        port = self.folder / PORT
        until(port.exists, within=60, message="the receiver listens")
        self.callbacks = create_settings(f"http://127.0.0.1:{port.read_text()}", self.folder)

    def end(self) -> None:
        """End all processes of this run."""
        self.watch.end()
        self.cluster.end()
        if self.receiver is not None:
            self.receiver.kill()

    def wired(self, role: str) -> dict[str, str]:
        """Return the environment variables with the server addresses for a process of this role."""
        found = {"CHAOS_ROLE": role}
        if (proxy := self.proxies.get(f"{role} database")) is not None:
            name = POOLED_ADDRESS if self.plan.pooled else variable_of(self.plan.database)
            found[name] = proxy.url
        if (proxy := self.proxies.get(f"{role} broker")) is not None:
            found[variable_of(self.plan.broker)] = proxy.url
            found[SECOND_BROKER] = self.proxies[f"{role} second broker"].url
        if self.plan.broker == "redis":  # faults of the broker also concern the due index
            found[INDEX] = self.proxies[f"{role} broker"].url
        return found

    def shifted(self, seconds: float) -> dict[str, str]:
        """Return the environment variables that shift the wall clock of a process."""
        return {"CHAOS_CLOCK": str(seconds), "PYTHONPATH": f"{ROOT / 'tests' / 'chaos' / 'clock'}"}

    @property
    def database_url(self) -> str:
        """Return the address of the database, without a proxy."""
        return address(self.plan.database)

    def times(self, number: int) -> int:
        """Return how often a fault is repeated, at the pace of this run."""
        return max(1, round(number * self.plan.pace))

    def databases(self) -> list[Proxy]:
        """Return the proxies of the database."""
        return [self.proxies[f"{role} database"] for role in ROLES]

    def brokers(self) -> list[Proxy]:
        """Return the proxies of the broker, by both addresses of the list that each process is
        given.
        """
        return [*self.first_brokers(), *(self.proxies[f"{role} second broker"] for role in ROLES)]

    def first_brokers(self) -> list[Proxy]:
        """Return the proxies of the broker's first address."""
        return [self.proxies[f"{role} broker"] for role in ROLES]

    def leader(self) -> Program | None:
        """Return the scheduler that leads. Waits for one for a while."""
        for _ in range(3):
            try:
                return until(lambda: query(self.cluster.leading), within=30)
            except AssertionError:
                continue
        return None

    def kill(self, program: Program) -> None:
        """End a process with SIGKILL, and remove it from the list."""
        program.kill()
        self.notes["kills"] += 1
        self.forget(program)

    def forget(self, program: Program) -> None:
        """Remove an ended process from the list."""
        for group in (self.schedulers, self.workers):
            if program in group:
                group.remove(program)
        self.gone.append(program)

    def mend(self, after: str) -> None:
        """Replace processes that ended unexpectedly, as a supervisor would do. How often that was
        needed, and after what, is reported. A load that was stopped is not replaced.
        """
        if self.loader and not self.loader.alive() and not self.stop.exists():
            self.notes["loads that ended by themselves"] += 1
            self.load()
        for program in [one for one in [*self.schedulers, *self.workers] if not one.alive()]:
            scheduler = program in self.schedulers
            self.notes[
                f"{'schedulers' if scheduler else 'workers'} that ended by themselves, {after}"
            ] += 1
            sys.stderr.write(
                f"{program.name} ended by itself, {after}:\n{program.output()[-1500:]}\n"
            )
            self.forget(program)
            if scheduler:
                self.scheduler()
            else:
                self.replace(program)

    def plain_workers(self) -> list[Program]:
        """Return the workers whose bodies run in child processes."""
        return [worker for worker in self.workers if "prefork" in worker.arguments]

    # Events ---------------------------------------------------------------------------------------

    def linger(self, seconds: float) -> None:
        """Wait for the duration of a fault."""
        end = time.monotonic() + seconds * self.plan.pace
        threading.Event().wait(max(0.0, end - time.monotonic()))

    def repeatedly(self, seconds: float, every: float, act: Callable[[], object]) -> None:
        """Call the function every `every` seconds, for `seconds` seconds."""
        end = time.monotonic() + seconds * self.plan.pace
        while time.monotonic() < end:
            act()
            threading.Event().wait(every)

    @contextmanager
    def with_orders(self, orders: str) -> Iterator[None]:
        """Make every publisher follow these orders with its messages."""
        new_file = self.orders.with_suffix(".new")
        new_file.write_text(orders)
        new_file.replace(self.orders)
        try:
            yield
        finally:
            self.orders.unlink()

    def enqueue(self, kind: str, task: Any, *args: Any, **options: Any) -> str:
        """Create one task on an undisturbed connection, and record it as acknowledged."""
        row = task.using(**options).schedule(*args)
        with self.book.open("a") as book:
            book.write(f'{{"task": "{row.pk}", "kind": "{kind}"}}\n')
        return str(row.pk)


class Watch:
    """Records, in a thread, when each worker could run tasks, and its own heartbeat, which is late
    when this machine has no processor for the suite.
    """

    def __init__(self) -> None:
        self.workers, self.beats = list[Worker](), list[float]()
        self._programs = list[Program]()
        self._stop = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def add(
        self, program: Program, slots: int, queues: Sequence[str], unknown: Sequence[str]
    ) -> None:
        """Watch a worker."""
        self.workers.append(
            Worker(program.process.pid, slots, frozenset(queues), NEVER, NEVER, frozenset(unknown))
        )
        self._programs.append(program)

    def retire(self, program: Program) -> None:
        """Record that a worker starts no more tasks from now on."""
        place = self._programs.index(program)
        self.workers[place] = replace(self.workers[place], over=bodies.now())

    def end(self) -> None:
        """End the thread."""
        self._stop.set()

    def seen(self) -> tuple[Worker, ...]:
        """Return the workers that could run tasks, those that still can until now."""
        now = bodies.now()
        return tuple(
            replace(one, over=min(one.over, now)) for one in self.workers if one.began < NEVER
        )

    def _run(self) -> None:
        while not self._stop.wait(BEAT):
            self.beats.append(bodies.now())
            for place, program in enumerate(self._programs):
                worker = self.workers[place]
                if worker.over < NEVER:
                    continue
                if not program.alive():
                    self.workers[place] = replace(worker, over=bodies.now())
                elif worker.began == NEVER and READY in program.output():
                    self.workers[place] = replace(worker, began=bodies.now())


def query(question: Callable[[], T]) -> T | None:
    """Query the database. Returns None if a fault has broken the connection, which is then opened
    again.
    """
    try:
        return question()
    except Error:
        connections.close_all()
        return None


def children(program: Program) -> list[int]:
    """Return the children of a worker's first process."""
    try:
        pids = Path(f"/proc/{program.process.pid}/task/{program.process.pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in pids.split()]


def set_origin(folder: Path) -> None:
    """Set the common start time for all processes that are started from now on."""
    os.environ[bodies.ORIGIN] = repr(time.time() - time.monotonic())
    os.environ[bodies.LEDGER] = str(folder / "ledger.jsonl")
