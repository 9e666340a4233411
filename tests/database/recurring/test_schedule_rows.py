"""A tick reads schedules as plain values, which mean the same as the model instances."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from django_durable_tasks import process_state, registry
from django_durable_tasks.exceptions import UnknownTask
from django_durable_tasks.models import RecurringTask, Task
from django_durable_tasks.schedules import calendars, schedule_cache, tick_plan
from django_durable_tasks.schedules.schedule_cache import ScheduleRow, agenda_of, read_rows
from django_durable_tasks.schedules.tick_plan import policy_of
from django_durable_tasks.tasks import new_task
from tests.database.recurring.schedules import START, a_schedule, at, fire, fire_times, tomorrow
from tests.project import tasks

pytestmark = pytest.mark.django_db

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
    plain = {name for name in ScheduleRow._fields if not name.endswith("_json")}
    names = plain | {"args", "kwargs", "options", "timetable", "calendars"}
    assert {name: getattr(read, name) for name in names} == {
        name: getattr(row, name) for name in names
    }
    shared, other = tick_plan.template_of(read), tick_plan.template_of(row)
    assert shared._replace(id=other.id, shard_key=other.shard_key) == other
    assert policy_of(read) == policy_of(row)
    assert _first_runs(read) == _first_runs(row)


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
    build = new_task.template

    def counted(*given: Any) -> Any:
        built.append(given)
        return build(*given)

    equal = [a_schedule(f"row {n}", task=tasks.add, args=[n, n]) for n in range(3)]
    a_schedule("another", queue="other")
    monkeypatch.setattr(f"{tick_plan.__name__}.task_template", counted)
    assert fire(START) == 4
    assert len(built) == 2
    assert [Task.objects.get(recurring_task=row).args for row in equal] == [[0, 0], [1, 1], [2, 2]]


def test_a_function_that_is_registered_again_is_used_by_the_next_schedule_that_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = a_schedule()
    (read,) = read_rows([row.pk]).values()
    tick_plan.template_of(read)
    registered = registry.get(row.task)
    monkeypatch.setattr(registry, "_tasks", {})
    with pytest.raises(UnknownTask):
        tick_plan.template_of(read)
    monkeypatch.setattr(registry, "_tasks", {row.task: registered})
    assert tick_plan.template_of(read).name == row.task


def test_more_combinations_of_options_than_are_kept_all_fire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tick_plan, "_MAX_TEMPLATES", 2)
    rows = [a_schedule(f"row {n}", queue=f"queue-{n}", overlap="ALLOW") for n in range(5)]
    assert fire(START) == 5
    assert all(fire_times(row) == [START] for row in rows)
    assert len(process_state.of(tick_plan.SharedTemplates)) <= 2
