"""Times the statements of a task's life in a table with N ended and N future tasks: ``python -m
benchmarks.large_tables operations '{"rounds": 12}'``.

Each round creates 100 tasks, reads the queues, claims, starts and ends them one by one, then takes
100 tasks of a batch and ends them together, and deletes all of them.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, TypeVar, cast

import django

from benchmarks.backlog import BATCH, fill
from benchmarks.contenders import Ours, patience
from benchmarks.contest import Measured
from benchmarks.processes import figures

ROUNDS = 12
_UNTIMED = 2
"""Rounds in which the statements are prepared and the first pages read."""
_LEASE = 60.0
T = TypeVar("T")


class Clock:
    """The durations of each operation, in seconds."""

    def __init__(self) -> None:
        self.took: dict[str, list[float]] = {}

    def time(self, operation: str, act: Callable[[], T]) -> T:
        """Run and time one operation."""
        began = time.perf_counter()
        found = act()
        self.took.setdefault(operation, []).append(time.perf_counter() - began)
        return found

    def medians(self) -> dict[str, float]:
        """Return the median of each operation in microseconds."""
        return {f"{name}_us": round(1e6 * median(took)) for name, took in self.took.items()}


def _by_message(clock: Clock, queue: str, node: uuid.UUID) -> list[uuid.UUID]:
    """Claim, start and end the due tasks of the queue one by one; return their ids."""
    from django_durable_tasks.limits import backpressure
    from django_durable_tasks.limits.backpressure import heads
    from django_durable_tasks.states.demand import QueueDemand
    from django_durable_tasks.states.runs import start, succeed
    from django_durable_tasks.store.clock import database_now
    from django_durable_tasks.task_values import Run, RunLocation
    from django_durable_tasks.tasks.claim import claim_of

    place = RunLocation(node=node, worker="", lease=_LEASE)
    clock.time("heads", heads)
    backpressure.snapshot()
    found = clock.time(
        "claim", lambda: claim_of([QueueDemand(queue, BATCH)], database_now(), BATCH, node)
    ).messages
    runs = []
    for message in found:
        begin = partial(start, message.task_id, message.epoch, uuid.uuid4(), place)
        run = clock.time("start", begin)
        runs.append(cast("Run", run))
    ended = [clock.time("succeed", partial(succeed, run, "null", "")) for run in runs]
    if sum(ended) != BATCH:
        raise AssertionError(f"{sum(ended)} tasks succeeded of {BATCH} due ones")
    return [run.task_id for run in runs]


def _in_batch(clock: Clock, queue: str, name: str, node: uuid.UUID) -> list[uuid.UUID]:
    """Take and end the due tasks of this name together; return their ids."""
    from django_durable_tasks.states.batches import Success, succeed_many, take_due

    run_ids = [uuid.uuid4() for _ in range(BATCH)]
    taken = clock.time("take", lambda: take_due(queue, name, run_ids, node, _LEASE))
    ends = [Success(run=one, result="null", wait=0.0) for one in taken]
    accepted = clock.time("succeed_many", lambda: succeed_many(ends, ""))
    if len(accepted) != BATCH:
        raise AssertionError(f"{len(accepted)} tasks succeeded of {BATCH} due ones")
    return [run.task_id for run in taken]


def operations(rounds: int) -> dict[str, float]:
    """Return the median of each operation in microseconds."""
    from benchmarks.project.tasks import batched_noop, noop
    from django_durable_tasks.celery.prepared_messages import queue_of
    from django_durable_tasks.models import Task
    from django_durable_tasks.store.connections import dedicated_connection

    node, queue, clock = uuid.uuid4(), queue_of(noop.name, None), Clock()
    with dedicated_connection():
        for number in range(rounds + _UNTIMED):
            if number == _UNTIMED:
                clock = Clock()
            noop.schedule_many([(one,) for one in range(BATCH)])
            ended = _by_message(clock, queue, node)
            batched_noop.schedule_many([(one,) for one in range(BATCH)])
            ended += _in_batch(clock, queue, batched_noop.name, node)
            Task.objects.unguarded().filter(pk__in=ended).delete()
    return clock.medians()


@dataclass
class LargeTables(Ours):
    """This package with ``number`` ended and ``number`` future tasks, which are created once."""

    number: int = 0

    @property
    def name(self) -> str:
        """The name of the database."""
        return f"large_{self.number}"

    def prepare(self) -> None:
        """Create and fill the database, once."""
        if not self.ready:
            self.servers.make_database(self.name)
            self._figures_of("fill", finished=self.number, future=self.number)
            self.ready = True

    def operations(self) -> Measured:
        """Measure each operation; ``seconds`` is the median of the claim."""
        self.prepare()
        found = self._figures_of("operations", rounds=ROUNDS)
        return Measured(found["claim_us"] / 1e6, found)

    def _figures_of(self, command: str, **given: Any) -> dict[str, float]:
        seconds = patience(ROUNDS * BATCH) + self.number / 5_000
        return figures(
            [sys.executable, "-m", "benchmarks.large_tables", command],
            given,
            seconds,
            **self.variable(),
        )


def main(command: str, given: dict[str, Any]) -> None:
    """Run one command and print its figures."""
    django.setup()
    commands: dict[str, Callable[..., dict[str, float]]] = {"fill": fill, "operations": operations}
    print(json.dumps(commands[command](**given)))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
