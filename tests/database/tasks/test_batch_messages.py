"""At most one batch message is outstanding for each queue and task name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.models import BatchMessage
from django_durable_tasks.store.clock import after, database_now
from django_durable_tasks.tasks import batches
from tests.factories import NOOP, QUEUE, a_task, many_tasks

PAIR = (QUEUE, NOOP)
pytestmark = pytest.mark.django_db


def _due_in() -> float:
    due_at = BatchMessage.objects.get().due_at
    assert due_at is not None
    return (due_at - database_now()).total_seconds()


def _reserved(*pairs: tuple[str, str]) -> list[tuple[str, str]]:
    return [(one.queue, one.name) for one in batches.reserve_messages(pairs)]


def _overdue() -> None:
    BatchMessage.objects.update(due_at=database_now() - timedelta(seconds=1))


def test_a_message_is_published_once_until_a_worker_receives_it() -> None:
    assert batches.reserve_messages([PAIR, PAIR]) == [(*PAIR, 1, 1)]
    assert batches.reserve_messages([PAIR]) == []
    batches.message_received(*PAIR, number=1)
    assert batches.reserve_messages([PAIR]) == [(*PAIR, 2, 1)]
    assert BatchMessage.objects.count() == 1


def test_an_older_message_leaves_the_newer_one_outstanding() -> None:
    batches.reserve_messages([PAIR])
    _overdue()
    assert batches.reserve_messages([PAIR]) == [(*PAIR, 2, 2)]
    batches.message_received(*PAIR, number=1)
    assert batches.reserve_messages([PAIR]) == []
    batches.message_received(*PAIR, number=2)
    assert batches.reserve_messages([PAIR]) == [(*PAIR, 3, 1)]


def test_an_older_message_limits_the_wait_for_the_newer_one() -> None:
    for _ in range(8):  # there is no worker for minutes
        batches.reserve_messages([PAIR], consumed=False)
        _overdue()
    batches.reserve_messages([PAIR], consumed=False)
    assert _due_in() > 100
    batches.message_received(*PAIR, number=3)
    assert _due_in() == pytest.approx(15, abs=5)
    BatchMessage.objects.update(due_at=after(3))
    batches.message_received(*PAIR, number=4)
    assert _due_in() < 5, "it is not made longer"


def test_a_lost_message_is_published_again_after_growing_times() -> None:
    batches.reserve_messages([PAIR])
    waits = [_due_in()]
    for _ in range(3):
        _overdue()
        assert _reserved(PAIR) == [PAIR]
        waits.append(_due_in())
    assert waits == pytest.approx([2, 4, 8, 15], abs=0.9)
    batches.message_received(*PAIR, number=4)
    batches.reserve_messages([PAIR])
    assert _due_in() == pytest.approx(2, abs=0.9)


@pytest.mark.parametrize(("consumed", "longest"), [(True, 1), (False, 20)])
def test_the_wait_for_a_lost_message_is_at_most_those_of_the_settings(
    settings: Any, consumed: bool, longest: float
) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "REPUBLISH_AFTER": 1}
    batches.reserve_messages([PAIR])
    assert _due_in() == pytest.approx(1, abs=0.9)
    BatchMessage.objects.update(publish_count=40)
    _overdue()
    batches.reserve_messages([PAIR], consumed=consumed)
    assert _due_in() == pytest.approx(longest, abs=min(5, 0.9 * longest))


def test_a_message_that_the_broker_refused_is_due_after_its_delay() -> None:
    batches.reserve_messages([PAIR, ("other", NOOP)])
    batches.message_not_published([PAIR], 0.0)
    assert _reserved(PAIR, ("other", NOOP)) == [PAIR]


def test_after_an_outage_of_the_broker_all_outstanding_messages_are_due() -> None:
    batches.reserve_messages([PAIR, ("other", NOOP)])
    assert batches.publish_messages_again(QUEUE) == 1
    assert _reserved(PAIR, ("other", NOOP)) == [PAIR]
    assert batches.publish_messages_again() == 2


def test_heads_name_the_first_due_time_and_the_highest_due_priority() -> None:
    now = database_now()
    rows = [
        a_task(in_batch=True, due=-9),
        a_task(in_batch=True, due=-5, priority=4),
        a_task(in_batch=True, due=60, priority=9),
        a_task(in_batch=True, due=30, queue="other"),
    ]
    a_task(due=-99)
    found = {(head.queue, head.name): head for head in batches.batch_heads(now)}
    assert {key: head.priority for key, head in found.items()} == {PAIR: 4, ("other", NOOP): None}
    assert found[PAIR].due_at == rows[0].due_at
    assert found["other", NOOP].due_at == rows[3].due_at


@pytest.mark.parametrize("act", ["heads", "reserve"])
def test_many_names_cost_the_same_statements_as_one(act: str) -> None:
    counts = []
    for number in (1, 50):
        for name in range(number):
            many_tasks(1, in_batch=True, name=f"{act}.{number}.{name}")
        pairs = [(QUEUE, f"{act}.{number}.{name}") for name in range(number)]
        with CaptureQueriesContext(connection) as captured:
            if act == "heads":
                batches.batch_heads(database_now())
            else:
                batches.reserve_messages(pairs)
        counts.append(len(captured))
    assert counts[0] == counts[1]
