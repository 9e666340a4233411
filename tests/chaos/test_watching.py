"""The triggers record each change of a task on each database, with the time by its clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.utils import timezone

from django_durable_tasks.models import Task
from tests.chaos import watching
from tests.project import bodies

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _watched() -> Iterator[None]:
    watching.install()
    yield
    watching.remove()


def test_the_creation_the_end_and_the_deletion_of_a_task_are_recorded() -> None:
    due = timezone.now() + timedelta(seconds=100)
    task = bodies.add.using(run_at=due).schedule(1, 2)
    Task.objects.filter(pk=task.pk).cancel(by="chaos")
    Task.objects.unguarded().filter(pk=task.pk).delete()
    created, cancelled, deleted = watching.changes()
    name = str(task.pk)
    assert (created.task, created.old, created.new, created.old_epoch) == (name, None, "PENDING", 0)
    assert created.due == pytest.approx(due.timestamp(), abs=0.01)
    assert (cancelled.old, cancelled.new) == ("PENDING", "CANCELLED")
    assert (cancelled.old_epoch, cancelled.new_epoch, cancelled.due) == (0, 1, None)
    assert (deleted.task, deleted.old, deleted.new) == (name, "CANCELLED", None)
    assert created.at == pytest.approx(time.time(), abs=30)


def test_a_change_of_neither_status_nor_owner_is_not_recorded() -> None:
    task = bodies.add.using(run_at=timezone.now() + timedelta(seconds=100)).schedule(1, 2)
    Task.objects.unguarded().filter(pk=task.pk).update(reason="none")
    assert len(list(watching.changes())) == 1
