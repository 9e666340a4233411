"""``durable cancel, retry, replay, discard, force-complete``: which tasks change, which do not, and
the recorded user.
"""

from __future__ import annotations

import getpass
import uuid
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.choices import OPEN, Status
from django_durable_tasks.models import DeadLetter, Task
from tests.database.commands.durable_command import durable, json_of
from tests.factories import a_task, a_tenant, many_tasks

pytestmark = pytest.mark.django_db
ME = getpass.getuser()


def _status(row: Task) -> str:
    return str(Task.objects.get(pk=row.pk).status)


def _letter(row: Task) -> DeadLetter:
    return DeadLetter.objects.get(task=row)


# Cancel -------------------------------------------------------------------------------------------


def test_an_ended_and_an_unknown_task_are_left_unchanged_and_exit_with_2() -> None:
    row, missing = a_task(Status.SUCCESS), uuid.uuid4()
    answer = durable("cancel", row.pk, missing, "--format", "json")
    assert answer.code == 2
    assert answer.data["left_alone"] == [
        {"id": str(row.pk), "why": "it is SUCCESS"},
        {"id": str(missing), "why": "there is no such task"},
    ]
    assert "left unchanged" in durable("cancel", row.pk).out


def test_exit_code_0_if_at_least_one_of_several_ids_changed() -> None:
    waiting, ended = a_task(), a_task(Status.SUCCESS)
    assert json_of("cancel", waiting.pk, ended.pk)["cancelled"] == 1


def test_filters_need_a_dry_run_or_confirmation() -> None:
    rows = many_tasks(3, queue="mail")
    answer = durable("cancel", "--queue", "mail")
    assert answer.code == 2
    assert "would change 3 rows: show them with --dry-run, confirm with --yes" in answer.err
    assert {_status(row) for row in rows} == {"PENDING"}


def test_a_dry_run_shows_exactly_what_would_change() -> None:
    rows = many_tasks(3, queue="mail")
    many_tasks(2, Status.SUCCESS, queue="mail")
    a_task(queue="other")
    seen = json_of("cancel", "--queue", "mail", "--dry-run")
    assert seen["dry_run"] is True
    assert [row["id"] for row in seen["would_change"]] == [str(row.pk) for row in rows]
    assert Task.objects.filter(status__in=OPEN).count() == 4
    assert "cancel would change 3 rows:" in durable("cancel", "--queue", "mail", "--dry-run").out
    json_of("cancel", "--queue", "mail", "--yes")
    assert set(Task.objects.filter(status="CANCELLED").values_list("pk", flat=True)) == {
        row.pk for row in rows
    }


def test_one_task_selected_by_a_filter_needs_no_confirmation() -> None:
    row = a_task(key="post-42")
    assert json_of("cancel", "--key", "post-42")["cancelled"] == 1
    assert _status(row) == "CANCELLED"


def test_a_key_selects_ended_tasks_too() -> None:
    row = a_task(Status.EXPIRED, key="post-42")
    assert json_of("replay", "--key", "post-42")["replayed"] == 1
    assert _status(row) == "PENDING"


def test_a_limit_selects_the_oldest() -> None:
    rows = many_tasks(3, queue="mail")
    json_of("cancel", "--queue", "mail", "--limit", 2, "--yes")
    assert [_status(row) for row in rows] == ["CANCELLED", "CANCELLED", "PENDING"]


def test_every_filter_of_cancel_narrows() -> None:
    tenant = a_tenant()
    wanted = a_task(Status.QUEUED, queue="mail", name="shop.tasks.mail", tenant=tenant)
    a_task()
    for words in (("--name", "shop.tasks.mail"), ("--tenant", tenant.slug), ("--status", "QUEUED")):
        assert [row["id"] for row in json_of("cancel", *words, "--dry-run")["would_change"]] == [
            str(wanted.pk)
        ]


def test_many_tasks_are_changed_in_batches_with_progress(settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "BATCH_SIZE": 2}
    many_tasks(5, queue="mail")
    answer = durable("cancel", "--queue", "mail", "--yes", "--format", "json")
    assert answer.data["cancelled"] == 5
    assert answer.err.splitlines() == ["2 of 5", "4 of 5", "5 of 5"]


