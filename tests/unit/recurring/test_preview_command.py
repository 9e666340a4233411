"""``durable preview`` of a schedule given by arguments: fires, clock changes and calendars, without
a database.

pytest-django blocks database access in these tests.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from django.db import DEFAULT_DB_ALIAS, connections

from django_durable_tasks.command.schedules import preview
from tests.database.commands.durable_command import durable, json_of

PROJECT = Path(__file__).resolve().parents[3] / "example_project"
NEW_YORK = (
    "--cron",
    "30 2 * * *",
    "--timezone",
    "America/New_York",
    "--start",
    "2026-03-07T00:00:00Z",
    "--count",
    5,
)
FRIDAY = ("--start", "2026-11-20T00:00:00Z")
AUTUMN = (
    *("--cron", "30 1 * * *", "--timezone", "America/New_York"),
    *("--start", "2026-11-01T00:00:00Z"),
)
WEEKDAYS = ("--calendar", "weekdays", "--roll")


def _effective(*words: object) -> list[str]:
    return [fire["effective"] for fire in json_of("preview", *words)]


def test_a_night_in_new_york_is_printed_exactly() -> None:
    found = json_of("preview", *NEW_YORK)
    assert [list(fire) for fire in found] == [["nominal", "effective", "local", "remarks"]] * 5
    assert found[:2] == [
        {
            "nominal": "2026-03-07T07:30:00Z",
            "effective": "2026-03-07T07:30:00Z",
            "local": "2026-03-07T02:30:00-05:00",
            "remarks": [],
        },
        {
            "nominal": "2026-03-08T07:00:00Z",
            "effective": "2026-03-08T07:00:00Z",
            "local": "2026-03-08T03:00:00-04:00",
            "remarks": [
                (
                    "DST gap: 02:30 does not exist on 2026-03-08 in America/New_York; fires right after"
                    " it, at 03:00"
                )
            ],
        },
    ]
    assert [fire["effective"] for fire in found[2:]] == [
        f"2026-03-{day:02}T06:30:00Z" for day in (9, 10, 11)
    ]


def test_the_example_project_previews_without_a_database() -> None:
    words = ["durable", "preview", *map(str, NEW_YORK), "--format", "json"]
    nowhere = {**os.environ, "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing"}
    nowhere.pop("DJANGO_SETTINGS_MODULE", None)
    answer = subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=PROJECT,
        env=nowhere,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(answer.stdout) == json_of("preview", *NEW_YORK)


def test_this_test_cannot_access_the_database() -> None:
    with pytest.raises(RuntimeError, match="Database access not allowed"):
        connections[DEFAULT_DB_ALIAS].ensure_connection()


def test_ten_fires_are_printed_by_default() -> None:
    assert len(_effective("--every", 90, *FRIDAY)) == 10
    assert len(_effective("--every", "1m", *FRIDAY, "--end", "2026-11-20T00:59:00Z")) == 60
    assert (
        len(_effective("--every", "1m", *FRIDAY, "--end", "2026-11-20T00:59:00Z", "--count", 7))
        == 7
    )


@pytest.mark.parametrize(
    ("words", "fires"),
    [
        (("--every", "15m"), ["2026-11-20T00:00:00Z", "2026-11-20T00:15:00Z"]),
        (("--every", "0.5"), ["2026-11-20T00:00:00Z", "2026-11-20T00:00:00.500000Z"]),
        (("--every", "2 months", "--day", 1), ["2027-01-01T00:00:00Z", "2027-03-01T00:00:00Z"]),
        (
            ("--every", "month", "--day", "last working", "--time", "18:00"),
            ["2026-11-30T18:00:00Z", "2026-12-31T18:00:00Z"],
        ),
        (
            ("--every", "year", "--month", 2, "--day", -1, "--time", "09:00"),
            ["2027-02-28T09:00:00Z", "2028-02-29T09:00:00Z"],
        ),
        (("--rrule", "FREQ=MONTHLY;BYDAY=-1FR"), ["2026-11-27T00:00:00Z", "2026-12-25T00:00:00Z"]),
        (
            ("--at", "2026-12-01T00:00:00+01:00", "--at", "2026-11-21T00:00:00Z"),
            ["2026-11-21T00:00:00Z", "2026-11-30T23:00:00Z"],
        ),
        (
            ("--cron", "0 9 * * *", "--cron", "0 7 * * *"),
            ["2026-11-20T07:00:00Z", "2026-11-20T09:00:00Z"],
        ),
        (
            ("--cron", "30 0 0 * * *", "--seconds", "FIRST"),
            ["2026-11-20T00:00:30Z", "2026-11-21T00:00:30Z"],
        ),
        (
            ("--cron", "0 12 * * MON", "--previous"),
            ["2026-11-16T12:00:00Z", "2026-11-09T12:00:00Z"],
        ),
        (("--every", "6h", "--previous"), ["2026-11-19T18:00:00Z", "2026-11-19T12:00:00Z"]),
        (
            ("--every", "20h", "--previous", "--anchor", "2026-11-19T01:00:00Z"),
            ["2026-11-19T21:00:00Z", "2026-11-19T01:00:00Z"],
        ),
        (("--every", "1h", "--end", "2026-11-20T00:00:00Z"), ["2026-11-20T00:00:00Z"]),
        ((*AUTUMN,), ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]),
        ((*AUTUMN, "--dst-overlap", "LAST"), ["2026-11-01T06:30:00Z", "2026-11-02T06:30:00Z"]),
        ((*AUTUMN, "--dst-overlap", "BOTH"), ["2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z"]),
        ((*NEW_YORK, "--dst-gap", "SKIP"), ["2026-03-07T07:30:00Z", "2026-03-09T06:30:00Z"]),
        (
            ("--cron", "0 9 * * SAT,MON", *WEEKDAYS, "SKIP"),
            ["2026-11-23T09:00:00Z", "2026-11-30T09:00:00Z"],
        ),
        (
            ("--cron", "0 9 * * SAT,MON", *WEEKDAYS, "FOLLOWING"),
            ["2026-11-23T09:00:00Z", "2026-11-30T09:00:00Z"],
        ),
        (
            ("--cron", "0 9 * * SAT,MON", *WEEKDAYS, "PRECEDING"),
            ["2026-11-20T09:00:00Z", "2026-11-23T09:00:00Z"],
        ),
    ],
)
def test_a_schedule_described_by_options_has_these_fires(
    words: tuple[object, ...], fires: list[str]
) -> None:
    assert _effective(*FRIDAY, *words, "--count", 2) == fires


def test_a_solar_schedule_can_be_previewed() -> None:
    place = ("--latitude", 51.5, "--longitude=-0.1", *FRIDAY, "--count", 1)
    (sunset,) = _effective("--solar", "sunset", *place)
    (before,) = _effective("--solar", "sunset", "--offset=-600", *place)
    assert sunset.startswith("2026-11-20T16:0")
    assert (datetime.fromisoformat(sunset) - datetime.fromisoformat(before)).total_seconds() == 600


def test_a_clock_change_has_a_badge_in_the_table() -> None:
    lines = durable("preview", *NEW_YORK).out.splitlines()
    assert lines[0].split() == ["NOMINAL", "EFFECTIVE", "LOCAL", "DST"]
    assert [line.split()[-1] for line in lines[1:4]] == ["-", "GAP", "-"]
    assert any(
        line.startswith("  2026-03-08T07:00:00Z  DST gap: 02:30 does not exist") for line in lines
    )


def test_a_fire_rolled_from_before_the_start_runs_after_it() -> None:
    words = (
        "--cron",
        "0 9 * * SAT",
        "--start",
        "2026-11-22T00:00:00Z",
        "--calendar",
        "weekdays",
        "--count",
        1,
    )
    (fire,) = json_of("preview", *words, "--roll", "FOLLOWING")
    assert (fire["nominal"], fire["effective"]) == ("2026-11-21T09:00:00Z", "2026-11-23T09:00:00Z")
    assert fire["remarks"] == ["rolled from 2026-11-21 09:00 (Saturday) by FOLLOWING"]


def test_holidays_and_files_close_days_and_omitted_fires_are_printed(tmp_path: Path) -> None:
    file = tmp_path / "office.ics"
    file.write_text(
        "BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART:20261228\nSUMMARY:Inventory\nEND:VEVENT\nEND:VCALENDAR\n"
    )
    words = ("--cron", "0 9 * * *", "--start", "2026-12-25T00:00:00Z", "--count", 1)
    assert _effective(*words, "--calendar", "holidays:DE-BY") == ["2026-12-28T09:00:00Z"]
    answer = durable("preview", *words, "--calendar", "holidays:DE-BY", "--calendar", file)
    assert "2026-12-29 09:00:00Z" in answer.out
    assert "left out: 4 from 2026-12-25T09:00:00Z to 2026-12-28T09:00:00Z" in answer.err
    assert "Christmas Day, " in answer.err
    assert "Inventory" in answer.err


def test_jitter_changes_the_effective_time_only() -> None:
    plain, moved = (
        json_of("preview", "--every", "1h", *FRIDAY, *words) for words in ((), ("--jitter", "50%"))
    )
    delays = [
        (
            datetime.fromisoformat(fire["effective"]) - datetime.fromisoformat(fire["nominal"])
        ).total_seconds()
        for fire in moved
    ]
    assert [fire["nominal"] for fire in moved] == [fire["nominal"] for fire in plain]
    assert all(0 <= delay < 1800 for delay in delays)
    assert len(set(delays)) > 1


def test_a_schedule_without_remaining_fires_says_so() -> None:
    answer = durable("preview", "--at", "2020-01-01T00:00:00Z", *FRIDAY)
    assert (answer.code, answer.out.strip()) == (0, "no fire")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "Give the name of a recurring task, or one of --cron"),
        (("--cron", "0 0 30 2 *"), "can never fire"),
        (("--cron", "nonsense"), "nonsense"),
        (
            ("--cron", "0 0 * * *", "--timezone", "localtime"),
            "it means a different zone on each machine",
        ),
        (("--cron", "0 0 * * *", "--timezone", "Europe/Berln"), "did you mean Europe/Berlin"),
        (("--every", "0"), "it must be 0.001 seconds or more"),
        (("--every", "soon"), "--every 'soon': give 90, 15m, 2h or 1d"),
        (
            ("--every", "1h", "--calendar", "nowhere"),
            "--calendar 'nowhere': give weekdays, holidays:DE-BY",
        ),
        (
            ("--every", "1h", "--calendar", "nowhere.ics"),
            "--calendar nowhere.ics: it cannot be read",
        ),
        (("--every", "1h", "--calendar", "holidays:XX"), "country='XX'"),
        (
            ("--every", "1h", "--start", "2026-01-02T00:00:00Z", "--end", "2026-01-01T00:00:00Z"),
            "is before --start",
        ),
        (("--every", "1h", "--jitter", "200%"), "jitter='200%'"),
    ],
)
def test_an_invalid_preview_is_refused_with_a_remedy(words: tuple[object, ...], why: str) -> None:
    answer = durable("preview", *words)
    assert answer.code == 2
    assert why in answer.err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("9999-12-31T00:00:00Z", "is not within the years 1900 to 2500"),
        ("2026-01-02", "has no offset; write it as 2026-01-02T00:00:00Z"),
        ("tomorrow", "'tomorrow' is no instant"),
    ],
)
def test_an_instant_needs_its_offset(text: str, why: str) -> None:
    answer = durable("preview", "--every", "1h", "--start", text)
    assert answer.code
    assert why in answer.err


def test_help_shows_examples_that_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "office.ics").write_text("BEGIN:VCALENDAR\nEND:VCALENDAR\n")
    monkeypatch.chdir(tmp_path)
    examples = [shlex.split(example)[1:] for example in preview.examples]
    answers = [durable("preview", *words) for words in examples if words[0].startswith("--")]
    assert len(answers) >= 7
    assert [answer.code for answer in answers] == [0] * len(answers), answers
