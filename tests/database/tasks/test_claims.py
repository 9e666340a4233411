"""Due tasks are claimed by priority. Queued tasks are republished, or returned to PENDING."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings

from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import queues
from django_durable_tasks.limits import backpressure
from django_durable_tasks.limits.backpressure import heads, read_heads
from django_durable_tasks.limits.waitlist import scopes_after
from django_durable_tasks.models import Task
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.states.demand import UNSERVED_AFTER, QueueDemand
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import attempts, claim
from django_durable_tasks.tasks.attempts import Refusal
from tests.database.transitions.transition_calls import PLACE
from tests.factories import QUEUE, a_paused_queue, a_task, many_tasks
from tests.messages import claim_due

pytestmark = pytest.mark.django_db


def _claim(limit: int = 100, queue: str = QUEUE) -> list[TaskMessage]:
    return claim_due(queue, database_now(), limit, PLACE.node)


def _published(messages: Sequence[TaskMessage]) -> list[uuid.UUID]:
    return [message.task_id for message in messages]


def _due_in(row: Task) -> float:
    row.refresh_from_db()
    assert row.due_at is not None
    return (row.due_at - row.updated_at).total_seconds()


def test_a_batch_takes_the_highest_priority_first_and_then_the_oldest() -> None:
    rows = [a_task(due=due, priority=priority) for priority in (0, 9, 5) for due in (-1, -30, -10)]
    expected = sorted(rows, key=lambda row: (-row.priority, row.due_at))
    taken = [set(_published(_claim(2))) for _ in range(5)]
    assert taken == [{row.pk for row in expected[at : at + 2]} for at in range(0, 10, 2)]


def test_a_claimed_task_is_queued_with_a_new_epoch_and_a_republish_time() -> None:
    options = {"timeout": 5.0, "soft_timeout": 4.0}
    name = "tests.project.tasks.urgent"
    row = a_task(name=name, priority=7, options=options, idempotency_key="i")
    (message,) = _claim()
    assert message == TaskMessage(row.pk, 1, 1, row.name, QUEUE, 7, 5.0, 4.0, "i")
    assert _due_in(row) == pytest.approx(15, abs=5)
    assert (row.status, row.epoch, row.publish_count, row.node) == (Status.QUEUED, 1, 1, PLACE.node)


def test_a_claimed_task_is_not_claimed_twice() -> None:
    many_tasks(3)
    assert len(_claim()) == 3
    assert _claim() == []


def test_future_tasks_and_tasks_of_other_queues_or_statuses_are_not_claimed() -> None:
    a_task(due=60)
    a_task(queue="other")
    for status in set(Status) - {Status.PENDING}:
        a_task(status)
    assert _claim() == []


def test_a_task_past_its_expiry_expires_when_it_is_claimed() -> None:
    late = a_task(expires_at=database_now() - timedelta(seconds=1))
    good = a_task(expires_at=database_now() + timedelta(seconds=60))
    assert _published(_claim()) == [good.pk]
    late.refresh_from_db()
    assert (late.status, late.reason) == (Status.EXPIRED, "EXPIRED")


def test_next_due_times_name_each_queue_with_waiting_tasks() -> None:
    first = a_task(due=5, priority=3)
    a_task(due=9, priority=9)
    other = a_task(due=-5, queue="a")
    a_task(Status.QUEUED, queue="b")
    assert heads() == {QUEUE: first.due_at, "a": other.due_at}


def test_heads_contain_the_priorities_that_are_due_by_the_given_time() -> None:
    for due in (("a", 3, -5), ("a", 9, 60), ("a", 0, -1), ("b", 7, 1), ("c", 2, 9)):
        a_task(queue=due[0], priority=due[1], due=due[2])
    a_task(Status.QUEUED, queue="d")
    now = database_now()
    levels = {head.queue: head.levels for head in read_heads(now)}
    assert levels == {"a": 1 << 3 | 1 << 0}
    levels = {head.queue: head.levels for head in read_heads(now + timedelta(seconds=5))}
    assert levels == {"a": 1 << 3 | 1 << 0, "b": 1 << 7}


def test_a_queue_with_more_priorities_than_a_page_has_queues_is_read_completely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_durable_tasks.limits.backpressure.AT_ONCE", 2)
    for queue in ("a", "b", "c"):
        for priority in (0, 4, 9):
            a_task(queue=queue, priority=priority, due=-1)
    expected = dict.fromkeys(("a", "b", "c"), 1 << 0 | 1 << 4 | 1 << 9)
    assert {head.queue: head.levels for head in read_heads(database_now())} == expected


def test_a_priority_that_no_task_may_have_hides_no_other_queue() -> None:
    for queue, priority in (("a", 50), ("b", 0), ("c", -3), ("d", 1)):
        a_task(queue=queue, due=-1, priority=priority)
    found = {head.queue: head.levels for head in read_heads(database_now())}
    assert found == {"b": 1 << 0, "d": 1 << 1}
    assert heads().keys() == {"b", "d"}


def test_a_claim_takes_only_tasks_of_the_requested_priorities() -> None:
    rows = {priority: a_task(priority=priority) for priority in (0, 4, 9)}
    demand = QueueDemand(QUEUE, 10, levels=1 << 4 | 1 << 0)
    found = claim.claim_of([demand], database_now(), 10, PLACE.node).messages
    assert _published(found) == [rows[4].pk, rows[0].pk]


def test_next_due_times_cover_more_queues_than_a_recursion_has_steps() -> None:
    """MariaDB silently ends a recursion after 1,000 steps, MySQL with an error."""
    row = a_task()
    values: dict[str, Any] = {"name": row.name, "status": "PENDING"}
    values |= {"run_at": row.run_at, "due_at": row.due_at}
    Task.objects.unguarded().bulk_create(
        [Task(queue=f"q{number:04}", **values) for number in range(1_200)]
    )
    found = heads()
    assert len(found) == 1_201
    assert set(found.values()) == {row.due_at}


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4])
def test_next_due_times_are_read_page_by_page(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_durable_tasks.limits.backpressure.AT_ONCE", 2)
    rows = {f"q{n}": a_task(queue=f"q{n}", due=n) for n in range(number)}
    assert heads() == {queue: row.due_at for queue, row in rows.items()}


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 9])
def test_scopes_of_waiting_tasks_are_read_page_by_page(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_durable_tasks.limits.waitlist.AT_ONCE", 2)
    scopes = [f"task:{number}" for number in range(5)]
    for scope in scopes:
        a_task(due_at=NEVER, waiting_for_limit=scope)
    assert scopes_after("", limit) == scopes[:limit]
    assert scopes_after("task:2", limit) == scopes[3:][:limit]


def test_capacity_is_the_rest_of_the_window_and_zero_in_a_paused_queue() -> None:
    many_tasks(3, Status.QUEUED)
    with override_settings(DURABLE_TASKS={"QUEUE_WINDOW": 5}):
        assert backpressure.snapshot().capacity(QUEUE) == 2
        many_tasks(7, Status.QUEUED)
        assert backpressure.snapshot().capacity(QUEUE) == 0
    a_paused_queue()
    assert backpressure.snapshot().capacity(QUEUE) == 0


def test_a_queue_is_paused_and_resumed_with_a_user() -> None:
    queues.pause(QUEUE, by="bob", reason="deploy")
    assert backpressure.snapshot().paused == {QUEUE}
    assert queues.resume(QUEUE, by="bob")
    assert not queues.resume(QUEUE, by="bob")
    assert backpressure.snapshot().paused == frozenset()


def test_a_message_of_a_paused_queue_returns_its_task_to_pending() -> None:
    row = a_task(Status.QUEUED)
    a_paused_queue()
    assert attempts.open_run(row.pk, row.epoch, PLACE, "id", None) == Refusal.PAUSED
    row.refresh_from_db()
    assert (row.status, row.attempts, row.failures) == (Status.PENDING, 0, 0)


# Republishing -------------------------------------------------------------------------------------


def _republish_overdue(longest: float | None = None) -> list[TaskMessage]:
    now = database_now()
    return claim.republish(Task.objects.republish_due(now), now, 10, longest)


@pytest.mark.parametrize(
    ("longest", "expected"), [(None, [15, 15, 15, 15]), (40.0, [30, 40, 40, 40])]
)
def test_republish_delays_are_equal_or_double_up_to_the_longest_with_the_same_epoch(
    longest: float | None, expected: list[int]
) -> None:
    row = a_task(Status.QUEUED, due=-1)
    waits, epochs = [], []
    for _ in range(4):
        Task.objects.unguarded().filter(pk=row.pk).update(
            due_at=database_now() - timedelta(seconds=1)
        )
        (message,) = _republish_overdue(longest)
        waits.append(round(_due_in(row)))
        epochs.append((message.epoch, message.number))
    assert waits == pytest.approx(expected, abs=2)
    assert epochs == [(1, number) for number in range(2, 6)]


def test_a_task_before_its_republish_time_is_not_republished() -> None:
    a_task(Status.QUEUED, due=5)
    assert _republish_overdue() == []


def test_a_queued_task_past_its_expiry_expires_instead_of_being_republished() -> None:
    row = a_task(Status.QUEUED, due=-1, expires_at=database_now() - timedelta(seconds=1))
    assert _republish_overdue() == []
    row.refresh_from_db()
    assert row.status == Status.EXPIRED


# Return to PENDING --------------------------------------------------------------------------------


def test_a_task_that_the_broker_did_not_accept_returns_to_pending_and_is_due_at_once() -> None:
    rows = many_tasks(3)
    assert claim.return_to_pending(_claim()) == 3
    assert len(_claim()) == 3
    assert set(
        Task.objects.filter(pk__in=[row.pk for row in rows]).values_list("epoch", "failures")
    ) == {(3, 0)}


def test_tasks_in_another_status_do_not_return_to_pending() -> None:
    many_tasks(4)
    messages = _claim()
    moved = [message.task_id for message in messages]
    attempts.open_run(moved[0], messages[0].epoch, PLACE, "id", None)
    Task.objects.unguarded().filter(pk=moved[1]).update(epoch=9)
    Task.objects.unguarded().filter(pk=moved[2]).delete()
    assert claim.return_to_pending(messages) == 1
    assert Task.objects.get(pk=moved[3]).status == Status.PENDING


def test_a_task_without_code_waits_without_using_its_retries() -> None:
    row = a_task(Status.QUEUED)
    assert claim.return_unknown_task(row.pk, row.epoch + 1) == 0
    assert claim.return_unknown_task(row.pk, row.epoch) == 1
    assert _due_in(row) == pytest.approx(30, abs=5)
    assert (row.status, row.attempts, row.failures, row.crashes) == (Status.PENDING, 0, 0, 0)


def test_a_batch_is_published_by_priority_and_then_by_time() -> None:
    now = database_now()
    rows = [
        a_task(priority=priority, run_at=now, due_at=now - timedelta(seconds=late))
        for late in (1, 9, 5)
        for priority in (0, 9, 5)
    ]
    expected = sorted(rows, key=lambda row: (-row.priority, row.due_at))
    assert _published(_claim()) == [row.pk for row in expected]


# By ids and by shards -----------------------------------------------------------------------------


def _these(*rows: Task) -> list[uuid.UUID]:
    messages = claim.claim_these([row.pk for row in rows], database_now(), PLACE.node)
    assert Task.objects.queued().filter(
        pk__in=[message.task_id for message in messages]
    ).count() == len(messages)
    return [message.task_id for message in messages]


def test_tasks_are_claimed_by_their_ids_the_most_urgent_first() -> None:
    low, high, other = a_task(priority=1), a_task(priority=9), a_task()
    assert _these(low, high) == [high.pk, low.pk]
    assert Task.objects.pending().get().pk == other.pk


def test_claims_by_ids_take_nothing_early_or_twice() -> None:
    soon, due = a_task(due=60), a_task()
    assert _these(soon, due) == [due.pk]
    assert _these(soon, due) == []


def test_claims_by_ids_expire_tasks_past_their_expiry() -> None:
    late = a_task(expires_at=database_now() - timedelta(seconds=1))
    assert _these(late) == []
    assert Task.objects.get().status == Status.EXPIRED


def _flushes() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW synchronous_commit")
        return str(cursor.fetchone()[0])


@contextmanager
def _rolled_back(flushes: str) -> Iterator[None]:
    """Check that the transaction of the block is flushed or not, and that later ones are."""
    with transaction.atomic():
        yield
        assert _flushes() == flushes
        transaction.set_rollback(True)
    assert _flushes() == "on"


@pytest.mark.postgresql
@pytest.mark.parametrize("overlap_key", [None, "overlap_key"])
@pytest.mark.parametrize("by_ids", [False, True])
def test_a_claim_without_overlap_keys_does_not_wait_for_the_disk_and_later_statements_do(
    by_ids: bool, overlap_key: str | None
) -> None:
    """A crash of the server may undo a claim, but no ending: the setting ends with the claim's
    transaction.

    Overlap keys are checked after the claim's COMMIT. A message that survives its claim could start
    a refused task.
    """
    row = a_task(overlap_key=overlap_key)
    with _rolled_back("on" if overlap_key else "off"):
        assert (_these(row) if by_ids else _published(_claim())) == [row.pk]


def test_a_node_claims_the_tasks_of_its_shards_and_of_unserved_ones() -> None:
    now = database_now()
    mine, others = a_task(shard_key=3), a_task(shard_key=4)
    unserved = a_task(shard_key=5, due=-UNSERVED_AFTER - 1)
    claimed = claim_due(QUEUE, now, 10, PLACE.node, frozenset({3}))
    assert {message.task_id for message in claimed} == {mine.pk, unserved.pk}
    assert Task.objects.pending().get().pk == others.pk


def test_upcoming_tasks_are_read_before_they_are_due() -> None:
    now = database_now()
    rows = [a_task(due=wait, shard_key=wait) for wait in (3, 1, 2, 9)]
    a_task(due=-1)
    a_task(queue="other", due=1)
    found = claim.coming([QUEUE], now, now + timedelta(seconds=5), 10)
    assert [row[2] for row in found] == [rows[1].pk, rows[2].pk, rows[0].pk]
    of_shards = claim.coming([QUEUE], now, now + timedelta(seconds=5), 10, {2, 3})
    assert [row[3] for row in of_shards] == [2, 3]
    assert len(claim.coming([QUEUE], now, now + timedelta(seconds=5), 2)) == 2
