"""Writing engine-owned rows directly raises an error that names the right method."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.core import serializers
from django.core.management import call_command

from django_durable_tasks.exceptions import GuardedModelError
from django_durable_tasks.models import Calendar, DeadLetter, RecurringTask, Task
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from tests.factories import a_task
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db
GUARDED = {model for model in apps.get_models() if issubclass(model, GuardedModel)}
WRITES: dict[str, Callable[[Any], Any]] = {
    "create": lambda rows: rows.create(),
    "bulk_create": lambda rows: rows.bulk_create([rows.model()]),
    "get_or_create": lambda rows: rows.get_or_create(pk=None),
    "update_or_create": lambda rows: rows.update_or_create(pk=None),
    "update": lambda rows: rows.all().update(tenant=1),
    "bulk_update": lambda rows: rows.bulk_update([], ["tenant"]),
    "delete": lambda rows: rows.all().delete(),
}


def test_engine_owned_models_are_guarded() -> None:
    assert {model.__name__ for model in GUARDED} == {
        "Alert",
        "ApiKey",
        "AuditEntry",
        "BulkOperation",
        "Calendar",
        "DeadLetter",
        "DeliveryAttempt",
        "Endpoint",
        "IdempotentRequest",
        "MetricMinute",
        "NotificationEvent",
        "NotificationSetting",
        "OccurrenceRecord",
        "RecurringTask",
        "StaffTenant",
        "Task",
        "TaskDependency",
        "TaskExecutionLog",
        "TenantQuota",
        "WorkflowRun",
    }


@pytest.mark.parametrize("model", sorted(GUARDED, key=str))
def test_every_direct_write_is_refused_with_the_right_method(model: type[GuardedModel]) -> None:
    rows: Any = model._default_manager
    for name, write in WRITES.items():
        with pytest.raises(
            GuardedModelError, match=rf"^{model.__name__}: {name}\(\) is refused.*\. .+\("
        ) as refused:
            write(rows)
        assert model.instead in str(refused.value)
    row: Any = model()
    for refuse in (row.save, row.delete):
        with pytest.raises(GuardedModelError):
            refuse()


def test_asynchronous_writes_and_those_of_related_managers_are_refused() -> None:
    row = a_task("FAILED")
    with pytest.raises(GuardedModelError):
        asyncio.run(Task.objects.acreate())
    with pytest.raises(GuardedModelError):
        row.dead_letters.update(reason="x")
    with pytest.raises(GuardedModelError):
        row.executions.all().delete()


def test_querysets_stay_guarded_or_unguarded_when_chained() -> None:
    guarded = Task.objects.filter(queue="a").exclude(name="b").order_by("pk").using("default")
    with pytest.raises(GuardedModelError):
        guarded.update(queue="c")
    assert guarded.unguarded().filter(name="d").update(queue="c") == 0
    with pytest.raises(GuardedModelError):
        guarded.update(queue="c")


def test_the_named_methods_write() -> None:
    row = noop.schedule()
    assert Task.objects.filter(pk=row.pk).cancel() == 1
    RecurringTask.objects.upsert(name="daily", task=noop, cron="0 9 * * *")
    Calendar.objects.upsert("office")
    assert (RecurringTask.objects.count(), Calendar.objects.count()) == (1, 1)


def test_reading_again_and_loading_fixtures_work() -> None:
    row = a_task("FAILED")
    row.refresh_from_db()
    text = serializers.serialize("json", [row, *DeadLetter.objects.all()])
    for loaded in serializers.deserialize("json", text):
        loaded.save()
    call_command("dumpdata", "django_durable_tasks.Task", stdout=(out := StringIO()))
    assert str(row.pk) in out.getvalue()


def test_every_manager_of_a_guarded_model_is_guarded() -> None:
    for model in GUARDED:
        assert all(
            isinstance(manager.all(), GuardedQuerySet) for manager in model._meta.managers
        ), model
