"""At most one open task per unique key, and for a time after its success no further run."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_durable_tasks.choices import OPEN, LogStatus, Status
from django_durable_tasks.exceptions import InvalidOption, UniqueConflict
from django_durable_tasks.models import Task
from django_durable_tasks.registry import Registered, get
from django_durable_tasks.tasks import attempts, enqueue
from django_durable_tasks.tasks.attempts import Refusal
from django_durable_tasks.tasks.options import task_options
from tests.database.transitions.transition_calls import PLACE
from tests.factories import QUEUE, a_task, a_tenant
from tests.project import tasks

pytestmark = pytest.mark.django_db


def _later() -> datetime:
    return timezone.now() + timedelta(hours=1)


def _schedule(task: Any, *args: Any, **options: Any) -> Task:
    row: Task = task.using(queue=QUEUE, run_at=_later(), **options).schedule(*args)
    return row


def test_a_second_call_returns_the_open_task() -> None:
    first, second = _schedule(tasks.unique, "a", "one"), _schedule(tasks.unique, "a", "two")
    assert (second.pk, second.args) == (first.pk, ["a", "one"])
    assert first.unique_key == "tests.project.tasks.unique:a"


def test_another_subject_or_tenant_is_another_task() -> None:
    rows = [
        _schedule(tasks.unique, "a"),
        _schedule(tasks.unique, "b"),
        _schedule(tasks.unique, "a", tenant=a_tenant()),
        _schedule(tasks.unique_or_raise, "a"),
    ]
    assert len({row.pk for row in rows}) == 4


@pytest.mark.parametrize("status", sorted(Status))
def test_a_task_owns_its_unique_key_while_it_is_open(status: Status) -> None:
    name = tasks.unique.name
    holder = a_task(status, name=name, unique_key=f"{name}:a")
    assert (_schedule(tasks.unique, "a").pk == holder.pk) == (status in OPEN)


def test_raise_names_the_owner_and_writes_nothing() -> None:
    first = _schedule(tasks.unique_or_raise, "a")
    with pytest.raises(UniqueConflict, match=str(first.pk)):
        _schedule(tasks.unique_or_raise, "a")
    assert Task.objects.count() == 1


@pytest.mark.parametrize("status", [Status.BLOCKED, Status.PENDING, Status.QUEUED])
def test_replace_cancels_a_waiting_owner(status: Status) -> None:
    key = "tests.project.tasks.unique_latest:a"
    old = a_task(status, name="tests.project.tasks.unique_latest", unique_key=key)
    new = _schedule(tasks.unique_latest, "a", "new")
    old.refresh_from_db()
    assert (old.status, old.reason, old.open_unique_key) == (Status.CANCELLED, "REPLACED", None)
    assert (new.status, new.open_unique_key) == (Status.PENDING, key)


def test_replace_requests_cancellation_of_a_running_owner_and_takes_its_key() -> None:
    key = "tests.project.tasks.unique_latest:a"
    old = a_task(Status.RUNNING, name="tests.project.tasks.unique_latest", unique_key=key)
    new = _schedule(tasks.unique_latest, "a")
    old.refresh_from_db()
    assert (old.status, old.open_unique_key, new.open_unique_key) == (Status.RUNNING, None, key)
    assert old.cancel_requested_at is not None


@pytest.mark.parametrize("unique", ["{task}:{1}", "{task}:{detail}", "{0.nope}", "{", "{0:d}"])
def test_a_key_template_that_does_not_match_the_call_is_refused_with_a_package_error(
    unique: str,
) -> None:
    known = get("tests.project.tasks.unique")
    odd = Registered(
        task_options(known.options.name, {"unique": unique}), known.signature, known.function
    )
    with pytest.raises(InvalidOption, match="unique="):
        enqueue.submit(enqueue.Call(odd, ("a",), {}))


def test_for_a_time_after_a_success_a_start_does_nothing_and_is_logged_as_duplicate() -> None:
    name = "tests.project.tasks.unique_for_an_hour"
    key = f"{name}:a"
    a_task(Status.SUCCESS, name=name, unique_key=key)
    row = a_task(Status.QUEUED, name=name, unique_key=key)
    opened = attempts.open_run(row.pk, row.epoch, PLACE, "id", 3600)
    row.refresh_from_db()
    assert opened == Refusal.DUPLICATE
    assert (row.status, row.reason) == (Status.SKIPPED, "DUPLICATE")
    assert (row.attempts, row.open_unique_key) == (0, None)
    log = row.executions.get()
    assert (log.status, log.worker, log.celery_id) == (LogStatus.DUPLICATE, PLACE.worker, "id")


@pytest.mark.parametrize("ended", ["too long ago", "another key", "failed", "another tenant"])
def test_other_endings_do_not_make_a_duplicate(ended: str) -> None:
    fields: dict[str, Any] = {"unique_key": "k"}
    if ended == "too long ago":
        fields["completed_at"] = timezone.now() - timedelta(seconds=3601)
    if ended == "another key":
        fields["unique_key"] = "other"
    if ended == "another tenant":
        fields["tenant_id"] = a_tenant().pk
    a_task(Status.FAILED if ended == "failed" else Status.SUCCESS, **fields)
    row = a_task(Status.QUEUED, unique_key="k")
    assert not isinstance(attempts.open_run(row.pk, row.epoch, PLACE, "id", 3600), Refusal)
