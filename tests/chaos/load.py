"""`python -m tests.chaos.load RATE SEED FILE STOP`: creates tasks of every kind, and records what
was acknowledged.

It represents a web process of the project: its transactions are cut, its database is unavailable,
its broker freezes. It catches up on calls that it missed meanwhile. It ends when the file STOP
exists.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.db import Error, connections, transaction
from django.utils import timezone

from tests.chaos.configuration import VARIABLE, Configuration
from tests.chaos.plan import AT_ONCE, CALLBACKS, further_queues

FANS = 40
MOST_AT_ONCE = 60
SHARES = ((0.01, 0.05), (0.1, 0.25), (1.0, 0.25), (5.0, 0.15), (20.0, 0.15), (90.0, 0.15))
"""Durations of functions (seconds), and which part of the work each of them is."""
LOADED = 0.45
"""Which part of the workers' capacity the functions of the load use."""
SHORT_PER_SLOT = 2.0
"""The most short tasks per second for each task that the workers run at once."""
OPEN_PER_SLOT = 100
"""The most open tasks of the load for each task that the workers run at once."""
# Seconds between two counts of the open tasks.
LOOK = 2.0
MOST_PER_SECOND = 4.0
"""The most tasks of one duration per second, because two cores run all processes."""
HOW = ("fail", "fail", "retry", "reject", "ignore", *["succeed"] * 14)
"""How the tasks of a batch end their first attempt."""


