"""A timetable is described in words if a few suffice, otherwise as it was written."""

from typing import Any

import pytest

from django_durable_tasks.schedules.timetables.builder import checked, words

DESCRIBED = [
    ({"interval": 60}, "every minute"),
    ({"interval": 5400}, "every 90 minutes"),
    ({"interval": 2.5}, "every 2.5 seconds"),
    ({"interval": 172_800}, "every 2 days"),
    ({"cron": "30 2 * * *"}, "every day at 02:30"),
    ({"cron": "@daily"}, "every day at 00:00"),
    ({"cron": "0 9,17 * * 1-5"}, "Monday to Friday at 09:00 and 17:00"),
    ({"cron": "0 9 * * MON-FRI"}, "Monday to Friday at 09:00"),
    ({"cron": "0 0 * * 0"}, "Sunday at 00:00"),
    ({"cron": "0 0 * * SUN"}, "Sunday at 00:00"),
    ({"cron": "0 6 * * 1,3,5"}, "Monday, Wednesday and Friday at 06:00"),
    ({"cron": "*/5 * * * *"}, "every 5 minutes"),
    ({"cron": "* * * * *"}, "every minute"),
    ({"cron": "*/15 * * * 6"}, "every 15 minutes, Saturday"),
    ({"cron": "7 * * * *"}, "every hour at minute 7"),
    ({"cron": "0 */6 * * *"}, "every 6 hours at minute 0"),
    ({"cron": "0 3 1 * *"}, "day 1 of every month at 03:00"),
    ({"cron": "0 3 L * *"}, "the last day of every month at 03:00"),
    ({"cron": "0 3 24 12 *"}, "day 24 of December at 03:00"),
    ({"rrule": "FREQ=MONTHLY;BYDAY=-1FR"}, "FREQ=MONTHLY;BYDAY=-1FR"),
    (
        {"solar": "sunset", "latitude": 51.5, "longitude": -0.1, "offset": -600},
        "10 minutes before sunset at 51.5, -0.1",
    ),
    (
        {"solar": "sunrise", "latitude": 51.5, "longitude": -0.1, "offset": 3600},
        "1 hour after sunrise at 51.5, -0.1",
    ),
    ({"solar": "dawn_civil", "latitude": 0, "longitude": 9}, "at dawn civil at 0, 9"),
    (
        {"every": "month", "day": "last working", "time": "09:00"},
        "last working day of every month at 09:00",
    ),
    ({"every": "week", "count": 2, "day": 3}, "day 3 of every 2 weeks"),
    (
        {"every": "month", "day": "2nd tuesday", "time": "09:00"},
        "2nd tuesday of every month at 09:00",
    ),
]


@pytest.mark.parametrize(
    ("part", "expected"), DESCRIBED, ids=[expected for _, expected in DESCRIBED]
)
def test_a_part_is_described_in_words(part: dict[str, Any], expected: str) -> None:
    assert words(checked([part])) == expected


@pytest.mark.parametrize(
    "text",
    [
        "*/7 * * * *",
        "0-29 * * * *",
        "0 */5 * * *",
        "0 0 1 * 1",
        "0 0 1,15 * *",
        "H H * * *",
        "0 9 * * 5#2",
        "1 0,1,2,3,4 * * *",
        "0 0 * 1-3 *",
    ],
)
def test_a_complex_cron_is_shown_as_written(text: str) -> None:
    assert words(checked([{"cron": text}])) == f"cron {text}"


def test_six_fields_combined_parts_and_instants_are_described() -> None:
    assert (
        words(checked([{"cron": "0 30 2 * * *", "seconds": "FIRST"}]))
        == "cron 0 30 2 * * * (seconds first)"
    )
    assert (
        words(checked([{"interval": 60}, {"cron": "0 0 * * *"}]))
        == "every minute; every day at 00:00"
    )
    assert words(checked([{"at": ["2026-03-08T07:00:00Z"]}])) == "once, at 2026-03-08T07:00:00Z"
    two = {"at": ["2026-03-09T07:00:00Z", "2026-03-08T07:00:00Z"]}
    assert words(checked([two])) == "at 2 instants from 2026-03-08T07:00:00Z on"


def test_a_part_of_another_release_and_a_corrupted_one_are_shown_as_they_are() -> None:
    assert words([{"lunar": "full"}]) == "{'lunar': 'full'}"
    unusable: list[Any] = [{"interval": "x"}, {"at": 5}, {"at": []}, {"solar": 1}, 7]
    for part in unusable:
        assert words([part]) == str(part)
