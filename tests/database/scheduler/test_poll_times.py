"""When a scheduler polls and reads ahead, so that polls delay no task that is due."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from django_durable_tasks.limits import config
from django_durable_tasks.models import Task
from django_durable_tasks.models.tasks import new_task_id
from django_durable_tasks.scheduler import dispatch_loop
from django_durable_tasks.scheduler.dispatch_loop import DispatchLoop
from django_durable_tasks.scheduler.due_index import DueEntry
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import claim
from tests.factories import QUEUE, a_task
from tests.process_state import new_process_state

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def hands(settings: Any) -> DispatchLoop:
    settings.DURABLE_TASKS = {"LOOKAHEAD": 600}
    return Scheduler("scheduler").dispatching


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The queues whose upcoming tasks were read, by read."""
    found, read = list[list[str]](), claim.coming

    def coming(queues: list[str], *rest: Any, **more: Any) -> list[tuple[Any, ...]]:
        found.append(queues)
        return read(queues, *rest, **more)

    monkeypatch.setattr(claim, "coming", coming)
    monkeypatch.setattr(dispatch_loop, "_READ_AHEAD_INTERVAL", 1e9)
    return found


def test_upcoming_tasks_are_read_once_within_the_interval(
    hands: DispatchLoop, reads: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_task(due=300)
    for _ in range(3):
        hands.poll()
    assert reads == [[QUEUE]]
    monkeypatch.setattr(dispatch_loop, "_READ_AHEAD_INTERVAL", 0.0)
    hands.poll()
    assert len(reads) == 2


def test_a_request_a_new_queue_or_priority_and_other_shards_are_read_at_once(
    hands: DispatchLoop, reads: list[list[str]]
) -> None:
    a_task(due=300)
    hands.poll()
    hands.request_poll()
    hands.poll()
    assert len(reads) == 2
    a_task(due=300, queue="new")
    hands.poll()
    assert [sorted(queues) for queues in reads[2:]] == [sorted([QUEUE, "new"])]
    a_task(due=300, priority=9)
    hands.poll()
    assert len(reads) == 4
    hands.serve(frozenset(range(32)))
    hands.poll()
    assert len(reads) == 5


def test_a_read_that_was_cut_is_repeated_by_the_next_poll(
    hands: DispatchLoop, reads: list[list[str]], settings: Any
) -> None:
    settings.DURABLE_TASKS = {"LOOKAHEAD": 600, "BATCH_SIZE": 1}
    for _ in range(11):
        a_task(due=300)
    hands.poll()
    hands.poll()
    assert len(reads) == 2


@pytest.fixture
def due_first(hands: DispatchLoop, monkeypatch: pytest.MonkeyPatch) -> DispatchLoop:
    """A loop whose regular poll is due, and whose next task is due before that poll would end."""
    monkeypatch.setattr(dispatch_loop, "_POLL_POSTPONED_MAX", 100.0)
    hands.poll()
    hands._poll_took, hands._poll_at = 1_000.0, time.monotonic()
    at = hands.now + timedelta(seconds=500)
    hands.index.add([DueEntry(at, QUEUE, new_task_id(), 0, 0)])
    return hands


def test_a_poll_waits_for_a_task_that_is_due_before_it_would_end(due_first: DispatchLoop) -> None:
    assert due_first._next_poll_at() > due_first._poll_at
    assert due_first.time_to_sleep() > 0  # the loop does not spin meanwhile
    due_first._poll_took = 0.0
    assert due_first._next_poll_at() == due_first._poll_at


def test_a_poll_is_not_postponed_again_after_the_maximum(
    due_first: DispatchLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch_loop, "_POLL_POSTPONED_MAX", 0.0)
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
    hands: DispatchLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, read = list[config.LimitConfig](), config.read

    def counted() -> config.LimitConfig:
        reads.append(read())
        return reads[-1]

    monkeypatch.setattr(config, "read", counted)
    monkeypatch.setattr(config, "FRESH", 1e9)
    new_process_state()
    hands.poll()
    assert not reads  # no task is due soon
    row = a_task(due=300)
    hands.poll()
    Task.objects.unguarded().filter(pk=row.pk).update(due_at=database_now())
    hands.index.add([DueEntry(hands.now - timedelta(seconds=1), QUEUE, row.pk, 0, 0)])
    assert hands._dispatch_at_due_time() == 1
    assert len(reads) == 1
    monkeypatch.setattr(config, "FRESH", 0.0)
    a_task(due=300)
    hands.poll()
    assert len(reads) == 2


def test_tasks_of_the_due_index_that_a_poll_claims_cause_no_further_poll(
    hands: DispatchLoop,
) -> None:
    """Otherwise a poll that takes longer than the time between two tasks causes the next one, and
    tasks start when a poll ends instead of at their due time.
    """
    rows = [a_task(due=300) for _ in range(3)]
    hands.poll()
    assert len(hands.index) == 3
    Task.objects.unguarded().filter(pk__in=[row.pk for row in rows]).update(due_at=database_now())
    assert hands.poll() == 3
    assert len(hands.index) == 0
    assert not hands._poll_is_urgent
    a_task()
    assert hands.poll() == 1
    assert hands._poll_is_urgent  # others may follow a task that was created due
