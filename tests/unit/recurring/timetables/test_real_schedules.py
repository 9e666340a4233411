"""The schedules of a large project are parsed and fire as the table says; those that never fire are
refused with their names.
"""

from __future__ import annotations

import csv
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.schedules.timetables.builder import checked, timetable
from tests.repetitions import drawn
from tests.unit.recurring.timetables.wall_clock_table import Diary, Expression

START = datetime(2026, 3, 1, tzinfo=UTC)
NEVER = {"0 0 30 2 *", "0 0 31 2 *"}
_UNITS = {"h": 3600, "m": 60, "s": 1}


def _rows() -> list[dict[str, str]]:
    with Path(__file__).with_name("kubernetes_schedules.csv").open(encoding="utf-8") as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def _seconds(text: str) -> int:
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([hms])", text))


def _part(row: dict[str, str]) -> dict[str, object]:
    return {"cron": row["every"]} if row["kind"] == "cron" else {"interval": _seconds(row["every"])}


CRONS = sorted({row["every"] for row in _rows() if row["kind"] == "cron"} - NEVER)
INTERVALS = sorted({row["every"] for row in _rows() if row["kind"] != "cron"})


def test_all_667_are_parsed_except_the_disabled_ones() -> None:
    rows = _rows()
    assert len(rows) == 667
    for row in rows:
        assert checked([_part(row)], allow_never=row["every"] in NEVER)


@pytest.mark.parametrize("text", sorted(NEVER))
def test_a_job_disabled_by_an_impossible_date_is_refused_with_its_name(text: str) -> None:
    assert [row["name"] for row in _rows() if row["every"] == text]
    with pytest.raises(
        InvalidSchedule, match=re.escape(text) + ".* can never fire.*pause it instead"
    ):
        checked([{"cron": text}])


@pytest.mark.parametrize("zone", drawn(["UTC", "Europe/Berlin", "America/New_York"], 3))
def test_the_first_fifty_fires_of_each_cron_equal_the_table(zone: str) -> None:
    diary, long_diary = (Diary(zone, START, START + timedelta(days=days)) for days in (60, 370))
    for text in CRONS:
        parts, last, fires = (
            timetable([{"cron": text}], zone=zone, anchor=START),
            START - timedelta(seconds=1),
            [],
        )
        for _ in range(50):
            fire = parts.next(last)
            assert fire is not None
            last = fire.nominal
            fires.append(last)
        expected = diary.fires(Expression(text))
        assert (
            fires == (expected if len(expected) >= 50 else long_diary.fires(Expression(text)))[:50]
        ), text
        assert parts.count(START - timedelta(seconds=1), last).number == 50


def test_each_interval_fires_regularly_from_its_start() -> None:
    for text in INTERVALS:
        step = timedelta(seconds=_seconds(text))
        parts = timetable(checked([{"interval": _seconds(text)}]), zone="UTC", anchor=START)
        fires = [parts.next(START + step * number) for number in range(50)]
        assert [fire.nominal for fire in fires if fire] == [
            START + step * number for number in range(1, 51)
        ]
