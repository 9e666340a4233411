"""``durable import-beat`` reports the differences first, then imports beat's rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import current_app
from django.db import connection

from django_durable_tasks.celery import inspect
from django_durable_tasks.models import RecurringTask, Task
from tests.database.commands.durable_command import durable, json_of
from tests.database.recurring.beat_rows import (
    PeriodicTask,
    PeriodicTasks,
    drop_tables,
    make_tables,
    of_beat,
)
from tests.database.recurring.schedules import a_schedule, begin, fire

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module", autouse=True)
def tables(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Create beat's tables for this file."""
    inspect.load_tasks()
    with django_db_blocker.unblock():
        make_tables()
    yield
    with django_db_blocker.unblock():
        drop_tables()


def _row(name: str = "nightly") -> RecurringTask:
    row: RecurringTask = RecurringTask.objects.get(name=name)
    return row


def _state(name: str = "nightly") -> tuple[str, str]:
    return _row(name).status, _row(name).status_reason


# Reading and importing ----------------------------------------------------------------------------


def test_a_dry_run_reports_and_imports_nothing() -> None:
    of_beat(cron="30 2 * * *", zone="America/New_York", queue="reports", args="[]")
    [line] = json_of("import-beat", "--dry-run")
    assert (line["name"], line["act"], line["begins"], line["carried"]) == (
        "nightly",
        "IMPORT",
        "ACTIVE",
        False,
    )
    assert line["here"] == line["beat"]
    assert len(line["here"]) == 3
    assert [text.partition(":")[0] for text in line["differences"]] == ["DST"]
    assert not RecurringTask.objects.exists()
    shown = durable("import-beat", "--dry-run").out
    assert "when the clock of America/New_York goes forward" in shown
    assert "next in beat:" in shown


def test_rows_of_every_kind_become_schedules(broker: str) -> None:
    last, later = datetime.now(UTC) - timedelta(minutes=5), datetime.now(UTC) + timedelta(days=1)
    of_beat("cron", cron="*/15 8-18 * * mon-fri", zone="Europe/London", queue="reports", priority=4)
    of_beat("interval", every=(2, "hours"), last_run_at=last)
    of_beat("sun", sun=("sunset", 51.5, -0.1), kwargs="{}")
    of_beat("once", clocked=later, one_off=True)
    assert durable("import-beat").code == 0
    cron, interval, sun, once = _row("cron"), _row("interval"), _row("sun"), _row("once")
    assert cron.timetable == [{"cron": "*/15 8,9,10,11,12,13,14,15,16,17,18 * * 1,2,3,4,5"}]
    assert (cron.time_zone, cron.queue, cron.priority, cron.source) == (
        "Europe/London",
        "reports",
        5 if broker == "redis" else 4,  # beat's 0 is the highest on Redis, and the lowest elsewhere
        "beat",
    )
    assert (interval.interval_seconds, interval.start_time) == (7200.0, last)
    assert interval.next_run_at == last + timedelta(hours=2)
    assert sun.timetable[0]["solar"] == "sunset"
    assert (once.next_run_at, once.max_runs) == (later, 1)
    assert {row.overlap for row in (cron, interval, sun, once)} == {"ALLOW"}
    assert {row.status for row in (cron, interval, sun, once)} == {"ACTIVE"}


def test_a_disabled_row_is_imported_paused() -> None:
    of_beat(enabled=False)
    durable("import-beat")
    assert _state() == ("PAUSED", "DISABLED_IN_BEAT")
    PeriodicTask.objects.update(enabled=True)  # type: ignore[attr-defined]
    durable("import-beat")
    assert _state() == ("ACTIVE", "")


