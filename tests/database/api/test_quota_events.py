"""A request that a quota refuses is an event, at most once per quota and hour."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from celery.exceptions import Retry
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_durable_tasks import process_state
from django_durable_tasks.contrib.api import quotas
from django_durable_tasks.contrib.api.bulk_operations import BULK_OPERATION_TASK
from django_durable_tasks.contrib.api.models import TenantQuota
from django_durable_tasks.contrib.notifications import deliveries
from django_durable_tasks.contrib.notifications.capture import RecentQuotaEvents
from django_durable_tasks.contrib.notifications.models import NotificationEvent
from django_durable_tasks.models import Task
from tests.database.api.client import ApiClient, call
from tests.database.encryption.keys import queued
from tests.delivery import deliver
from tests.factories import many_tasks
from tests.process_state import read_notification_settings

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def recorded_events(api_is_open: None) -> None:
    """Record the events that notification settings select."""
    read_notification_settings()


TO: dict[str, Any] = {"delivery_type": "EMAIL", "delivery_config": {"to": ["ops@example.com"]}}


def _allow(client: ApiClient, **values: Any) -> None:
    quotas.set_quotas(client.tenant, **values, by="test")


def _notify(client: ApiClient) -> None:
    deliveries.create_setting(tenant=client.tenant, name="quota", on_quota=True, **TO)


def _found() -> list[tuple[str, str]]:
    return list(NotificationEvent.objects.order_by("pk").values_list("type", "subject"))


def _pass_an_hour(client: ApiClient) -> None:
    row = TenantQuota.objects.get(pk=client.tenant.pk)
    earlier = (timezone.now() - timedelta(seconds=3_601)).isoformat()
    times = dict.fromkeys(row.notified_at, earlier)
    TenantQuota.objects.unguarded().filter(pk=row.pk).update(notified_at=times)
    process_state.of(RecentQuotaEvents).last.clear()


def test_refused_tasks_are_one_event_an_hour(acme: ApiClient) -> None:
    _notify(acme)
    _allow(acme, open_tasks=0)
    assert [acme.post("/tasks", call(n)).status_code for n in range(3)] == [429] * 3
    assert _found() == [("quota.reached", "open_tasks")]
    data = NotificationEvent.objects.get().data
    assert data["quota"] == "open_tasks"
    assert "may have 0 open tasks" in data["detail"]
    _pass_an_hour(acme)
    assert acme.post("/tasks", call(4)).status_code == 429
    assert _found() == [("quota.reached", "open_tasks")] * 2


def test_each_quota_has_its_own_event(acme: ApiClient) -> None:
    _notify(acme)
    _allow(acme, open_tasks=0, payload_bytes=20, requests="2/h")
    assert acme.post("/tasks", call(1)).status_code == 429
    assert acme.post("/tasks", call(10**17)).status_code == 422
    assert [acme.get("/tasks").status_code for _ in range(3)] == [429] * 3
    assert [subject for _type, subject in _found()] == ["open_tasks", "payload_bytes", "requests"]


def test_a_dry_run_and_a_refusal_of_another_tenant_are_no_event(
    acme: ApiClient, globex: ApiClient
) -> None:
    _notify(globex)
    _allow(acme, open_tasks=0)
    _allow(globex, open_tasks=0)
    assert acme.post("/tasks", call(1)).status_code == 429
    assert globex.post("/tasks?dry_run=1", call(1)).status_code == 429
    assert _found() == []
    assert TenantQuota.objects.get(pk=acme.tenant.pk).notified_at == {}


def test_a_flood_of_refused_requests_reads_the_row_twice(acme: ApiClient) -> None:
    _notify(acme)
    _allow(acme, requests="1/h")
    with CaptureQueriesContext(connection) as captured:
        assert [acme.get("/quota").status_code for _ in range(10)] == [200] + [429] * 9
    sent = [one["sql"].replace("`", '"') for one in captured]
    read = [sql for sql in sent if 'FROM "durable_tasks_tenant_quota"' in sql]
    assert len([sql for sql in read if '"notified_at"' in sql]) == 2
    assert len([sql for sql in sent if sql.startswith("UPDATE") and "notified_at" in sql]) == 1
    assert _found() == [("quota.reached", "requests")]


def test_the_flags_are_fields_of_the_api(acme: ApiClient) -> None:
    made = acme.post(
        "/notification-settings", {"name": "ops", "on_quota": True, "on_endpoint": True, **TO}
    )
    assert made.status_code == 201, made.content
    assert (made.json()["on_quota"], made.json()["on_endpoint"]) == (True, True)


def test_an_error_of_the_event_leaves_the_answer_as_it_is(acme: ApiClient) -> None:
    _notify(acme)
    _allow(acme, open_tasks=0)
    TenantQuota.objects.unguarded().filter(pk=acme.tenant.pk).update(
        notified_at={"open_tasks": "no time"}
    )
    refused = acme.post("/tasks", call(1))
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
    assert _found() == []


@pytest.mark.django_db(transaction=True)
def test_a_bulk_replay_above_the_quota_is_an_event(acme: ApiClient) -> None:
    _notify(acme)
    many_tasks(3, "FAILED", tenant=acme.tenant)
    _allow(acme, open_tasks=2)
    assert acme.post("/tasks/bulk-replay", {"status": "FAILED"}).status_code == 202
    with suppress(Retry):
        deliver(queued(Task.objects.get(name=BULK_OPERATION_TASK)))
    assert Task.objects.filter(status="FAILED").count() == 3
    assert _found() == [("quota.reached", "open_tasks")]
