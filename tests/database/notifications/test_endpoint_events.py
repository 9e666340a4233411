"""The first opening of a breaker and the end of deliveries are events of a receiver's tenant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from celery.exceptions import Ignore, Retry
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.callbacks import endpoints
from django_durable_tasks.contrib.callbacks.models import Endpoint
from django_durable_tasks.contrib.callbacks.tasks import DeliveryRetry
from django_durable_tasks.contrib.notifications.models import NotificationEvent
from django_durable_tasks.exceptions import DeliveryFailed
from django_durable_tasks.registry import NOTIFICATION_TASK
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import attempts
from tests.database.notifications.sending import (
    SETTINGS,
    a_setting,
    a_webhook,
    events,
    send_all,
    types,
)
from tests.delivery import deliver
from tests.factories import a_run, a_task, a_tenant, an_unsaved_run
from tests.http_servers import Listener, answer, answering, listening

pytestmark = pytest.mark.django_db(transaction=True)
NAME = "django_durable_tasks.http_callback"
KEY = "https://example.com"
GONE, BUSY, FINE = answer("410 Gone"), answer("503 Busy"), answer()


@pytest.fixture(autouse=True)
def two_failures_open_a_breaker(settings: Any) -> None:
    """Open breakers after two failures."""
    settings.DURABLE_TASKS = {**SETTINGS, "HTTP_BREAKER_FAILURES": 2}


def _serving(*answers: bytes) -> Iterator[Listener]:
    with listening(answering(*answers)) as server:
        yield server


def _call(url: str, **fields: Any) -> None:
    key = url.rstrip("/")
    if "tenant" in fields:
        key = f"{fields['tenant'].pk}:{key}"
    task = a_task(Status.QUEUED, name=NAME, kwargs={"url": url}, limit_key=key, **fields)
    with suppress(DeliveryRetry, DeliveryFailed, Retry, Ignore):
        deliver(task)


def _fail(times: int) -> None:
    for _ in range(times):
        endpoints.failed(KEY, 1, "The endpoint answered 503.", an_unsaved_run(NAME, "mail"))


def _end_pause() -> None:
    past = database_now() - timedelta(seconds=1)
    Endpoint.objects.unguarded().update(open_until=past)


def test_the_breaker_of_an_endpoint_is_one_event_until_a_success() -> None:
    a_setting(on_failure=False, on_endpoint=True)
    _fail(1)
    assert types() == []
    _fail(1)
    (event,) = events()
    assert (event.type, event.subject) == ("endpoint.opened", KEY)
    assert event.data == {"endpoint": KEY, "task_name": NAME, "error": "The endpoint answered 503."}
    _end_pause()
    _fail(1)
    assert Endpoint.objects.get().openings == 2
    assert types() == ["endpoint.opened"], "the probe failed: it is still the same outage"
    endpoints.succeeded(KEY)
    _fail(2)
    assert types() == ["endpoint.opened"] * 2


def test_an_endpoint_that_fails_requests_is_an_event_of_its_tenant_only() -> None:
    acme = a_tenant()
    a_setting("ours", on_failure=False, on_endpoint=True)
    a_setting("theirs", on_failure=False, on_endpoint=True, tenant=acme)
    for server in _serving(BUSY):
        for _ in range(2):
            _call(server.url(), tenant=acme)
        (event,) = NotificationEvent.objects.select_related("setting")
        assert (event.setting.name, event.type) == ("theirs", "endpoint.opened")
        assert event.data["endpoint"] == server.url().rstrip("/")


@pytest.mark.parametrize(
    ("filters", "number"),
    [({"queue": "mail"}, 1), ({"queue": "other"}, 0), ({"task_name": "billing.*"}, 0)],
)
def test_filters_select_the_callbacks(filters: dict[str, str], number: int) -> None:
    a_setting(on_failure=False, on_endpoint=True, **filters)
    _fail(2)
    assert len(events()) == number


def test_410_is_one_event_until_an_hour_passed_and_a_request_succeeded() -> None:
    a_setting(on_failure=False, on_endpoint=True)
    for server in _serving(GONE, GONE, FINE, GONE, FINE, GONE):
        url = server.url()
        for _ in range(4):
            _call(url)
        assert types() == ["endpoint.gone"]
        assert events()[0].data["error"] == "The endpoint answered 410 Gone."
        earlier = database_now() - timedelta(seconds=3_601)
        Endpoint.objects.unguarded().update(gone_at=earlier)
        _call(url)
        assert Endpoint.objects.get().gone_at is None
        _call(url)
        assert types() == ["endpoint.gone"] * 2
        assert len(server.requests) == 6


def test_410_closes_the_breaker() -> None:
    _fail(2)
    endpoints.stopped(KEY, 1, "The endpoint answered 410 Gone.", an_unsaved_run(NAME, "mail"))
    row = Endpoint.objects.get()
    assert (row.failures, row.openings, row.open_until) == (0, 0, None)


@pytest.mark.parametrize("first", [GONE, BUSY])
def test_a_notification_that_fails_is_no_event(first: bytes) -> None:
    for server in _serving(first):
        setting = a_webhook(server.url(), on_success=True, on_failure=False, on_endpoint=True)
        for _ in range(3):
            _succeed()
        send_all()
        assert server.requests
        assert set(types()) == {"task.succeeded"}
        setting.refresh_from_db()
        assert setting.last_delivery_status in ("FAILED", "RETRYING")
    assert not Endpoint.objects.filter(gone_at__isnull=False).exists()
    assert NOTIFICATION_TASK not in str([event.data for event in events()])


def _succeed() -> None:
    """Record a success."""
    assert attempts.succeed(a_run(a_task("RUNNING")), None, "worker")


def test_an_endpoint_that_no_setting_selects_costs_no_statement() -> None:
    _fail(1)
    with CaptureQueriesContext(connection) as captured:
        _fail(1)
    assert Endpoint.objects.get().openings == 1
    assert not [query for query in captured if "notification_event" in query["sql"]]
