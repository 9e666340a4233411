"""The factories write rows that the database accepts in every status."""

from __future__ import annotations

import pytest

from django_durable_tasks.choices import OPEN, Status
from django_durable_tasks.models import Task
from tests.factories import (
    a_dead_letter,
    a_log_row,
    a_node,
    a_paused_queue,
    a_run,
    a_task,
    a_tenant,
    many_tasks,
)

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("status", Status)
def test_a_task_of_every_status_can_be_built(status: Status) -> None:
    row = a_task(status, key="k", unique_key="u")
    assert row.status == status
    assert (row.open_key, row.open_unique_key) == (("k", "u") if status in OPEN else (None, None))
    assert row.dead_letters.filter(open_task=row.pk).count() == (status == Status.FAILED)


def test_factories_of_the_other_tables_write_the_given_values() -> None:
    row = many_tasks(3, Status.RUNNING)[0]
    assert Task.objects.running().count() == 3
    assert a_run(row).run_id == row.run_id
    assert a_dead_letter(row, open=False).open_task is None
    assert a_log_row(row).task_id == row.pk
    assert a_node(stopped=5).stopped_at is not None
    assert a_tenant().pk != 1
    assert a_paused_queue().paused_at is not None
