"""``durable import-beat --settings`` imports CELERY_BEAT_SCHEDULE and what ``add_periodic_task``
added, or prints it as ``DURABLE_TASKS["SCHEDULES"]``.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from celery import current_app
from celery.schedules import crontab, schedule, solar
from django.conf import settings
from django.test import override_settings

from django_durable_tasks.models import RecurringTask
from django_durable_tasks.schedules import sync
from tests.database.commands.durable_command import durable, json_of
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db

NOOP, ECHO = noop.name, "tests.project.tasks.echo"
SCHEDULE: dict[str, Any] = {
    "nightly mail": {
        "task": ECHO,
        "schedule": crontab(minute=30, hour={2, 14}, day_of_week="mon-fri"),
        "args": ("all",),
        "options": {"expires": 60.5, "headers": {"trigger": "schedule"}, "queue": "mail"},
    },
    "every minute": {"task": NOOP, "schedule": timedelta(minutes=1)},
    "often": {"task": NOOP, "schedule": schedule(0.5), "options": {"time_limit": 9, "shadow": "x"}},
    "sun": {"task": NOOP, "schedule": solar("sunset", 51.5, -0.1)},
    "both days": {"task": NOOP, "schedule": crontab(0, 9, day_of_month=1, day_of_week=1)},
    "plain": {"task": "shop.tasks.plain", "schedule": 30.0},
}


@pytest.fixture(autouse=True)
def beat_schedule(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Let the app have this schedule."""
    entries = dict(SCHEDULE)
    monkeypatch.setitem(current_app.conf, "beat_schedule", entries)
    return entries


def _row(name: str) -> RecurringTask:
    row: RecurringTask = RecurringTask.objects.get(name=name)
    return row


def test_a_dry_run_compares_each_entry_with_beat_and_imports_nothing() -> None:
    lines = {line["name"]: line for line in json_of("import-beat", "--settings", "--dry-run")}
    assert {name: line["act"] for name, line in lines.items()} == {
        **dict.fromkeys(SCHEDULE, "IMPORT"),
        "plain": "NOT_DURABLE",
    }
    assert lines["nightly mail"]["here"] == lines["nightly mail"]["beat"]
    assert not RecurringTask.objects.exists()
    assert "remove them from the settings" in durable("import-beat", "--settings", "--dry-run").err


def test_the_entries_become_schedules_with_their_options() -> None:
    answer = durable("import-beat", "--settings")
    assert answer.code == 0, answer
    mail = _row("nightly mail")
    assert mail.timetable == [{"cron": "30 2,14 * * 1,2,3,4,5"}]
    assert (mail.task, mail.args, mail.queue, mail.source) == (ECHO, ["all"], "mail", "beat")
    assert (mail.expires_in, mail.options) == (60.0, {"headers": {"trigger": "schedule"}})
    assert mail.time_zone == str(current_app.timezone)
    assert _row("every minute").interval_seconds == 60.0
    assert (_row("often").interval_seconds, _row("often").options) == (0.5, {"timeout": 9})
    assert _row("sun").timetable[0]["solar"] == "sunset"
    assert "BYMONTHDAY=1;BYDAY=MO" in _row("both days").timetable[0]["rrule"]
    assert not RecurringTask.objects.filter(name="plain").exists()
    assert "MESSAGE: not kept" in answer.out
    assert "shadow" in answer.out


def test_a_second_import_changes_nothing_and_an_interval_keeps_its_start() -> None:
    durable("import-beat", "--settings", "--paused")
    before = {row.name: (row.start_time, row.timetable) for row in RecurringTask.objects.all()}
    durable("import-beat", "--settings")
    after = {row.name: (row.start_time, row.timetable) for row in RecurringTask.objects.all()}
    assert after == before
    assert {row.status for row in RecurringTask.objects.all()} == {"ACTIVE"}


def test_a_time_that_is_computed_at_import_changes_the_row_at_each_import(
    beat_schedule: dict[str, Any],
) -> None:
    for minute, act in ((5, "IMPORT"), (17, "CHANGE"), (17, "SAME")):
        beat_schedule["sweep"] = {"task": NOOP, "schedule": crontab(minute=minute, hour=3)}
        dry = durable("import-beat", "--settings", "--only", "sweep", "--dry-run")
        assert dry.out.splitlines()[-1].strip().startswith("If this time is") is (act == "CHANGE")
        [line] = json_of("import-beat", "--settings", "--only", "sweep")
        assert line["act"] == act
        assert _row("sweep").timetable == [{"cron": f"{minute} 3 * * *"}]
    beat_schedule["sweep"] = {"task": NOOP, "schedule": crontab(minute=5, hour=3)}
    out = durable("import-beat", "--settings", "--only", "sweep").out
    assert "CHANGE: timetable: [{'cron': '17 3 * * *'}] -> [{'cron': '5 3 * * *'}]" in out


