"""Hypothesis sets the database's clock forward and back: schedules go on, and no fire time runs twice."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.schedules import schedule_cache, writes
from django_durable_tasks.store.clock import database_now
from tests.database.recurring.schedules import START, a_schedule, fire, fire_times, ledger_of
from tests.repetitions import repetitions

TOLERANCE, HOURS = 2.0, 5
INTERVALS = st.sampled_from([60.0, 97.0, 600.0, 3_600.0])
PIECES = st.lists(
    st.tuples(
        st.integers(1, 6),
        st.one_of(st.just(0), st.integers(-HOURS * 3_600, HOURS * 3_600), st.integers(-90, 90)),
    ),
    min_size=1,
    max_size=5,
)
"""How often the schedules are processed, and by how much the clock is wrong then."""


def _process(now: datetime) -> None:
    while fire(now):
        pass


def _covered(row: RecurringTask) -> list[tuple[datetime, datetime]]:
    return [(first, last or first) for _, first, last, *_ in ledger_of(row)]


class ClockSteps(TestCase):
    """Draws schedules, wrong clocks, and when they change."""

    @settings(deadline=None, max_examples=repetitions(60, least=5))
    @given(
        interval=INTERVALS,
        mode=st.sampled_from(["RUN_ALL_MISSED", "RUN_ONE_NOW", "SKIP_MISSED"]),
        grace=st.sampled_from([0.0, 60.0, 3_600.0]),
        pieces=PIECES,
    )
    def test_fire_times_after_a_step_run_when_they_are_due_and_once(
        self, interval: float, mode: str, grace: float, pieces: list[tuple[int, int]]
    ) -> None:
        for model in (Task, OccurrenceRecord, RecurringTask):
            model._base_manager.all().delete()
        row = a_schedule(
            interval=interval,
            overlap="ALLOW",
            catch_up_mode=mode,
            misfire_grace=grace,
            max_catchup_runs=1_000,
        )
        passed, wrong, corrected = 0.0, 0.0, START
        for times, error in [*pieces, (4, 0)]:
            forward, wrong = error > wrong, float(error)
            now = START + timedelta(seconds=passed + wrong)
            if not forward:
                assert writes.set_back_schedules(now, TOLERANCE, 10) <= 1
                assert writes.set_back_schedules(now, TOLERANCE, 10) == 0
                corrected = now
            for _ in range(times):
                passed += interval / 2
                now = START + timedelta(seconds=passed + wrong)
                _process(now)
                row.refresh_from_db()
                assert row.watermark_at <= now + timedelta(seconds=TOLERANCE)
                assert row.next_run_at is not None
                latest = max(now, START) + timedelta(seconds=interval + TOLERANCE)
                assert row.next_run_at <= latest
                self._judge(row, interval, max(corrected, START), now, mode)

    def _judge(
        self, row: RecurringTask, interval: float, since: datetime, now: datetime, mode: str
    ) -> None:
        ran = fire_times(row)
        assert len(ran) == len(set(ran))
        first = int(max(0.0, (since - START).total_seconds()) // interval)
        last = int((now - START).total_seconds() // interval)
        covered = _covered(row)
        for number in range(first + 1, last + 1):
            at = START + timedelta(seconds=number * interval)
            if mode == "RUN_ALL_MISSED":
                assert at in ran
            else:
                assert any(begin <= at <= end for begin, end in covered)


@pytest.mark.django_db
def test_a_pause_and_an_ended_schedule_keep_their_next_time() -> None:
    paused, ended = a_schedule("paused"), a_schedule("ended")
    now, ahead = database_now(), database_now() + timedelta(hours=3)
    paused.pause(until=now + timedelta(hours=1))
    ended.cancel()
    RecurringTask.objects.unguarded().update(watermark_at=ahead)
    assert writes.set_back_schedules(now, TOLERANCE, 10) == 1
    paused.refresh_from_db()
    assert (paused.watermark_at, paused.next_run_at) == (now, now + timedelta(hours=1))
    ended.refresh_from_db()
    assert (ended.watermark_at, ended.next_run_at) == (ahead, None)
    assert schedule_cache.recurring().filter(watermark_at__gt=now).count() == 1
