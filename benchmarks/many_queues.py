"""Measures one poll with many queues: ``python -m benchmarks.many_queues poll '{"queues": 1000,
"tenants": 1}'``.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import Any

import django
from django.db import connection

from benchmarks.contenders import Ours, patience
from benchmarks.contest import Measured
from benchmarks.processes import figures

DUE, ELSEWHERE, POLLS = 2, 20_000, 5
"""Due tasks per queue and poll, published tasks in other queues, and the number of polls."""


def _fill(queues: int, tenants: int) -> None:
    """Insert the tenants, and published tasks in other queues."""
    from benchmarks.project.tasks import noop
    from django_durable_tasks.models import Task, Tenant

    Task.objects.unguarded().all().delete()
    Tenant.objects.bulk_create(
        [Tenant(pk=number, name=str(number)) for number in range(2, tenants + 1)],
        ignore_conflicts=True,
    )
    _write(
        noop.name,
        "QUEUED",
        [(f"elsewhere-{n % 300}", 1 + n % tenants) for n in range(ELSEWHERE)],
        3_600,
    )


def _write(name: str, status: str, places: list[tuple[str, int]], due: float) -> None:
    from django_durable_tasks.engine.db.clock import database_now
    from django_durable_tasks.models import Task

    at = database_now() + timedelta(seconds=due)
    Task.objects.unguarded().bulk_create(
        [
            Task(
                name=name,
                queue=queue,
                tenant_id=tenant,
                status=status,
                run_at=at,
                due_at=at,
                args=[1],
            )
            for queue, tenant in places
        ],
        batch_size=5_000,
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_tasks_task")


def poll(queues: int, tenants: int) -> dict[str, float]:
    """Make tasks due in each of ``queues`` queues and publish them by one poll, several times.
    Return the median.
    """
    from benchmarks.project.tasks import noop
    from django_durable_tasks.models import Task
    from django_durable_tasks.scheduler.loop import Scheduler

    _fill(queues, tenants)
    hands, took, sent = Scheduler("a benchmark").dispatching, list[float](), list[int]()
    for number in range(POLLS + 1):
        places = [(f"due-{n}", 1 + n % tenants) for n in range(queues) for _ in range(DUE)]
        _write(noop.name, "PENDING", places, -1)
        began = time.perf_counter()
        published = hands.poll()
        if number:  # the first poll declares the queues at the broker and opens connections
            took.append(time.perf_counter() - began)
            sent.append(published)
        Task.objects.unguarded().filter(queue__startswith="due-").delete()
    if min(sent) != DUE * queues:
        raise AssertionError(f"Polls published {sent} rows of {DUE * queues} due ones")
    return {"seconds": median(took), "worst": max(took)}


@dataclass
class ManyQueues(Ours):
    """This package with due tasks in many queues."""

    def poll(self, queues: int, tenants: int) -> Measured:
        """Measure one poll of a scheduler."""
        self.prepare()
        command = [sys.executable, "-m", "benchmarks.many_queues", "poll"]
        try:
            found = figures(
                command,
                {"queues": queues, "tenants": tenants},
                patience(ELSEWHERE),
                **self.variable(),
            )
        finally:
            self.servers.clear_broker(self.broker)
        facts = {
            "poll_p50_ms": round(1e3 * found["seconds"], 1),
            "poll_max_ms": round(1e3 * found["worst"], 1),
        }
        return Measured(found["seconds"], facts)


if __name__ == "__main__":
    django.setup()
    given: dict[str, Any] = json.loads(sys.argv[2])
    print(json.dumps(poll(**given)))
