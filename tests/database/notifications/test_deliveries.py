"""Messages are sent once they are due, retried when the receiver fails, and bounded in size."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django import VERSION
from django.core import mail

from django_durable_tasks.contrib.callbacks.models import DeliveryAttempt, Endpoint
from django_durable_tasks.contrib.notifications import deliveries
from django_durable_tasks.contrib.notifications import task as notification_delivery
from django_durable_tasks.contrib.notifications.models import NotificationEvent, NotificationSetting
from django_durable_tasks.limits import config
from django_durable_tasks.models import Task
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.registry import NOTIFICATION_TASK
from django_durable_tasks.states.machine import EndingKind, Outcome
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.targets.http_request import derived_secret, verify
from django_durable_tasks.tasks import attempts, claim
from tests.database.notifications.sending import (
    SETTINGS,
    a_setting,
    a_webhook,
    create_deliveries,
    delivery_tasks,
    events,
    result,
    run,
    send_all,
)
from tests.factories import a_run, a_task, a_tenant
from tests.http_servers import Listener, answer, answering, listening
from tests.smtp_servers import MailServer, mail_server

pytestmark = pytest.mark.django_db(transaction=True)
SLACK = "/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX"


@pytest.fixture
def server() -> Iterator[Listener]:
    """A server that answers 200."""
    with listening(answering(answer(body=b"ok"))) as server:
        yield server


def _failed_task(**fields: Any) -> Task:
    task = a_task("RUNNING", max_attempts=1, **fields)
    error = "no route: token=hunter2 <!channel>"
    outcome = Outcome(kind=EndingKind.FAILED, error=error, error_type="Broken")
    attempts.fail(a_run(task), outcome, "worker")
    return task


def _body(server: Listener, number: int = -1) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.body(number))
    return found


def test_a_webhook_gets_a_signed_message_with_ids_and_a_masked_summary(server: Listener) -> None:
    row, failed = a_webhook(server.url("/hook")), _failed_task()
    (task,) = send_all()
    assert (task.status, task.result) == (
        "SUCCESS",
        {"sent": True, "type": "task.failed", "events": 1, "status": 200},
    )
    body = _body(server)
    assert (body["type"], body["data"]["task_id"]) == ("task.failed", str(failed.pk))
    assert "hunter2" not in server.body().decode()
    assert set(body) == {"type", "timestamp", "data"}
    headers, origin = server.headers(), server.url("")
    secret = derived_secret("k" * 40, 1, origin, f"notification-setting-{row.pk}")
    assert verify(headers, server.body(), [secret], float(headers["webhook-timestamp"]))
    assert headers["webhook-id"] == str(task.pk)
    row.refresh_from_db()
    assert (row.last_delivery_status, row.last_delivery_error) == ("SENT", "")
    assert task.kwargs == {"setting": row.pk, "delivery": str(events()[0].delivery)}


def test_a_slack_url_is_stored_nowhere_else_and_its_text_is_escaped(server: Listener) -> None:
    a_webhook(server.url(SLACK), delivery_type="SLACK_WEBHOOK")
    _failed_task()
    (task,) = send_all()
    assert task.status == "SUCCESS"
    assert server.requests[0].startswith(f"POST {SLACK} ".encode())
    text = _body(server)["blocks"][0]["text"]["text"]
    assert "&lt;!channel&gt;" in text
    assert "<" not in text
    stored = str([*DeliveryAttempt.objects.values(), *Task.objects.values()])
    assert "XXXX" not in stored
    assert "T00000000" not in stored


def test_a_webhook_that_slack_refuses_is_not_retried() -> None:
    with listening(answering(answer("404 Not Found", b"no_service"))) as server:
        row = a_webhook(server.url(SLACK), delivery_type="SLACK_WEBHOOK")
        _failed_task()
        (task,) = send_all()
    assert (task.status, task.attempts) == ("FAILED", 1)
    row.refresh_from_db()
    assert row.last_delivery_status == "FAILED"
    assert "404" in row.last_delivery_error
    assert task.dead_letters.count() == 1
    assert len(events()) == 1


def test_a_receiver_that_is_gone_disables_its_setting() -> None:
    with listening(answering(answer("410 Gone"))) as server:
        row = a_webhook(server.url())
        _failed_task()
        (task,) = send_all()
    row.refresh_from_db()
    assert (task.status, row.enabled, row.revision) == ("FAILED", False, 2)
    assert "410" in row.reason


def test_a_receiver_that_fails_is_tried_again_with_the_same_id_and_body() -> None:
    with listening(answering(answer("500 Oops"), answer())) as server:
        row = a_webhook(server.url())
        _failed_task()
        (task,) = send_all()
        row.refresh_from_db()
        assert (task.status, row.last_delivery_status) == ("PENDING", "RETRYING")
        Task.objects.unguarded().filter(pk=task.pk).update(due_at=DatabaseNow())
        assert run(task).status == "SUCCESS"
        assert server.body(0) == server.body(1)
        assert server.headers(0)["webhook-id"] == server.headers(1)["webhook-id"]
    assert [one.outcome for one in DeliveryAttempt.objects.order_by("pk")] == ["RETRY", "DONE"]


def test_the_breaker_of_one_setting_does_not_delay_another_one(
    settings: Any, server: Listener
) -> None:
    settings.DURABLE_TASKS = {**SETTINGS, "HTTP_BREAKER_FAILURES": 2}
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    a_webhook(f"http://127.0.0.1:{port}/", "down")
    a_webhook(server.url(), "up")
    for _ in range(3):
        _failed_task()
    tasks = send_all()
    assert len(server.requests) == 3
    waiting = [task for task in tasks if task.status == "PENDING"]
    assert len(waiting) == 3
    assert sorted(task.attempts for task in waiting) == [0, 1, 1]
    assert Endpoint.objects.get().open_until is not None


def test_a_setting_sends_a_limited_number_at_the_same_time(server: Listener) -> None:
    a_webhook(server.url(), "one")
    a_webhook(server.url(), "two")
    for _ in range(4):
        _failed_task()
    create_deliveries()
    assert config.read().per_key[NOTIFICATION_TASK].places == 2
    ids = [task.pk for task in delivery_tasks()]
    claim.claim_these(ids, database_now(), a_run(a_task("RUNNING")).node)
    queued = Task.objects.filter(name=NOTIFICATION_TASK, status="QUEUED")
    assert sorted(task.kwargs["setting"] for task in queued) == sorted(
        [row.pk for row in NotificationSetting.objects.all()] * 2
    )


def test_no_limit_exists_while_notifications_are_off(settings: Any) -> None:
    settings.DURABLE_TASKS = {}
    assert config.read().empty


def test_a_hanging_receiver_ends_at_its_deadline(settings: Any) -> None:
    settings.DURABLE_TASKS = {**SETTINGS, "HTTP_TIMEOUT": 0.3}
    stop = threading.Event()

    def hang(_conn: socket.socket, _request: bytes) -> None:
        stop.wait(20)

    with listening(hang) as server:
        a_webhook(server.url())
        _failed_task()
        (task,) = send_all()
        stop.set()
    assert (task.status, task.attempts) == ("PENDING", 1)
    assert "did not answer" in task.last_error or "timeout" in task.last_error.lower()


# E-mail -------------------------------------------------------------------------------------------


def test_an_email_has_one_line_as_subject_and_a_stable_id() -> None:
    a_setting(delivery_config={"to": ["ops@example.com", "oncall@example.com"]})
    _failed_task(name="tests.project.tasks.noop")
    (task,) = send_all()
    assert task.status == "SUCCESS"
    (sent,) = mail.outbox
    assert sent.to == ["ops@example.com", "oncall@example.com"]
    assert sent.subject == "Task tests.project.tasks.noop failed (attempt 1 of 1)"
    assert sent.extra_headers["Message-ID"] == f"<{task.pk}@django-durable-tasks>"
    assert "hunter2" not in sent.body


def _use(settings: Any, server: MailServer) -> None:
    backend = "django.core.mail.backends.smtp.EmailBackend"
    if VERSION >= (6, 1):
        options = {"host": "127.0.0.1", "port": server.port}
        settings.MAILERS = {"default": {"BACKEND": backend, "OPTIONS": options}}
    else:
        settings.EMAIL_BACKEND = backend
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", server.port


def test_a_mail_server_receives_the_message(settings: Any) -> None:
    with mail_server() as server:
        _use(settings, server)
        a_setting()
        _failed_task()
        (task,) = send_all()
    assert (task.status, task.last_error) == ("SUCCESS", "")
    assert "Subject: Task tests.project.tasks.noop failed" in server.messages[0]
    assert "To: ops@example.com" in server.messages[0]


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        ({"rcpt": "550 unknown user"}, "FAILED"),
        ({"rcpt": "450 try later"}, "PENDING"),
        ({"data": "554 refused"}, "FAILED"),
        ({"mail": "421 busy"}, "PENDING"),
    ],
)
def test_the_answer_of_a_mail_server_decides_about_another_attempt(
    settings: Any, answers: dict[str, str], status: str
) -> None:
    with mail_server(answers=answers) as server:
        _use(settings, server)
        a_setting()
        _failed_task()
        (task,) = send_all()
    assert (task.status, task.attempts) == (status, 1)
    assert "E-mail was not accepted" in task.last_error


def test_a_mail_server_that_hangs_is_left_after_the_timeout_and_tried_again(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notification_delivery, "_ANSWER_TIMEOUT", 0.3)
    with mail_server(silent=True) as server:
        _use(settings, server)
        row = a_setting()
        _failed_task()
        (task,) = send_all()
    assert (task.status, task.attempts) == ("PENDING", 1)
    row.refresh_from_db()
    assert row.last_delivery_status == "RETRYING"
    assert Endpoint.objects.get().failures == 1


def test_an_address_that_is_no_longer_allowed_gets_nothing(settings: Any) -> None:
    a_setting()
    settings.DURABLE_TASKS = {**SETTINGS, "NOTIFICATION_EMAIL_ALLOW": ["*@example.org"]}
    _failed_task()
    (task,) = send_all()
    assert task.status == "FAILED"
    assert mail.outbox == []


# Changes between the event and its message --------------------------------------------------------


def test_events_of_a_disabled_or_deleted_setting_are_not_sent() -> None:
    disabled, deleted = a_setting("disabled"), a_setting("deleted")
    _failed_task()
    deliveries.change_setting(disabled, enabled=False)
    deliveries.delete_setting(deleted)
    assert create_deliveries() == 2
    assert (delivery_tasks(), events()) == ([], [])


def test_a_setting_that_is_deleted_after_its_task_was_created_sends_nothing() -> None:
    row = a_setting()
    _failed_task()
    create_deliveries()
    deliveries.delete_setting(row)
    (task,) = send_all()
    assert (task.status, result(task)["sent"]) == ("SUCCESS", False)


def test_a_task_cannot_send_for_the_setting_of_another_tenant(server: Listener) -> None:
    row = a_webhook(server.url(), tenant=a_tenant())
    task = a_task(name=NOTIFICATION_TASK, kwargs={"setting": row.pk, "delivery": "0" * 32})
    assert result(run(task))["sent"] is False
    assert server.requests == []


def test_each_event_has_one_delivery_also_if_the_job_runs_twice() -> None:
    a_setting()
    for _ in range(3):
        _failed_task()
    assert create_deliveries() == 3
    assert create_deliveries() == 0
    found = {str(event.delivery) for event in events()}
    assert found == {task.kwargs["delivery"] for task in delivery_tasks()}
    assert len(found) == 3


def test_a_test_message_of_a_disabled_setting_is_sent() -> None:
    row = a_setting(enabled=False)
    task_id = deliveries.create_test(row, by="anna")
    task = run(Task.objects.get(pk=task_id))
    assert result(task)["type"] == "notification.test"
    assert "test" in mail.outbox[0].subject
    assert create_deliveries() == 0


def test_old_events_are_deleted_in_batches() -> None:
    a_setting()
    for _ in range(3):
        _failed_task()
    NotificationEvent.objects.unguarded().filter(pk__in=[one.pk for one in events()[:2]]).update(
        created_at=database_now() - timedelta(days=31)
    )
    assert deliveries.prune_events(database_now(), 1) == 1
    assert deliveries.prune_events(database_now(), 10) == 1
    assert deliveries.prune_events(database_now(), 10) == 0
    assert len(events()) == 1
