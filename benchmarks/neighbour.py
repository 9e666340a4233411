"""The benchmark of two tenants in one queue: how late the tasks of one start beside the other's.

``python -m benchmarks.neighbour measure '{"n": 200, "loud": "backlog", "number": 20000}'`` measures
one situation, while a scheduler and a worker run.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from functools import partial
from statistics import quantiles
from typing import Any

import django

from benchmarks.contenders import WORKER, Ours, patience
from benchmarks.contest import OURS, Contender, Measured
from benchmarks.processes import figures, running
from benchmarks.stage import Stage, a_contender

# Per second: few enough that one of two processes runs them without a queue.
RATE = 20
BACKLOG, HANGING, CANCELLED = 20_000, 60, 20_000
PAUSE = 20.0
"""How long a task that hangs runs, in seconds: longer than a measurement of 200 tasks."""
LOUD = {
    "alone": ("", 0),
    "beside a backlog": ("backlog", BACKLOG),
    "beside tasks that hang": ("hanging", HANGING),
    "beside a mass cancellation": ("cancel", CANCELLED),
}
_SETTLE = 3.0
"""Seconds that the other tenant is loud before the first measured task."""
_LAG = """
    SELECT extract(epoch FROM log.started_at - task.created_at)::float8
      FROM durable_tasks_task AS task JOIN durable_tasks_execution_log AS log ON log.task_id = task.id
     WHERE task.tenant_id = %s AND log.status = 'SUCCESS'
"""
_RAN = "SELECT count(*) FROM durable_tasks_task WHERE tenant_id = %s AND status IN ('SUCCESS', 'CANCELLED')"


def measure(n: int, loud: str, number: int) -> dict[str, float]:
    """Return how late n tasks of a tenant start, created at RATE, and what the other one does."""
    from django.db import connection
    from django.utils import timezone

    from benchmarks.project.tasks import lasting, noop
    from django_durable_tasks.contrib.api import bulk_operations
    from django_durable_tasks.contrib.api.bulk_operations import TaskFilter
    from django_durable_tasks.contrib.api.models import BulkKind
    from django_durable_tasks.models import Tenant

    other, quiet = (Tenant.objects.create(slug=f"{name}-{time.time_ns()}") for name in "ab")
    if loud == "backlog":
        noop.using(tenant=other).schedule_many([(one,) for one in range(number)])
    elif loud == "hanging":
        lasting.using(tenant=other).schedule_many([(one, PAUSE) for one in range(number)])
    elif loud == "cancel":
        later = timezone.now() + timedelta(hours=1)
        noop.using(tenant=other, run_at=later).schedule_many([(one,) for one in range(number)])
    if loud != "cancel":
        time.sleep(_SETTLE)

    def counted(sql: str, tenant: Tenant) -> list[float]:
        with connection.cursor() as cursor:
            cursor.execute(sql, [tenant.pk])
            return [value for (value,) in cursor.fetchall()]

    if loud == "cancel":
        bulk_operations.start(other, BulkKind.CANCEL, TaskFilter())
    noop.using(tenant=quiet).delay(n)  # connects and reads the queues, which would delay the others
    before, began = counted(_RAN, other)[0], time.monotonic()
    for one in range(n):
        noop.using(tenant=quiet).delay(one)
        time.sleep(max(0.0, began + (one + 1) / RATE - time.monotonic()))
    loud_rate = (counted(_RAN, other)[0] - before) / (time.monotonic() - began)
    deadline = time.monotonic() + patience(n)
    while len(found := counted(_LAG, quiet)) < n + 1:
        if time.monotonic() > deadline:
            raise AssertionError(f"{len(found)} of {n + 1} tasks have ended")
        time.sleep(0.1)
    cuts = quantiles(found, n=100)
    return {
        "lag_p50_ms": round(1e3 * cuts[49], 1),
        "lag_p99_ms": round(1e3 * cuts[98], 1),
        "lag_max_ms": round(1e3 * max(found), 1),
        "loud_per_second": round(loud_rate, 1),
    }


class Neighbours(Ours):
    """This package with one scheduler and one worker with two processes."""

    def beside(self, n: int, loud: str, number: int) -> Measured:
        """Measure n tasks of a tenant beside another one."""
        self.servers.clear_broker(self.broker)
        self.run_command("bulk", {"n": 1}, patience(1))
        variable = self.variable()
        worker = [sys.executable, "-m", "celery", "-A", "benchmarks.project", "worker", *WORKER]
        worker.append(f"bench-{self.servers.run}@%h")
        program = [sys.executable, "-m", "benchmarks.neighbour", "measure"]
        given = {"n": n, "loud": loud, "number": number}
        try:
            with (
                running([sys.executable, "-m", "django", "run_scheduler"], **variable),
                running(worker, **variable),
            ):
                figures(program, {"n": 20, "loud": "", "number": 0}, patience(20), **variable)
                return Measured(n / RATE, figures(program, given, 2 * patience(n), **variable))
        finally:
            self.servers.clear_broker(self.broker)


def neighbour(stage: Stage) -> list[Contender]:
    """Measure how late a tenant's tasks start alone, and beside a tenant that is loud. On Redis."""
    ours = Neighbours(stage.servers, "redis")
    return [
        a_contender(
            stage, "neighbour", what, OURS, "redis", partial(ours.beside, stage.n, loud, number)
        )
        for what, (loud, number) in LOUD.items()
    ]


def main(command: str, given: dict[str, Any]) -> None:
    """Run one command and print its figures."""
    django.setup()
    print(json.dumps({"measure": measure}[command](**given)))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
