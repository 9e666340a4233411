"""Celery's eager mode runs everything that is due, and nothing of it reaches a broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_durable_tasks import process_state
from django_durable_tasks.celery import publisher
from django_durable_tasks.models import Task
from tests.celery_settings import celery_configured
from tests.project import kit, tasks


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Run eagerly, and collect what would be sent to the broker."""
    sent = list[Any]()

    def send(messages: Sequence[Any]) -> list[Any]:
        sent.extend(messages)
        return []

    monkeypatch.setattr(publisher, "_publish_once", send)
    with celery_configured(task_always_eager=True):
        yield sent


@pytest.mark.django_db(transaction=True)
def test_all_tasks_of_a_transaction_and_of_a_bulk_call_run() -> None:
    with transaction.atomic():
        for number in range(105):
            tasks.echo.schedule(number)
    kit.create_group.schedule_many([("a",), ("b",)])
    assert set(Task.objects.values_list("status", flat=True)) == {"SUCCESS"}
    assert Task.objects.count() == 107


@pytest.mark.django_db(transaction=True)
def test_one_round_of_a_scheduler_runs_what_is_due_and_publishes_nothing(eager: list[Any]) -> None:
    kit.third_time.schedule("a")
    task = Task.objects.get()
    assert (task.status, task.attempts) == ("PENDING", 1)
    Task.objects.filter(pk=task.pk).reschedule(task.created_at, by="anna")
    call_command("run_scheduler", "--once", "--skip-checks")
    task.refresh_from_db()
    assert task.attempts == 2
    assert eager == []


@pytest.mark.django_db
def test_a_call_takes_the_same_statements_whenever_it_is_made() -> None:
    numbers = set()
    for _ in range(3):
        with CaptureQueriesContext(connection) as statements:
            tasks.noop.delay()
        numbers.add(len(statements))
        process_state.renew()  # nothing is known any more
    assert len(numbers) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_in_transaction", [False, True])
def test_steps_and_loops_run_eagerly_in_a_transaction_of_the_caller_too(
    is_in_transaction: bool,
) -> None:
    with transaction.atomic() if is_in_transaction else nullcontext():
        kit.create_by_steps.schedule(["a", "b", "c"], atomic=True)
    task = Task.objects.get()
    assert (task.status, task.position["names"]["done"]) == ("SUCCESS", 3)
