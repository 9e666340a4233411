"""A tick needs as many statements for fifty due rows as for one, whatever kind of rows they are."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.schedules import calendars, trigger
from django_durable_tasks.schedules.agenda import Override
from tests.database.recurring.schedules import START, a_schedule, at, fire, override_directly
from tests.insert_statements import insert_statements
from tests.project import tasks
from tests.repetitions import drawn

pytestmark = pytest.mark.django_db

FEW, MANY = 1, 50


def _plain(name: str) -> datetime:
    a_schedule(name, overlap="ALLOW")
    return at(0.5)


def _on_calendars(name: str) -> datetime:
    calendars.upsert("office")
    calendars.upsert("exchange")
    a_schedule(name, cron="0 9 * * *", calendar=["office", "exchange"], overlap="ALLOW")
    return at(0.5)


def _closed(name: str) -> datetime:
    calendars.upsert("office")
    a_schedule(name, cron="0 9 * * *", calendar="office", overlap="ALLOW", misfire_grace=3_600)
    return at(days=7, seconds=0.5)


def _overridden(name: str) -> datetime:
    row = a_schedule(name, overlap="ALLOW")
    override_directly(row, Override(START, "SKIP"))
    return at(60.5)


def _overlapping(policy: str) -> Callable[[str], datetime]:
    def overlapping(name: str) -> datetime:
        a_schedule(name, overlap=policy)
        fire(START)
        return at(60.5)

    return overlapping


def _missed(mode: str) -> Callable[[str], datetime]:
    def missed(name: str) -> datetime:
        a_schedule(name, catch_up_mode=mode, misfire_grace=5, max_catchup_runs=3, overlap="ALLOW")
        return at(630)

    return missed


def _ending(name: str) -> datetime:
    a_schedule(name, max_runs=1, overlap="ALLOW")
    return at(0.5)


def _unique(name: str) -> datetime:
    a_schedule(name, task=tasks.unique, args=[name], overlap="ALLOW")
    return at(0.5)


KINDS: dict[str, Callable[[str], datetime]] = {
    "plain": _plain,
    "on calendars": _on_calendars,
    "closed": _closed,
    "overridden": _overridden,
    "ending": _ending,
    "with unique keys": _unique,
    **{
        f"overlap {policy}": _overlapping(policy)
        for policy in ("SKIP", "QUEUE_ONE", "QUEUE_ALL", "CANCEL_RUNNING", "REPLACE_PENDING")
    },
    **{mode: _missed(mode) for mode in ("RUN_ALL_MISSED", "RUN_ONE_NOW", "SKIP_MISSED")},
}


def _tick(kind: str, number: int) -> list[str]:
    """Return the statements of one tick with this number of due rows of a kind, with empty caches."""
    for model in (Task, OccurrenceRecord, RecurringTask):
        model._base_manager.all().delete()
    now = max([KINDS[kind](f"{kind} {number} {each}") for each in range(number)])
    with CaptureQueriesContext(connection) as seen:
        trigger.head()
        trigger.fire_due(now, 100, term=7)
    assert not RecurringTask.objects.due(now).exists()
    return [query["sql"] for query in seen]


@pytest.mark.parametrize("kind", drawn(KINDS))
def test_a_tick_needs_as_many_statements_for_fifty_due_rows_as_for_one(kind: str) -> None:
    few, many = _tick(kind, FEW), _tick(kind, MANY)
    created, recorded = Task.objects.count(), OccurrenceRecord.objects.count()
    parts = insert_statements(Task, created) + insert_statements(OccurrenceRecord, recorded) - 2
    assert len(many) <= len(few) + max(parts, 0), [
        [sql[:100] for sql in each] for each in (few, many)
    ]


def test_a_tick_with_nothing_due_is_one_query() -> None:
    a_schedule("later", start_time=at(500))
    with CaptureQueriesContext(connection) as seen:
        assert trigger.head() == at(500)
    assert len(seen) == 1
