"""``http_callback``: requests to a real server, their headers, records, retries, replays and dead
letters, also after unusual answers and errors.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db.backends.utils import CursorWrapper

from django_durable_tasks import Workflow, http_callback
from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.callbacks.models import DeliveryAttempt
from django_durable_tasks.exceptions import DeliveryFailed, InvalidArguments, InvalidTarget
from django_durable_tasks.masking import MASK
from django_durable_tasks.models import DeadLetter, RecurringTask, Task, TaskExecutionLog
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.targets.http_request import derived_secret, verify
from django_durable_tasks.tasks import operator_actions, retention
from tests.delivery import deliver
from tests.factories import a_task
from tests.http_servers import Listener, answer, answering, listening
from tests.project.tasks import add

pytestmark = pytest.mark.django_db(transaction=True)
NAME = "django_durable_tasks.http_callback"
KEYS = ["k" * 40, "o" * 40]
GIVEN = {
    "HTTP_ALLOW": ["127.0.0.0/8"],
    "HTTP_PORTS": [80, 443, *range(32_768, 61_000)],
    "HTTP_SIGNING_KEYS": KEYS,
}


@pytest.fixture(autouse=True)
def local(settings: Any) -> None:
    """Open the local servers of the tests."""
    settings.DURABLE_TASKS = GIVEN


@pytest.fixture
def server() -> Iterator[Listener]:
    """A server that answers 200."""
    with listening(answering(answer(body=b'{"ok": true}', Set_Cookie="id=1"))) as server:
        yield server


def _queued(*, max_attempts: int = 8, failures: int = 0, **kwargs: Any) -> Task:
    return a_task(
        Status.QUEUED, name=NAME, kwargs=kwargs, max_attempts=max_attempts, failures=failures
    )


def _sent(task: Task) -> Task:
    """Deliver the message of a task; return the task afterwards."""
    deliver(task)
    task.refresh_from_db()
    return task


def _failed(task: Task) -> Task:
    """Deliver a message whose attempt fails; return the task afterwards."""
    with pytest.raises(Exception):  # noqa: B017, PT011 - Celery's Retry, or the failure
        deliver(task)
    task.refresh_from_db()
    return task


def _change(task: Task, **fields: Any) -> None:
    Task.objects.unguarded().filter(pk=task.pk).update(**fields)
    task.refresh_from_db()


def test_a_request_carries_the_body_unchanged_and_the_headers_of_the_task(server: Listener) -> None:
    body = '{"b":1,  "a":"ü"}'
    task = _sent(_queued(url=server.url("/hook?x=1"), body=body, headers={"X-Shop": "7"}))
    result = {"status": 200, "body": '{"ok": true}', "truncated": False}
    assert (task.status, task.result) == ("SUCCESS", result)
    headers = server.headers()
    assert server.requests[0].startswith(b"POST /hook?x=1 HTTP/1.1\r\n")
    assert server.body() == body.encode()
    expected = {
        "host": f"127.0.0.1:{server.port}",
        "x-shop": "7",
        "content-type": "application/json",
        "content-length": str(len(body.encode())),
        "idempotency-key": f'"{task.pk}"',
        "webhook-id": str(task.pk),
        "durable-task-id": str(task.pk),
        "durable-attempt": "1",
        "durable-max-attempts": "8",
        "durable-scheduled-for": task.run_at.isoformat().replace("+00:00", "Z"),
    }
    assert headers.items() >= expected.items()
    assert headers["user-agent"].startswith("django-durable-tasks/")


def test_the_signature_is_accepted_with_the_secret_of_each_key(server: Listener) -> None:
    task = _queued(url=server.url(), body="hello")
    deliver(task)
    headers, origin = server.headers(), server.url("")
    for key in KEYS:
        secret = derived_secret(key, task.tenant_id, origin, origin)
        now = float(headers["webhook-timestamp"])
        assert verify(headers, server.body(), [secret], now) == str(task.pk)
    other = derived_secret(KEYS[0], task.tenant_id, origin, "another endpoint")
    assert other != derived_secret(KEYS[0], task.tenant_id + 1, origin, origin)
    with pytest.raises(Exception, match="No signature"):
        verify(headers, server.body(), [other], float(headers["webhook-timestamp"]))


def test_every_attempt_is_recorded_with_masked_secrets(server: Listener) -> None:
    task = _queued(
        url=server.url("/hook?api_key=hunter2"),
        headers={"Authorization": "Bearer hunter2", "X-Api-Key": "hunter2"},
        body='{"password": "hunter2"}',
    )
    deliver(task)
    row = DeliveryAttempt.objects.get()
    assert (row.task_id, row.attempt_number, row.outcome) == (task.pk, 1, "DONE")
    assert (row.method, row.status, row.failure) == ("POST", 200, "")
    assert row.url == server.url(f"/hook?api_key={MASK}")
    sent = dict(row.request_headers)
    assert (sent["Authorization"], sent["X-Api-Key"]) == (MASK, MASK)
    assert sent["webhook-signature"] == MASK
    assert dict(row.response_headers)["Set-Cookie"] == MASK
    assert (row.response_body, row.response_truncated) == ('{"ok": true}', False)
    assert row.request_bytes == len('{"password": "hunter2"}')
    assert row.dns_seconds is not None
    assert row.connect_seconds is not None
    assert row.tls_seconds is None
    assert row.first_byte_seconds is not None
    assert row.total_seconds >= row.connect_seconds + row.first_byte_seconds
    assert "hunter2" not in json.dumps(list(DeliveryAttempt.objects.values()), default=str)


def test_a_failed_attempt_waits_at_least_for_the_own_delay_and_the_retry_after() -> None:
    answers = (
        answer("503 Service Unavailable"),
        answer("429 Too Many Requests", Retry_After="100"),
        answer("500 Internal Server Error", Retry_After="999999"),
        answer("404 Not Found", Retry_After="1"),
    )
    waits = []
    with listening(answering(*answers)) as server:
        task = _queued(url=server.url())
        for number in range(4):
            _failed(task)
            assert (task.status, task.failures) == ("PENDING", number + 1)
            assert task.due_at is not None
            waits.append((task.due_at - task.updated_at).total_seconds())
            _change(task, status="QUEUED", epoch=10 * (number + 2))
        headers = [server.headers(number) for number in range(4)]
    assert {sent["webhook-id"] for sent in headers} == {str(task.pk)}
    assert [sent["durable-attempt"] for sent in headers] == ["1", "2", "3", "4"]
    bounds = [(5, 5.5), (300, 330), (1800 + 7200, 9900), (7200, 7920)]
    for wait, (least, most) in zip(waits, bounds, strict=True):
        assert least - 0.01 <= wait <= most + 1
    recorded = DeliveryAttempt.objects.order_by("id")
    assert [(row.outcome, row.status) for row in recorded] == [
        ("RETRY", status) for status in (503, 429, 500, 404)
    ]
    assert recorded[1].retry_delay == pytest.approx(waits[1], abs=1)


@pytest.mark.parametrize(
    ("answered", "kwargs", "reason", "outcome"),
    [
        (("410 Gone",), {}, "410 Gone", "STOP"),
        (("500 Error", "disable"), {}, "webhook-delivery: disable", "STOP"),
        (("500 Error", "abort-message"), {}, "abort-message", "FAILED"),
        (("302 Found",), {}, "Redirects", "FAILED"),
        (("404 Not Found",), {"no_retry_on": ["4xx"]}, "answered 404", "FAILED"),
        (("404 Not Found",), {"retry_on": ["5xx", 429]}, "answered 404", "FAILED"),
    ],
)
def test_an_answer_that_ends_the_task_opens_a_dead_letter_at_once(
    answered: tuple[str, ...], kwargs: dict[str, Any], reason: str, outcome: str
) -> None:
    headers: dict[str, Any] = (
        {"Location": "http://169.254.169.254/"} if reason == "Redirects" else {}
    )
    if answered[1:]:
        headers = {"webhook_delivery": answered[1]}
    with listening(answering(answer(answered[0], **headers))) as server:
        task = _queued(url=server.url(), **kwargs)
        with pytest.raises(DeliveryFailed, match=reason):
            deliver(task)
        task.refresh_from_db()
    assert (task.status, task.failures) == ("FAILED", 1)
    assert reason in DeadLetter.objects.get().error_message
    assert DeliveryAttempt.objects.get().outcome == outcome


def test_the_last_attempt_opens_a_dead_letter() -> None:
    with listening(answering(answer("500 Internal Server Error"))) as server:
        task = _failed(_queued(url=server.url(), max_attempts=1))
    assert (task.status, task.reason) == ("FAILED", "EXHAUSTED")
    assert "The endpoint answered 500." in DeadLetter.objects.get().error_message
    attempt = DeliveryAttempt.objects.get()
    assert (attempt.outcome, attempt.retry_delay) == ("FAILED", None)


def test_a_refused_address_and_a_closed_port_read_the_same_to_the_tenant(
    caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    settings.DURABLE_TASKS = {"HTTP_ALLOW": ["127.0.0.1:9"]}
    rows = []
    with caplog.at_level(logging.WARNING, "django_durable_tasks.targets"):
        for url in ("http://127.0.0.1:9/", "http://localhost/"):
            row = _failed(_queued(url=url))
            rows.append(
                (row.status, row.last_error.replace(url, "URL").replace(":9", ""), row.failures)
            )
    texts = {error.split(": ", 2)[2] for _, error, _ in rows}
    assert texts == {"The endpoint could not be reached."}
    assert {(status, failures) for status, _, failures in rows} == {("PENDING", 1)}
    traces = {
        re.sub(r"http://[^/]*|attempt \d+", "", log.traceback)
        for log in TaskExecutionLog.objects.all()
    }
    assert len(traces) == 1, "the traceback does not show the reason either"
    columns = ("outcome", "failure", "reason", "status", "response_body", "connect_seconds")
    assert len(set(DeliveryAttempt.objects.values_list(*columns))) == 1
    assert "loopback" in caplog.text, "the operator's log has the reason"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"url": "http://127.0.0.1.nip.io:22/"}, "port 22 is not allowed"),
        ({"url": "http://10.0.0.1/"}, "not a public address"),
        ({"url": "ftp://example.com/"}, "must begin with http"),
        ({"url": "http://user:secret@example.com/"}, "user name or a password"),
        ({"method": "TRACE"}, "method='TRACE'"),
        ({"method": "GET", "body": "x"}, "a GET request has none"),
        ({"headers": {"Host": "x"}}, "set by the sender"),
        ({"headers": {"Webhook_Id": "x"}}, "set by the sender"),
        ({"headers": {"X": "a\r\nB: c"}}, "printable ASCII"),
        ({"headers": {"X": "1", "x": "2"}}, "given twice"),
        ({"body": "\ud800"}, "lone surrogate"),
        ({"body": {"a": "\ud800"}}, "lone surrogate"),
        ({"timeout": 61}, "0.1 to 60 seconds"),
        ({"retry_on": [42]}, "contains 42"),
        ({"retry_on": [404], "no_retry_on": ["4xx"]}, "both"),
    ],
)
def test_a_bad_request_is_refused_when_it_is_scheduled(
    kwargs: dict[str, Any], message: str
) -> None:
    kwargs = {"url": "http://example.com/", **kwargs}
    with pytest.raises(InvalidTarget, match=message):
        http_callback.schedule(**kwargs)
    with pytest.raises(InvalidTarget, match=message):
        RecurringTask.objects.upsert(name="hook", task=http_callback, kwargs=kwargs, interval=60)
    assert not Task.objects.exists()
    assert not RecurringTask.objects.exists()


def test_the_url_is_a_keyword() -> None:
    with pytest.raises(InvalidArguments):
        http_callback.schedule("http://example.com/")  # type: ignore[call-overload]


def test_a_scheduled_callback_stores_its_type_and_the_body_as_text() -> None:
    task = http_callback.schedule(url="http://example.com/", body={"b": 1, "a": [2]}, timeout=5)
    assert task.target_type == "HTTP_CALLBACK"
    assert task.kwargs["body"] == '{"b":1,"a":[2]}'
    assert task.target_config == task.kwargs
    assert (task.max_attempts, Task.objects.filter(target_type="HTTP_CALLBACK").count()) == (8, 1)
    row = RecurringTask.objects.upsert(
        name="hook", task=http_callback, kwargs={"url": "http://example.com/"}, interval=60
    )
    assert (row.target_type, row.target_config) == ("HTTP_CALLBACK", {"url": "http://example.com/"})
    row = RecurringTask.objects.upsert(name="hook", task=add, args=[1, 2], kwargs={}, interval=60)
    assert row.target_type == "CELERY_TASK"


def test_a_workflow_sends_the_result_of_another_task(server: Listener) -> None:
    workflow = Workflow("send-the-sum")
    total = workflow.add(add, 1, 2)
    workflow.add(http_callback, url=server.url(), body={"total": total.result}, after=[total])
    workflow.start()
    for name in (add.name, NAME):
        task = Task.objects.get(name=name)
        if task.status != Status.QUEUED:
            _change(task, status="QUEUED", due_at=task.run_at, unresolved_dependencies_count=0)
        deliver(task)
    assert task.target_type == "HTTP_CALLBACK"
    assert json.loads(server.body()) == {"total": 3}


def test_the_records_are_pruned_with_their_task(server: Listener) -> None:
    task = _queued(url=server.url())
    deliver(task)
    assert DeliveryAttempt.objects.count() == 1
    retention.prune(database_now() + timedelta(days=60), 100)
    assert (Task.objects.count(), DeliveryAttempt.objects.count()) == (0, 0)


def _delivered(task: Task) -> None:
    _change(task, status="QUEUED", due_at=task.run_at)
    deliver(task)


def test_an_edited_replay_has_another_id_and_an_unedited_one_keeps_it() -> None:
    with listening(answering(answer("422 Unprocessable"), *3 * [answer()])) as server:
        task = _failed(_queued(url=server.url(), body="a", no_retry_on=[422]))
        for edit in ({"body": "b"}, {}, {"body": "c"}):
            _change(task, status="FAILED")
            rows, kwargs = Task.objects.filter(pk=task.pk), {**task.kwargs, **edit}
            assert operator_actions.replay_edited(rows, by="ann", kwargs=kwargs) == [task.pk]
            _delivered(task)
        sent = [server.headers(number) for number in range(4)]
    ids = [str(task.pk), f"{task.pk}-1", f"{task.pk}-1", f"{task.pk}-2"]
    assert [headers["webhook-id"] for headers in sent] == ids
    assert [headers["idempotency-key"] for headers in sent] == [f'"{name}"' for name in ids]
    assert {headers["durable-task-id"] for headers in sent} == {str(task.pk)}


@pytest.mark.parametrize(("attempts", "suffix"), [(1, "-1"), (0, "")])
def test_an_edit_of_a_waiting_task_changes_the_id_if_an_attempt_was_started(
    attempts: int, suffix: str, server: Listener
) -> None:
    task = a_task(
        Status.PENDING, name=NAME, kwargs={"url": server.url(), "body": "a"}, attempts=attempts
    )
    edited = {"url": server.url(), "body": "b"}
    assert operator_actions.edit(Task.objects.filter(pk=task.pk), kwargs=edited) == 1
    _delivered(task)
    assert server.body() == b"b"
    assert server.headers()["webhook-id"] == f"{task.pk}{suffix}"


@pytest.mark.parametrize("guess", ["Bearer right", "Bearer wrong"])
def test_the_id_does_not_show_whether_a_secret_was_guessed(guess: str, server: Listener) -> None:
    kwargs = {"url": server.url(), "headers": {"Authorization": "Bearer right"}}
    task = a_task(Status.PENDING, name=NAME, kwargs=kwargs, attempts=1)
    edited = {**kwargs, "headers": {"Authorization": guess}}
    operator_actions.edit(Task.objects.filter(pk=task.pk), kwargs=edited)
    _delivered(task)
    assert server.headers()["authorization"] == guess
    assert server.headers()["webhook-id"] == str(task.pk)


def test_retries_go_to_their_queue_and_the_last_failure_does_not(settings: Any) -> None:
    settings.DURABLE_TASKS = {**GIVEN, "HTTP_RETRY_QUEUE": "retries"}
    with listening(answering(answer("500 Error"))) as server:
        first, last = (_failed(_queued(url=server.url(), failures=number)) for number in (0, 7))
    assert (first.status, first.queue, first.attempts) == ("PENDING", "retries", 1)
    assert (last.status, last.queue == first.queue) == ("FAILED", False)


def test_a_replay_has_the_same_id_and_a_higher_attempt(server: Listener) -> None:
    task = _sent(_queued(url=server.url()))
    _change(task, status="QUEUED", due_at=task.run_at, completed_at=None)
    deliver(task)
    first, second = server.headers(0), server.headers(1)
    assert first["idempotency-key"] == second["idempotency-key"]
    assert (first["durable-attempt"], second["durable-attempt"]) == ("1", "2")


def test_an_answer_that_grows_when_it_is_encoded_is_cut(settings: Any) -> None:
    settings.DURABLE_TASKS = {**GIVEN, "RESULT_MAX_BYTES": 2_000}
    with listening(answering(answer(body=b"a" * 10 + b"\x01" * 4_000))) as server:
        task = _sent(_queued(url=server.url()))
    assert task.result is not None
    assert (task.status, task.result["truncated"]) == ("SUCCESS", True)
    assert task.result["body"].startswith("aaaaaaaaaa\x01")


def test_a_time_limit_while_the_request_is_recorded_causes_no_second_request(
    server: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = CursorWrapper.execute

    def interrupted(self: CursorWrapper, sql: str, params: Any = None) -> Any:
        if sql.startswith("INSERT") and DeliveryAttempt._meta.db_table in sql:
            raise SoftTimeLimitExceeded
        return execute(self, sql, params)

    monkeypatch.setattr(CursorWrapper, "execute", interrupted)
    task = _sent(_queued(url=server.url()))
    assert (task.status, DeliveryAttempt.objects.count()) == ("SUCCESS", 0)
    assert len(server.requests) == 1


def test_an_edited_replay_of_a_step_keeps_its_references() -> None:
    workflow = Workflow("send-the-sum")
    total = workflow.add(add, 1, 2)
    body = {"total": total.result}
    workflow.add(http_callback, url="http://example.com/", body=body, after=[total])
    workflow.start()
    task = Task.objects.get(name=NAME)
    stored = task.kwargs["body"]
    _change(task, status="FAILED")
    kwargs = {**task.kwargs, "url": "http://two.example.com/"}
    Task.objects.filter(pk=task.pk).replay(by="ann", kwargs=kwargs)
    task.refresh_from_db()
    assert task.kwargs == {"url": "http://two.example.com/", "body": stored}
    assert isinstance(stored, dict), "the reference is resolved when the task starts"
