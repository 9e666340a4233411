"""With 100,000 audit entries of two tenants, a page of the API reads a bounded number of database pages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from django_durable_tasks import audit
from django_durable_tasks.models import AuditEntry
from tests.database.api.client import SETTINGS, ApiClient, a_client, a_tenant
from tests.database.pages import touched_by
from tests.factories import a_task

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db, pytest.mark.timeout(300)]
ENTRIES, MOST = 100_000, 1_000
TABLE = "durable_tasks_audit_entry"
_ROWS = f"""
INSERT INTO {TABLE} (tenant_id, source, actor, operation, object_type, object_id, count, object_ids,
                     before, after, reason)
SELECT CASE WHEN n %% 1000 = 0 THEN %(rare)s ELSE %(busy)s END, 'API', 'actor ' || n %% 500,
       CASE WHEN n < 20 THEN 'tasks.cancel' ELSE 'tasks.retry' END, 'task',
       CASE WHEN n %% 10 = 0 THEN '' ELSE 'id-' || n END, 1, '[]', '{{}}', '{{}}', ''
  FROM generate_series(1, %(number)s) AS n
"""


@pytest.fixture(autouse=True)
def api(settings: Any) -> None:
    """Enable the API."""
    settings.DURABLE_TASKS = dict(SETTINGS)


@pytest.fixture(scope="module")
def clients(committed_rows: Callable[[], None]) -> tuple[ApiClient, ApiClient]:
    """Insert the entries; return the clients of the tenant with most of them, and of the other."""
    busy, rare = a_tenant("busy"), a_tenant("rare")
    found = a_client(busy), a_client(rare)
    with connection.cursor() as cursor:
        cursor.execute(_ROWS, {"busy": busy.pk, "rare": rare.pk, "number": ENTRIES})
        cursor.execute(f"VACUUM ANALYZE {TABLE}")
    return found


@pytest.mark.parametrize(
    "query",
    [
        "",
        "operation=tasks.cancel",
        "operation=none",
        "actor=actor%207",
        "object_id=id-77",
        "object_id=id-77&object_type=task",
    ],
)
def test_a_page_of_entries_reads_few_pages(
    clients: tuple[ApiClient, ApiClient], query: str
) -> None:
    for client in clients:
        page = touched_by(partial(client.get, f"/audit?limit=50&{query}"))
        assert page.result.status_code == 200
        assert not page.whole, page
        assert page.pages <= MOST, page


def test_the_history_of_a_task_and_pruning_read_few_pages(
    clients: tuple[ApiClient, ApiClient],
) -> None:
    task = a_task(tenant=clients[0].tenant)
    # The newest sets of the tenant are searched; the index of the key finds each with three pages.
    of_task = (partial(audit.of_task, task), 4 * audit.SETS_READ)
    pruning = (partial(audit.prune_audit, timezone.now(), 100), MOST)
    for act, most in (of_task, pruning):
        read = touched_by(act)
        assert not read.whole, read
        assert read.pages <= most, read
    assert AuditEntry.objects.count() > ENTRIES
