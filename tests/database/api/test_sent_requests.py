"""The section ``webhooks`` of the OpenAPI document describes what is really sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import jsonschema
import pytest
from django.test import Client

from django_durable_tasks.choices import FLAGS, EventType
from django_durable_tasks.contrib.api import quotas
from django_durable_tasks.contrib.callbacks import endpoints
from django_durable_tasks.contrib.notifications import deliveries
from django_durable_tasks.contrib.notifications.models import NotificationSetting
from django_durable_tasks.models import DEFAULT_TENANT_ID, DeadLetter, Task
from django_durable_tasks.states.machine import EndingKind, Outcome
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import attempts
from tests.database.api.client import ROOT, SETTINGS
from tests.database.notifications.sending import SETTINGS as SENDING
from tests.database.notifications.sending import a_webhook, run, send_all
from tests.database.recurring.schedules import a_schedule, at, fire
from tests.factories import a_run, a_task, an_unsaved_run
from tests.http_servers import Listener, answer, answering, listening
from tests.process_state import read_notification_settings

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def recorded_events(api_is_open: None) -> None:
    """Record the events that notification settings select."""
    read_notification_settings()


_OF_ANY_CLIENT = {"accept-encoding", "connection", "content-length", "content-type", "host"}


@pytest.fixture(autouse=True)
def everything_is_sent(settings: Any) -> None:
    """Open the API, switch notifications on, and let one dead letter be an alert."""
    settings.DURABLE_TASKS = {**SETTINGS, **SENDING, "DEAD_LETTERS_MAX": 0}


@pytest.fixture
def server() -> Iterator[Listener]:
    """A server that answers 200."""
    with listening(answering(answer(body=b"ok"))) as server:
        yield server


def _document() -> dict[str, Any]:
    found: dict[str, Any] = Client().get(f"{ROOT}/schema").json()
    return found


def _strict(schema: Any) -> Any:
    """Return the schema, in which no object may have members that are not described."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _strict(one) for name, one in schema.items()}
    return {**found, "additionalProperties": False} if "properties" in found else found


def _end(kind: EndingKind, **fields: Any) -> None:
    task = a_task("RUNNING", **fields)
    if kind is EndingKind.SUCCEEDED:
        assert attempts.succeed(a_run(task), None, "worker")
    else:
        outcome = Outcome(kind=kind, error="no route", error_type="Broken")
        attempts.fail(a_run(task), outcome, "worker")


def _let_everything_happen() -> None:
    _end(EndingKind.SUCCEEDED)
    _end(EndingKind.FAILED, max_attempts=3)
    _end(EndingKind.FAILED, max_attempts=1)
    a_schedule(interval=3_600)
    fire(at(3 * 3_600 + 600))
    now = database_now()
    deliveries.watch_alerts(now)
    DeadLetter.objects.discard(by="anna", reason="old")
    deliveries.watch_alerts(now + timedelta(seconds=2 * deliveries.CALM))
    run = an_unsaved_run("call", "test")
    for _ in range(5):
        endpoints.failed("https://example.com", DEFAULT_TENANT_ID, "No answer.", run)
    endpoints.stopped("https://example.com", DEFAULT_TENANT_ID, "410 Gone", run)
    quotas.refused(DEFAULT_TENANT_ID, "requests", "The tenant may send 1 request.")
    deliveries.create_test(NotificationSetting.objects.get(name="all"), by="anna")


def test_each_type_of_message_that_is_sent_has_its_schema(server: Listener) -> None:
    flags = dict.fromkeys(FLAGS, True)
    a_webhook(server.url("/all"), "all", **flags)
    a_webhook(server.url("/failures"), "failures")
    a_webhook(server.url("/digest"), "digest", digest=60, **flags)
    _let_everything_happen()
    tasks = send_all(database_now() + timedelta(minutes=5))
    assert {task.status for task in tasks} == {"SUCCESS"}
    document = _document()
    components = _strict(document["components"])
    seen = set()
    for number in range(len(tasks)):
        body = json.loads(server.body(number))
        described = document["webhooks"][body["type"]]["post"]["requestBody"]["content"]
        schema = {**described["application/json"]["schema"], "components": components}
        jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(
            body
        )
        seen.add(body["type"])
    assert seen == set(EventType)
    assert set(document["webhooks"]) == {"callback", *EventType}


def test_a_schema_refuses_another_body() -> None:
    components = _strict(_document()["components"])
    schema = {"$ref": "#/components/schemas/NotificationTestMessage", "components": components}
    data = {"setting": "ops", "sent_by": "anna"}
    body = {"type": "notification.test", "timestamp": "2026-07-01T00:00:00Z", "data": data}
    check = jsonschema.Draft202012Validator(schema).is_valid
    assert check(body)
    assert not check({**body, "type": "task.failed"})
    assert not check({**body, "data": {"setting": "ops"}})
    assert not check({**body, "data": {**data, "more": 1}})


def test_a_callback_has_the_described_headers(server: Listener) -> None:
    row = a_schedule(
        task="django_durable_tasks.http_callback", kwargs={"url": server.url("/hook"), "body": {}}
    )
    fire(at(0))
    assert run(Task.objects.get(recurring_task=row)).status == "SUCCESS"
    post = _document()["webhooks"]["callback"]["post"]
    described = {one["name"].lower() for one in post["parameters"]}
    assert set(server.headers()) - _OF_ANY_CLIENT == described
    assert row.tenant_id == DEFAULT_TENANT_ID
