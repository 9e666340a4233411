"""``@recurring`` validates at the decorator, and a declaration is merged with changes by operators."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks import decorators, durable_task, recurring, registry
from django_durable_tasks.celery import inspect
from django_durable_tasks.checks import check_schedules
from django_durable_tasks.exceptions import InvalidOption, InvalidSchedule
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.registry import Declaration
from django_durable_tasks.schedules import options
from django_durable_tasks.schedules.options import CODE, ScheduleOptions, columns, kept, merged


@pytest.fixture(autouse=True)
def nothing_declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the registered declarations after the test."""
    inspect.load_tasks()
    monkeypatch.setattr(registry, "_declarations", {})
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    monkeypatch.setattr(decorators, "_below", {})
    return iter([None])


def _declared() -> dict[str, tuple[str, dict[str, Any]]]:
    return {
        name: (found.task, dict(found.options)) for name, found in registry.declarations().items()
    }


# The decorator ------------------------------------------------------------------------------------


def test_it_works_above_and_below_the_task_decorator_and_several_times() -> None:
    @recurring("nightly", cron="30 2 * * *", timezone="Europe/London")
    @recurring("hourly", interval=timedelta(hours=1))
    @durable_task
    @recurring("yearly", cron="@yearly", args=[7])
    def report(day: int = 1) -> int:
        return day

    found = {
        name: (task.rpartition(".")[2], options) for name, (task, options) in _declared().items()
    }
    assert found == {
        "nightly": ("report", {"cron": "30 2 * * *", "timezone": "Europe/London"}),
        "hourly": ("report", {"interval": timedelta(hours=1)}),
        "yearly": ("report", {"cron": "@yearly", "args": [7]}),
    }
    assert report(3) == 3
    assert decorators.stray_schedules() == {}


def test_an_invalid_schedule_is_refused_at_the_decorator() -> None:
    with pytest.raises(InvalidSchedule, match="25"):
        recurring("nightly", cron="0 25 * * *")
    with pytest.raises(InvalidOption, match="'cron'"):
        recurring("nightly", crn="0 2 * * *")  # type: ignore[call-arg]
    with pytest.raises(InvalidOption, match="needs one of interval, cron"):
        recurring("nightly", timezone="Europe/London")
    with pytest.raises(InvalidOption, match="name=''"):
        recurring("", interval=60)


def test_a_name_is_declared_once() -> None:
    with pytest.raises(InvalidOption, match=r"'nightly'.*already.*another name"):

        @recurring("nightly", interval=60)
        @recurring("nightly", interval=61)
        @durable_task(name="shop.tasks.twice")
        def report() -> None: ...


def test_a_reloaded_module_declares_again() -> None:
    def version() -> Any:
        return lambda: None

    for seconds in (60, 61):
        registry.declare(
            Declaration("nightly", "shop.tasks.report", {"interval": seconds}, CODE), version()
        )
    assert _declared() == {"nightly": ("shop.tasks.report", {"interval": 61})}


def test_a_schedule_on_a_plain_function_is_a_warning() -> None:
    @recurring("nightly", interval=60)
    def report() -> None: ...

    [message] = check_schedules()
    assert message.id == "durable_tasks.W012"
    assert "'nightly'" in message.msg
    assert "report" in message.msg


def test_an_invalid_settings_entry_is_an_error_with_its_name(settings: Any) -> None:
    settings.DURABLE_TASKS = {
        "SCHEDULES": {
            "good": {"task": "tests.project.tasks.noop", "interval": 60},
            "timeless": {"task": "tests.project.tasks.noop"},
            "mistyped": {"task": "tests.project.tasks.nope", "interval": 60},
        }
    }
    found = {message.msg for message in check_schedules() if message.id == "durable_tasks.E014"}
    assert len(found) == 2
    assert any("'timeless'" in text and "needs one of" in text for text in found)
    assert any("'mistyped'" in text and "Did you mean" in text for text in found)


