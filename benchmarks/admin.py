"""Measures pages of the admin: ``python -m benchmarks.admin pages '{"page": "list of tasks"}'``.

The requests pass through Django's handler and its middleware in this process. No HTTP server takes
part. The session is in the database.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import django
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.urls import reverse

from benchmarks.contenders import Ours, patience
from benchmarks.contest import Measured
from benchmarks.processes import figures

OPENED = 60
"""The requests of a measurement."""
PAGES = ("list of tasks", "list of failed tasks", "page of a task")
_WARM = 5
_FAILED_OF = 1_000
_TASKS = """
INSERT INTO durable_tasks_task
       (id, name, queue, priority, args, kwargs, status, run_at, epoch, attempts, started_at,
        completed_at, last_error)
SELECT (lpad(to_hex(1700000000000 + n * 10), 12, '0') || '70008' || lpad(to_hex(n), 15, '0'))::uuid,
       'benchmarks.project.tasks.noop', 'queue' || n %% 5, 0, '[1]', '{}',
       CASE WHEN n %% %(failed)s = 0 THEN 'FAILED' ELSE 'SUCCESS' END, now(), 1, 1, now(), now(),
       CASE WHEN n %% %(failed)s = 0 THEN 'ValueError: no such order' ELSE '' END
  FROM generate_series(1, %(number)s) AS n
"""
_ATTEMPTS = """
INSERT INTO durable_tasks_execution_log (task_id, attempt_number, status, started_at, completed_at)
SELECT id, 1, status, started_at, completed_at FROM durable_tasks_task
"""


def fill(number: int) -> dict[str, float]:
    """Create the tables and a number of ended tasks with an attempt each; one in a thousand has
    failed.
    """
    call_command("migrate", verbosity=0)
    began = time.perf_counter()
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")
        cursor.execute(_TASKS, {"number": number, "failed": _FAILED_OF})
        cursor.execute(_ATTEMPTS)
        for table in ("durable_tasks_task", "durable_tasks_execution_log"):
            cursor.execute(f"VACUUM ANALYZE {table}")
    return {"seconds": time.perf_counter() - began}


def _address(page: str) -> str:
    from django_durable_tasks.models import Task

    tasks = reverse("admin:django_durable_tasks_task_changelist")
    if page == "list of failed tasks":
        return f"{tasks}?status__exact=FAILED"
    if page == "page of a task":
        newest = Task.objects.order_by("-id").values_list("pk", flat=True)[0]
        return reverse("admin:django_durable_tasks_task_change", args=[newest])
    return tasks


def pages(page: str) -> dict[str, float]:
    """Open a page again and again, as a superuser."""
    from django.contrib.auth.models import User

    user, _ = User.objects.get_or_create(username="ann", is_staff=True, is_superuser=True)
    client, address, took = Client(), _address(page), list[float]()
    client.force_login(user)
    for _ in range(OPENED + _WARM):
        began = time.perf_counter()
        answer: Any = client.get(address)
        took.append(time.perf_counter() - began)
        if answer.status_code != 200:
            raise AssertionError(f"{address}: {answer.status_code} {answer.content[:500]!r}")
    took = took[_WARM:]
    return {"seconds": sum(took), "p50": median(took), "p99": quantiles(took, n=100)[98]}


@dataclass
class Admin(Ours):
    """The admin beside ``number`` ended tasks in a database of its own, which is created once."""

    number: int = 0

    @property
    def name(self) -> str:
        """The name of the database."""
        return "admin"

    def variable(self, **durable: Any) -> dict[str, str]:
        """Return the environment variables of a project with Django's admin."""
        found = super().variable(**durable)
        return {**found, "BENCHMARK": json.dumps({**json.loads(found["BENCHMARK"]), "admin": True})}

    def prepare(self) -> None:
        """Create and fill the database, once."""
        if not self.ready:
            self.servers.make_database(self.name)
            self._figures_of("fill", number=self.number)
            self.ready = True

    def measured(self, page: str) -> Measured:
        """Open a page OPENED times."""
        self.prepare()
        found = self._figures_of("pages", page=page)
        facts = {f"request_{name}_ms": round(1e3 * found[name], 1) for name in ("p50", "p99")}
        return Measured(found["seconds"], facts)

    def _figures_of(self, command: str, **given: Any) -> dict[str, float]:
        program = [sys.executable, "-m", "benchmarks.admin", command]
        return figures(program, given, patience(self.number), **self.variable())


if __name__ == "__main__":
    django.setup()
    commands: dict[str, Any] = {"fill": fill, "pages": pages}
    print(json.dumps(commands[sys.argv[1]](**json.loads(sys.argv[2]))))
