"""``durable verify`` on the command line: output, confirmation, exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from django_durable_tasks.contrib.verify.runner import CHECKS
from django_durable_tasks.models import DeadLetter, Task
from tests.database.commands.durable_command import durable
from tests.database.verify.corruptions import DAMAGES
from tests.database.verify.healthy_rows import led, write_healthy_rows

pytestmark = pytest.mark.django_db


def test_for_healthy_tables_it_prints_what_it_checked_and_exits_with_0() -> None:
    write_healthy_rows()
    answer = durable("verify")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.rstrip().endswith("0 findings")
    assert all(name in answer.out for name in CHECKS)
    data = durable("verify", "--format", "json").data
    assert data["complete"] is True
    assert {row["check"] for row in data["checks"]} == set(CHECKS)
    [row] = [row for row in data["checks"] if row["check"] == "dead-letters-missing"]
    assert (row["looked_at"], row["findings"], row["error"]) == (Task.objects.count(), 0, "")


def test_a_finding_is_printed_as_a_sentence_and_exits_with_1() -> None:
    led()
    key = DAMAGES["dead-letters-missing"]()
    answer = durable("verify", "--only", "tasks")
    assert answer.code == 1
    assert (
        f"BROKEN task {key}: dead_letters is none that is open; right is one, because it is FAILED."
        in answer.out
    )
    assert "--repair: open one" in answer.out
    [finding] = durable("verify", "--format", "json").data["findings"]
    assert (finding["check"], finding["table"], finding["key"]) == (
        "dead-letters-missing",
        "task",
        str(key),
    )
    assert (finding["severity"], finding["field"], finding["repair"]) == (
        "BROKEN",
        "dead_letters",
        "open one",
    )


def test_a_repair_is_shown_then_confirmed_then_done_once() -> None:
    led()
    DAMAGES["dead-letters-missing"]()
    answer = durable("verify", "--repair")
    assert (answer.code, DeadLetter.objects.count()) == (2, 0)
    assert (
        "Findings that would be repaired: 1. See them with --repair --dry-run, do it with --yes."
        in answer.err
    )
    shown = durable("verify", "--repair", "--dry-run")
    assert (shown.code, DeadLetter.objects.count()) == (1, 0)
    assert "would repair: open one" in shown.out
    done = durable("verify", "--repair", "--yes")
    assert (done.code, DeadLetter.objects.count()) == (0, 1)
    assert "repaired: opened a dead letter" in done.out
    assert done.out.rstrip().endswith("1 finding, 1 repaired")
    again = durable("verify", "--repair", "--yes", "--format", "json")
    assert (again.code, again.data["findings"], DeadLetter.objects.count()) == (0, [], 1)


def test_findings_without_automatic_repair_exit_with_1_after_a_repair() -> None:
    led()
    DAMAGES["occurrence-tasks"]()
    answer = durable("verify", "--repair", "--yes")
    assert answer.code == 1
    assert "left: Run `manage.py durable run-now NAME`" in answer.out
    [finding] = durable("verify", "--repair", "--yes", "--format", "json").data["findings"]
    assert (finding["repaired"], finding["left"].startswith("Run `manage.py")) == ("", True)


def test_a_limit_that_truncates_findings_is_reported() -> None:
    for _ in range(3):
        DAMAGES["dead-letters-missing"]()
    answer = durable("verify", "--only", "dead-letters-missing", "--limit", "2")
    assert answer.code == 1
    assert "2+" in answer.out
    assert answer.out.rstrip().endswith("2 findings; some checks could not run at everything")


class _Terminal(StringIO):
    def isatty(self) -> bool:
        """Return True, as an interactive terminal does."""
        return True


def test_the_progress_bar_of_a_terminal_is_removed_at_the_end() -> None:
    stderr = _Terminal()
    call_command("durable", "verify", stdout=StringIO(), stderr=stderr)
    assert "100% tasks" in stderr.getvalue()
    assert stderr.getvalue().endswith("\r\x1b[K")


@pytest.fixture
def no_ledger() -> Iterator[None]:
    """Rename a table for the duration of a test."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE durable_tasks_occurrence RENAME TO away")
    yield
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE away RENAME TO durable_tasks_occurrence")


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_ledger")
def test_a_check_that_cannot_read_exits_with_2_and_the_others_run() -> None:
    key = DAMAGES["dead-letters-missing"]()
    answer = durable("verify", "--format", "json")
    assert answer.code == 2
    errors: dict[str, Any] = {
        row["check"]: row["error"] for row in answer.data["checks"] if row["error"]
    }
    assert {"occurrence-tasks", "occurrence-entries", "orphan-ledger-entries"} <= set(errors)
    assert "durable_tasks_occurrence" in errors["occurrence-entries"]
    assert str(key) in {finding["key"] for finding in answer.data["findings"]}
    assert "occurrence-entries could not run: " in durable("verify").out
