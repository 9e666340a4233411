"""Schedulers, workers, maintenance and operators at once on the same tasks: no deadlock, and all
counters stay correct.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from django_durable_tasks.choices import LogStatus, Status
from django_durable_tasks.models import DeadLetter, Task, TaskExecutionLog
from django_durable_tasks.scheduler import reap_dead_nodes
from django_durable_tasks.scheduler.reap_dead_nodes import leases
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import Run
from django_durable_tasks.tasks import attempts, claim, operator_actions
from tests.concurrency.racing import no_errors, race
from tests.database.transitions.transition_calls import FAILURE, PLACE
from tests.factories import QUEUE, many_tasks
from tests.messages import claim_due
from tests.repetitions import repetitions

STEPS, ROWS = repetitions(40), 12


def _some(dice: random.Random) -> Any:
    ids = list(Task.objects.order_by("pk").values_list("pk", flat=True))
    return Task.objects.filter(pk__in=dice.sample(ids, 3))


def _schedule(dice: random.Random) -> None:
    now = database_now() + timedelta(hours=1)
    claim_due(QUEUE, now, dice.randint(1, 6), PLACE.node)
    claim.republish(Task.objects.republish_due(now), now, 4)


def _work(dice: random.Random) -> None:
    row = _some(dice).filter(status=Status.QUEUED).first()
    run = attempts.open_run(row.pk, row.epoch, PLACE, "id", None) if row else None
    if not isinstance(run, Run):
        return
    attempts.heartbeat([(run.task_id, run.epoch, run.run_id, 60.0)])
    accepted = (
        attempts.succeed(run, None, "w")
        if dice.random() < 0.3
        else attempts.fail(run, FAILURE, "w")
    )
    if not accepted:
        attempts.fence(run, "w")


def _sweep(dice: random.Random) -> None:
    seen = leases()
    some = dice.sample(sorted(seen), min(len(seen), dice.randint(1, 6)))
    reap_dead_nodes.mark_lost({task: seen[task] for task in some}, reap_dead_nodes.LEASE_EXPIRED)


def _operate(dice: random.Random) -> None:
    operations: list[Callable[[], Any]] = [
        lambda: operator_actions.cancel(_some(dice), by="bob"),
        lambda: operator_actions.replay(_some(dice), by="bob"),
        lambda: operator_actions.discard_letters(
            DeadLetter.objects.filter(task__in=_some(dice)), by="bob", reason=""
        ),
        lambda: claim.republish(_some(dice), database_now(), 3),
    ]
    dice.choice(operations)()


@pytest.mark.parametrize("seed", range(2))
def test_all_at_once_neither_deadlock_nor_lose_count(seed: int) -> None:
    many_tasks(ROWS, max_crashes=1_000, max_attempts=4)
    roles = [_schedule, _work, _work, _sweep, _operate]

    def play(number: int) -> None:
        dice = random.Random(f"{seed} {number}")
        for _ in range(STEPS):
            roles[number](dice)

    no_errors(race([partial(play, number) for number in range(len(roles))]))
    logged = TaskExecutionLog.objects.exclude(status=LogStatus.FENCED)
    ended = Counter(logged.values_list("task_id", flat=True))
    assert len(set(logged.values_list("run_id", flat=True))) == logged.count()
    for row in Task.objects.all():
        assert row.attempts == ended[row.pk] + (row.status == Status.RUNNING)
        cases = row.dead_letters.filter(open_task=row.pk).count()
        assert cases <= (row.status == Status.FAILED)
