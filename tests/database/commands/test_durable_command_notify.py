"""``durable notify``: list settings, and report what happened to a test message."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection

from django_durable_tasks.models import Task
from django_durable_tasks.registry import NOTIFICATION_TASK
from tests.database.commands.durable_command import durable
from tests.database.notifications.sending import SETTINGS, a_setting, a_webhook, run
from tests.factories import a_tenant
from tests.http_servers import answer, answering, listening
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def notifications_are_on(settings: Any) -> None:
    """Switch notifications on."""
    settings.DURABLE_TASKS = dict(SETTINGS)


def _worker() -> threading.Thread:
    """Run the test message in another thread, as a worker does."""

    def work() -> None:
        rows = Task.objects.filter(name=NOTIFICATION_TASK)
        try:
            until(rows.exists, within=20)
            run(rows.get())
        finally:
            connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_settings_are_listed_without_secrets() -> None:
    a_setting()
    url = "https://hooks.slack.com/services/T0/B0/hunter2"
    a_webhook(url, "chat", delivery_type="SLACK_WEBHOOK", tenant=a_tenant(slug="acme"))
    found = durable("notify", "list", "--format", "json").data
    assert [row["name"] for row in found] == ["ops", "chat"]
    assert "hunter2" not in durable("notify", "list").out
    assert [
        row["name"]
        for row in durable("notify", "list", "--tenant", "acme", "--format", "json").data
    ] == ["chat"]


def test_a_test_message_that_arrives_is_reported() -> None:
    with listening(answering(answer())) as server:
        a_webhook(server.url())
        worker = _worker()
        found = durable("notify", "test", "hook", "--wait", "20", "--format", "json")
        worker.join(20)
    assert (found.code, found.data["sent"], found.data["status"]) == (0, True, "SUCCESS")
    assert b"notification.test" in server.body()


def test_a_test_message_that_is_refused_is_reported_with_the_reason() -> None:
    with listening(answering(answer("403 Forbidden"))) as server:
        a_webhook(server.url("/services/x"), delivery_type="SLACK_WEBHOOK")
        worker = _worker()
        found = durable("notify", "test", "hook", "--wait", "20")
        worker.join(20)
    assert found.code == 1
    assert "answered 403" in found.out


def test_a_test_message_without_a_worker_names_what_to_check() -> None:
    a_setting()
    found = durable("notify", "test", "ops", "--wait", "0.1")
    assert found.code == 1
    assert "durable status" in found.out
