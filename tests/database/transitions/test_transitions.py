"""Every transition of the table of states: from which status, to which, with which epoch, and what
is refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from django_durable_tasks.choices import TERMINAL, WITH_DUE_AT, Status
from django_durable_tasks.models import DEFAULT_TENANT_ID, Task, Tenant
from django_durable_tasks.signals import tasks_transitioned
from django_durable_tasks.states import endings, runs
from django_durable_tasks.states.machine import TRANSITIONS, EndingKind, Outcome
from django_durable_tasks.store import tables
from tests.database.transitions.transition_calls import (
    ACTS,
    CRASH,
    FAILURE,
    HOPELESS,
    end,
    heartbeat,
    question,
    start,
)
from tests.factories import a_run, a_task, many_tasks

pytestmark = pytest.mark.django_db

ALLOWED = [
    (name, status)
    for name, move in TRANSITIONS.items()
    if name in ACTS
    for status in sorted(move.sources)
]
REFUSED = [
    (name, status) for name in ACTS for status in Status if status not in TRANSITIONS[name].sources
]


def _now(row: Task) -> Task:
    found: Task = Task.objects.get(pk=row.pk)
    return found


def test_every_transition_of_the_table_is_tested() -> None:
    assert set(TRANSITIONS) - set(ACTS) == {"create"}


@pytest.mark.parametrize("use_tz", [True, False], ids=["USE_TZ", "no USE_TZ"])
@pytest.mark.parametrize(("name", "status"), ALLOWED)
def test_a_task_changes_as_the_table_says(
    name: str, status: Status, use_tz: bool, settings: Any
) -> None:
    """It gets one of the statuses, the epoch and the deadline of the table. An open dead letter
    exists if and only if it is FAILED.
    """
    settings.USE_TZ = use_tz
    before = a_task(status)
    assert ACTS[name](before)
    row = _now(before)
    asked_only = name == "cancel" and status == Status.RUNNING
    if asked_only:
        assert row.status == Status.RUNNING
        assert row.cancel_requested_at is not None
    else:
        assert row.status in TRANSITIONS[name].targets
    rises = ("epoch+1" in TRANSITIONS[name].writes or name == "take") and not asked_only
    assert row.epoch == before.epoch + rises
    assert (row.due_at is not None) == (row.status in WITH_DUE_AT)
    assert (row.lease_until is not None) == (row.status == Status.RUNNING)
    assert (row.completed_at is not None) == (row.status in TERMINAL)
    assert row.dead_letters.filter(resolved_at=None).count() == (row.status == Status.FAILED)


@pytest.mark.parametrize(("name", "status"), REFUSED)
def test_a_task_in_another_status_is_refused_and_left_unchanged(name: str, status: Status) -> None:
    row = a_task(status)
    columns = ("status", "epoch", "due_at", "lease_until", "attempts", "failures", "crashes")
    before = question(row).values(*columns, "run_id").get()
    assert not ACTS[name](row)
    assert question(row).values(*columns, "run_id").get() == before


@pytest.mark.parametrize("away", [-1, 1, 100])
def test_a_message_of_another_epoch_does_not_start_the_task(away: int) -> None:
    row = a_task(Status.QUEUED, epoch=5)
    assert start(row, row.epoch + away) is None
    assert _now(row).status == Status.QUEUED


@pytest.mark.parametrize(
    "tokens", [{"epoch": 1}, {"epoch": 3}, {"run_id": uuid.UUID(int=7)}], ids=str
)
def test_a_heartbeat_and_an_ending_with_other_tokens_are_refused(tokens: dict[str, Any]) -> None:
    row = a_task(Status.RUNNING)
    assert heartbeat(row, **tokens) == {}
    assert _now(row).lease_until == row.lease_until
    given = {"epoch": row.epoch, "run_id": row.run_id} | tokens
    Task.objects.unguarded().filter(pk=row.pk).update(**given)
    stale = a_run(row)
    Task.objects.unguarded().filter(pk=row.pk).update(epoch=row.epoch, run_id=row.run_id)
    assert not runs.succeed(stale, None, "worker@host")
    assert _now(row).status == Status.RUNNING


def test_a_start_assigns_a_new_run_id_and_counts_an_attempt() -> None:
    row = a_task(Status.QUEUED, attempts=2)
    assert start(row)
    row = _now(row)
    assert (row.attempts, row.progress) == (3, None)
    assert row.run_id is not None
    assert row.started_at is not None


@pytest.mark.parametrize(
    ("outcome", "budgets", "status"),
    [
        (FAILURE, {}, Status.PENDING),
        (FAILURE, {"failures": 4}, Status.FAILED),
        (HOPELESS, {}, Status.FAILED),
        (CRASH, {}, Status.PENDING),
        (CRASH, {"crashes": 2}, Status.FAILED),
        (CRASH, {"on_orphan": "DEAD_LETTER"}, Status.FAILED),
        (Outcome(kind=EndingKind.IGNORED), {}, Status.CANCELLED),
    ],
)
def test_runs_end_as_their_budgets_say(
    outcome: Outcome, budgets: dict[str, Any], status: Status
) -> None:
    row = a_task(Status.RUNNING, **budgets)
    end(row, outcome=outcome)
    assert _now(row).status == status


def test_the_two_budgets_are_counted_separately_and_attempts_never_decrease() -> None:
    row = a_task(Status.RUNNING, attempts=7)
    end(row, outcome=FAILURE)
    assert (_now(row).failures, _now(row).crashes, _now(row).attempts) == (1, 0, 7)
    row = a_task(Status.RUNNING, attempts=7)
    end(row, outcome=CRASH)
    assert (_now(row).failures, _now(row).crashes, _now(row).attempts) == (0, 1, 7)


def test_a_retry_stores_its_delay_and_its_last_error() -> None:
    row = a_task(Status.RUNNING)
    end(row, outcome=FAILURE)
    row = _now(row)
    assert row.due_at is not None
    assert 55 < (row.due_at - row.updated_at).total_seconds() < 65
    assert row.next_attempt_at == row.due_at
    assert (row.last_error, row.reason) == ("Broken: broken", "")


@contextmanager
def _receiving(receiver: Callable[..., None]) -> Iterator[None]:
    tasks_transitioned.connect(receiver)
    try:
        yield
    finally:
        tasks_transitioned.disconnect(receiver)


def test_one_signal_per_batch_reports_each_transition() -> None:
    received: list[tuple[Any, ...]] = []

    def listen(transition: str, status: Status, task_ids: list[uuid.UUID], **_: Any) -> None:
        received.append((transition, status, sorted(task_ids)))

    rows = many_tasks(3, Status.PENDING)
    with _receiving(listen):
        endings.skip(question(*rows), "a test")
        endings.skip(question(*rows), "a test")
    assert received == [("skip", Status.SKIPPED, [row.pk for row in rows])]


def _raise(**_: Any) -> None:
    raise RuntimeError("a fault of the receiver or of its hook")


def _violate(**_: Any) -> None:
    Tenant.objects.create(id=DEFAULT_TENANT_ID, slug="taken")


def _hide_a_failed_statement(**_: Any) -> None:
    with suppress(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT nope FROM no_such_table")


def _register_a_hook_that_raises(**_: Any) -> None:
    transaction.on_commit(_raise)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("in_transaction", [True, False])
@pytest.mark.parametrize(
    "receiver", [_raise, _violate, _hide_a_failed_statement, _register_a_hook_that_raises]
)
def test_a_receiver_that_fails_undoes_no_transition(
    receiver: Callable[..., None], in_transaction: bool
) -> None:
    started, cancelled = a_task(Status.QUEUED), a_task()
    with _receiving(receiver):
        with tables.atomic() if in_transaction else nullcontext():
            assert start(started) is not None
        assert endings.cancel(question(cancelled), "enough") == 1
    assert _now(started).status == Status.RUNNING
    assert _now(cancelled).status == Status.CANCELLED