def test_another_import_applies_what_beat_changed() -> None:
    of_beat()
    assert json_of("import-beat")[0]["act"] == "IMPORT"
    revision = _row().revision
    [same] = json_of("import-beat")
    assert (same["act"], same["changes"], _row().revision) == ("SAME", {}, revision)
    PeriodicTask.objects.update(queue="reports")  # type: ignore[attr-defined]
    [dry] = json_of("import-beat", "--dry-run")
    assert (dry["act"], dry["changes"]) == ("CHANGE", {"queue": ["", "reports"]})
    assert "CHANGE: queue: '' -> 'reports'" in durable("import-beat").out
    assert (_row().queue, _row().revision) == ("reports", revision + 1)


def test_only_the_named_rows_are_imported() -> None:
    of_beat("one")
    of_beat("two")
    durable("import-beat", "--only", "two")
    assert [row.name for row in RecurringTask.objects.all()] == ["two"]
    answer = durable("import-beat", "--only", "three")
    assert (answer.code, "'three'" in answer.err) == (2, True)


def test_an_operators_pause_survives_an_import() -> None:
    of_beat()
    durable("import-beat")
    _row().pause("deploy")
    [line] = json_of("import-beat", "--dry-run")
    assert (line["act"], line["begins"]) == ("SAME", "deploy")
    assert durable("import-beat").code == 0
    assert _state() == ("PAUSED", "deploy")


# Refusals -----------------------------------------------------------------------------------------


def test_an_invalid_row_is_reported_and_does_not_block_others() -> None:
    of_beat("args", args="[1")
    of_beat("misfit", task="tests.project.tasks.add", args="[1]")
    of_beat("never", cron="0 0 31 2 *")
    of_beat("right")
    answer = durable("import-beat")
    assert answer.code == 2
    assert [row.name for row in RecurringTask.objects.all()] == ["right"]
    for why in ("args are no JSON", "missing a required argument"):
        assert why in answer.out
    # Celery 5.7 refuses a day that never comes, before the package does.
    assert (
        "Celery cannot read its crontab, '0 0 31 2 *'" in answer.out
        or "can never fire" in answer.out
    )


def test_expired_rows_are_left_out_and_are_no_failure() -> None:
    past = datetime.now(UTC) - timedelta(days=1)
    of_beat("clocked", clocked=past, one_off=True, enabled=False)
    of_beat("expired", expires=past)
    of_beat("done", one_off=True, total_run_count=1)
    assert {(line["name"], line["act"]) for line in json_of("import-beat")} == {
        ("clocked", "OVER"),
        ("expired", "OVER"),
        ("done", "OVER"),
    }
    assert not RecurringTask.objects.exists()


def test_a_row_of_another_source_is_not_overwritten() -> None:
    a_schedule()
    of_beat(queue="beats")
    answer = durable("import-beat")
    assert (answer.code, "belongs to an operator" in answer.out) == (2, True)
    assert (_row().queue, _row().source) == ("test", "")


def test_a_database_without_beats_tables_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(connection.introspection), "table_names", lambda self: [])
    answer = durable("import-beat")
    assert (
        answer.code,
        "'default' has no table django_celery_beat_periodictask" in answer.err,
    ) == (2, True)


def test_missing_columns_of_older_versions_get_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    of_beat(headers="{}", expire_seconds=9)
    introspection = type(connection.introspection)
    describe = introspection.get_table_description

    def older(self: Any, cursor: Any, table: str) -> list[Any]:
        lacking = {"expire_seconds", "headers", "priority"}
        return [column for column in describe(self, cursor, table) if column.name not in lacking]

    monkeypatch.setattr(introspection, "get_table_description", older)
    assert durable("import-beat").code == 0
    assert _row().expires_in is None


# Leaving beat -------------------------------------------------------------------------------------


