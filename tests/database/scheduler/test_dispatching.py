"""A scheduler publishes tasks at their due time, from an index in memory that polls fill. Polls delay
no task that is due, and tasks that wait for a batch are looked for between them.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import nodes, queues
from django_durable_tasks.limits import config
from django_durable_tasks.models import BatchMessage, QueueControl, Task
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.scheduler import dispatch_loop
from django_durable_tasks.scheduler.dispatch_loop import DispatchLoop
from django_durable_tasks.scheduler.due_index import DueEntry
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.states import endings, inserts
from django_durable_tasks.states.demand import UNSERVED_AFTER
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import SHARDS, new_task_id
from django_durable_tasks.tasks import batches, claim
from tests.factories import NOOP, QUEUE, a_node, a_task, many_tasks
from tests.messages import take_task_messages
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


def _rounds(scheduler: Scheduler, condition: Callable[[], bool]) -> None:
    until(lambda: (scheduler.round(), condition())[1], within=30)


def _published(scheduler: Scheduler, row: Task) -> None:
    _rounds(scheduler, Task.objects.queued().filter(pk=row.pk).exists)


def test_an_upcoming_task_is_indexed_and_published_by_its_id(scheduler: Scheduler) -> None:
    row = a_task(due=1.5)
    assert scheduler.round() <= 1.5
    loop = scheduler.dispatching
    assert len(loop.index) == 1
    loop.poll = lambda: 0  # type: ignore[method-assign]
    _published(scheduler, row)
    assert [message.task_id for message in take_task_messages(QUEUE)] == [row.pk]
    row.refresh_from_db()
    assert row.due_at is not None
    assert row.updated_at >= row.run_at
    assert len(loop.index) == 0


def test_queues_whose_names_differ_in_case_only_are_dispatched_and_paused_alone(
    scheduler: Scheduler,
) -> None:
    """MySQL and MariaDB compare them by a binary collation."""
    names = (QUEUE, QUEUE.upper())
    rows = [a_task(queue=queue) for queue in names]
    assert scheduler.dispatching.poll() == 2
    published = [message.task_id for queue in names for message in take_task_messages(queue)]
    assert published == [row.pk for row in rows]
    assert scheduler.steps.failing() == []
    paused, open_ = (a_task(queue=queue) for queue in names)
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
    endings.cancel(Task.objects.filter(pk=gone.pk), "TEST")
    inserts.edit(Task.objects.filter(pk=later.pk), due_at=later.run_at + timedelta(hours=1))
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


def test_the_most_urgent_tasks_are_published_without_a_window(
    scheduler: Scheduler, settings: Any
) -> None:
    settings.DURABLE_TASKS = {"QUEUE_WINDOW": 0}
    row = a_task(priority=9)
    a_task(priority=8)
    scheduler.dispatching.poll()
    scheduler.dispatching.poll()
    assert Task.objects.queued().get() == row
    assert scheduler.steps.failing() == []


def test_a_full_window_is_refilled_when_a_part_of_it_may_have_started(
    scheduler: Scheduler, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch_loop, "_BUSY_POLL_INTERVAL", 1e6)
    loop = scheduler.dispatching

    def pause_after(tasks: int, since_last_poll: float) -> float:
        """Return the pause after a poll that publishes tasks to an empty queue."""
        Task.objects.unguarded().all().delete()
        loop.windows = dispatch_loop.PublishWindows()
        many_tasks(tasks)
        loop.scanned_at = time.monotonic() - since_last_poll
        loop.poll()
        return loop._poll_at - loop.scanned_at

    settings.DURABLE_TASKS = {"QUEUE_WINDOW": 4, "POLL": 1e5}
    assert pause_after(2, 1_000) == pytest.approx(dispatch_loop._MIN_POLL_INTERVAL)
    # Four tasks were started in this time, so one of them, a quarter, will be in a quarter of it.
    assert pause_after(9, 1_000) == pytest.approx(250, rel=0.1)
    settings.DURABLE_TASKS = {"QUEUE_WINDOW": 4, "POLL": 7}
    assert pause_after(9, 1_000) == 7


def test_the_first_poll_uses_the_databases_clock(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    expires_at = database_now() + timedelta(seconds=60)
    row = a_task(due_at=NEVER, waiting_for_limit="tenant:1", expires_at=expires_at)
    ahead = database_now() + timedelta(hours=1)
    monkeypatch.setattr(dispatch_loop, "host_now", lambda: ahead)
    scheduler.releasing.round()
    assert scheduler.dispatching.poll() == 1
    row.refresh_from_db()
    assert row.status == Status.QUEUED


def test_waiting_tasks_of_a_fast_queue_are_released_as_long_as_its_window_has_capacity(
    scheduler: Scheduler, settings: Any
) -> None:
    a_node(queues=[QUEUE], concurrency=1, active={"number": 1, "ids": [], "starts": 500})
    many_tasks(2_000, Status.QUEUED)
    a_task(due=60, queue="other")
    settings.DURABLE_TASKS = {"LOOKAHEAD": 600}
    scheduler.dispatching.poll()
    started = list(Task.objects.queued().values_list("pk", flat=True)[:1_700])
    Task.objects.unguarded().filter(pk__in=started).delete()
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
    row, loop = a_task(due=3_600), scheduler.dispatching
    loop.poll()
    loop.index.add([DueEntry(loop.now, QUEUE, pk, 0) for pk in (row.pk, uuid.uuid4())])
    _published(scheduler, a_task())
    row.refresh_from_db()
    assert row.status == Status.PENDING


def test_a_task_created_due_soon_is_polled_for_at_once(scheduler: Scheduler) -> None:
    scheduler.round()
    loop = scheduler.dispatching
    loop._poll_at = float("inf")
    row = a_task(due=0.5)
    assert scheduler.round() > 0
    assert len(loop.index) == 0
    scheduler._on_due_soon(row.run_at)
    _rounds(scheduler, lambda: len(loop.index) == 1)


# Tasks that wait for a batch: the loop looks for them between its polls ---------------------------


def _is_published(number: int) -> bool:
    return BatchMessage.objects.filter(number=number, due_at__isnull=False).exists()


def _without_polls(scheduler: Scheduler) -> None:
    scheduler.dispatching._next_poll_at = lambda: math.inf  # type: ignore[method-assign]


def test_a_message_is_published_when_a_task_becomes_due(scheduler: Scheduler) -> None:
    a_task(due=1.0, in_batch=True)
    assert scheduler.round() <= 1.0
    assert not BatchMessage.objects.exists()
    _without_polls(scheduler)
    _rounds(scheduler, lambda: _is_published(1))


def test_a_message_is_published_for_tasks_that_remain_after_the_last_one(
    scheduler: Scheduler,
) -> None:
    many_tasks(2, in_batch=True)
    assert scheduler.round() == 0.0
    assert _is_published(1)
    _without_polls(scheduler)
    batches.message_received(QUEUE, NOOP, 1)
    _rounds(scheduler, lambda: _is_published(2))


def test_looks_end_while_a_message_is_outstanding(scheduler: Scheduler) -> None:
    many_tasks(2, in_batch=True)
    batches, looks = scheduler.dispatching._batches, list[float]()
    scheduler.round()
    _without_polls(scheduler)
    while batches.look_at < math.inf:
        looks.append(batches.look_at)
        _rounds(scheduler, lambda: batches.look_at != looks[-1])
    assert 1 < len(looks) <= 4
    assert _is_published(1)


@pytest.fixture
def loop(scheduler: Scheduler, settings: Any) -> DispatchLoop:
    """The dispatch loop of a scheduler that reads ten minutes ahead."""
    settings.DURABLE_TASKS = {"LOOKAHEAD": 600}
    return scheduler.dispatching


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The queues whose upcoming tasks were read, by read."""
    reads, read = list[list[str]](), claim.coming

    def coming(queues: list[str], *rest: Any, **more: Any) -> list[tuple[Any, ...]]:
        reads.append(queues)
        return read(queues, *rest, **more)

    monkeypatch.setattr(claim, "coming", coming)
    monkeypatch.setattr(dispatch_loop, "_READ_AHEAD_INTERVAL", 1e9)
    return reads


