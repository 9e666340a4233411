"""Measures requests to the HTTP API: ``python -m benchmarks.rest requests '{"n": 1000, "of":
"ours"}'``.

The requests pass through Django's handler in this process. No HTTP server takes part, for neither
contender.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import django
from django.db import connection
from django.test import Client

from benchmarks.contenders import Ours, patience
from benchmarks.contest import Measured
from benchmarks.processes import figures

BULK, PAGES, PAGE = 1_000, 60, 50
OPEN: dict[str, Any] = {
    "API_TASKS": ["benchmarks.*"],
    "QUOTAS": {"requests": "1000000/m"},
}
_WARM = 20
_ROWS = """
INSERT INTO durable_tasks_task
       (id, tenant_id, name, queue, priority, args, kwargs, status, run_at, epoch, completed_at)
SELECT (lpad(to_hex(1700000000000 + n * 10), 12, '0') || '70008' || lpad(to_hex(%(tenant)s), 5, '0')
        || lpad(to_hex(n), 10, '0'))::uuid,
       %(tenant)s, 'benchmarks.project.tasks.noop', 'other', 0, '[1]', '{}',
       CASE WHEN n %% 1000 = 0 THEN 'FAILED' ELSE 'SUCCESS' END, now(), 1, now()
  FROM generate_series(1, %(number)s) AS n
"""


def _sent(client: Client, path: str, body: Any, headers: dict[str, str]) -> Any:
    answer: Any = client.post(
        path, json.dumps(body), content_type="application/json", headers=headers
    )
    if answer.status_code not in (200, 201):
        raise AssertionError(f"{path}: {answer.status_code} {answer.content[:500]!r}")
    return answer


def new_key() -> tuple[int, dict[str, str]]:
    """Create a tenant with a key; return its id and the header with the key."""
    from django.utils import timezone

    from django_durable_tasks.contrib.api import access
    from django_durable_tasks.models import Tenant

    tenant = Tenant.objects.create(slug=f"bench-{uuid.uuid4().hex[:12]}")
    issued = access.create_key(tenant, "benchmark", ["read", "create"], now=timezone.now())
    return tenant.pk, {"Authorization": f"Bearer {issued.text}"}


def _task(number: int) -> dict[str, Any]:
    return {"target_config": {"task": "benchmarks.project.tasks.noop", "args": [number]}}


def create_task(client: Client, number: int, headers: dict[str, str]) -> None:
    """Send a request that creates a task."""
    _sent(client, "/api/v1/tasks", _task(number), headers)


def requests(n: int, of: str) -> dict[str, float]:
    """Send n requests that create one object each, one after another."""
    from benchmarks.project import rest

    rest.create_table()
    client, headers, run = Client(), new_key()[1], uuid.uuid4().hex
    took = []
    for number in range(n + _WARM):
        body = _task(number) if of == "ours" else rest.order(number, run)
        path = "/api/v1/tasks" if of == "ours" else "/orders"
        more = {**headers, "Idempotency-Key": uuid.uuid4().hex} if of == "ours" else {}
        began = time.perf_counter()
        _sent(client, path, body, more)
        took.append(time.perf_counter() - began)
    return {"seconds": sum(took[_WARM:]), **_spread(took[_WARM:])}


def bulk(n: int) -> dict[str, float]:
    """Send n requests that create 1,000 tasks each."""
    client, headers = Client(), new_key()[1]
    took = []
    for _ in range(n + 1):
        body = {"items": [_task(number) for number in range(BULK)]}
        began = time.perf_counter()
        _sent(client, "/api/v1/tasks/bulk", body, headers)
        took.append(time.perf_counter() - began)
    return {"seconds": sum(took[1:]), **_spread(took[1:])}


def pages(n: int) -> dict[str, float]:
    """Read pages of a tenant with n tasks, by several filters, following the cursors."""
    tenant, headers = new_key()
    with connection.cursor() as cursor:
        cursor.execute(_ROWS, {"tenant": tenant, "number": n})
        cursor.execute("VACUUM ANALYZE durable_tasks_task")
    took = []
    for query in ("", "status=FAILED", "status=SUCCESS", "from=2023-11-15T00:00:00Z"):
        path = f"/api/v1/tasks?limit={PAGE}&{query}"
        for _ in range(PAGES // 4):
            began = time.perf_counter()
            answer: Any = Client().get(path, headers=headers)
            took.append(time.perf_counter() - began)
            if answer.status_code != 200:
                raise AssertionError(f"{path}: {answer.status_code} {answer.content[:500]!r}")
            cursor = answer.json()["next_cursor"]
            path = f"/api/v1/tasks?limit={PAGE}&{query}" + (f"&cursor={cursor}" if cursor else "")
    return {"seconds": median(took), **_spread(took)}


def _spread(took: list[float]) -> dict[str, float]:
    return {"p50": median(took), "p99": quantiles(took, n=100)[98] if len(took) > 1 else took[0]}


@dataclass
class Rest(Ours):
    """This package's HTTP API, and a plain create of Django REST framework."""

    def measured(self, command: str, n: int, **given: Any) -> Measured:
        """Run a command of this module."""
        self.prepare()
        program = [sys.executable, "-m", "benchmarks.rest", command]
        seconds = patience(max(n, 20_000))
        try:
            found = figures(program, {"n": n, **given}, seconds, **self.variable(**OPEN))
        finally:
            self.servers.clear_broker(self.broker)
        facts = {f"request_{name}_ms": round(1e3 * found[name], 1) for name in ("p50", "p99")}
        return Measured(found["seconds"], facts)


if __name__ == "__main__":
    django.setup()
    commands: dict[str, Any] = {"requests": requests, "bulk": bulk, "pages": pages}
    print(json.dumps(commands[sys.argv[1]](**json.loads(sys.argv[2]))))
