"""Each write of a person or a program has one audit entry, written in its transaction."""

from __future__ import annotations

import inspect
import json
from datetime import date
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_durable_tasks import audit
from django_durable_tasks.audit import CHANGES_MAX_BYTES, acting, recorded
from django_durable_tasks.choices import AuditSource
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import (
    AuditEntry,
    Calendar,
    DeadLetter,
    QueueControl,
    RecurringTask,
    SpecialDay,
    Task,
)
from django_durable_tasks.models.cluster import QueueControlManager
from django_durable_tasks.models.schedules import CalendarManager, RecurringTaskManager
from django_durable_tasks.models.tasks import DeadLetterQuerySet, TaskManager, TaskQuerySet
from django_durable_tasks.operations import OPERATIONS
from django_durable_tasks.tasks import operator_actions
from tests.database.api.client import a_tenant
from tests.database.dependencies.worker_and_leader import succeed
from tests.database.operations.cases import CASES, WHO, entries_of
from tests.database.recurring.schedules import a_schedule, at, fire
from tests.factories import a_task, many_tasks
from tests.project.tasks import add, echo, noop

pytestmark = pytest.mark.django_db


_TASK_ACTIONS = ("replay", "retry", "cancel", "force_complete", "reschedule")
_OF_SCHEDULES = {
    **{name: name for name in ("pause", "resume", "cancel", "snooze", "backfill", "override")},
    "trigger_now": "run_now",
    "withdraw": "remove_override",
}
_PUBLIC: dict[tuple[Any, str], str] = {
    **{(TaskQuerySet, name): f"tasks.{name}" for name in _TASK_ACTIONS},
    **{(TaskManager, name): f"tasks.{name}" for name in ("cancel", "reschedule")},
    **{(DeadLetterQuerySet, name): f"dead_letters.{name}" for name in ("replay", "discard")},
    **{(QueueControlManager, name): f"queue.{name}" for name in ("pause", "resume")},
    (CalendarManager, "upsert"): "calendar.save",
    (CalendarManager, "remove"): "calendar.delete",
    (RecurringTaskManager, "upsert"): "schedule.save",
    **{(RecurringTask, name): f"schedule.{key}" for name, key in _OF_SCHEDULES.items()},
}
"""The operation of each public method."""


def _called(owner: Any, name: str, key: str) -> Any:
    """Call the public method as the case of its operation is performed."""
    if owner is RecurringTaskManager:
        new: dict[str, Any] = {"name": "new", "task": noop, "interval": 60}
        return entries_of(lambda: RecurringTask.objects.upsert(**new, **WHO))
    found: Any = a_task(key="k") if owner is TaskManager else CASES[key].make()
    call: Any = getattr(found, name, None)
    if owner is TaskManager:
        call = partial(getattr(Task.objects, name), "k")
    elif owner in (TaskQuerySet, DeadLetterQuerySet):
        call = getattr(type(found).objects.filter(pk=found.pk), name)
    elif owner in (QueueControlManager, CalendarManager):
        manager: Any = QueueControl.objects if owner is QueueControlManager else Calendar.objects
        call = partial(getattr(manager, name), getattr(found, "name", found))
    return entries_of(lambda: call(**CASES[key].values, **WHO))


_OWNERS = (
    TaskQuerySet,
    TaskManager,
    DeadLetterQuerySet,
    QueueControlManager,
    CalendarManager,
    RecurringTaskManager,
    RecurringTask,
)


def _methods() -> set[tuple[Any, str]]:
    """Return the public methods that take a user."""
    return {
        (owner, name)
        for owner in _OWNERS
        for name, value in vars(owner).items()
        if inspect.isfunction(value)
        and {"by", "options"} & inspect.signature(value).parameters.keys()
    }


def test_the_tests_cover_every_public_method() -> None:
    assert set(_PUBLIC) == _methods()


