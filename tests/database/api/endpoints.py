"""The endpoints of the API by their URL patterns, and a row for each kind of id in them.

A new endpoint without a row for its id fails the tests that read them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.urls import URLPattern
from django.utils import timezone

from django_durable_tasks import Workflow
from django_durable_tasks.contrib.api import bulk_operations, urls
from django_durable_tasks.contrib.api.bulk_operations import TaskFilter
from django_durable_tasks.contrib.api.models import BulkKind
from django_durable_tasks.models import Calendar, RecurringTask
from tests.database.api.client import ApiClient
from tests.database.notifications.sending import a_setting
from tests.factories import many_tasks
from tests.project.tasks import noop


def patterns() -> Iterator[tuple[str, URLPattern]]:
    """Yield the address and the pattern of each endpoint that needs a key."""
    for pattern in urls.urlpatterns:
        if pattern.callback.cls.authentication_classes:
            yield str(pattern.pattern), pattern


def methods(pattern: URLPattern) -> list[str]:
    """Return the methods of an endpoint."""
    actions: dict[str, str] = pattern.callback.actions  # type: ignore[attr-defined]
    return [method.upper() for method in actions if method != "head"]


def rows_of(client: ApiClient) -> dict[str, Any]:
    """Create one row for each kind of id in the addresses, and return the ids."""
    task = many_tasks(1, "FAILED", tenant=client.tenant)[0]
    schedule = RecurringTask.objects.upsert(
        name="nightly", task=noop, cron="0 2 * * *", tenant=client.tenant
    )
    workflow = Workflow("flow")
    workflow.add(noop)
    return {
        "task_id": task.pk,
        "recurring_task_id": schedule.pk,
        "workflow_id": workflow.start(tenant=client.tenant).pk,
        "letter_id": task.dead_letters.get().pk,
        "calendar_id": Calendar.objects.upsert("office", tenant=client.tenant).pk,
        "operation_id": bulk_operations.start(client.tenant, BulkKind.CANCEL, TaskFilter()).pk,
        "notification_setting_id": a_setting(tenant=client.tenant).pk,
    }


SHARED = "queues/"
"""Objects that all tenants share, behind a scope of their own."""
WITH_ID = [
    (address, method)
    for address, pattern in patterns()
    if "<" in address and not address.startswith(SHARED)
    for method in methods(pattern)
]
WITHOUT_ID = [
    (address, method)
    for address, pattern in patterns()
    if "<" not in address or address.startswith(SHARED)
    for method in methods(pattern)
]


def filled(address: str, ids: dict[str, Any]) -> str:
    """Return an address with these ids."""
    query = _QUERIES.get(address, "")
    address = address.replace("<str:queue>", "mail")
    for name, value in ids.items():
        address = address.replace(f"<uuid:{name}>", str(value)).replace(f"<int:{name}>", str(value))
    assert "<" not in address, f"rows_of() creates no row for {address}"
    return f"/{address}{query}"


_SCOPES = (
    ("queues scheduler/status", "GET POST", "queues"),
    ("metrics", "GET", "metrics"),
    ("", "GET", "read"),
    ("recurring-tasks calendars", "POST PATCH DELETE", "schedules"),
    ("notification-settings", "POST PATCH DELETE", "notifications"),
    ("tasks/<uuid:task_id>/force-", "POST", "force"),
    ("tasks/<uuid:task_id> tasks/bulk-", "POST PATCH DELETE", "operate"),
    ("workflows/<uuid:workflow_id> dead-letters", "POST", "operate"),
    ("tasks workflows", "POST", "create"),
)
"""The scope of each endpoint as the reference documents it: the beginnings of addresses, the
methods, and the scope. The first line that fits counts.
"""


def scope_of(address: str, method: str) -> str:
    """Return the scope that an endpoint needs."""
    return next(
        scope
        for beginnings, methods, scope in _SCOPES
        if method in methods.split() and address.startswith(tuple(beginnings.split()) or "")
    )


_QUERIES = {
    "recurring-tasks/<uuid:recurring_task_id>/explain": "?at=2027-01-01T00:00:00Z",
    "signing-secret": "?url=https://example.com/hook",
}
"""Required parameters."""


_SOON = (timezone.now() + timedelta(days=7)).isoformat()
VALID: dict[str, Any] = {
    "tasks/<uuid:task_id>/reschedule": {"run_at": _SOON},
    "tasks/<uuid:task_id>/dependencies": {"upstream": str(uuid.uuid4()), "type": "MUST_SUCCEED"},
    "recurring-tasks/<uuid:recurring_task_id>/snooze": {"until": _SOON},
    "recurring-tasks/<uuid:recurring_task_id>/override": {
        "fire_time": "2027-01-01T00:00:00Z",
        "action": "SKIP",
        "reason": "holiday",
    },
    "recurring-tasks/<uuid:recurring_task_id>/remove-override": {
        "fire_time": "2027-01-01T00:00:00Z"
    },
    "recurring-tasks/<uuid:recurring_task_id>/backfill": {
        "start": "2026-01-01T00:00:00Z",
        "end": "2026-01-02T00:00:00Z",
    },
    "recurring-tasks/<uuid:recurring_task_id>/explain": None,
    "dead-letters/<int:letter_id>/discard": {"reason": "old"},
}
"""Bodies of the endpoints that need one; the tests of single endpoints check the others."""
