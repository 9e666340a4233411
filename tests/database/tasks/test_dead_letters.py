"""A finally failed task has one open dead letter. Operators replay, discard or force-complete it,
and their names are stored.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from django_durable_tasks.choices import REPLAYABLE, LogStatus, Resolution, Status
from django_durable_tasks.exceptions import (
    InvalidArguments,
    TransitionRefused,
    UnserializableArguments,
)
from django_durable_tasks.models import DeadLetter, Task
from django_durable_tasks.signals import dead_letters_grew
from django_durable_tasks.task_values import Run
from django_durable_tasks.tasks import attempts, operator_actions
from tests.database.transitions.transition_calls import HOPELESS, PLACE, end, question
from tests.factories import a_dead_letter, a_task, many_tasks

pytestmark = pytest.mark.django_db


def _now(row: Task) -> Task:
    found: Task = Task.objects.get(pk=row.pk)
    return found


def test_a_final_failure_opens_one_dead_letter_with_its_reason() -> None:
    row = a_task(Status.RUNNING, attempts=3)
    end(row, outcome=HOPELESS)
    letter = row.dead_letters.get()
    assert (letter.open_task, letter.reason, letter.attempts) == (row.pk, "GAVE_UP", 3)
    assert (letter.error_message, len(letter.fingerprint)) == (HOPELESS.error, 16)
    assert (letter.resolved_at, letter.resolution) == (None, "")


def test_the_database_refuses_a_second_open_dead_letter_and_accepts_any_number_of_closed_ones() -> (
    None
):
    row = a_task(Status.FAILED)
    with pytest.raises(IntegrityError), transaction.atomic():
        a_dead_letter(row)
    a_dead_letter(row, open=False)
    a_dead_letter(row, open=False)
    assert row.dead_letters.count() == 3


def test_a_replay_resets_both_budgets_keeps_attempts_and_closes_the_dead_letter() -> None:
    keys: dict[str, Any] = {"idempotency_key": "i", "key": "k", "unique_key": "u"}
    row = a_task(Status.FAILED, attempts=5, failures=5, crashes=2, **keys)
    assert operator_actions.replay(question(row), by="bob", reason="the bank is back") == [row.pk]
    again = _now(row)
    assert again.status == Status.PENDING
    assert (again.failures, again.crashes, again.attempts) == (0, 0, 5)
    assert (again.idempotency_key, again.open_key, again.open_unique_key) == ("i", "k", "u")
    assert again.reason == "replayed by bob: the bank is back"
    assert (again.completed_at, again.expires_at, again.publish_count) == (None, None, 0)
    letter = row.dead_letters.get()
    assert (letter.resolution, letter.resolved_by) == (Resolution.REPLAYED, "bob")
    assert letter.comment == "the bank is back"
    assert (letter.open_task, letter.resolved_at is not None) == (None, True)


def test_a_replayed_task_that_fails_again_opens_a_second_dead_letter() -> None:
    row = a_task(Status.FAILED)
    operator_actions.replay(question(row), by="bob")
    Task.objects.unguarded().filter(pk=row.pk).update(status=Status.QUEUED)
    assert isinstance(attempts.open_run(row.pk, _now(row).epoch, PLACE, "id", None), Run)
    end(_now(row), outcome=HOPELESS)
    assert row.dead_letters.count() == 2
    assert row.dead_letters.filter(open_task=row.pk).count() == 1


@pytest.mark.parametrize("status", sorted(REPLAYABLE))
def test_every_ended_task_without_success_can_be_replayed(status: Status) -> None:
    row = a_task(status)
    assert operator_actions.replay(question(row), by="bob") == [row.pk]
    assert _now(row).status == Status.PENDING


def test_a_replay_may_replace_the_arguments() -> None:
    row = a_task(Status.FAILED, name="tests.project.tasks.add", args=[1], kwargs={"right": 2})
    operator_actions.replay_edited(question(row), by="bob", args=[3])
    assert (_now(row).args, _now(row).kwargs) == ([3], {"right": 2})


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"args": [1, 2, 3]}, InvalidArguments),
        ({"kwargs": {"wrong": 1}}, InvalidArguments),
        ({"args": [float("nan"), 1]}, UnserializableArguments),
    ],
)
def test_replaced_arguments_that_do_not_match_are_refused_and_change_nothing(
    changes: dict[str, Any], error: type[Exception]
) -> None:
    row = a_task(Status.FAILED, name="tests.project.tasks.add", args=[1, 2])
    with pytest.raises(error):
        operator_actions.replay_edited(question(row), by="bob", **changes)
    assert _now(row).status == Status.FAILED
    assert DeadLetter.objects.open().count() == 1


def test_arguments_are_replaced_for_one_task_at_a_time() -> None:
    rows = many_tasks(2, Status.FAILED)
    with pytest.raises(TransitionRefused, match="one task at a time"):
        operator_actions.replay_edited(question(*rows), by="bob", args=[])


@pytest.mark.parametrize("key", ["key", "unique_key"])
def test_a_replay_is_refused_while_a_newer_open_task_owns_the_key(key: str) -> None:
    holds: dict[str, Any] = {key: "k"}
    row = a_task(Status.FAILED, **holds)
    a_task(Status.PENDING, **holds)
    with pytest.raises(TransitionRefused, match="newer open task owns the key"):
        operator_actions.replay(question(row), by="bob")
    assert _now(row).status == Status.FAILED
    assert DeadLetter.objects.open().count() == 1


def test_a_bulk_replay_leaves_successes_unchanged() -> None:
    failed, done = many_tasks(5, Status.FAILED), a_task(Status.SUCCESS)
    replayed = operator_actions.replay(question(*failed, done), by="bob")
    assert sorted(replayed) == [row.pk for row in failed]
    assert not DeadLetter.objects.open().exists()


def test_a_discarded_dead_letter_is_closed_with_a_reason_and_its_task_stays_failed() -> None:
    row = a_task(Status.FAILED)
    letters = DeadLetter.objects.filter(task=row)
    assert operator_actions.discard_letters(letters, by="bob", reason="not worth it") == 1
    assert operator_actions.discard_letters(letters, by="eve", reason="again") == 0
    letter = row.dead_letters.get()
    assert (letter.resolution, letter.resolved_by) == (Resolution.DISCARDED, "bob")
    assert letter.comment == "not worth it"
    assert _now(row).status == Status.FAILED


def test_a_discarded_task_can_still_be_replayed() -> None:
    row = a_task(Status.FAILED)
    operator_actions.discard_letters(DeadLetter.objects.all(), by="bob", reason="")
    assert operator_actions.replay(question(row), by="bob") == [row.pk]
    assert row.dead_letters.get().resolution == Resolution.DISCARDED


@pytest.mark.parametrize("status", set(Status) - {Status.SUCCESS})
def test_any_task_can_be_force_completed(status: Status) -> None:
    row = a_task(status)
    done = operator_actions.force_complete(question(row), by="bob", reason="paid by hand")
    assert done == [row.pk]
    again = _now(row)
    assert (again.status, again.reason) == (Status.SUCCESS, "completed by bob: paid by hand")
    assert not DeadLetter.objects.open().exists()
    log = row.executions.order_by("-id")[0]
    assert (log.status, log.error_message) == (LogStatus.SUCCESS, "paid by hand")


def test_long_names_and_reasons_are_truncated_to_their_columns() -> None:
    row = a_task(Status.FAILED)
    operator_actions.replay(question(row), by="b" * 300, reason="n" * 600)
    letter = row.dead_letters.get()
    assert (len(letter.resolved_by), len(letter.comment)) == (200, 500)


def test_the_signal_reports_how_many_are_open() -> None:
    received: list[int] = []

    def listen(sender: Any, number: int, **_: Any) -> None:
        received.append(number)

    many_tasks(3, Status.FAILED)
    dead_letters_grew.connect(listen)
    try:
        operator_actions.send_growth_signal(operator_actions.open_letters())
    finally:
        dead_letters_grew.disconnect(listen)
    assert received == [3]


def test_a_dead_letter_keeps_the_failed_arguments_when_the_task_is_replayed_with_others() -> None:
    row = a_task(Status.RUNNING, name="tests.project.tasks.add", args=[1, "x"])
    end(row, outcome=HOPELESS)
    operator_actions.replay_edited(question(row), by="ada", args=[1, 2])
    assert (row.dead_letters.get().args, _now(row).args) == ([1, "x"], [1, 2])