@pytest.mark.parametrize("method", _PUBLIC, ids=lambda one: f"{one[0].__name__}.{one[1]}")
def test_each_public_method_has_one_entry(method: tuple[Any, str]) -> None:
    (entry,) = _called(*method, _PUBLIC[method])
    assert (entry.actor, entry.reason, entry.source) == ("ada", "a test", AuditSource.CODE)
    assert entry.operation == _PUBLIC[method]
    assert entry.before or entry.after


def test_the_entry_of_one_task_has_the_changed_columns() -> None:
    row = a_task("FAILED", name=add.name, args=[1, "x"])
    (entry,) = entries_of(lambda: Task.objects.filter(pk=row.pk).replay(**WHO, args=[1, 2]))
    assert (entry.object_type, entry.object_id, entry.count) == ("task", str(row.pk), 1)
    assert entry.tenant_id == row.tenant_id
    assert (entry.before["status"], entry.before["args"]) == ("FAILED", [1, "x"])
    assert (entry.after["status"], entry.after["args"]) == ("PENDING", [1, 2])
    assert "queue" not in entry.after


def test_the_entry_of_a_set_has_its_size_its_ids_and_its_statuses() -> None:
    rows = [*many_tasks(3, "FAILED"), a_task("CANCELLED")]
    a_task("SUCCESS")
    (entry,) = entries_of(lambda: Task.objects.all().replay(**WHO))
    assert (entry.object_type, entry.object_id, entry.count) == ("task", "", 4)
    assert sorted(entry.object_ids) == sorted(str(row.pk) for row in rows)
    assert entry.before == {"status": {"FAILED": 3, "CANCELLED": 1}}
    assert entry.after == {"status": {"PENDING": 4}}


def test_a_set_of_two_tenants_has_an_entry_for_each() -> None:
    other = a_tenant("other")
    mine, foreign = many_tasks(2), many_tasks(3, tenant=other)
    entries = entries_of(lambda: Task.objects.all().cancel(**WHO))
    assert [(one.tenant_id, one.count) for one in entries] == [
        (mine[0].tenant_id, 2),
        (other.pk, 3),
    ]
    assert set(entries[1].object_ids) == {str(row.pk) for row in foreign}


def _statements(number: int) -> int:
    ids = [row.pk for row in many_tasks(number)]
    with CaptureQueriesContext(connection) as captured:
        assert Task.objects.filter(pk__in=ids).cancel(**WHO) == number
    return len(captured)


def test_the_entry_of_many_tasks_costs_as_many_statements_as_that_of_few() -> None:
    assert _statements(2) == _statements(200)


def test_an_operation_that_changes_nothing_has_no_entry() -> None:
    row = a_task("SUCCESS")
    assert not entries_of(lambda: Task.objects.filter(pk=row.pk).cancel(**WHO))
    assert not entries_of(lambda: QueueControl.objects.resume("never-paused", **WHO))
    assert not entries_of(lambda: DeadLetter.objects.discard(**WHO))


def test_a_write_that_is_rolled_back_has_no_entry() -> None:
    row = a_task()
    with transaction.atomic():
        Task.objects.filter(pk=row.pk).cancel(**WHO)
        transaction.set_rollback(True)
    assert not AuditEntry.objects.exists()
    assert Task.objects.get(pk=row.pk).status == "PENDING"


def test_a_refused_operation_has_no_entry() -> None:
    first, second = many_tasks(2, "FAILED", name=add.name)
    both = Task.objects.filter(pk__in=[first.pk, second.pk])
    with pytest.raises(DurableTasksError):
        both.replay(**WHO, args=[1, 2])
    assert not AuditEntry.objects.exists()


class _Unserializable:
    def __str__(self) -> str:
        raise TypeError


def test_a_write_whose_entry_fails_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    row = a_task()
    monkeypatch.setattr(audit, "stored_fields", lambda *_args: {"status": _Unserializable()})
    with pytest.raises(TypeError):
        Task.objects.filter(pk=row.pk).cancel(by="ada")
    assert Task.objects.get(pk=row.pk).status == "PENDING"


