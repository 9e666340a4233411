"""A new release of the time zone database moves future fires. Each affected schedule is reported
and corrected once.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_durable_tasks.models import RecurringTask
from django_durable_tasks.schedules import writes
from django_durable_tasks.schedules.timetables.zones import tzdata_version
from tests.database.recurring.schedules import a_schedule

pytestmark = pytest.mark.django_db


def _by_older_tables(row: RecurringTask, hours: int) -> None:
    assert row.next_run_at is not None
    wrong = row.next_run_at + timedelta(hours=hours)
    RecurringTask.objects.unguarded().filter(pk=row.pk).update(
        tzdata_version="2020a", next_run_at=wrong
    )


def test_a_schedule_that_moves_is_listed_and_one_that_stays_is_not() -> None:
    moves, stays, fresh = a_schedule("moves"), a_schedule("stays"), a_schedule("fresh")
    _by_older_tables(moves, 1)
    _by_older_tables(stays, 0)
    (one,) = writes.moved_fire_times(100)
    assert (one.row.pk, one.found) == (moves.pk, moves.next_run_at)
    assert fresh.tzdata_version == tzdata_version()


def test_it_is_corrected_once_and_its_watermark_stays() -> None:
    row = a_schedule()
    _by_older_tables(row, 1)
    assert [writes.recompute_fire_times(100), writes.recompute_fire_times(100)] == [1, 0]
    found = RecurringTask.objects.get(pk=row.pk)
    assert (found.next_run_at, found.watermark_at) == (row.next_run_at, row.watermark_at)


def test_a_row_that_cannot_be_computed_does_not_block_others() -> None:
    bad, good = a_schedule("bad"), a_schedule("good")
    _by_older_tables(good, 1)
    RecurringTask.objects.unguarded().filter(pk=bad.pk).update(
        tzdata_version="2020a", calendars=["gone"]
    )
    assert writes.recompute_fire_times(100) == 2
    assert RecurringTask.objects.get(pk=good.pk).next_run_at == good.next_run_at


def test_a_corrupted_row_does_not_block_others() -> None:
    bad, good = a_schedule("bad"), a_schedule("good")
    _by_older_tables(good, 1)
    RecurringTask.objects.unguarded().filter(pk=bad.pk).update(tzdata_version="2020a", calendars=7)
    assert [writes.recompute_fire_times(100), writes.recompute_fire_times(100)] == [1, 0]
    assert RecurringTask.objects.get(pk=good.pk).next_run_at == good.next_run_at
    assert list(writes.computed_elsewhere()) == [bad]
