"""A project with its tasks in a second database, asserted step by step in a separate process.

A scheduler and a worker with the same settings must be running.
"""

from __future__ import annotations

from io import StringIO
from typing import Any

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.db import connections, transaction
from django.test import Client, override_settings

from django_durable_tasks import Workflow
from django_durable_tasks.models import (
    DeadLetter,
    OccurrenceRecord,
    QueueControl,
    RecurringTask,
    Task,
    WorkflowRun,
)
from tests.database.admin.site import act, list_of, operator, page_of
from tests.project import tasks
from tests.waiting import until

APP = "django_durable_tasks"
PATIENCE = 60


def models_and_managers_use_the_tables_that_the_engine_uses() -> None:
    """Every documented query and operation uses the second database."""
    for model in apps.get_app_config(APP).get_models():
        manager: Any = model._default_manager
        assert manager.db == "tasks", model
        assert manager.using("default").db == "default"
    added = tasks.add.delay(1, 2)
    assert Task.objects.filter(pk=added.id).exists()
    assert added.get(timeout=PATIENCE) == 3
    assert Task.objects.get(pk=added.id).tenant.slug == "default"

    failed = tasks.failing_once.delay()
    try:
        failed.get(timeout=PATIENCE)
    except tasks.Broken:
        assert DeadLetter.objects.filter(task=failed.id).count() == 1
    else:
        raise AssertionError("the body raises")

    waiting = tasks.add.using(key="later").apply_async((1, 2), countdown=3600)
    assert Task.objects.cancel("later") == 1
    assert Task.objects.get(pk=waiting.id).status == "CANCELLED"


def transactions_of_both_databases_are_separate() -> None:
    """A task belongs to a transaction of its own database, and of no other."""
    before = Task.objects.count()
    with transaction.atomic(using="tasks"):
        tasks.add.delay(1, 2)
        transaction.set_rollback(True, using="tasks")
    assert Task.objects.count() == before
    Group.objects.create(name="site")
    assert Group.objects.using("default").count() == 1


def schedules_and_workflows_use_the_second_database() -> None:
    """A schedule is upserted, paused, triggered and read back; a workflow runs to its end."""
    row = RecurringTask.objects.upsert(name="hourly", task=tasks.add, args=[1, 2], interval=3600)
    assert RecurringTask.objects.filter(name="hourly").count() == 1
    row.pause("a test")
    row.resume()
    run = row.trigger_now()
    until(lambda: Task.objects.get(pk=run.pk).status == "SUCCESS", within=PATIENCE)
    assert OccurrenceRecord.objects.filter(recurring_task=row.pk).count() == 1

    flow = Workflow("two")
    first = flow.add(tasks.add, 1, 2)
    flow.add(tasks.add, first.result, 4, after=[first])
    started = flow.start()
    until(lambda: WorkflowRun.objects.get(pk=started.pk).status == "SUCCESS", within=PATIENCE)


def commands_use_the_second_database() -> None:
    """The commands read the second database."""
    task = Task.objects.filter(status="SUCCESS").latest("pk")
    for words in (
        ["list", "tasks"],
        ["show", str(task.pk)],
        ["list", "recurring"],
        ["ledger", "hourly"],
        ["verify"],
    ):
        out = StringIO()
        call_command("durable", *words, stdout=out)
        assert out.getvalue(), words
    shown = StringIO()
    call_command("durable", "list", "tasks", "--format", "json", stdout=shown)
    assert str(task.pk) in shown.getvalue()


@override_settings(ALLOWED_HOSTS=["*"])
def the_admin_shows_and_changes_rows_of_both() -> None:
    """Lists and pages show the second database. Users, permissions and the history stay in the
    first.
    """
    ann = operator("ann")
    assert User.objects.using("default").filter(username="ann").exists()
    for model in admin.site._registry:
        if model._meta.app_label == APP:
            _visited(ann, model)
    letter = DeadLetter.objects.get(resolved_at__isnull=True)
    act(ann, "replay", letter)
    assert DeadLetter.objects.get(pk=letter.pk).resolution == "REPLAYED"
    assert LogEntry.objects.using("default").filter(user__username="ann").exists()
    QueueControl.objects.create(name="reports")
    assert ann.get(list_of("queuecontrol")).status_code == 200


def _visited(client: Client, model: Any) -> None:
    assert client.get(list_of(model._meta.model_name)).status_code == 200, model
    row = model.objects.first()
    if row is not None:
        assert client.get(page_of(row)).status_code == 200, row


def the_first_database_has_no_table_of_the_package() -> None:
    """`migrate` created the tables of the package in the second database only."""
    ours = [
        table
        for table in connections["default"].introspection.table_names()
        if table.startswith("durable_tasks")
    ]
    assert ours == []
    assert connections["tasks"].introspection.table_names() != []


def run() -> None:
    """Run all steps."""
    models_and_managers_use_the_tables_that_the_engine_uses()
    transactions_of_both_databases_are_separate()
    schedules_and_workflows_use_the_second_database()
    commands_use_the_second_database()
    the_admin_shows_and_changes_rows_of_both()
    the_first_database_has_no_table_of_the_package()
