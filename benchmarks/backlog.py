"""Measures a claim in a table with ended and future tasks: ``python -m benchmarks.backlog fill
'{"finished": 10000}'``.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import django
from django.core.management import call_command
from django.db import connection

from benchmarks.contenders import Ours, patience
from benchmarks.contest import Measured
from benchmarks.processes import figures

FUTURE_OF = 10
"""The number of ended tasks per future task."""
BATCH, CLAIMS = 100, 60
_SLICE = 500_000
_DAY = 86_400
_ROWS = """
    INSERT INTO durable_tasks_task
           (id, name, queue, priority, args, kwargs, status, run_at, due_at, completed_at, shard_key)
    SELECT (lpad(to_hex(%(created)s + n), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid,
           'benchmarks.project.tasks.noop', %(queue)s, n %% 10, '[]', '{}', %(status)s, at.moment,
           CASE WHEN %(status)s = 'PENDING' THEN at.moment END, CASE WHEN %(status)s = 'SUCCESS' THEN at.moment END, 0
      FROM generate_series(%(first)s, %(last)s) AS n
     CROSS JOIN LATERAL (SELECT now() + (%(start)s + n %% 86400) * interval '1 second' AS moment) AS at
"""


def _write(status: str, number: int, start: int, created: int) -> None:
    from benchmarks.project.tasks import noop
    from django_durable_tasks.celery.prepared_messages import queue_of

    given: dict[str, Any] = {
        "status": status,
        "start": start,
        "created": created,
        "queue": queue_of(noop.name, None),
    }
    for first in range(1, number + 1, _SLICE):
        last = min(number, first + _SLICE - 1)
        with connection.cursor() as cursor:
            cursor.execute("SET synchronous_commit = off")
            cursor.execute(_ROWS, {**given, "first": first, "last": last})
        print(f"{status}: {last:,} of {number:,} rows", file=sys.stderr, flush=True)


def fill(finished: int, future: int | None = None) -> dict[str, float]:
    """Create the tables, ``finished`` ended tasks, and ``future`` tasks that are due in a day or
    later. None: a tenth of ``finished``.
    """
    call_command("migrate", verbosity=0)
    began = time.perf_counter()
    future = finished // FUTURE_OF if future is None else future
    _write("SUCCESS", finished, -2 * _DAY, 1_500_000_000_000)
    _write("PENDING", future, _DAY, 1_600_000_000_000)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE durable_tasks_task")
    return {"seconds": time.perf_counter() - began}


def prunable(number: int) -> dict[str, float]:
    """Insert ended tasks whose retention is over."""
    began = time.perf_counter()
    _write("SUCCESS", number, -60 * _DAY, 1_500_000_000_000)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE durable_tasks_task")
    return {"seconds": time.perf_counter() - began}


def left() -> dict[str, float]:
    """Count the ended tasks whose retention is over, without those that ended in this run."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM durable_tasks_task WHERE completed_at < now() - interval '8 days'"
        )
        return {"number": float(cursor.fetchone()[0])}


def claim() -> dict[str, float]:
    """Make a batch due, read the queues and claim it, 60 times. Return the median and the 95th
    percentile.
    """
    from benchmarks.project.tasks import noop
    from django_durable_tasks.celery.prepared_messages import queue_of
    from django_durable_tasks.limits import backpressure
    from django_durable_tasks.limits.backpressure import heads
    from django_durable_tasks.models import Task
    from django_durable_tasks.states.demand import QueueDemand
    from django_durable_tasks.store.clock import database_now
    from django_durable_tasks.store.connections import dedicated_connection
    from django_durable_tasks.tasks.claim import claim_of

    node, queue, took = uuid.uuid4(), queue_of(noop.name, None), list[float]()
    for _ in range(CLAIMS + 5):
        noop.schedule_many([(number,) for number in range(BATCH)])
        with dedicated_connection():
            began = time.perf_counter()
            heads()
            backpressure.snapshot()
            found = claim_of([QueueDemand(queue, BATCH)], database_now(), BATCH, node).messages
            took.append(time.perf_counter() - began)
        if len(found) != BATCH:
            raise AssertionError(f"{len(found)} rows were claimed of {BATCH} due ones")
        Task.objects.unguarded().filter(pk__in=[message.task_id for message in found]).delete()
    took = took[5:]
    return {"seconds": median(took), "p95": quantiles(took, n=20)[18]}


@dataclass
class Backlog(Ours):
    """This package with ``finished`` ended tasks in its database, which is created once."""

    finished: int = 0

    @property
    def name(self) -> str:
        """The name of the database."""
        return f"backlog_{self.finished}"

    def prepare(self) -> None:
        """Create and fill the database, once."""
        if not self.ready:
            self.servers.make_database(self.name)
            self._figures_of("fill", finished=self.finished)
            self.ready = True

    def claim(self) -> Measured:
        """Measure how long a scheduler takes to read the queues and to claim a batch."""
        self.prepare()
        found = self._figures_of("claim")
        facts = {
            "batch_p50_ms": round(1e3 * found["seconds"], 2),
            "batch_p95_ms": round(1e3 * found["p95"], 2),
        }
        return Measured(found["seconds"], facts)

    def _figures_of(self, command: str, **given: Any) -> dict[str, float]:
        seconds = patience(CLAIMS * BATCH) + self.finished / 5_000
        return figures(
            [sys.executable, "-m", "benchmarks.backlog", command], given, seconds, **self.variable()
        )


def main(command: str, given: dict[str, Any]) -> None:
    """Run one command and print its figures."""
    django.setup()
    commands: dict[str, Callable[..., dict[str, float]]] = {
        "fill": fill,
        "claim": claim,
        "prunable": prunable,
        "left": left,
    }
    print(json.dumps(commands[command](**given)))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
