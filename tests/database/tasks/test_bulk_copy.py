"""A bulk call builds its tasks while the database writes others by COPY."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from django_durable_tasks.models import Task
from django_durable_tasks.states import inserts
from django_durable_tasks.task_values import NewTask
from django_durable_tasks.tasks import enqueue
from tests.project import tasks

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql]
PART = 40


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write parts of 40 tasks, which are built in slices of 10."""
    monkeypatch.setattr(enqueue, "BULK", PART)
    monkeypatch.setattr(inserts, "_COPIED", 10)
    monkeypatch.setattr(enqueue, "_SLICE", 10)


def test_tasks_are_built_while_the_database_writes_others(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    called, rows_of = enqueue.TaskTemplate.called, inserts.rows_of

    def built(template: Any, *given: Any) -> NewTask:
        if events[-1:] != ["built"]:
            events.append("built")
        return called(template, *given)

    def sent(part: Any, now: Any) -> bytes:
        events.append(f"sent {len(part)}")
        return rows_of(part, now)

    monkeypatch.setattr(enqueue.TaskTemplate, "called", built)
    monkeypatch.setattr(inserts, "rows_of", sent)
    tasks.add.schedule_many([(1, 2)] * PART)
    assert events == ["built", "sent 10"] * (PART // 10)


@pytest.mark.parametrize(("seconds", "number"), [(0.0, 2 * PART // 10), (60.0, 2)])
def test_a_statement_accepts_no_tasks_after_its_time(
    seconds: float, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueue, "_OVERLAP", seconds)
    copies: list[str] = []

    def seen(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        copies.extend([sql] if sql.startswith("COPY") else [])
        return execute(sql, params, many, context)

    with connection.execute_wrapper(seen):
        tasks.add.schedule_many([(one, 1) for one in range(2 * PART)])
    assert len(copies) == number
    assert Task.objects.values("args").distinct().count() == Task.objects.count() == 2 * PART
