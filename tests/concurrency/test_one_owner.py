"""In any race for a task, one start and one ending of each attempt are accepted, and no cancel is
lost.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from django_durable_tasks.choices import LogStatus, Status
from django_durable_tasks.models import DeadLetter, Task
from django_durable_tasks.states import claims
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import Run, RunLocation
from django_durable_tasks.tasks import attempts, claim, operator_actions
from tests.concurrency.racing import ROUNDS, no_errors, race
from tests.database.transitions.transition_calls import (
    CRASH,
    FAILURE,
    HOPELESS,
    PLACE,
    end,
    heartbeat,
    question,
    start,
    succeed,
)
from tests.factories import QUEUE, a_run, a_task, many_tasks, take_batch
from tests.messages import claim_due

ENDINGS: dict[str, Callable[[Task], Any]] = {
    "succeed": succeed,
    "succeed again": succeed,
    "fail": partial(end, outcome=FAILURE),
    "exhaust": partial(end, outcome=HOPELESS),
    "lose": partial(end, outcome=CRASH),
    "force_complete": lambda row: operator_actions.force_complete(question(row), by="bob"),
}


@pytest.mark.parametrize("racers", [2, 4])
def test_messages_of_one_epoch_start_one_run(racers: int) -> None:
    for _ in range(ROUNDS):
        row = a_task(Status.QUEUED)
        starts = no_errors(race([partial(start, row)] * racers))
        assert sum(found is not None for found in starts) == 1
        row.refresh_from_db()
        assert (row.attempts, row.epoch) == (1, 2)


@pytest.mark.parametrize(
    "names", [*itertools.combinations(ENDINGS, 2), tuple(ENDINGS)], ids="-".join
)
def test_one_ending_of_a_run_is_accepted(names: tuple[str, ...]) -> None:
    for _ in range(3):
        row = a_task(Status.RUNNING)
        answers = no_errors(race([partial(ENDINGS[name], row) for name in names]))
        operator = (
            names[answers.index(found)] if (found := next(iter(filter(None, answers)))) else ""
        )
        row.refresh_from_db()
        accepted = sum(bool(answer) for answer in answers)
        # An operator may complete a task that has just ended otherwise: that is a second transition, not a
        # second ending.
        assert accepted == 1 or ("force_complete" in names and accepted == 2), (operator, answers)
        assert row.epoch == 2 + accepted
        assert row.executions.exclude(status=LogStatus.FENCED).count() == accepted
        assert DeadLetter.objects.open().filter(task=row).count() == (row.status == Status.FAILED)


def test_a_failure_is_not_fenced_by_a_heartbeat_that_locks_the_row() -> None:
    for _ in range(ROUNDS):
        row = a_task(Status.RUNNING)
        run = a_run(row)
        beats = [partial(heartbeat, row)] * 3
        verdict, *_ = no_errors(race([partial(attempts.fail, run, FAILURE, "w"), *beats]))
        assert verdict is not None
        assert Task.objects.get(pk=row.pk).status == Status.PENDING


def _cancel(row: Task) -> int:
    return operator_actions.cancel(question(row), by="bob").total


MOVES: dict[str, tuple[Status, Callable[[Task], Any]]] = {
    "claim": (Status.PENDING, lambda row: claim_due(QUEUE, database_now(), 10, PLACE.node)),
    "return_to_pending": (
        Status.QUEUED,
        lambda row: claims.return_to_pending(question(row), 0),
    ),
    "republish": (Status.QUEUED, lambda row: claim.republish(question(row), database_now(), 10)),
    "start": (Status.QUEUED, start),
    "retry": (Status.RUNNING, partial(end, outcome=FAILURE)),
    "lose": (Status.RUNNING, partial(end, outcome=CRASH)),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_cancel_is_never_lost_between_two_statuses(name: str) -> None:
    status, move = MOVES[name]
    for _ in range(ROUNDS):
        row = a_task(status)
        _, cancelled = no_errors(race([partial(move, row), partial(_cancel, row)]))
        row.refresh_from_db()
        assert cancelled == 1
        asked = row.status == Status.RUNNING and row.cancel_requested_at is not None
        assert row.status == Status.CANCELLED or asked


def test_a_start_and_a_cancel_leave_the_task_cancelled_or_running_with_a_cancel_request() -> None:
    for _ in range(ROUNDS):
        row = a_task(Status.QUEUED)
        started, cancelled = no_errors(race([partial(start, row), partial(_cancel, row)]))
        row.refresh_from_db()
        assert cancelled == 1
        assert (row.status == Status.RUNNING) == (started is not None)


def test_dead_letters_of_one_task_are_opened_and_closed_once() -> None:
    for _ in range(ROUNDS):
        row = a_task(Status.FAILED)
        answers = no_errors(race([partial(operator_actions.replay, question(row), by="bob")] * 3))
        assert sorted(map(len, answers)) == [0, 0, 1]
        assert row.dead_letters.count() == 1
        row.refresh_from_db()
        assert (row.status, row.epoch) == (Status.PENDING, 4)


def test_a_replay_and_a_discard_close_the_dead_letter_once() -> None:
    for _ in range(ROUNDS):
        row = a_task(Status.FAILED)
        letters = DeadLetter.objects.filter(task=row)
        no_errors(
            race(
                [
                    partial(operator_actions.replay, question(row), by="bob"),
                    partial(operator_actions.discard_letters, letters, by="eve", reason=""),
                ]
            )
        )
        assert letters.get().open_task is None
        row.refresh_from_db()
        assert row.status == Status.PENDING


# Claims -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["claim", "take"])
def test_concurrent_claims_never_take_the_same_task_and_together_take_all(operation: str) -> None:
    rows = [
        row
        for priority in (0, 5, 9)
        for row in many_tasks(40, priority=priority, in_batch=operation == "take")
    ]
    batches: list[int] = []

    def claim_until_empty() -> list[uuid.UUID]:
        node, taken = uuid.uuid4(), list[uuid.UUID]()
        misses = 0
        while misses < 3:
            batch = _batch(operation, node)
            batches.append(len(batch))
            taken += batch
            misses = 0 if batch else misses + 1
        return taken

    taken = no_errors(race([claim_until_empty] * 4))
    counted = Counter(itertools.chain.from_iterable(taken))
    assert max(batches) <= 7
    assert set(counted.values()) == {1}
    # A claimer that saw only rows which others had locked may have left; their tasks are due and are
    # claimed next.
    while batch := _batch(operation, uuid.uuid4()):
        counted.update(batch)
    assert counted == Counter(row.pk for row in rows)
    assert set(Task.objects.values_list("epoch", flat=True)) == {1}


def _batch(operation: str, node: uuid.UUID) -> list[uuid.UUID]:
    if operation == "claim":
        return [message.task_id for message in claim_due(QUEUE, database_now(), 7, node)]
    place = RunLocation(node=node, worker="w", lease=60.0)
    runs: list[Run] = take_batch(7, place)
    return [run.task_id for run in runs]


def test_two_maintenance_runs_republish_each_overdue_task_once() -> None:
    many_tasks(30, Status.QUEUED, due=-1)
    published = no_errors(
        race(
            [
                lambda: claim.republish(
                    Task.objects.republish_due(database_now()), database_now(), 30
                )
            ]
            * 3
        )
    )
    counted = Counter(message.task_id for messages in published for message in messages)
    assert set(counted.values()) <= {1}
    assert set(Task.objects.values_list("publish_count", flat=True)) <= {1, 2}


def test_two_maintenance_runs_mark_each_silent_run_lost_once() -> None:
    rows = many_tasks(20, Status.RUNNING, due=-1)
    lost = no_errors(race([partial(end, *rows, outcome=CRASH)] * 3))
    counted = Counter(itertools.chain.from_iterable(lost))
    assert counted == Counter(row.pk for row in rows)
    assert set(Task.objects.values_list("crashes", flat=True)) == {1}
