"""Schedules declared in code and settings are synced to rows: once, idempotently, and changes by
operators are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import signals
from django.apps import apps
from django.core.management import call_command
from django.db.models.signals import post_migrate

from django_durable_tasks import registry
from django_durable_tasks.celery import inspect
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.registry import Declaration
from django_durable_tasks.schedules import sync
from django_durable_tasks.schedules.options import CODE
from tests.database.commands.durable_command import durable, json_of
from tests.database.recurring.schedules import a_schedule, at, begin, fire, fire_times
from tests.project import tasks

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nothing_declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin without declarations."""
    inspect.load_tasks()
    monkeypatch.setattr(registry, "_declarations", {})
    return iter([None])


def _declare(name: str = "nightly", task: str = "tests.project.tasks.noop", **options: Any) -> None:
    """Declare this schedule in code, replacing an earlier declaration of the same name."""
    timing = options if {"cron", "interval"} & options.keys() else {"interval": 60, **options}
    registry._declarations.pop(name, None)
    registry.declare(Declaration(name, task, timing, CODE), _declare)


def _forget(name: str = "nightly") -> None:
    del registry._declarations[name]


def _row(name: str = "nightly") -> RecurringTask:
    row: RecurringTask = RecurringTask.objects.get(name=name)
    return row


def _acts(*, prune: bool = False, adopt: bool = False) -> list[tuple[str, str]]:
    return [(step.name, str(step.act)) for step in sync.apply(prune=prune, adopt=adopt)]


# Create and change --------------------------------------------------------------------------------


def test_a_declared_schedule_becomes_a_row_once() -> None:
    _declare(cron="30 2 * * *", timezone="Europe/London", queue="reports", args=[])
    assert [(step.name, step.act) for step in sync.diff()] == [("nightly", "CREATE")]
    assert not RecurringTask.objects.exists()
    assert _acts() == [("nightly", "CREATE")]
    row = _row()
    assert (row.source, row.status, row.queue, row.time_zone) == (
        "code",
        "ACTIVE",
        "reports",
        "Europe/London",
    )
    assert row.timetable == [{"cron": "30 2 * * *"}]
    assert _acts() == []
    assert _row().revision == row.revision


def test_schedules_are_declared_in_settings_too(settings: Any) -> None:
    settings.DURABLE_TASKS = {
        "SCHEDULES": {"sums": {"task": "tests.project.tasks.add", "interval": 60, "args": [1, 2]}}
    }
    assert _acts() == [("sums", "CREATE")]
    assert (_row("sums").source, _row("sums").args) == ("settings", [1, 2])
    _declare("sums", "tests.project.tasks.add", args=[1, 2])
    [step] = sync.apply()
    assert (step.act, "remove one of the two" in step.reason) == ("REFUSE", True)


def test_code_overwrites_declared_fields_and_keeps_the_others() -> None:
    _declare(queue="reports", max_runs=5)
    _acts()
    RecurringTask.objects.unguarded().update(queue="slow", priority=7)
    assert _acts() == []
    _declare(interval=90, queue="reports", max_runs=5)
    [step] = sync.diff()
    assert (dict(step.changes)["interval_seconds"], step.edited) == ((60.0, 90.0), ("queue",))
    assert _acts() == [("nightly", "CHANGE")]
    assert (_row().interval_seconds, _row().queue, _row().priority) == (90.0, "slow", 7)
    _declare(interval=90, queue="fast")
    assert _acts() == [("nightly", "CHANGE")]
    assert (_row().queue, _row().max_runs, _row().priority) == ("fast", None, 7)


def test_a_change_keeps_an_operators_pause_and_fires_no_past_time() -> None:
    _declare()
    _acts()
    begin(_row(), at())
    _row().pause("deploy", by="anna")
    _declare(interval=90)
    assert _acts() == [("nightly", "CHANGE")]
    assert (_row().status, _row().status_reason, _row().status_by) == ("PAUSED", "deploy", "anna")
    assert fire(at(3600)) == 0
    assert fire_times(_row()) == []


def test_a_row_may_move_from_code_to_settings(settings: Any) -> None:
    _declare()
    _acts()
    _forget()
    settings.DURABLE_TASKS = {
        "SCHEDULES": {"nightly": {"task": "tests.project.tasks.noop", "interval": 60}}
    }
    assert _acts() == [("nightly", "CHANGE")]
    assert (_row().source, _row().status) == ("settings", "ACTIVE")


