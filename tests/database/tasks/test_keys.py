"""Keys of editable tasks: scheduling again updates the open task, and replaces an ended one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_durable_tasks import http_callback
from django_durable_tasks.choices import TERMINAL, Status
from django_durable_tasks.exceptions import InvalidOption, TransitionRefused
from django_durable_tasks.models import Task
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.targets.http_request import request_id
from django_durable_tasks.tasks import operator_actions
from tests.database.transitions.transition_calls import (
    FAILURE,
    PLACE,
    end,
    question,
    start,
    succeed,
)
from tests.factories import QUEUE, a_task, a_tenant
from tests.messages import claim_due
from tests.project import tasks

pytestmark = pytest.mark.django_db
KEY = "task-PUBLISH_EVENT-42"


def _in(seconds: float) -> datetime:
    return timezone.now() + timedelta(seconds=seconds)


def _add(**options: Any) -> Any:
    return tasks.add.using(queue=QUEUE, key=KEY, **options)


def test_scheduling_again_with_a_key_updates_the_open_task() -> None:
    first = _add(run_at=_in(60), priority=1).schedule(1, 2)
    later = _in(120)
    second = _add(run_at=later, priority=5, max_attempts=9, expires_in=10).schedule(3, 4)
    assert second.pk == first.pk
    assert (second.args, second.run_at, second.due_at, second.priority) == ([3, 4], later, later, 5)
    assert (second.max_attempts, second.expires_at) == (9, later + timedelta(seconds=10))
    assert Task.objects.count() == 1


def test_the_options_of_the_second_call_replace_those_of_the_first() -> None:
    _add(run_at=_in(60), timeout=5).schedule(1, 2)
    row = _add(
        run_at=_in(60), lease=40, max_crashes=1, on_orphan="DEAD_LETTER", expected_duration=7
    ).schedule(1, 2)
    assert (row.options, row.max_crashes, row.on_orphan) == ({"lease": 40}, 1, "DEAD_LETTER")
    assert row.expected_duration == timedelta(seconds=7)


@pytest.mark.parametrize(("attempts", "suffixes"), [(1, ["-1", "-1", "-2"]), (0, ["", "", ""])])
def test_a_call_by_key_changes_the_id_if_it_edits_a_request_after_an_attempt(
    attempts: int, suffixes: list[str]
) -> None:
    named = http_callback.using(key="invoice-7", run_at=_in(3600))
    task = named.schedule(url="https://example.com/", body="a")
    Task.objects.unguarded().filter(pk=task.pk).update(attempts=attempts)
    sent = []
    for body in ("b", "b", "c"):
        row = named.schedule(url="https://example.com/", body=body)
        sent.append(request_id(row.pk, row.options or {}))
    assert sent == [f"{task.pk}{suffix}" for suffix in suffixes]


def test_scheduling_again_without_a_time_makes_the_task_due_now() -> None:
    _add(run_at=_in(3600)).schedule(1, 2)
    row = _add().schedule(1, 2)
    assert row.due_at is not None
    assert row.due_at <= _in(1)


def test_a_queued_task_returns_to_pending_before_it_is_edited() -> None:
    row = a_task(Status.QUEUED, name="tests.project.tasks.add", key=KEY, epoch=1)
    again = _add(run_at=_in(60)).schedule(3, 4)
    assert (again.pk, again.status, again.args) == (row.pk, Status.PENDING, [3, 4])
    assert again.epoch > 1
    assert start(row, epoch=1) is None


def test_a_message_of_a_claim_that_was_undone_before_an_edit_starts_nothing() -> None:
    """A crash of the server may undo a claim whose message is already at the broker."""
    row = _add(run_at=_in(60)).schedule(1, 2)
    again = _add(run_at=_in(90)).schedule(3, 4)
    Task.objects.unguarded().filter(pk=row.pk).update(run_at=_in(-1), due_at=_in(-1))
    assert [message.task_id for message in claim_due(QUEUE, database_now(), 10, PLACE.node)] == [
        row.pk
    ]
    assert again.epoch == row.epoch + 1
    assert start(row, epoch=row.epoch + 1) is None


@pytest.mark.parametrize("by_key", [True, False])
def test_rescheduling_changes_the_epoch(by_key: bool) -> None:
    row = _add(run_at=_in(60)).schedule(1, 2)
    assert (
        Task.objects.reschedule(KEY, _in(90))
        if by_key
        else operator_actions.move(question(row), _in(90))
    ) == 1
    assert Task.objects.get().epoch == row.epoch + 1


def test_a_running_task_ends_with_its_old_arguments_and_the_key_goes_to_a_new_task() -> None:
    old = a_task(Status.RUNNING, name="tests.project.tasks.add", args=[1, 2], key=KEY)
    new = _add(run_at=_in(60)).schedule(3, 4)
    old.refresh_from_db()
    assert new.pk != old.pk
    assert (old.args, old.open_key, new.open_key, old.status) == ([1, 2], None, KEY, Status.RUNNING)
    end(old, outcome=FAILURE)
    old.refresh_from_db()
    assert (old.status, old.open_key) == (Status.PENDING, None)


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_an_ended_task_is_replaced_by_a_new_one(status: Status) -> None:
    old = a_task(status, name="tests.project.tasks.add", key=KEY)
    new = _add(run_at=_in(60)).schedule(3, 4)
    assert new.pk != old.pk
    assert Task.objects.get(pk=old.pk).status == status


def test_a_key_of_another_task_is_refused() -> None:
    a_task(key=KEY)
    with pytest.raises(TransitionRefused, match="belongs to the open task"):
        _add().schedule(1, 2)
    assert Task.objects.count() == 1


def test_keys_are_separate_per_tenant() -> None:
    tenant = a_tenant()
    mine, theirs = (
        _add(run_at=_in(9)).schedule(1, 2),
        _add(run_at=_in(9), tenant=tenant).schedule(1, 2),
    )
    assert mine.pk != theirs.pk
    assert Task.objects.cancel(KEY, tenant=tenant) == 1
    mine.refresh_from_db()
    assert mine.status == Status.PENDING


@pytest.mark.parametrize("status", [Status.BLOCKED, Status.PENDING, Status.QUEUED])
def test_a_waiting_task_is_rescheduled_by_its_key(status: Status) -> None:
    row, later = a_task(status, key=KEY), _in(3600)
    assert Task.objects.reschedule(KEY, later) == 1
    row.refresh_from_db()
    after = (Status.BLOCKED, None) if status == Status.BLOCKED else (Status.PENDING, later)
    assert (row.run_at, (row.status, row.due_at)) == (later, after)


@pytest.mark.parametrize("status", [Status.RUNNING, *sorted(TERMINAL)])
def test_a_running_or_ended_task_is_not_rescheduled(status: Status) -> None:
    a_task(status, key=KEY)
    assert Task.objects.reschedule(KEY, _in(3600)) == 0


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(InvalidOption, match="naive"):
        Task.objects.reschedule(KEY, datetime(2027, 1, 1))


@pytest.mark.parametrize("status", [Status.BLOCKED, Status.PENDING, Status.QUEUED])
def test_a_waiting_task_is_cancelled_at_once_by_its_key(status: Status) -> None:
    row = a_task(status, key=KEY)
    assert Task.objects.cancel(KEY, by="bob") == 1
    assert Task.objects.cancel(KEY, by="bob") == 0
    row.refresh_from_db()
    assert (row.status, row.open_key, row.reason) == (Status.CANCELLED, None, "CANCELLED by bob")


def test_cancellation_of_a_running_task_is_requested_and_its_ending_names_the_user() -> None:
    row = a_task(Status.RUNNING, key=KEY)
    assert Task.objects.cancel(KEY, by="bob") == 1
    end(row, outcome=FAILURE)
    row.refresh_from_db()
    assert (row.status, row.reason) == (Status.CANCELLED, "CANCELLED by bob")
    assert row.cancel_requested_at is None
    assert not row.dead_letters.exists()


def test_cancelling_distinguishes_ended_tasks_and_requested_cancellations() -> None:
    rows = [a_task(status) for status in Status]
    done = operator_actions.cancel(question(*rows), by="bob")
    assert (done.at_once, done.stop_requested, done.total) == (3, 1, 4)


def test_a_run_whose_cancellation_was_requested_may_succeed() -> None:
    row = a_task(Status.RUNNING, key=KEY)
    Task.objects.cancel(KEY, by="bob")
    assert succeed(row)
    row.refresh_from_db()
    assert (row.status, row.reason, row.open_key) == (Status.SUCCESS, "", None)
