"""Measures each mechanism that exists for speed with and without it, in alternating rounds.

``python -m benchmarks.lanes measure '{"lane": "COPY", "n": 20000, "without": true}'`` measures one
in this process. Its figure is the processor time of this process and of the database's processes that
serve it, which changes less than a duration if the machine has other load.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import django

from benchmarks.contenders import WIDE_WINDOW, Ours, patience
from benchmarks.contest import OURS, Contender, Measured
from benchmarks.limit import CEILING, CHILDREN
from benchmarks.processes import figures
from benchmarks.profiling import backends, processor_time
from benchmarks.rest import OPEN, create_task, new_key
from benchmarks.stage import Stage, a_contender

WITHOUT = "without it"
_PART = 500
"""How many messages a scheduler publishes together at most (BATCH_SIZE)."""


def switched_off(module: str, name: str, replacement: Any) -> AbstractContextManager[Any]:
    """Replace a function of this package, which would otherwise choose the mechanism."""
    return patch(f"django_durable_tasks.{module}.{name}", replacement)


def _delay(n: int) -> None:
    from benchmarks.project.tasks import noop

    for number in range(n):
        noop.delay(number)


def _bulk(together: int, n: int) -> None:
    from benchmarks.project.tasks import noop

    for _ in range(n // together):
        noop.schedule_many([(number,) for number in range(together)])


def _post(given: tuple[int, dict[str, str]]) -> None:
    from django.test import Client

    n, headers = given
    client = Client()
    for number in range(n):
        create_task(client, number, headers | {"Idempotency-Key": uuid.uuid4().hex})


def _publish(messages: Sequence[Any]) -> None:
    from django_durable_tasks.celery.publisher import publish

    for first in range(0, len(messages), _PART):
        publish(messages[first : first + _PART])


def _claimed(n: int) -> list[Any]:
    from benchmarks.project.tasks import noop
    from django_durable_tasks.celery.prepared_messages import queue_of
    from django_durable_tasks.states.demand import QueueDemand
    from django_durable_tasks.store.clock import database_now
    from django_durable_tasks.tasks.claim import claim_of

    noop.schedule_many([(number,) for number in range(n)])
    demands = [QueueDemand(queue_of(noop.name, None), n)]
    return list(claim_of(demands, database_now(), n, uuid.uuid4()).messages)


def _each_by_recordset(task: Any) -> bool:
    from django_durable_tasks.states import inserts
    from django_durable_tasks.store.dialects import recordset
    from django_durable_tasks.store.tables import count

    task = inserts.encrypted_task(task)
    statement = f"{inserts.insert_statement('create_each')} ON CONFLICT DO NOTHING"
    created = count(statement, {"rows": recordset([task._asdict()])}) == 1
    if created:
        inserts._announce(task)
    return created


@dataclass(frozen=True)
class Lane:
    """A mechanism of one process: ``work`` does n units of what it makes faster, with what
    ``prepare`` returns for n.
    """

    n: int
    work: Callable[[Any], None]
    without: Callable[[], AbstractContextManager[Any]]
    prepare: Callable[[int], Any] = int
    durable: tuple[tuple[str, Any], ...] = (*WIDE_WINDOW.items(), ("FAST_PATH", False))


LANES = {
    "an INSERT of its own for single tasks": Lane(
        500, _delay, partial(switched_off, "states.inserts", "create", _each_by_recordset)
    ),
    "COPY, 200 tasks": Lane(
        5_000,
        partial(_bulk, 200),
        partial(switched_off, "states.inserts", "copy_time", lambda: None),
    ),
    "COPY, 20,000 tasks": Lane(
        20_000,
        partial(_bulk, 20_000),
        partial(switched_off, "states.inserts", "copy_time", lambda: None),
    ),
    "a task and its answer in one statement": Lane(
        200,
        _post,
        partial(switched_off, "states.inserts", "can_create_with_answer", lambda: False),
        lambda n: (n, new_key()[1]),
        (*WIDE_WINDOW.items(), ("FAST_PATH", False), *OPEN.items()),
    ),
    "messages of Redis from templates": Lane(
        5_000,
        _publish,
        partial(switched_off, "celery.prepared_messages", "RedisTexts.apply", lambda *_: False),
        _claimed,
    ),
}


def measure(lane: str, n: int, *, without: bool) -> float:
    """Return the processor seconds of this process and of the database for n units."""
    from benchmarks.ours import truncate

    found = LANES[lane]
    truncate()
    found.work(found.prepare(max(10, n // 10)))  # loads the code and plans the statements
    truncate()
    given = found.prepare(n)
    with found.without() if without else nullcontext():
        pids = backends()
        began, server = time.process_time(), processor_time(pids)
        found.work(given)
        return time.process_time() - began + processor_time(pids) - server


@dataclass
class Lanes(Ours):
    """This package, with and without a mechanism."""

    def in_process(self, lane: str, n: int, *, without: bool) -> float:
        """Measure a lane of one process."""
        self.prepare()
        program = [sys.executable, "-m", "benchmarks.lanes", "measure"]
        given = {"lane": lane, "n": n, "without": without}
        try:
            found = figures(
                program, given, patience(n), **self.variable(**dict(LANES[lane].durable))
            )
            return float(found["seconds"])
        finally:
            self.servers.clear_broker(self.broker)

    def limited(self, n: int, *, without: bool) -> Measured:
        """Time n tasks of 50 ms under a limit of four, whose places are handed over or not."""
        self.switched_off = ("celery.gate", "frees_capacity", False) if without else ()
        seconds = self.run(n, 1, published=False, task="limited", children=CHILDREN)
        return Measured(seconds, {"percent_of_ceiling": 100 * n / seconds / CEILING})


def lanes(stage: Stage) -> list[Contender]:
    """Compare this package with and without each mechanism that exists for speed. On Redis."""
    found, ours = list[Contender](), Lanes(stage.servers, "redis")
    for name, lane in LANES.items():
        for peer in (OURS, WITHOUT):
            work = partial(ours.in_process, name, lane.n, without=peer is WITHOUT)
            found.append(a_contender(stage, "lanes", name, peer, None, work, n=lane.n))
    n = stage.n // 10
    for peer in (OURS, WITHOUT):
        both = partial(ours.limited, n, without=peer is WITHOUT)
        what = "the places of a limit are handed over"
        found.append(a_contender(stage, "lanes", what, peer, "redis", both, n=n))
    return found


def main(command: str, given: dict[str, Any]) -> None:
    """Run one command and print its seconds."""
    django.setup()
    print(json.dumps({"seconds": {"measure": measure}[command](**given)}))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
