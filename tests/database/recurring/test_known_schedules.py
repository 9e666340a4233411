"""A tick reads the columns of a schedule that only an edit changes once, and again after each edit."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks import process_state, registry
from django_durable_tasks.choices import DayKind, FireOutcome, SpecialDay
from django_durable_tasks.exceptions import UnknownTask
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.schedules import calendars, ledger, schedule_cache, trigger
from django_durable_tasks.schedules.ledger import LedgerEntry
from django_durable_tasks.schedules.schedule_cache import agenda_of, read_rows
from django_durable_tasks.schedules.trigger import KnownSchedules, policy_of
from django_durable_tasks.tasks import enqueue
from tests.database.recurring.schedules import (
    START,
    a_schedule,
    at,
    fire,
    fire_times,
    ledger_of,
    tomorrow,
)
from tests.project import tasks

pytestmark = pytest.mark.django_db


def _fired_with_all_columns(seconds: float) -> bool:
    """Fire, and return whether a statement read the columns that only an edit changes."""
    with CaptureQueriesContext(connection) as seen:
        assert fire(at(seconds)) >= 1
    return any('"timetable"' in query["sql"].replace("`", '"') for query in seen)


def _edit(row: RecurringTask, **values: Any) -> None:
    """Write columns as an edit does, without planning the schedule again."""
    RecurringTask.objects.unguarded().filter(pk=row.pk).update(revision=row.revision + 1, **values)
    row.refresh_from_db()


def test_a_tick_reads_all_columns_of_a_schedule_once() -> None:
    a_schedule(overlap="ALLOW")
    assert _fired_with_all_columns(0)
    assert not _fired_with_all_columns(60)
    a_schedule("another", overlap="ALLOW", start_time=at(120))
    assert _fired_with_all_columns(120)
    assert not _fired_with_all_columns(180)


def test_the_next_tick_after_an_edit_uses_the_edited_values() -> None:
    row = a_schedule(task=tasks.add, args=[1, 1], overlap="ALLOW")
    fire(START)
    _edit(row, args=[2, 3], queue="other", max_runs=2)
    assert _fired_with_all_columns(60)
    newest = Task.objects.get(fire_time=at(60))
    assert (newest.args, newest.queue) == ([2, 3], "other")
    row.refresh_from_db()
    assert (row.status, row.status_reason, row.runs_count) == ("CANCELLED", "MAX_RUNS", 2)


def test_an_edited_timetable_counts_from_the_next_tick_on() -> None:
    row = a_schedule(overlap="ALLOW")
    fire(START)
    _edit(row, timetable=[{"interval": 90}])
    fire(at(100))
    assert fire_times(row) == [START, at(90)]


def test_an_edit_that_no_one_can_read_quarantines_a_known_schedule() -> None:
    row = a_schedule(overlap="ALLOW")
    fire(START)
    _edit(row, timetable=[{"interval": "x"}])
    assert fire(at(60)) == 0
    row.refresh_from_db()
    assert (row.status, row.status_reason) == ("PAUSED", "QUARANTINED")


def test_a_changed_calendar_is_used_by_the_next_tick() -> None:
    calendars.upsert("office")
    row = a_schedule(calendar="office", overlap="ALLOW", misfire_grace=86_400)
    assert _fired_with_all_columns(0)
    assert not _fired_with_all_columns(60)
    calendars.upsert("office", days=[SpecialDay(START.date(), DayKind.CLOSED, "closed")])
    _edit(row, next_run_at=at(120), watermark_at=at(60))
    assert fire(at(120)) == 0
    assert fire_times(row) == [START, at(60)]
    assert ("SKIPPED_CALENDAR", at(120)) in [line[:2] for line in ledger_of(row)]


def test_a_fire_time_that_is_overridden_between_two_ticks_is_skipped() -> None:
    row = a_schedule(overlap="ALLOW", start_time=tomorrow())
    fire(tomorrow())
    row.refresh_from_db()
    row.override(tomorrow(seconds=60), "SKIP")
    fire(tomorrow(seconds=120))
    assert fire_times(row) == [tomorrow(), tomorrow(seconds=120)]


def test_the_fires_of_the_pause_of_a_known_schedule_name_its_reason() -> None:
    row = a_schedule(overlap="ALLOW")
    fire(START)
    row.refresh_from_db()
    row.pause("deploy", by="anna")
    RecurringTask.objects.unguarded().update(paused_until=at(90), next_run_at=at(90))
    assert fire(at(125)) == 1
    assert ledger_of(row)[1] == ("PAUSED", at(60), at(60), 1, "deploy by anna")
    assert fire_times(row) == [START, at(120)]


def test_more_schedules_than_are_kept_all_fire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trigger, "_MAX_SCHEDULES", 2)
    rows = [a_schedule(f"row {number}", overlap="ALLOW") for number in range(5)]
    assert [fire(START), fire(at(60))] == [5, 5]
    assert all(fire_times(row) == [START, at(60)] for row in rows)
    assert len(process_state.of(KnownSchedules)) == 2


def test_the_schedule_that_did_not_fire_for_the_longest_time_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trigger, "_MAX_SCHEDULES", 2)
    a_schedule("often", overlap="ALLOW")
    for name, seconds in (("second", 60), ("third", 180)):
        a_schedule(name, overlap="ALLOW", interval=86_400, start_time=at(seconds))
    for seconds in (0, 60, 120, 180):
        fire(at(seconds))
    assert not _fired_with_all_columns(240)
    assert len(process_state.of(KnownSchedules)) == 2


@pytest.mark.parametrize(
    "reason",
    ['"quoted"', "back\\slash\\", "{a,b}", "NULL", "", "two\nlines\tand é", "comma, 'apostrophe'"],
)
def test_a_reason_is_stored_as_it_is(reason: str) -> None:
    row = a_schedule()
    entry = LedgerEntry(
        recurring_task_id=row.pk,
        tenant_id=row.tenant_id,
        fire_time=START,
        outcome=FireOutcome.MISSED,
        reason=reason,
        count=3,
        count_is_exact=False,
        last_fire_time=at(60),
    )
    ledger.write([entry])
    stored = OccurrenceRecord.objects.get()
    assert (stored.reason, stored.count, stored.count_is_exact) == (reason, 3, False)
    assert (stored.unique_fire_time, stored.task_id, stored.term) == (None, None, None)


# Rows ---------------------------------------------------------------------------------------------
#
# A tick reads schedules as plain values, which mean the same as the model instances.


SCHEDULES: dict[str, dict[str, Any]] = {
    "interval": {},
    "arguments": {"task": tasks.add, "args": [1, 2], "queue": "other", "priority": 7},
    "keyword arguments": {"task": tasks.add, "kwargs": {"left": 1, "right": 2.5}},
    "texts": {"task": tasks.add, "args": ["é \"quoted\" \\ 'x' {a,b}", None]},
    "options": {"options": {"max_attempts": 3, "timeout": 5}},
    "cron": {"cron": "30 2 * * mon-fri", "timezone": "Europe/London", "dst_gap": "SKIP"},
    "hashed cron": {"cron": "H H * * *", "dst_overlap": "LAST"},
    "several parts": {"parts": [{"cron": "0 9 * * *"}, {"interval": 7_200}]},
    "calendar": {"cron": "0 9 * * *", "calendar": "office", "roll": "FOLLOWING"},
    "bounds": {"end_time": tomorrow(days=2), "max_runs": 5, "expires_in": 30},
    "policy": {"catch_up_mode": "RUN_ALL_MISSED", "misfire_grace": 5, "catchup_window": 3600},
    "overlap key": {"task": tasks.add, "args": [1, 2], "overlap_key": "{task}:{0}"},
    "jitter": {"jitter": 5},
}


@pytest.mark.parametrize("given", SCHEDULES.values(), ids=SCHEDULES)
def test_what_a_tick_reads_means_the_same_as_the_model_instance(given: dict[str, Any]) -> None:
    calendars.upsert("office")
    row = RecurringTask.objects.get(pk=a_schedule(**given).pk)
    (read,) = read_rows([row.pk]).values()
    plain = {name for name in vars(read) if not name.endswith("_json")}
    names = plain | {"args", "kwargs", "options", "timetable", "calendars"}
    assert {name: getattr(read, name) for name in names} == {
        name: getattr(row, name) for name in names
    }
    shared, other = trigger.template_of(read), trigger.template_of(row)
    assert shared._replace(id=other.id, shard_key=other.shard_key) == other
    assert policy_of(read) == policy_of(row)
    assert _first_runs(read) == _first_runs(row)


def test_a_tick_reads_a_new_column_unless_it_is_named() -> None:
    columns = {field.attname for field in RecurringTask._meta.concrete_fields}
    assert columns >= schedule_cache._UNREAD
    read = {name.removesuffix("_json") for name in schedule_cache._NAMES}
    assert read == columns - schedule_cache._UNREAD - {"id"} | {"pk"}


def _first_runs(row: schedule_cache.AnySchedule) -> list[Any]:
    agenda, found, after = agenda_of(row), list[Any](), at(-1)
    for _ in range(5):
        run = agenda.next(after)
        if run is None:
            break
        found.append(run)
        after = run.at
    return list(islice(found, 5))


def test_a_tick_creates_no_model_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    row = a_schedule(overlap="ALLOW")

    def refused(*arguments: Any) -> None:
        raise AssertionError("a model instance was created")

    with monkeypatch.context() as patched:
        patched.setattr(RecurringTask, "from_db", refused)
        assert fire(START) == 1
    assert fire_times(row) == [START]


def test_schedules_with_equal_options_share_what_depends_on_these(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = list[Any]()
    build = enqueue.template

    def counted(*given: Any) -> Any:
        built.append(given)
        return build(*given)

    equal = [a_schedule(f"row {n}", task=tasks.add, args=[n, n]) for n in range(3)]
    a_schedule("another", queue="other")
    monkeypatch.setattr(f"{trigger.__name__}.task_template", counted)
    assert fire(START) == 4
    assert len(built) == 2
    assert [Task.objects.get(recurring_task=row).args for row in equal] == [[0, 0], [1, 1], [2, 2]]


def test_a_function_that_is_registered_again_is_used_by_the_next_schedule_that_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = a_schedule()
    (read,) = read_rows([row.pk]).values()
    trigger.template_of(read)
    registered = registry.get(row.task)
    monkeypatch.setattr(registry, "_tasks", {})
    with pytest.raises(UnknownTask):
        trigger.template_of(read)
    monkeypatch.setattr(registry, "_tasks", {row.task: registered})
    assert trigger.template_of(read).name == row.task


def test_more_combinations_of_options_than_are_kept_all_fire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trigger, "_MAX_TEMPLATES", 2)
    rows = [a_schedule(f"row {n}", queue=f"queue-{n}", overlap="ALLOW") for n in range(5)]
    assert fire(START) == 5
    assert all(fire_times(row) == [START] for row in rows)
    assert len(process_state.of(trigger.SharedTemplates)) <= 2
