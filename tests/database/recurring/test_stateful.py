"""Hypothesis generates outages, operator actions, crashes and clocks that go back; a slow reference
keeps the same ledger.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.schedules import lifecycle
from tests.database.recurring.reference import TICK, Plan
from tests.database.recurring.schedules import START, fire
from tests.project import tasks
from tests.repetitions import repetitions
from tests.stateful import applies_if, run_machine

ROWS = 4
intervals = st.sampled_from([60.0, 90.0, 7.5, 3600.0])
picks = st.integers(0, ROWS - 1)
steps = st.one_of(st.floats(0, 100), st.sampled_from([0.0, 60.0, 90.0, 600.0, 3600.0, 7200.0]))
plans = st.fixed_dictionaries(
    {
        "interval": intervals,
        "catch_up_mode": st.sampled_from(["RUN_ALL_MISSED", "RUN_ONE_NOW", "SKIP_MISSED"]),
        "misfire_grace": st.sampled_from([0.0, 1.0, 60.0, 600.0]),
        "catchup_window": st.sampled_from([None, None, 0.0, 300.0, 3600.0]),
        "max_catchup_runs": st.sampled_from([1, 3, 100]),
        "catchup_order": st.sampled_from(["OLDEST", "NEWEST"]),
        "expires_in": st.sampled_from([None, None, 90.0]),
        "max_runs": st.sampled_from([None, None, 1, 20]),
    }
)


class Clock:
    """The clock of the operations, which the state machine moves."""

    now = START


class Trigger(RuleBasedStateMachine):
    """Operations and trigger as rules. The ledgers of all schedules are compared after each."""

    def __init__(self) -> None:
        super().__init__()
        for model in (Task, OccurrenceRecord, RecurringTask):
            model._base_manager.all().delete()
        Clock.now = START
        self.plans: list[Plan] = []
        self.watermarks: dict[Any, datetime] = {}

    def _row(self, plan: Plan) -> RecurringTask:
        found: RecurringTask = RecurringTask.objects.get(pk=plan.pk)
        return found

    @rule(given=plans)
    @applies_if(lambda self: len(self.plans) < ROWS)
    def declare(self, given: dict[str, Any]) -> None:
        """A schedule is declared. It begins with its first grid point after now."""
        name = f"row {len(self.plans)}"
        row = RecurringTask.objects.upsert(
            name=name, task=tasks.noop, queue="test", overlap="ALLOW", **given
        )
        self.plans.append(
            Plan(
                row.pk,
                given["interval"],
                Clock.now,
                Clock.now,
                given["catch_up_mode"],
                given["misfire_grace"],
                given["catchup_window"],
                given["max_catchup_runs"],
                given["catchup_order"] == "NEWEST",
                given["expires_in"],
                given["max_runs"],
            )
        )

    # Leaders --------------------------------------------------------------------------------------

    @rule(seconds=steps, limit=st.sampled_from([1, 100]))
    def lead(self, seconds: float, limit: int) -> None:
        """Time passes, and a leader fires until nothing is due, row by row or all at once."""
        Clock.now += timedelta(seconds=seconds)
        created = 0
        while RecurringTask.objects.due(Clock.now).exists():
            created += fire(Clock.now, limit)
        assert created == sum(plan.tick(Clock.now) for plan in self.plans)

    @rule(seconds=steps)
    def lead_with_a_clock_behind(self, seconds: float) -> None:
        """A leader whose clock is behind does nothing that the first leader has not done already."""
        behind = Clock.now - timedelta(seconds=seconds)
        assert fire(behind) == sum(plan.tick(behind) for plan in self.plans)

    @rule(seconds=steps)
    def crash(self, seconds: float) -> None:
        """A leader dies before its COMMIT."""
        Clock.now += timedelta(seconds=seconds)
        with transaction.atomic():
            fire(Clock.now)
            transaction.set_rollback(True)

    @rule(seconds=steps)
    def without_leader(self, seconds: float) -> None:
        """No scheduler leads for a while."""
        Clock.now += timedelta(seconds=seconds)

    # Operators ------------------------------------------------------------------------------------

    def _living(self, pick: int) -> list[Plan]:
        living = [plan for plan in self.plans if plan.status != "CANCELLED"]
        return [living[pick % len(living)]] if living else []

    @rule(pick=picks, seconds=st.one_of(st.none(), steps))
    def pause(self, pick: int, seconds: float | None) -> None:
        """An operator pauses a schedule, indefinitely or for a while."""
        until = None if seconds is None else Clock.now + timedelta(seconds=seconds) + TICK
        for plan in self._living(pick):
            self._row(plan).pause("deploy", until=until)
            plan.pause(until)

    @rule(pick=picks, run_missed=st.booleans())
    def resume(self, pick: int, run_missed: bool) -> None:
        """An operator resumes a schedule."""
        for plan in self._living(pick):
            self._row(plan).resume(run_missed=run_missed)
            plan.resume(Clock.now, run_missed)

    @rule(pick=picks, interval=intervals)
    def edit(self, pick: int, interval: float) -> None:
        """A schedule is edited, perhaps without a change."""
        for plan in self._living(pick):
            RecurringTask.objects.upsert(
                name=self._row(plan).name, task=tasks.noop, interval=interval
            )
            plan.edit(Clock.now, interval)

    @rule(pick=picks, mode=st.sampled_from(["RUN_ALL_MISSED", "RUN_ONE_NOW", "SKIP_MISSED"]))
    def edit_policy(self, pick: int, mode: str) -> None:
        """The misfire policy is edited; the fire times stay unchanged."""
        for plan in self._living(pick):
            RecurringTask.objects.upsert(
                name=self._row(plan).name, task=tasks.noop, catch_up_mode=mode
            )
            plan.mode = mode

    @rule(pick=picks)
    def set_back(self, pick: int) -> None:
        """A watermark is set back by hand. Single ledger entries stay, and the row is not
        quarantined.
        """
        for plan in self._living(pick):
            if plan.status != "ACTIVE":
                continue
            with transaction.atomic():
                lines = OccurrenceRecord.objects.single().filter(recurring_task=plan.pk)
                known = dict(lines.values_list("fire_time", "task"))
                RecurringTask.objects.unguarded().filter(pk=plan.pk).update(
                    watermark_at=plan.anchor - TICK, next_run_at=START
                )
                created = fire(Clock.now)
                assert known.items() <= dict(lines.all().values_list("fire_time", "task")).items()
                fired = Task.objects.filter(recurring_task=plan.pk).values_list("fire_time", "pk")
                assert dict(fired) == dict(
                    lines.filter(task__isnull=False).values_list("fire_time", "task")
                )
                assert self._row(plan).status_reason in ("", "MAX_RUNS")
                assert self._row(plan).runs_count == len(fired) <= plan.runs + created
                transaction.set_rollback(True)

    # Always ---------------------------------------------------------------------------------------

    @invariant()
    def the_ledger_equals_the_reference(self) -> None:
        """Each fire is recorded once, alone or inside one range, and has a task if the ledger says
        so.
        """
        rows = RecurringTask.objects.in_bulk([plan.pk for plan in self.plans])
        for plan in self.plans:
            row = rows[plan.pk]
            assert (row.status, row.runs_count, row.next_run_at) == (
                plan.status,
                plan.runs,
                plan.next_look(),
            )
            assert row.watermark_at >= self.watermarks.get(plan.pk, row.watermark_at)
            assert row.status != "ACTIVE" or (row.next_run_at or START) > row.watermark_at
            self.watermarks[plan.pk] = row.watermark_at
            self._compare(plan)

    def _compare(self, plan: Plan) -> None:
        lines = OccurrenceRecord.objects.filter(recurring_task=plan.pk)
        singles = {line.fire_time: line for line in lines.single()}
        assert {fire_time: line.outcome for fire_time, line in singles.items()} == plan.singles
        runs = dict(Task.objects.filter(recurring_task=plan.pk).values_list("fire_time", "pk"))
        assert runs == {
            fire_time: line.task_id for fire_time, line in singles.items() if line.task_id
        }
        assert set(runs) == {
            fire_time for fire_time, outcome in plan.singles.items() if outcome == "DISPATCHED"
        }
        recorded = [
            (one.outcome, one.fire_time, one.last_fire_time, one.count)
            for one in lines.filter(last_fire_time__isnull=False).order_by("pk")
        ]
        assert all(one.count_is_exact for one in lines)
        for outcome, fires in plan.stretches:
            # A stretch may be recorded in two entries: fires outside the window, and fires over the number.
            within = [
                one
                for one in recorded
                if one[0] == outcome and fires[0] <= one[1] <= (one[2] or one[1]) <= fires[-1]
            ]
            assert sum(one[3] for one in within) == len(fires)
            recorded = [one for one in recorded if one not in within]
        assert recorded == []


@pytest.mark.django_db
@pytest.mark.timeout(300)
def test_the_ledger_equals_the_reference_in_any_order_of_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifecycle, "database_now", lambda: Clock.now)
    run_machine(
        Trigger, examples=repetitions(60 if connection.vendor == "sqlite" else 15), steps=30
    )