def test_imported_rows_are_disabled_in_beat_on_request() -> None:
    of_beat("one")
    of_beat("off", enabled=False)
    durable("import-beat", "--disable-in-beat")
    enabled = dict(PeriodicTask.objects.values_list("name", "enabled"))  # type: ignore[attr-defined]
    assert enabled == {"one": False, "off": False}
    assert PeriodicTasks.objects.get().ident == 1  # type: ignore[attr-defined]
    assert (_state("one"), _state("off")) == (("ACTIVE", ""), ("PAUSED", "DISABLED_IN_BEAT"))
    again = {
        line["name"]: (line["act"], line["begins"])
        for line in json_of("import-beat", "--disable-in-beat")
    }
    assert again == {"one": ("OURS", "ACTIVE"), "off": ("OURS", "PAUSED")}
    assert _state("one") == ("ACTIVE", "")


def test_rows_are_compared_first_and_switched_later() -> None:
    of_beat()
    note = durable("import-beat").err
    assert "--disable-in-beat" in note
    RecurringTask.objects.unguarded().all().delete()
    durable("import-beat", "--paused", "--disable-in-beat")
    assert _state() == ("PAUSED", "IN_SHADOW")
    assert PeriodicTask.objects.get().enabled  # type: ignore[attr-defined]
    assert json_of("import-beat", "--paused", "--dry-run")[0]["act"] == "SAME"
    [line] = json_of("import-beat", "--disable-in-beat", "--dry-run")
    assert (line["act"], line["begins"]) == ("RESUME", "ACTIVE")
    durable("import-beat", "--disable-in-beat")
    assert _state() == ("ACTIVE", "")
    assert not PeriodicTask.objects.get().enabled  # type: ignore[attr-defined]


# Plain Celery tasks -------------------------------------------------------------------------------


def test_a_task_that_is_not_durable_is_listed_and_not_imported() -> None:
    of_beat(task="shop.tasks.plain")
    answer = durable("import-beat")
    assert (answer.code, "--carry" in answer.out) == (0, True)
    assert "['shop.tasks.plain']" in answer.err
    assert not RecurringTask.objects.exists()


def test_a_plain_celery_task_is_imported_if_the_settings_allow_it(settings: Any) -> None:
    of_beat(task="shop.tasks.plain", args="[1]", queue="old")
    durable("import-beat", "--carry")
    assert _state() == ("PAUSED", "NOT_IN_PLAIN_CELERY_TASKS")
    settings.DURABLE_TASKS = {"PLAIN_CELERY_TASKS": ["shop.tasks.plain"]}
    answer = durable("import-beat", "--carry")
    assert "PLAIN_CELERY_TASKS" not in answer.err
    assert _state() == ("ACTIVE", "")
    row = _row()
    assert row.task == "django_durable_tasks.plain_celery_task"
    begin(row, datetime(2026, 3, 2, 2, 30, tzinfo=UTC))
    assert fire(datetime(2026, 3, 2, 2, 30, 1, tzinfo=UTC)) == 1
    sent = Task.objects.get().kwargs
    assert (sent["task"], sent["args"], sent["options"]["queue"]) == (
        "shop.tasks.plain",
        [1],
        "old",
    )


# One-offs and zones -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "when", [{"every": (10, "seconds")}, {"cron": "*/15 * * * *"}, {"cron": "0 9 * * *"}]
)
def test_a_one_off_shows_its_only_fire_here_and_in_beat(when: dict[str, Any]) -> None:
    of_beat(one_off=True, last_run_at=datetime.now(UTC), **when)
    [line] = json_of("import-beat")
    assert len(line["here"]) == len(line["beat"]) == 1
    assert not [told_ for told_ in line["differences"] if told_.startswith("TIMES")]
    assert _row().max_runs == 1


def test_an_import_keeps_the_zone_of_beat_whatever_the_default_zone(settings: Any) -> None:
    settings.CELERY_TIMEZONE = "Asia/Tokyo"
    of_beat(cron="0 9 * * *", zone="UTC")
    durable("import-beat")
    assert _row().time_zone == "UTC"


def test_an_exchange_that_is_bound_to_a_queue_becomes_that_queue() -> None:
    queue = current_app.conf.task_default_queue
    of_beat(exchange="", routing_key=queue)
    durable("import-beat")
    assert _row().queue == queue