def test_upcoming_tasks_are_read_once_within_the_interval_or_at_once_for_a_reason(
    loop: DispatchLoop, reads: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_task(due=300)
    for _ in range(3):
        loop.poll()
    assert reads == [[QUEUE]]
    loop.request_poll()
    loop.poll()
    assert len(reads) == 2
    a_task(due=300, queue="new")
    loop.poll()
    assert [sorted(queues) for queues in reads[2:]] == [sorted([QUEUE, "new"])]
    a_task(due=300, priority=9)
    loop.poll()
    assert len(reads) == 4
    loop.serve(frozenset(range(32)))
    loop.poll()
    assert len(reads) == 5
    loop.poll()
    assert len(reads) == 5
    monkeypatch.setattr(dispatch_loop, "_READ_AHEAD_INTERVAL", 0.0)
    loop.poll()
    assert len(reads) == 6


def test_a_read_that_was_cut_is_repeated_by_the_next_poll(
    loop: DispatchLoop, reads: list[list[str]], settings: Any
) -> None:
    settings.DURABLE_TASKS = {"LOOKAHEAD": 600, "BATCH_SIZE": 1}
    many_tasks(11, due=300)
    loop.poll()
    loop.poll()
    assert len(reads) == 2


@pytest.fixture
def due_first(loop: DispatchLoop, monkeypatch: pytest.MonkeyPatch) -> DispatchLoop:
    """A loop whose regular poll is due, and whose next task is due before that poll would end."""
    monkeypatch.setattr(dispatch_loop, "_POLL_POSTPONED_MAX", 100.0)
    loop.poll()
    loop._poll_took, loop._poll_at = 1_000.0, time.monotonic()
    loop.index.add([DueEntry(loop.now + timedelta(seconds=500), QUEUE, new_task_id(), 0)])
    return loop


def test_a_poll_waits_for_a_task_that_is_due_before_it_would_end_up_to_a_maximum(
    due_first: DispatchLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert due_first._next_poll_at() > due_first._poll_at
    assert due_first.time_to_sleep() > 0  # the loop does not spin meanwhile
    monkeypatch.setattr(dispatch_loop, "_POLL_POSTPONED_MAX", 0.0)
    assert due_first._next_poll_at() == due_first._poll_at
    monkeypatch.setattr(dispatch_loop, "_POLL_POSTPONED_MAX", 100.0)
    due_first._poll_took = 0.0
    assert due_first._next_poll_at() == due_first._poll_at


def test_a_poll_that_was_requested_or_finds_more_tasks_is_not_postponed(
    due_first: DispatchLoop,
) -> None:
    due_first.request_poll()
    assert due_first._next_poll_at() <= due_first._poll_at
    due_first._poll_requested = False
    a_task()
    assert due_first.poll() == 1
    due_first._poll_took, due_first._poll_at = 1_000.0, time.monotonic()
    assert due_first._next_poll_at() == due_first._poll_at


def test_the_limits_are_read_by_a_poll_and_not_by_a_claim_at_the_due_time(
    loop: DispatchLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, read = list[config.LimitConfig](), config.read

    def counted() -> config.LimitConfig:
        reads.append(read())
        return reads[-1]

    monkeypatch.setattr(config, "read", counted)
    monkeypatch.setattr(config, "FRESH", 1e9)
    loop.poll()
    assert not reads  # no task is due soon
    row = a_task(due=300)
    loop.poll()
    Task.objects.unguarded().filter(pk=row.pk).update(due_at=database_now())
    loop.index.add([DueEntry(loop.now - timedelta(seconds=1), QUEUE, row.pk, 0)])
    assert loop._dispatch_at_due_time() == 1
    assert len(reads) == 1
    monkeypatch.setattr(config, "FRESH", 0.0)
    a_task(due=300)
    loop.poll()
    assert len(reads) == 2


def test_tasks_of_the_due_index_that_a_poll_claims_cause_no_further_poll(
    loop: DispatchLoop,
) -> None:
    """Otherwise a poll that takes longer than the time between two tasks causes the next one, and
    tasks start when a poll ends instead of at their due time.
    """
    many_tasks(3, due=300)
    loop.poll()
    assert len(loop.index) == 3
    Task.objects.unguarded().update(due_at=database_now())
    assert loop.poll() == 3
    assert len(loop.index) == 0
    assert not loop._poll_is_urgent
    a_task()
    assert loop.poll() == 1
    assert loop._poll_is_urgent  # others may follow a task that was created due
