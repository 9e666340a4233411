"""Schedule objects of Celery are accepted by each keyword that has their meaning."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery.schedules import BaseSchedule, crontab, schedule, solar

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.schedules.options import columns

ACCEPTED: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    ({"cron": crontab()}, [{"cron": "* * * * *"}]),
    ({"cron": crontab(minute="*/15")}, [{"cron": "*/15 * * * *"}]),
    (
        {"cron": crontab(minute=30, hour={2, 14}, day_of_week="mon-fri")},
        [{"cron": "30 2,14 * * 1,2,3,4,5"}],
    ),
    ({"cron": crontab(0, 3, day_of_month=[1, 15])}, [{"cron": "0 3 1,15 * *"}]),
    ({"cron": [crontab(0, 3), "0 4 * * *"]}, [{"cron": "0 3 * * *"}, {"cron": "0 4 * * *"}]),
    ({"interval": schedule(timedelta(minutes=5))}, [{"interval": 300.0}]),
    ({"interval": schedule(20)}, [{"interval": 20.0}]),
    ({"interval": timedelta(hours=1)}, [{"interval": 3600.0}]),
    (
        {"solar": solar("sunset", -37.5, 144)},
        [{"solar": "sunset", "latitude": -37.5, "longitude": 144.0}],
    ),
]


@pytest.mark.parametrize(("given", "parts"), ACCEPTED, ids=lambda case: str(case)[:60])
def test_a_schedule_of_celery_becomes_a_part(
    given: dict[str, Any], parts: list[dict[str, Any]]
) -> None:
    found = columns("x", given)["timetable"]
    assert [
        {key: part[key] for key in wanted} for part, wanted in zip(found, parts, strict=True)
    ] == (parts)


def test_a_crontab_with_both_days_requires_both_as_in_celery() -> None:
    (part,) = columns("x", {"cron": crontab(0, 9, day_of_month="1-7", day_of_week=1)})["timetable"]
    assert part["rrule"] == (
        "FREQ=DAILY;BYMONTH=1,2,3,4,5,6,7,8,9,10,11,12;BYMONTHDAY=1,2,3,4,5,6,7;BYDAY=MO"
        ";BYHOUR=9;BYMINUTE=0;BYSECOND=0"
    )


class Own(schedule):
    """A schedule class of a project."""


class Other(BaseSchedule):
    """A schedule class of a project."""


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"cron": schedule(5)}, "give a schedule of Celery as interval="),
        ({"interval": crontab()}, "give a crontab of Celery as cron="),
        ({"cron": solar("sunset", 1, 1)}, "give a solar of Celery as solar="),
        ({"interval": Own(5)}, "Own is a schedule class of its own"),
        ({"cron": Other()}, "Other is a schedule class of its own"),
        ({"interval": schedule()}, "has no run_every"),
        ({"cron": timedelta(hours=1)}, "give five fields"),
    ],
)
def test_another_object_is_refused_with_the_keyword_to_write(
    given: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(InvalidSchedule, match=remedy):
        columns("x", given)