def test_an_imported_entry_that_vanishes_goes_on_firing_and_is_named(
    beat_schedule: dict[str, Any],
) -> None:
    """The setting of its condition was switched off."""
    assert "not in beat any more" not in durable("import-beat", "--settings").err
    del beat_schedule["often"]
    answer = durable("import-beat", "--settings")
    assert answer.code == 0
    assert "1 imported schedule is not in beat any more, and active here: often." in answer.err
    assert _row("often").status == "ACTIVE"
    _row("often").pause("condition is off")
    assert "not in beat any more" not in durable("import-beat", "--settings").err


def test_the_printed_text_declares_the_same_schedules() -> None:
    answer = durable("import-beat", "--settings", "--print")
    assert answer.code == 0, answer
    assert not RecurringTask.objects.exists()
    text = answer.out.strip()
    declared = ast.literal_eval(text.removeprefix("DURABLE_TASKS = "))
    with override_settings(DURABLE_TASKS={**settings.DURABLE_TASKS, **declared}):
        good, bad = sync.declarations()
    assert bad == {}
    assert sorted(set(good) & set(SCHEDULE)) == sorted(set(SCHEDULE) - {"plain"})
    assert good["nightly mail"].values["timetable"] == [{"cron": "30 2,14 * * 1,2,3,4,5"}]
    assert declared["SCHEDULES"]["nightly mail"]["options"] == {"headers": {"trigger": "schedule"}}


class Own(schedule):
    """A schedule class of a project."""


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"task": NOOP, "schedule": Own(5)}, "Own is a schedule class of its own"),
        ({"task": NOOP, "schedule": "hourly"}, "which is none of Celery"),
        ({"task": NOOP}, "which is none of Celery"),
        ({"schedule": 5}, "a dict with task and schedule"),
        ({"task": ECHO, "schedule": 5, "args": [object()]}, "Its args are not JSON"),
        ({"task": NOOP, "schedule": 5, "options": {"expires": "soon"}}, "expires='soon'"),
    ],
)
def test_an_entry_that_cannot_be_imported_is_refused_and_the_others_are_imported(
    beat_schedule: dict[str, Any], entry: dict[str, Any], reason: str
) -> None:
    beat_schedule["bad"] = entry
    answer = durable("import-beat", "--settings")
    assert answer.code == 2
    assert reason in answer.out
    assert RecurringTask.objects.count() == len(SCHEDULE) - 1


def test_options_that_do_not_fit_are_refused() -> None:
    assert "--print needs --settings" in durable("import-beat", "--print").err
    assert "remove these entries" in durable("import-beat", "--settings", "--disable-in-beat").err
    assert "no periodic task 'x'" in durable("import-beat", "--settings", "--only", "x").err


_PROGRAM = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.beat_settings"
import django
from tests.project.celery import app

@app.on_after_configure.connect
def configured(sender, **_):
    sender.add_periodic_task(10, sender.signature("tests.project.tasks.noop"), name="configured")

@app.on_after_finalize.connect
def finalized(sender, **_):
    sender.add_periodic_task(20, sender.signature("tests.project.tasks.noop"), name="finalized")

django.setup()
from django.core.management import execute_from_command_line
import django_durable_tasks.contrib.beat.periodic_tasks as periodic_tasks
import django_durable_tasks.contrib.beat.commands as commands
from datetime import UTC, datetime
commands.database_now = lambda: datetime.now(UTC)
periodic_tasks.known = lambda name: None
execute_from_command_line(["manage.py", "durable", "import-beat", "--settings", "--print"])
"""


def test_the_command_line_reads_what_handlers_of_the_app_have_added() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        check=False,
        capture_output=True,
        text=True,
        env=dict(os.environ),
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    declared = ast.literal_eval(done.stdout.strip().removeprefix("DURABLE_TASKS = "))["SCHEDULES"]
    intervals = {name: entry["interval"] for name, entry in declared.items()}
    assert intervals == {"configured": 10.0, "durable": 1.0, "finalized": 20.0}
