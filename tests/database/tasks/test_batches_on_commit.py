"""The COMMIT that creates a task for a batch publishes a batch message, at most one at a time, and
none if a scheduler has to decide.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.test import TestCase, override_settings
from django.utils import timezone

from django_durable_tasks.celery import publisher
from django_durable_tasks.models import BatchMessage, Task
from django_durable_tasks.tasks import batches
from tests.database.limits.limited_tasks import limit
from tests.factories import QUEUE, a_paused_queue
from tests.messages import take_messages
from tests.process_state import new_process_state
from tests.project import batched

pytestmark = pytest.mark.django_db(transaction=True)
NAME = batched.add.name


def _delay(**options: Any) -> Task:
    row: Task = batched.add.using(queue=QUEUE, **options).delay(1, 2).task
    return row


def _published() -> list[str]:
    return [message.headers["durable_batch"] for message in take_messages(QUEUE)]


def test_a_call_publishes_the_message_of_its_name_and_the_task_stays_pending() -> None:
    row = _delay()
    assert _published() == [NAME]
    assert (row.status, row.epoch, row.publish_count) == ("PENDING", 0, 0)


def test_while_a_message_is_outstanding_calls_publish_none() -> None:
    for _ in range(5):
        _delay()
    assert _published() == [NAME]
    batches.message_received(QUEUE, NAME, number=1)
    _delay()
    assert _published() == [NAME]


def test_nothing_is_published_before_the_commit_and_one_message_after_it() -> None:
    with transaction.atomic():
        _delay(priority=2)
        with transaction.atomic():
            _delay(priority=7)
            batched.note.using(queue=QUEUE).delay("unused", 1)
        assert _published() == []
    assert sorted(_published()) == sorted([NAME, batched.note.name])


def test_a_rollback_publishes_nothing() -> None:
    with suppress(ZeroDivisionError), transaction.atomic():
        _delay()
        raise ZeroDivisionError
    assert _published() == []
    assert not BatchMessage.objects.exists()


def test_hooks_that_a_test_runs_publish_the_message() -> None:
    with transaction.atomic(), TestCase.captureOnCommitCallbacks(execute=True):
        _delay()
    assert _published() == [NAME]


def test_a_task_for_later_or_with_an_upstream_publishes_nothing() -> None:
    later = batched.add.using(queue=QUEUE, run_at=timezone.now() + timedelta(hours=1))
    upstream = later.schedule(1, 2)
    batched.add.using(queue=QUEUE, depends_on=[upstream]).schedule(1, 2)
    assert _published() == []


@pytest.mark.parametrize("reason", ["paused", "limited", "breaker", "off"])
def test_a_scheduler_publishes_the_message_where_it_has_to_decide(reason: str) -> None:
    if reason == "paused":
        a_paused_queue()
    elif reason == "limited":
        limit(f"task:{NAME}", 1)
    elif reason == "breaker":
        publisher.breaker.failed()
    new_process_state()
    with override_settings(DURABLE_TASKS={"FAST_PATH": reason != "off"}):
        assert _delay().status == "PENDING"
    publisher.breaker.succeeded()
    assert _published() == []


def test_an_error_of_the_database_after_the_commit_is_not_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _delay()
    batches.message_received(QUEUE, NAME, number=1)
    take_messages(QUEUE)
    table = BatchMessage._meta.db_table

    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if table in sql:
            raise OperationalError("the server closed the connection")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse), caplog.at_level(logging.WARNING):
        row = _delay()
    assert Task.objects.filter(pk=row.pk).exists()
    assert "a scheduler publishes them" in caplog.text
    assert _published() == []