# The merge ----------------------------------------------------------------------------------------

DEFAULTS = {"queue": "", "jitter": 0.0}


def test_a_changed_declaration_is_applied_and_an_operators_value_stays() -> None:
    row = {"queue": "slow", "jitter": 5.0, "timetable": [1]}
    before = {"queue": "mail", "timetable": [1]}
    merge = merged(row, before, {"queue": "mail", "timetable": [2]}, DEFAULTS)
    assert (merge.changes, merge.edited) == ({"timetable": [2]}, ("queue",))
    assert merged(row, before, {"queue": "fast", "timetable": [1]}, DEFAULTS).changes == {
        "queue": "fast"
    }


def test_an_undeclared_value_is_reset_unless_an_operator_changed_it() -> None:
    before = {"queue": "mail", "timetable": [1]}
    assert merged(
        {"queue": "mail", "timetable": [1]}, before, {"timetable": [1]}, DEFAULTS
    ).changes == {"queue": ""}
    assert (
        merged({"queue": "slow", "timetable": [1]}, before, {"timetable": [1]}, DEFAULTS).changes
        == {}
    )


def test_a_field_without_default_is_not_reset() -> None:
    assert merged({"start_time": "a"}, {"start_time": "a"}, {}, DEFAULTS).changes == {}


def test_without_an_earlier_declaration_everything_is_applied() -> None:
    merge = merged({"queue": "slow", "jitter": 5.0}, None, {"queue": "mail"}, DEFAULTS)
    assert (merge.changes, merge.edited) == ({"queue": "mail"}, ())


_COLUMNS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 2))


@given(st.fixed_dictionaries({name: st.integers(0, 2) for name in "abc"}), _COLUMNS, _COLUMNS)
def test_a_merge_that_was_written_leaves_no_difference(
    row: dict[str, int], before: dict[str, int], declared: dict[str, int]
) -> None:
    defaults = dict.fromkeys("abc", 0)
    first = merged(row, before, declared, defaults)
    again = merged({**row, **first.changes}, declared, declared, defaults)
    assert again.changes == {}
    assert again.edited == first.edited


def test_instants_are_stored_in_utc() -> None:
    at = datetime(2026, 3, 1, 3, tzinfo=timezone(timedelta(hours=2)))
    assert kept({"end_time": at, "args": (1, at)}) == {
        "end_time": "2026-03-01T01:00:00+00:00",
        "args": [1, "2026-03-01T01:00:00+00:00"],
    }
    assert kept({"end_time": at}) == kept({"end_time": at.astimezone(UTC)})


# Options ------------------------------------------------------------------------------------------
#
# The descriptions of a schedule's options agree: checks, typed keywords, columns, choices.


_TYPED = frozenset(ScheduleOptions.__annotations__)
_MODEL_FIELDS = {column.name: column for column in RecurringTask._meta.concrete_fields}
# The options that define the timetable are stored together, in one column.
_WITHOUT_COLUMN = frozenset(
    {
        *options.KINDS,
        *("seconds", "latitude", "longitude", "offset", "count", "day", "month", "time"),
        "parts",
    }
)


def test_the_typed_keywords_are_the_checked_options() -> None:
    with pytest.raises(InvalidOption) as refused:
        columns("x", {"no such option at all": 1})
    listed = str(refused.value).partition("It has: ")[2].removesuffix(".")
    assert set(listed.split(", ")) == _TYPED


@pytest.mark.parametrize("option", sorted(_TYPED - _WITHOUT_COLUMN))
def test_an_option_is_a_column_which_is_null_where_none_is_a_value(option: str) -> None:
    column = _MODEL_FIELDS[options.COLUMNS.get(option, option)]
    assert column.null == (option in options.NULLABLE)


@pytest.mark.parametrize("option", sorted(options.CHOICES))
def test_the_default_of_a_choice_is_one_of_its_words(option: str) -> None:
    assert _MODEL_FIELDS[option].get_default() in set(options.CHOICES[option])