def test_scheduling_starting_and_firing_have_no_entries() -> None:
    noop.delay()
    task = noop.using(key="k").schedule()
    noop.using(key="k").schedule()
    succeed(task)
    row = a_schedule("audited", interval=60)
    before = AuditEntry.objects.count()
    assert fire(at(60)) > 0
    assert AuditEntry.objects.count() == before
    assert set(AuditEntry.objects.values_list("object_id", flat=True)) == {str(row.pk)}


def test_secrets_of_arguments_are_masked() -> None:
    row = a_task("FAILED", name=echo.name, kwargs={"password": "hunter2", "plain": 1})
    (entry,) = entries_of(
        lambda: Task.objects.filter(pk=row.pk).replay(
            **WHO, args=[], kwargs={"password": "hunter3", "plain": 2}
        )
    )
    text = json.dumps([entry.before, entry.after])
    assert "hunter" not in text
    assert entry.after["kwargs"]["plain"] == 2
    (schedule,) = entries_of(
        lambda: RecurringTask.objects.upsert(
            name="secret", task=echo, kwargs={"api_key": "hunter2"}, interval=60
        )
    )
    assert "hunter" not in json.dumps(schedule.after)


def test_large_arguments_are_left_out() -> None:
    row = a_task("FAILED", name=echo.name, kwargs={"text": "a"})
    (entry,) = entries_of(
        lambda: Task.objects.filter(pk=row.pk).replay(
            **WHO, args=[], kwargs={"text": "b" * 2 * CHANGES_MAX_BYTES}
        )
    )
    assert entry.after["status"] == "PENDING"
    assert "omitted" in entry.after["kwargs"]


def test_source_name_and_address_come_from_the_entry_point() -> None:
    row = a_task()
    with acting(AuditSource.ADMIN, "eve", "2001:db8::1"):
        (entry,) = entries_of(lambda: operator_actions.cancel(Task.objects.filter(pk=row.pk)))
    assert (entry.source, entry.actor, entry.address) == ("ADMIN", "eve", "2001:db8::1")


def test_nested_operations_have_one_entry() -> None:
    first, second = many_tasks(2)

    def both() -> None:
        with acting(by="ada"), recorded("tests.both"):
            Task.objects.filter(pk=first.pk).cancel()
            Task.objects.filter(pk=second.pk).cancel()

    (entry,) = entries_of(both)
    assert (entry.operation, entry.count) == ("tests.both", 2)


def test_the_entry_of_a_calendar_has_its_days() -> None:
    christmas = SpecialDay(date(2030, 12, 25), name="Christmas")
    Calendar.objects.upsert("office", working_days=[1, 2], days=[])
    (entry,) = entries_of(lambda: Calendar.objects.upsert("office", days=[christmas], **WHO))
    assert entry.before == {"days": []}
    assert entry.after["days"][0][0] == "2030-12-25"


def test_the_entry_of_a_queue_belongs_to_the_tenant_whose_key_paused_it() -> None:
    tenant = a_tenant("other")
    with acting(AuditSource.API, "API key", tenant_id=tenant.pk):
        (entry,) = entries_of(lambda: QueueControl.objects.pause("audited"))
    assert (entry.tenant_id, entry.object_type, entry.object_id) == (tenant.pk, "queue", "audited")
    (entry,) = entries_of(lambda: QueueControl.objects.resume("audited"))
    assert entry.tenant_id is None


def test_a_sync_has_an_entry_for_each_schedule(settings: Any) -> None:
    schedules = {name: {"task": noop.name, "interval": 60} for name in ("one", "two")}
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "SCHEDULES": schedules}
    sync = OPERATIONS["installation.sync"]
    entries = entries_of(lambda: sync.perform(None, **WHO))
    named = {one.after["name"] for one in entries}
    assert named >= {"one", "two"}
    assert {(one.operation, one.actor) for one in entries} == {("installation.sync", "ada")}
    assert not entries_of(lambda: sync.perform(None, **WHO))
