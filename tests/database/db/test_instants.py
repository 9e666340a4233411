"""The columns of this package contain instants, whatever USE_TZ and TIME_ZONE of the project are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.apps import apps
from django.db import connection, models
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.models import Task
from django_durable_tasks.models.fields import DatabaseNow, InstantField
from django_durable_tasks.store import tables
from tests.project.tasks import add

AUTUMN = datetime(2026, 10, 25, tzinfo=UTC)
"""In Berlin each wall time from 02:00 to 03:00 is there twice."""


@pytest.fixture(params=[True, False], ids=["USE_TZ", "no USE_TZ"])
def stored(request: pytest.FixtureRequest, settings: Any, transactional_db: None) -> Iterator[None]:
    """Reconnect in a project in Berlin with and without USE_TZ."""
    connection.close()
    settings.USE_TZ, settings.TIME_ZONE = request.param, "Europe/Berlin"
    yield
    connection.close()


def test_every_column_of_time_is_a_column_of_instants() -> None:
    fields = [
        field
        for model in apps.get_models()
        if "durable_tasks" in model._meta.app_label
        for field in model._meta.get_fields()
        if isinstance(field, models.DateTimeField)
    ]
    assert len(fields) > 50
    assert {type(field).__name__ for field in fields} == {InstantField.__name__}


def _written(task: Task, at: datetime) -> list[datetime]:
    tables.tasks().filter(pk=task.pk).update(run_at=at, due_at=at)
    row = Task.objects.get(pk=task.pk)
    (by_values,) = Task.objects.filter(run_at=at, due_at__lte=at).values_list("due_at", flat=True)
    assert row.run_at is not None
    later_by = models.F("run_at") + timedelta(hours=1)
    moved = tables.tasks().annotate(
        moved=models.ExpressionWrapper(later_by, output_field=InstantField())
    )
    (later,) = moved.filter(pk=task.pk).values_list("moved", flat=True)
    return [row.run_at, by_values, later - timedelta(hours=1)]


def test_each_instant_is_read_as_it_was_written(stored: None) -> None:
    task = add.schedule(1, 2, run_at=datetime.now(UTC) + timedelta(days=300))
    zones: list[tzinfo] = [UTC, ZoneInfo("America/New_York"), ZoneInfo("Asia/Kathmandu")]

    @given(st.integers(0, 4 * 3600), st.sampled_from(zones))
    def every(seconds: int, zone: tzinfo) -> None:
        at = (AUTUMN + timedelta(seconds=seconds)).astimezone(zone)
        for read in _written(task, at):
            assert (read, read.utcoffset()) == (at, timedelta(0))

    every()


def test_the_clock_of_the_database_is_the_same(stored: None) -> None:
    before = datetime.now(UTC) - timedelta(minutes=5)
    task = add.schedule(1, 2)
    tables.tasks().filter(pk=task.pk).update(run_at=DatabaseNow())
    row = Task.objects.get(pk=task.pk)
    assert row.run_at is not None
    assert before < row.created_at < before + timedelta(minutes=10)
    assert before < row.run_at < before + timedelta(minutes=10)
