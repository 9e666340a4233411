"""The descriptions of a schedule's options agree: checks, typed keywords, columns, choices."""

from __future__ import annotations

import pytest

from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.schedules import options
from django_durable_tasks.schedules.options import ScheduleOptions, columns

_TYPED = frozenset(ScheduleOptions.__annotations__)
_COLUMNS = {column.name: column for column in RecurringTask._meta.concrete_fields}
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
    column = _COLUMNS[options.COLUMNS.get(option, option)]
    assert column.null == (option in options.NULLABLE)


@pytest.mark.parametrize("option", sorted(options.CHOICES))
def test_the_default_of_a_choice_is_one_of_its_words(option: str) -> None:
    assert _COLUMNS[option].get_default() in set(options.CHOICES[option])