def test_an_ended_schedule_stays_ended() -> None:
    _declare()
    _acts()
    _row().cancel("no longer needed", by="anna")
    _declare(interval=90)
    [step] = sync.apply()
    assert "has ended (no longer needed)" in step.reason
    assert (_row().status, _row().next_run_at, _row().interval_seconds) == ("CANCELLED", None, 90.0)


# No longer declared -------------------------------------------------------------------------------


def test_an_undeclared_schedule_is_marked_and_does_not_fire() -> None:
    _declare()
    _acts()
    begin(_row(), at())
    _forget()
    assert _acts() == [("nightly", "PAUSE")]
    row = _row()
    assert (row.status, row.status_reason, row.next_run_at) == ("PAUSED", "UNDECLARED", None)
    assert row.undeclared_at is not None
    assert _acts() == []
    assert fire(at(600)) == 0


def test_a_task_removed_together_with_its_schedule_causes_no_error() -> None:
    _declare()
    _acts()
    RecurringTask.objects.unguarded().update(task="gone.with.the.release")
    _forget()
    assert _acts() == [("nightly", "PAUSE")]


def test_a_schedule_declared_again_continues_from_now() -> None:
    _declare()
    _acts()
    _forget()
    _acts()
    _declare()
    assert _acts() == [("nightly", "REVIVE")]
    assert (_row().status, _row().undeclared_at, _row().status_reason) == ("ACTIVE", None, "")
    assert _row().next_run_at is not None
    assert _acts() == []


def test_a_declaration_under_a_condition_is_paused_and_revived_with_it(settings: Any) -> None:
    """As in the page about leaving beat."""

    def synced(*, is_on: bool) -> list[tuple[str, str]]:
        settings.DURABLE_TASKS = {"SCHEDULES": {}}
        if is_on:
            schedule = {"task": "tests.project.tasks.noop", "interval": 60}
            settings.DURABLE_TASKS["SCHEDULES"]["nightly"] = schedule
        return _acts()

    assert synced(is_on=False) == []
    assert synced(is_on=True) == [("nightly", "CREATE")]
    assert synced(is_on=False) == [("nightly", "PAUSE")]
    assert (_row().status, _row().status_reason) == ("PAUSED", "UNDECLARED")
    assert synced(is_on=True) == [("nightly", "REVIVE")]
    assert _row().status == "ACTIVE"


def test_an_operators_pause_survives_both() -> None:
    _declare()
    _acts()
    _row().pause("deploy")
    _forget()
    assert _acts() == [("nightly", "PAUSE")]
    _declare()
    assert _acts() == [("nightly", "REVIVE")]
    assert (_row().status, _row().status_reason, _row().undeclared_at) == ("PAUSED", "deploy", None)


def test_pruning_ends_it_and_declaring_it_again_starts_afresh() -> None:
    _declare()
    _acts()
    _forget()
    assert _acts(prune=True) == [("nightly", "CANCEL")]
    assert (_row().status, _row().status_reason) == ("CANCELLED", "UNDECLARED")
    assert _acts(prune=True) == []
    _declare()
    assert _acts() == [("nightly", "REVIVE")]
    assert (_row().status, _row().undeclared_at) == ("ACTIVE", None)
    assert _row().next_run_at is not None


def test_rows_of_other_sources_are_left_unchanged() -> None:
    a_schedule("by hand")
    a_schedule("of beat", source="beat")
    assert _acts(prune=True) == []


# Clashes and refusals -----------------------------------------------------------------------------


def test_a_row_of_another_source_is_refused_unless_it_is_adopted() -> None:
    a_schedule(source="beat", queue="beats", priority=3)
    _declare(interval=90)
    [step] = sync.apply()
    assert (step.act, "'beat'" in step.reason) == ("CLASH", True)
    assert (_row().source, _row().interval_seconds) == ("beat", 60.0)
    assert _acts(adopt=True) == [("nightly", "ADOPT")]
    assert (_row().source, _row().interval_seconds, _row().queue, _row().priority) == (
        "code",
        90.0,
        "beats",
        3,
    )
    assert _acts() == []


