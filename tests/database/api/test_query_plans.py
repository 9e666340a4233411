"""With 100,000 tasks of several tenants, a page of tasks reads a bounded number of rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.contrib.api import tasks
from django_durable_tasks.contrib.api.quotas import usage
from django_durable_tasks.models import DEFAULT_TENANT_ID, Tenant
from tests.database.api.client import ApiClient, a_client, a_tenant
from tests.repetitions import rows

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.django_db,
    pytest.mark.timeout(300),
]

TASKS, EXAMINED = rows(100_000), 1_000
TABLE = "durable_tasks_task"
_ROWS = """
INSERT INTO durable_tasks_task
       (id, tenant_id, name, queue, priority, args, kwargs, status, run_at, due_at, epoch, completed_at)
SELECT (lpad(to_hex(1700000000000 + n * 1000), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid,
       CASE WHEN n %% 1000 = 0 THEN %(default)s ELSE %(tenant)s END, 'tests.project.tasks.noop',
       CASE WHEN n = 7 THEN 'rare' ELSE 'test' END, 0, '[]', '{}', kind.status, now(),
       CASE WHEN kind.status = 'PENDING' THEN now() END, 1,
       CASE WHEN kind.status <> 'PENDING' THEN now() END
  FROM generate_series(1, %(number)s) AS n
 CROSS JOIN LATERAL (SELECT CASE WHEN n < 20 THEN 'FAILED' WHEN n %% 2 = 0 THEN 'PENDING' ELSE 'SUCCESS' END
                         AS status) AS kind
"""


@pytest.fixture(autouse=True)
def few_rows_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a page examine few rows."""
    monkeypatch.setattr(tasks, "ROWS_EXAMINED", EXAMINED)


@pytest.fixture(scope="module")
def busy(committed_rows: Callable[[], None]) -> ApiClient:
    """Insert the tasks: one of a thousand belongs to the default tenant."""
    tenant = a_tenant("busy")
    a_tenant("idle")
    values = {"number": TASKS, "tenant": tenant.pk, "default": DEFAULT_TENANT_ID}
    with connection.cursor() as cursor:
        cursor.execute(_ROWS, values)
        cursor.execute(f"VACUUM ANALYZE {TABLE}")
    return a_client(tenant)


def _rows_read(statement: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}")
        answer = cursor.fetchone()[0]
    plan = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    return sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in _nodes(plan)
        if "Scan" in node["Node Type"]
    )


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for inner in node.get("Plans", ()):
        yield from _nodes(inner)


def _page(client: ApiClient, query: str) -> tuple[Any, int]:
    """Read a page, and return it with the most rows that one of its statements read."""
    with CaptureQueriesContext(connection) as captured:
        answer = client.get(f"/tasks?{query}")
    assert answer.status_code == 200, answer.content
    statements = [query["sql"] for query in captured if f'FROM "{TABLE}"' in query["sql"]]
    assert statements
    return answer.json(), max(map(_rows_read, statements))


def test_a_page_reads_a_bounded_number_of_rows(busy: ApiClient) -> None:
    default = a_client(Tenant.objects.get(pk=DEFAULT_TENANT_ID))
    idle = a_client(Tenant.objects.get(slug="idle"))
    for client in (busy, default, idle):
        for query in (
            "limit=50",
            "status=FAILED",
            "status=CANCELLED",
            "status=SUCCESS&limit=200",
            "status=RUNNING",
            "queue=rare",
            "status=FAILED&queue=rare",
            "status=PENDING&queue=test&name=tests.project.tasks.noop",
            "from=2023-11-15T00:00:00Z&to=2023-11-16T00:00:00Z",
            "to=2023-11-14T22:14:00Z&status=PENDING",
        ):
            _found, read = _page(client, query)
            assert read <= EXAMINED + 10, (client.tenant.slug, query, read)


def test_rows_without_an_index_are_found_by_following_the_cursor(busy: ApiClient) -> None:
    found: list[Any] = []
    cursor: str | None = ""
    read = pages = 0
    while cursor is not None and pages < TASKS / EXAMINED + 2:
        page, most = _page(busy, f"queue=rare{cursor and f'&cursor={cursor}'}")
        found += page["data"]
        read, pages, cursor = max(read, most), pages + 1, page["next_cursor"]
    assert cursor is None
    assert [one["queue"] for one in found] == ["rare"]
    assert pages > 1
    assert read <= EXAMINED + 10


def test_a_rare_status_is_found_on_the_first_page(busy: ApiClient) -> None:
    page, _read = _page(busy, "status=FAILED")
    assert len(page["data"]) == 19
    assert page["next_cursor"] is None


def test_open_tasks_are_found_by_an_index(busy: ApiClient) -> None:
    page, read = _page(busy, "status=RUNNING")
    assert (page["data"], page["next_cursor"]) == ([], None)
    assert read <= 10
    ended = "UPDATE durable_tasks_task SET status = 'SUCCESS', due_at = NULL, completed_at = now()"
    with connection.cursor() as cursor:
        cursor.execute(f"{ended} WHERE status = 'PENDING' AND queue = 'test' AND random() < 0.99")
        cursor.execute(f"ANALYZE {TABLE}")
    with CaptureQueriesContext(connection) as captured:
        (used,) = [row.used for row in usage(busy.tenant) if row.name == "open_tasks"]
    assert used is not None
    assert 0 < used < 2_000
    statements = [one["sql"] for one in captured if f'FROM "{TABLE}"' in one["sql"]]
    assert _rows_read(statements[0]) <= used + 10