def test_a_batch_needs_as_many_statements_as_one_task() -> None:
    def statements(queue: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            json_of("cancel", "--queue", queue, "--yes")
        return len(captured)

    a_task(queue="one")
    many_tasks(50, queue="many")
    assert statements("one") == statements("many")


# Retry and replay ---------------------------------------------------------------------------------


def test_a_status_filter_selects_ended_tasks_without_a_dead_letter_too() -> None:
    expired = a_task(Status.EXPIRED, queue="mail")
    failed = a_task(Status.FAILED, queue="mail")
    assert json_of("replay", "--queue", "mail", "--status", "EXPIRED")["replayed"] == 1
    assert (_status(expired), _status(failed)) == ("PENDING", "FAILED")


def test_the_id_of_a_dead_letter_selects_its_task() -> None:
    row = a_task(Status.FAILED)
    assert json_of("replay", _letter(row).pk)["replayed"] == 1
    answer = durable("replay", 999_999)
    assert answer.code == 2
    assert "There is no dead letter 999999" in answer.err


def test_filters_of_a_replay_select_open_dead_letters_only() -> None:
    wanted = a_task(Status.FAILED, queue="mail", name="shop.tasks.mail")
    DeadLetter.objects.unguarded().filter(task=wanted).update(fingerprint="f" * 16)
    a_task(Status.FAILED)
    discarded = a_task(Status.FAILED, queue="mail")
    json_of("discard", discarded.pk, "--reason", "old")
    a_task(Status.CANCELLED, queue="mail")
    for words in (("--queue", "mail"), ("--name", "shop.tasks.mail"), ("--fingerprint", "f" * 16)):
        assert [row["id"] for row in json_of("replay", *words, "--dry-run")["would_change"]] == [
            str(wanted.pk)
        ]
    assert json_of("replay", "--queue", "mail")["replayed"] == 1
    assert _status(discarded) == "FAILED"


@pytest.mark.django_db(transaction=True)
def test_one_refused_task_does_not_block_the_others() -> None:
    held = a_task(Status.FAILED, key="post-42")
    free = a_task(Status.FAILED)
    a_task(key="post-42")
    answer = durable("replay", "--queue", "test", "--yes", "--format", "json")
    assert answer.code == 0
    assert answer.data["replayed"] == 1
    assert [row["id"] for row in answer.data["left_alone"]] == [str(held.pk)]
    assert (_status(held), _status(free)) == ("FAILED", "PENDING")
    assert durable("replay", held.pk).code == 2


# Discard and force-complete -----------------------------------------------------------------------


def test_dead_letters_are_discarded_in_bulk_by_filters() -> None:
    rows = many_tasks(3, Status.FAILED, queue="mail")
    a_task(Status.FAILED)
    assert durable("discard", "--queue", "mail", "--reason", "old").code == 2
    seen = json_of("discard", "--queue", "mail", "--reason", "old", "--dry-run")
    assert {row["task_id"] for row in seen["would_change"]} == {str(row.pk) for row in rows}
    assert (
        "FINGERPRINT" in durable("discard", "--queue", "mail", "--reason", "old", "--dry-run").out
    )
    assert json_of("discard", "--queue", "mail", "--reason", "old", "--yes")["discarded"] == 3
    assert DeadLetter.objects.open().count() == 1


def test_filters_that_select_nothing_change_nothing_and_exit_with_0() -> None:
    assert json_of("cancel", "--queue", "nowhere") == {"command": "cancel", "left_alone": []}
    assert durable("cancel", "--queue", "nowhere").out.strip() == "cancel: nothing changed"
    assert "nothing would change" in durable("cancel", "--queue", "nowhere", "--dry-run").out


@pytest.mark.parametrize(
    ("command", "status"),
    [("replay", Status.SUCCESS), ("replay", Status.PENDING), ("cancel", Status.SUCCESS)],
)
def test_a_status_that_the_command_cannot_change_is_refused(command: str, status: Status) -> None:
    assert durable(command, "--status", status, "--yes").code == 0
    a_task(status)
    answer = durable(command, "--status", status, "--yes")
    assert answer.code == 2
    assert f"Nothing could be changed: the tasks are {status}." in answer.err
