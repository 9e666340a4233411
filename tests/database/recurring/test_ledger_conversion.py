"""The conversion of the ledger to a partitioned table, which is rolled back with each test."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from io import StringIO
from itertools import pairwise
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_durable_tasks.checks import check_database
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.recurring import ledger, ledger_partitions
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import AuditEntry
from django_durable_tasks.rules.recurring.partitions import PREFIX
from tests.database.recurring.ledger_tables import (
    DAY,
    NOW,
    an_entry,
    converted,
    enable_partitions,
    fire_times_in,
    partition_names,
    plain_ledger,
    write,
)
from tests.database.recurring.schedules import a_schedule

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql]


@pytest.fixture(autouse=True)
def partitions_of_a_day(settings: Any) -> None:
    """Enable partitions of a day."""
    enable_partitions(settings)


def test_existing_entries_are_kept_and_ids_continue() -> None:
    plain_ledger()
    row = a_schedule()
    write(row, NOW - 40 * DAY, NOW, NOW + 2 * DAY)
    ledger.write([an_entry(row, NOW, last_fire_time=NOW + DAY, count=2)])
    before = list(ledger.ledger().order_by("pk").values())
    converted()
    assert list(ledger.ledger().order_by("pk").values()) == before
    assert fire_times_in("first") == [NOW - 40 * DAY, NOW]
    assert fire_times_in("default") == [NOW]
    assert fire_times_in("20260304") == [NOW + 2 * DAY]
    write(row, NOW + DAY)
    newest = ledger.ledger().order_by("-pk").first()
    assert newest is not None
    assert newest.fire_time == NOW + DAY
    assert newest.pk > before[-1]["id"]


def test_partitions_continue_the_first_one_for_a_week() -> None:
    found = converted()
    assert found[0] == (f"{PREFIX}first", None, datetime(2026, 3, 3, tzinfo=UTC))
    assert found[-1] == (f"{PREFIX}default", None, None)
    assert partition_names()[1:-1] == [f"202603{day:02}" for day in range(3, 10)]
    assert all(one.end == two.first for one, two in pairwise(found[:-1]))


def test_a_second_conversion_is_refused() -> None:
    converted()
    with pytest.raises(InvalidOption, match="already partitioned"):
        ledger_partitions.convert(NOW)


def test_a_view_of_the_project_prevents_the_conversion_and_is_named() -> None:
    plain_ledger()
    with connection.cursor() as cursor:
        cursor.execute("CREATE VIEW my_ledger AS SELECT id FROM durable_tasks_occurrence")
    with pytest.raises(InvalidOption, match="my_ledger"):
        ledger_partitions.convert(NOW)
    assert ledger_partitions.partitions() == []


def test_without_the_setting_nothing_is_converted(settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "LEDGER_PARTITION_DAYS": None}
    with pytest.raises(InvalidOption, match="LEDGER_PARTITION_DAYS"):
        ledger_partitions.convert(NOW)


def test_the_empty_ledger_of_a_new_project_is_partitioned_by_migrate() -> None:
    plain_ledger()
    ledger_partitions.after_migrate(using="default")
    assert partition_names()[0] == "first"
    ledger_partitions.after_migrate(using="default")


def test_migrate_leaves_an_empty_ledger_with_a_view_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain_ledger()
    with connection.cursor() as cursor:
        cursor.execute("CREATE VIEW my_ledger AS SELECT id FROM durable_tasks_occurrence")
    ledger_partitions.after_migrate(using="default")
    assert "The ledger was not partitioned: These objects refer" in caplog.text
    assert ledger_partitions.partitions() == []


def test_migrate_leaves_a_ledger_with_entries_as_it_is() -> None:
    plain_ledger()
    write(a_schedule(), NOW)
    ledger_partitions.after_migrate(using="default")
    assert ledger_partitions.partitions() == []
    assert [message.id for message in check_database(databases=["default"])] == [
        "durable_tasks.W017"
    ]
    ledger_partitions.convert(NOW)
    assert check_database(databases=["default"]) == []


def test_the_command_shows_the_size_and_partitions() -> None:
    plain_ledger()
    now = database_now()
    write(a_schedule(), now, now + 2 * DAY)
    out = StringIO()
    call_command("durable", "partition-ledger", "--dry-run", "--format", "json", stdout=out)
    assert json.loads(out.getvalue())["moved"] == 1
    assert ledger_partitions.partitions() == []
    audited = AuditEntry.objects.filter(operation="installation.partition_ledger")
    assert not audited.exists()
    out = StringIO()
    who = ("--by", "ada", "--reason", "a test")
    call_command("durable", "partition-ledger", *who, "--format", "json", stdout=out)
    assert json.loads(out.getvalue())["partitions"] == [
        one.name for one in ledger_partitions.partitions()
    ]
    [entry] = audited
    assert (entry.actor, entry.reason) == ("ada", "a test")
    assert "entries" in entry.after
    with pytest.raises(CommandError, match="already partitioned"):
        call_command("durable", "partition-ledger")
