"""A scheduler publishes tasks at their due time, from an index in memory that polls fill."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, tzinfo
from typing import Any, Self

import pytest

from django_durable_tasks.celery import broker_outage
from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import nodes, queues
from django_durable_tasks.models import QueueControl, Task
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.scheduler.due_index import DueEntry
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.states import transitions
from django_durable_tasks.states.demand import SHARDS, UNSERVED_AFTER
from django_durable_tasks.store.clock import database_now
from tests.factories import QUEUE, a_node, a_task, many_tasks
from tests.messages import take_task_messages
from tests.process_state import new_process_state
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def scheduler() -> Scheduler:
    """Return a scheduler that does not lead, with empty caches of the queues."""
    new_process_state()
    broker_outage.breaker.succeeded()
    return Scheduler("one")


def _published(scheduler: Scheduler, row: Task) -> None:
    until(
        lambda: (scheduler.round(), Task.objects.queued().filter(pk=row.pk).exists())[1],
        within=30,
        message="published",
    )


def test_an_upcoming_task_is_indexed_and_published_by_its_id(scheduler: Scheduler) -> None:
    row = a_task(due=1.5)
    assert scheduler.round() <= 1.5
    hands = scheduler.dispatching
    assert len(hands.index) == 1
    hands.poll = lambda: 0  # type: ignore[method-assign]
    _published(scheduler, row)
    assert [message.task_id for message in take_task_messages(QUEUE)] == [row.pk]
    row.refresh_from_db()
    assert row.due_at is not None
    assert row.updated_at >= row.run_at
    assert len(hands.index) == 0


def test_queues_whose_names_differ_in_case_only_are_both_dispatched(scheduler: Scheduler) -> None:
    """MySQL and MariaDB compare them by a binary collation."""
    rows = [a_task(queue=queue) for queue in (QUEUE, QUEUE.upper())]
    assert scheduler.dispatching.poll() == 2
    assert [
        message.task_id for queue in (QUEUE, QUEUE.upper()) for message in take_task_messages(queue)
    ] == [row.pk for row in rows]
    assert scheduler.steps.failing() == []


def test_a_paused_queue_does_not_pause_one_whose_name_differs_in_case_only(
    scheduler: Scheduler,
) -> None:
    paused, open_ = (a_task(queue=queue) for queue in (QUEUE, QUEUE.upper()))
    queues.pause(QUEUE, by="anna")
    assert scheduler.dispatching.poll() == 1
    assert [message.task_id for message in take_task_messages(QUEUE.upper())] == [open_.pk]
    assert Task.objects.pending().get() == paused
    queues.resume(QUEUE.upper(), by="anna")
    assert QueueControl.objects.get(name=QUEUE).paused_at is not None


def test_a_task_that_was_cancelled_or_rescheduled_meanwhile_is_not_published(
    scheduler: Scheduler,
) -> None:
    gone, later, row = a_task(due=1.5), a_task(due=1.5), a_task(due=1.6)
    scheduler.round()
    assert len(scheduler.dispatching.index) == 3
    transitions.cancel(Task.objects.filter(pk=gone.pk), "TEST")
    transitions.edit(Task.objects.filter(pk=later.pk), due_at=later.run_at + timedelta(hours=1))
    _published(scheduler, row)
    assert [message.task_id for message in take_task_messages(QUEUE)] == [row.pk]
    assert set(Task.objects.exclude(pk=row.pk).values_list("status", flat=True)) == {
        "CANCELLED",
        "PENDING",
    }


def test_a_paused_or_full_queue_keeps_its_tasks_at_their_due_time(
    scheduler: Scheduler,
) -> None:
    for due, queue in ((1.0, QUEUE), (1.4, "other")):
        a_task(due=due, queue=queue)
    queues.pause(QUEUE, by="anna")
    scheduler.round()
    assert len(scheduler.dispatching.index) == 2
    other = Task.objects.get(queue="other")
    _published(scheduler, other)
    assert Task.objects.pending().get().queue == QUEUE
    queues.resume(QUEUE, by="anna")
    _published(scheduler, Task.objects.get(queue=QUEUE))


def test_the_most_urgent_tasks_are_published_although_the_window_is_full(
    scheduler: Scheduler, settings: Any
) -> None:
    settings.DURABLE_TASKS = {"QUEUE_WINDOW": 5}
    many_tasks(5, Status.QUEUED)
    rows = [a_task(priority=priority) for priority in (9, 8, 0)]
    assert scheduler.dispatching.run_once() == 1
    assert set(Task.objects.pending().values_list("pk", flat=True)) == {row.pk for row in rows[1:]}
    many_tasks(20, priority=9)
    scheduler.dispatching.poll()
    assert Task.objects.queued().count() == 5 + 10


def test_the_first_poll_uses_the_databases_clock(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = a_task(
        due_at=NEVER,
        waiting_for_limit="tenant:1",
        expires_at=database_now() + timedelta(seconds=60),
    )
    # The host's clock is an hour ahead.
    monkeypatch.setattr("django_durable_tasks.scheduler.dispatch_loop.datetime", _Ahead)
    scheduler.releasing.round()
    assert scheduler.dispatching.poll() == 1
    row.refresh_from_db()
    assert row.status == Status.QUEUED


class _Ahead(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return super().now(tz) + timedelta(hours=1)


def test_waiting_tasks_of_a_fast_queue_are_released_as_long_as_its_window_has_capacity(
    scheduler: Scheduler, settings: Any
) -> None:
    a_node(queues=[QUEUE], concurrency=1, active={"number": 1, "ids": [], "starts": 500})
    many_tasks(2_000, Status.QUEUED)
    a_task(due=60, queue="other")
    settings.DURABLE_TASKS = {"LOOKAHEAD": 600}
    scheduler.dispatching.poll()
    Task.objects.unguarded().filter(
        pk__in=list(Task.objects.queued().values_list("pk", flat=True)[:1_700])
    ).delete()
    scheduler.dispatching.poll()
    waiting = a_task(due_at=NEVER, waiting_for_limit="tenant:1")
    scheduler.releasing.round()
    assert scheduler.dispatching.poll() == 1
    waiting.refresh_from_db()
    assert waiting.status == Status.QUEUED


def test_tasks_of_another_nodes_shards_are_left_until_no_node_serves_them(
    scheduler: Scheduler,
) -> None:
    scheduler.dispatching.serve(frozenset(range(32)))
    mine, others = a_task(due=-0.1, shard_key=31), a_task(due=-0.1, shard_key=32)
    unserved = a_task(due=-UNSERVED_AFTER - 0.1, shard_key=SHARDS - 1)
    a_task(due=1, shard_key=32)
    assert scheduler.dispatching.run_once() == 2
    assert set(Task.objects.queued().values_list("pk", flat=True)) == {mine.pk, unserved.pk}
    assert Task.objects.pending().filter(pk=others.pk).exists()
    assert len(scheduler.dispatching.index) == 0


def test_schedulers_share_the_shards_and_take_over_those_of_a_dead_one() -> None:
    one, two = Scheduler("one"), Scheduler("two", shards=frozenset({1, 2}))
    for scheduler in (one, two):
        scheduler._beat._beat()
    for scheduler in (one, two):
        scheduler.maintenance._read_at = 0.0
        scheduler.maintenance.round()
    assert two.dispatching.shards == frozenset({1, 2})
    assert one.dispatching.shards == frozenset(range(SHARDS)) - {1, 2}
    nodes.leave(two.node)
    one.maintenance._read_at = 0.0
    one.maintenance.round()
    assert one.dispatching.shards is None


def test_index_entries_are_verified_against_the_database(scheduler: Scheduler) -> None:
    """A task that is in the index but not due stays; a due task that is not in the index is found
    by the poll.
    """
    row = a_task(due=3_600)
    hands = scheduler.dispatching
    hands.poll()
    now = hands.now
    hands.index.add([DueEntry(now, QUEUE, row.pk, 0, 0), DueEntry(now, QUEUE, uuid.uuid4(), 0, 0)])
    unknown = a_task()
    _published(scheduler, unknown)
    row.refresh_from_db()
    assert row.status == Status.PENDING


def test_a_task_created_due_soon_is_polled_for_at_once(scheduler: Scheduler) -> None:
    scheduler.round()
    hands = scheduler.dispatching
    hands._poll_at = float("inf")
    row = a_task(due=0.5)
    assert scheduler.round() > 0
    assert len(hands.index) == 0
    scheduler._on_due_soon(row.run_at)
    until(
        lambda: (scheduler.round(), len(hands.index) == 1)[1], within=30, message="the row is known"
    )