class Load:
    """The process that creates tasks."""

    def __init__(self, rate: float, seed: str, book: Path, stop: Path) -> None:
        from tests.chaos import bodies

        self.bodies, self.rate, self.stop = bodies, rate, stop
        self.random = random.Random(seed)
        self.book = os.open(book, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self.queues = further_queues(settings.CELERY_TASK_DEFAULT_QUEUE, settings.BROKER)
        self.made, self.keys, self.turn = 0, list[str](), self.random.randrange(len(self.queues))
        self.kinds: list[tuple[int, str, Callable[[], Iterable[Any]]]] = [
            (44, "plain", self.plain),
            (10, "in a transaction", self.in_a_transaction),
            (8, "many", self.many),
            (6, "in many queues", self.in_many_queues),
            (8, "later", self.later),
            (8, "stumbling", self.stumbling),
            (3, "hopeless", self.hopeless),
            (6, "atomic", self.atomic),
            (3, "iterating", self.iterating),
            (4, "to be cancelled", self.to_be_cancelled),
            (3, "cancelling", self.cancel),
            (4, "diamond", self.diamond),
            (2, "long", self.long),
            (1, "fan", self.fan),
            (8, "callback", self.callback),
            (6, "batched", self.batched),
            (3, "batched many", self.batched_many),
        ]
        self.pool, self.most_open, self.looks_at, self.crowded = "prefork", 0, 0.0, False
        self.began = timezone.now()
        # When the next task of a duration is created, the duration, and how many are per second.
        self.lasting_tasks = list[tuple[float, float, float]]()
        if VARIABLE in os.environ:
            self.draw(Configuration.of(os.environ[VARIABLE]))

    def draw(self, drawn: Configuration) -> None:
        """Use the kinds and durations of a campaign, at a rate that its workers can serve."""
        self.rate = min(self.rate, SHORT_PER_SLOT * drawn.capacity)
        scale, now = drawn.longest / SHARES[-1][0], time.monotonic()
        for longest, share in SHARES:
            seconds = max(0.01, longest * scale)
            rate = min(LOADED * drawn.capacity * share / seconds, MOST_PER_SECOND)
            self.lasting_tasks.append((now + self.random.expovariate(rate), seconds, rate))
        self.kinds = [one for one in self.kinds if one[1] != "callback"]
        self.kinds += [(8, "failing in a batch", self.stumbling_in_batches)] * drawn.failing_batches
        self.kinds += [(3, "overridden", self.overridden)] * drawn.overridden_call
        self.limited, self.pool = bool(drawn.named_limit), drawn.pool
        self.most_open = OPEN_PER_SLOT * drawn.capacity

    def lasting(self, seconds: float) -> Iterable[Any]:
        """Create a task that runs for `seconds`."""
        functions = [self.bodies.work, self.bodies.report, self.bodies.use_the_database]
        functions += [self.bodies.work_within_a_limit] * self.limited
        functions += [self.bodies.wait] * (self.pool != "gevent")
        return [self.random.choice(functions).delay(seconds).id]

    def create_lasting_tasks(self) -> None:
        """Create the tasks of each duration whose time has come."""
        for place, (due, seconds, rate) in enumerate(self.lasting_tasks):
            if time.monotonic() >= due:
                self.ask(f"lasting {seconds:g} s", partial(self.lasting, seconds))
                due = time.monotonic() + self.random.expovariate(rate)
                self.lasting_tasks[place] = (due, seconds, rate)

    def is_crowded(self) -> bool:
        """Return whether so many tasks of a campaign's load are open that they would not end on a
        busy machine.
        """
        if self.most_open and time.monotonic() >= self.looks_at:
            from django_durable_tasks.models import Task

            self.looks_at = time.monotonic() + LOOK
            try:
                created = Task.objects.open().filter(created_at__gte=self.began)
                self.crowded = created.count() > self.most_open
            except Error:
                connections.close_all()
        return self.crowded

    def stumbling_in_batches(self) -> Iterable[Any]:
        """Create tasks that run in batches, some of which end by an exception or kill their child.
        Other pools have no child that can be killed alone.
        """
        number = self.random.randint(10, 40)
        ways = [self.random.choice(HOW) for _ in range(number)]
        if self.pool == "prefork" and self.random.random() < 0.1:
            ways[0] = "kill"
        found: Iterable[Any] = self.bodies.stumble_in_batches.schedule_many(
            [(how,) for how in ways]
        )
        return found

    def overridden(self) -> Iterable[Any]:
        """Create a task whose base class has a call of its own."""
        unlucky = self.random.random() < 0.3
        return [self.bodies.overridden.delay(unlucky=unlucky).id]

    def plain(self) -> Iterable[Any]:
        """Make one call outside of a transaction."""
        return [self.bodies.work.delay().id]

    def in_a_transaction(self) -> Iterable[Any]:
        """Create two tasks that commit together."""
        with transaction.atomic():
            return [self.bodies.work.schedule().pk, self.bodies.take_effect.schedule().pk]

    def many(self) -> Iterable[Any]:
        """Create a batch in one statement."""
        found: Iterable[Any] = self.bodies.work.schedule_many([(0.0,)] * self.random.randint(5, 30))
        return found

    def in_many_queues(self) -> Iterable[Any]:
        """Create one task in each of the next ten queues; they commit together."""
        number, self.turn = len(self.queues), self.turn + AT_ONCE
        chosen = [self.queues[(self.turn + place) % number] for place in range(AT_ONCE)]
        with transaction.atomic():
            return [self.bodies.work.using(queue=name).schedule().pk for name in chosen]

    def later(self) -> Iterable[Any]:
        """Create a task that is due in a moment."""
        return [self.bodies.work.apply_async((0.0,), countdown=self.random.uniform(0.2, 3)).id]

    def stumbling(self) -> Iterable[Any]:
        """Create a task that fails once or twice."""
        return [self.bodies.stumble.delay(self.random.randint(1, 2)).id]

    def hopeless(self) -> Iterable[Any]:
        """Create a task that ends in a dead letter."""
        return [self.bodies.give_up.delay().id]

    def atomic(self) -> Iterable[Any]:
        """Create a task whose effect must happen once."""
        return [self.bodies.take_effect.delay().id]

    def iterating(self) -> Iterable[Any]:
        """Create a task that iterates over items, each of which must be done once."""
        return [self.bodies.iterate.delay().id]

    def to_be_cancelled(self) -> Iterable[Any]:
        """Create a task that is cancelled before it is due, at that moment, or too late."""
        key = uuid.UUID(int=self.random.getrandbits(128)).hex
        due = timezone.now() + timedelta(seconds=self.random.uniform(0.5, 2))
        task = self.bodies.work.using(key=key, run_at=due).schedule(0.3)
        self.keys.append(key)
        return [task.pk]

    def cancel(self) -> Iterable[Any]:
        """Cancel one of those."""
        from django_durable_tasks.models import Task

        if self.keys:
            Task.objects.cancel(self.keys.pop(), by="chaos")
        return []

    def diamond(self) -> Iterable[Any]:
        """Create a diamond of tasks. Sometimes one of the middle tasks always fails, and the last
        is skipped.
        """
        from django_durable_tasks import Workflow

        flow = Workflow("diamond")
        top = flow.add(self.bodies.work)
        good = self.random.random() < 0.8
        sides = [
            flow.add(self.bodies.work if good else self.bodies.give_up, after=[top])
            for _ in range(2)
        ]
        flow.add(self.bodies.work, after=sides)
        return self._started(flow)

    def fan(self) -> Iterable[Any]:
        """Create many tasks before one."""
        from django_durable_tasks import Workflow

        flow = Workflow("fan")
        flow.add(self.bodies.work, after=[flow.add(self.bodies.work) for _ in range(FANS)])
        return self._started(flow)

    def callback(self) -> Iterable[Any]:
        """Create an HTTP callback to the receiver."""
        from django_durable_tasks import http_callback

        return [http_callback.delay(url=os.environ[CALLBACKS], body={"number": self.made}).id]

    def batched(self) -> Iterable[Any]:
        """Make one call of a task that runs in batches."""
        return [self.bodies.work_in_batches.delay().id]

    def batched_many(self) -> Iterable[Any]:
        """Create many tasks that run in batches."""
        calls: list[tuple[()]] = [()] * self.random.randint(10, 40)
        found: Iterable[Any] = self.bodies.work_in_batches.schedule_many(calls)
        return found

    def long(self) -> Iterable[Any]:
        """Create a task that runs for a while."""
        functions = [self.bodies.work, *[self.bodies.wait] * (self.pool != "gevent")]
        return [self.random.choice(functions).delay(self.random.uniform(0.3, 1.5)).id]

    def _started(self, flow: Any) -> Iterable[Any]:
        from django_durable_tasks.models import Task

        with transaction.atomic():
            run = flow.start()
            return list(Task.objects.of_workflow(run).values_list("pk", flat=True))

    def run(self) -> None:
        """Create tasks until the file STOP exists."""
        began, pause = time.monotonic(), threading.Event()
        weights = [weight for weight, *_ in self.kinds]
        while not self.stop.exists():
            if self.is_crowded():
                pause.wait(0.5)
                began += 0.5
                continue
            wanted = self.rate * (time.monotonic() - began)
            for _ in range(MOST_AT_ONCE):
                if self.made >= wanted:
                    break
                _, kind, order = self.random.choices(self.kinds, weights)[0]
                self.made += self.ask(kind, order)
            self.create_lasting_tasks()
            pause.wait(0.02)

    def ask(self, kind: str, order: Callable[[], Iterable[Any]]) -> int:
        """Make one call and record its result; return how many tasks it has created."""
        began = time.monotonic()
        try:
            tasks = [str(task) for task in order()]
        except Error as error:
            connections.close_all()
            self._write(
                [{"kind": kind, "refused": type(error).__name__, "took": time.monotonic() - began}]
            )
            threading.Event().wait(0.1)
            return 0
        took = time.monotonic() - began
        self._write([{"task": task, "kind": kind, "took": took / len(tasks)} for task in tasks])
        return len(tasks)

    def _write(self, entries: list[dict[str, Any]]) -> None:
        if entries:
            os.write(self.book, "".join(f"{json.dumps(line)}\n" for line in entries).encode())


def main(rate: str, seed: str, book: str, stop: str) -> int:
    """Set Django up and create tasks."""
    django.setup()
    Load(float(rate), seed, Path(book), Path(stop)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
