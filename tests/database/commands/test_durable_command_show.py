"""``durable show`` prints the task, its attempts, and why it did not run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.choices import LogStatus, Status
from django_durable_tasks.cluster import nodes
from django_durable_tasks.contrib.callbacks.models import DeliveryAttempt
from django_durable_tasks.models import DeadLetter, NodeKind, Task
from django_durable_tasks.store.clock import database_now
from tests.database.commands.durable_command import durable, json_of
from tests.factories import QUEUE, a_log_row, a_node, a_paused_queue, a_task

pytestmark = pytest.mark.django_db


@pytest.fixture
def staffed() -> None:
    """A leading scheduler and a worker on the test queue."""
    nodes.take_lease(a_node(NodeKind.SCHEDULER).pk, 60)
    a_node(queues=[QUEUE], concurrency=1)


def _why(row: Task) -> str:
    found: str = json_of("show", row.pk)["why"]
    return found


def test_the_whole_task_is_shown() -> None:
    row = a_task(args=[1], kwargs={"day": "monday"}, key="k", idempotency_key="i", priority=3)
    seen = json_of("show", row.pk)
    assert (seen["id"], seen["status"], seen["args"], seen["kwargs"]) == (
        str(row.pk),
        "PENDING",
        [1],
        {"day": "monday"},
    )
    assert (seen["key"], seen["idempotency_key"], seen["priority"], seen["tenant"]) == (
        "k",
        "i",
        3,
        "default",
    )
    text = durable("show", row.pk).out
    assert text.startswith("why: ")
    assert "no attempt yet" in text


def test_the_attempts_are_a_timeline() -> None:
    row = a_task(Status.RUNNING, attempts=2)
    now = database_now()
    a_log_row(
        row,
        LogStatus.RETRY,
        started_at=now - timedelta(seconds=3),
        completed_at=now,
        error_message="Broken: a\nb",
    )
    [attempt] = json_of("show", row.pk)["executions"]
    assert (attempt["status"], attempt["attempt_number"], round(attempt["seconds"])) == (
        "RETRY",
        1,
        3,
    )
    lines = durable("show", row.pk).out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("ATTEMPT NUMBER"))
    assert lines[at + 1].split()[:2] == ["1", "RETRY"]
    assert lines[at + 1].endswith("Broken: a")
    assert lines[at + 2].split()[:2] == ["2", "RUNNING"]


def test_its_dead_letters_are_shown() -> None:
    row = a_task(Status.FAILED)
    [letter] = json_of("show", row.pk)["dead_letters"]
    assert letter["id"] == DeadLetter.objects.get().pk
    assert "EXHAUSTED" in durable("show", row.pk).out


@pytest.mark.usefixtures("staffed")
@pytest.mark.parametrize(
    ("status", "fields", "sentence"),
    [
        (Status.PENDING, {"due": 3600}, "not due yet: in 5"),
        (Status.PENDING, {"due": 100, "attempts": 1, "failures": 1}, "It failed 1 of 5 times"),
        (Status.PENDING, {"queue": "lonely"}, "No live worker listens on queue lonely"),
        (Status.PENDING, {}, "It is due "),
        (Status.QUEUED, {}, "waits for a free worker"),
        (Status.QUEUED, {"publish_count": 3}, "It was published 3 times and no worker started it"),
        (Status.RUNNING, {}, "It runs since"),
        (Status.RUNNING, {"due": -5}, "Its worker missed its heartbeats"),
        (Status.SUCCESS, {}, "It is done"),
        (Status.FAILED, {}, "It failed: all of its attempts have been made"),
        (Status.CANCELLED, {"reason": "CANCELLED by ann"}, "It was cancelled: CANCELLED by ann"),
        (Status.SKIPPED, {"reason": "DUPLICATE"}, "It was skipped: DUPLICATE"),
        (Status.EXPIRED, {}, "It expired: no worker started it"),
        (Status.BLOCKED, {}, "It waits for 1 other task or person"),
    ],
)
def test_it_explains_why_the_task_did_not_run(
    status: Status, fields: dict[str, Any], sentence: str
) -> None:
    row = a_task(status, **fields)
    assert any(sentence in told_ for told_ in json_of("show", row.pk)["sentences"])


@pytest.mark.usefixtures("staffed")
def test_a_paused_queue_is_the_reason() -> None:
    a_paused_queue(reason="a move")
    assert (
        _why(a_task())
        == "Queue test was paused by anna (a move): nothing of it starts until it is resumed."
    )


def test_a_missing_scheduler_is_the_reason() -> None:
    a_node(queues=[QUEUE])
    assert "No scheduler is alive" in _why(a_task())


def test_a_silent_scheduler_and_a_silent_worker_do_not_count() -> None:
    a_node(NodeKind.SCHEDULER, seen=3_600)
    a_node(queues=[QUEUE], seen=3_600)
    told_ = "\n".join(json_of("show", a_task().pk)["sentences"])
    assert "No scheduler is alive" in told_
    assert "No live worker listens" in told_


def test_a_message_that_is_not_republished_is_explained_by_the_missing_leader() -> None:
    a_node(NodeKind.SCHEDULER)
    a_node(queues=[QUEUE])
    row = a_task(Status.QUEUED, publish_count=2)
    assert any(
        "No scheduler is the leader" in sentence
        for sentence in json_of("show", row.pk)["sentences"]
    )


@pytest.mark.usefixtures("staffed")
def test_code_that_this_process_lacks_is_named() -> None:
    row = a_task(name="shop.tasks.gone")
    assert any(
        "is registered in this process" in sentence
        for sentence in json_of("show", row.pk)["sentences"]
    )


def test_the_number_of_statements_does_not_depend_on_the_number_of_attempts() -> None:
    row = a_task(Status.FAILED)

    def statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            json_of("show", row.pk)
        return len(captured)

    few = statements()
    for number in range(50):
        a_log_row(row, attempt_number=number)
    assert statements() == few <= 11


def test_show_lists_the_requests_of_a_callback() -> None:
    row = a_task(
        Status.SUCCESS, name="django_durable_tasks.http_callback", target_type="HTTP_CALLBACK"
    )
    request = DeliveryAttempt(
        task=row,
        attempt_number=1,
        outcome="DONE",
        started_at=row.created_at,
        method="POST",
        url="https://example.com/hook",
        status=204,
        total_seconds=0.25,
    )
    DeliveryAttempt.objects.unguarded().bulk_create([request])
    [shown] = json_of("show", row.pk)["requests"]
    assert (shown["status"], shown["outcome"], shown["total_seconds"]) == (204, "DONE", 0.25)
    assert "https://example.com/hook" in durable("show", row.pk).out