def test_a_manual_upsert_does_not_take_over_a_row_of_code() -> None:
    _declare()
    _acts()
    RecurringTask.objects.upsert(name="nightly", task=tasks.noop, priority=3)
    assert (_row().source, _row().priority) == ("code", 3)


def test_an_invalid_declaration_is_reported_and_does_not_block_others(settings: Any) -> None:
    settings.DURABLE_TASKS = {
        "SCHEDULES": {"lost": {"task": "tests.project.tasks.nope", "interval": 60}}
    }
    _declare("late", end_time=at())
    _declare("misfit", "tests.project.tasks.add", args=[1])
    _declare("right", "tests.project.tasks.echo")
    steps = {step.name: step for step in sync.apply()}
    assert {name: str(step.act) for name, step in steps.items()} == {
        "late": "REFUSE",
        "lost": "REFUSE",
        "misfit": "REFUSE",
        "right": "CREATE",
    }
    assert "end_time" in steps["late"].reason
    assert "missing a required argument" in steps["misfit"].reason
    assert [row.name for row in RecurringTask.objects.all()] == ["right"]


def test_an_invalid_declaration_does_not_mark_its_row_as_undeclared(settings: Any) -> None:
    good = {"task": "tests.project.tasks.noop", "interval": 60}
    settings.DURABLE_TASKS = {"SCHEDULES": {"sums": good}}
    _acts()
    settings.DURABLE_TASKS = {"SCHEDULES": {"sums": {**good, "intervall": 60}}}
    assert _acts() == [("sums", "REFUSE")]
    assert _row("sums").status == "ACTIVE"


# The command --------------------------------------------------------------------------------------


def test_the_command_shows_and_applies_the_differences() -> None:
    _declare(queue="reports")
    assert durable("sync", "--check").code == 1
    assert durable("sync", "--dry-run").code == 0
    assert not RecurringTask.objects.exists()
    [line] = json_of("sync")
    assert (line["name"], line["act"], line["source"], line["done"]) == (
        "nightly",
        "CREATE",
        "code",
        True,
    )
    _declare(queue="fast")
    assert "queue: 'reports' -> 'fast'" in durable("sync").out
    answer = durable("sync", "--check")
    assert (answer.code, answer.out) == (0, "every schedule is as it is declared\n")


def test_a_long_reason_is_printed_completely(settings: Any) -> None:
    settings.DURABLE_TASKS = {
        "SCHEDULES": {"lost": {"task": "tests.project.tasks.nop", "interval": 60}}
    }
    assert "Did you mean 'tests.project.tasks.noop'?" in durable("sync").out


@pytest.mark.parametrize("option", [(), ("--dry-run",), ("--check",)])
def test_a_conflict_sets_the_exit_code(option: tuple[str, ...]) -> None:
    a_schedule()
    _declare()
    answer = durable("sync", *option)
    assert (answer.code, "made by hand" in answer.out) == (2, True)
    assert durable("sync", "--adopt").code == 0


def _broken(**_: Any) -> None:
    raise ImportError("no such shop")


def test_modules_that_cannot_be_imported_pause_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _declare()
    _acts()
    _forget()
    monkeypatch.setattr(inspect._Tasks, "loaded_by", None)
    signals.import_modules.connect(_broken)
    try:
        answer = durable("sync")
    finally:
        signals.import_modules.disconnect(_broken)
    assert (answer.code, "cannot be imported" in answer.err) == (2, True)
    assert _row().status == "ACTIVE"


@pytest.mark.django_db(transaction=True)
def test_the_scheduler_logs_differences_at_its_start(capsys: pytest.CaptureFixture[str]) -> None:
    _declare()
    call_command("run_scheduler", "--once")
    assert "nightly (CREATE)" in capsys.readouterr().err
    _acts()
    call_command("run_scheduler", "--once")
    assert "differ" not in capsys.readouterr().err


@pytest.mark.parametrize("wanted", [True, False])
def test_migrate_syncs_only_if_it_is_configured(settings: Any, wanted: bool) -> None:
    settings.DURABLE_TASKS = {"SYNC_SCHEDULES_ON_MIGRATE": wanted}
    _declare()
    config = apps.get_app_config("django_durable_tasks")
    post_migrate.send(
        sender=config, app_config=config, verbosity=0, interactive=False, using="default"
    )
    assert RecurringTask.objects.filter(name="nightly").exists() is wanted
