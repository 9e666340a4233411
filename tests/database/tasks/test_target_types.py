"""The type of the target is a column, its configuration is a view of name and arguments."""

from __future__ import annotations

import pytest

from django_durable_tasks.models import RecurringTask, Task
from tests.project.tasks import add

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_configuration_of_a_function_is_its_call() -> None:
    task = add.schedule(1, right=2)
    assert task.target_type == "CELERY_TASK"
    assert task.target_config == {"task": add.name, "args": [1], "kwargs": {"right": 2}}


def test_each_way_to_create_tasks_writes_the_type() -> None:
    add.schedule_many([(1, 2), (3, 4)])
    add.delay(5, 6)
    add.using(key="k").schedule(7, 8)
    row = RecurringTask.objects.upsert(name="adding", task=add, args=[1, 2], interval=60)
    row.trigger_now()
    assert set(Task.objects.values_list("target_type", flat=True)) == {"CELERY_TASK"}
    assert Task.objects.count() == 5
    assert row.target_type == "CELERY_TASK"
    assert row.target_config == {"task": add.name, "args": [1, 2], "kwargs": {}}
