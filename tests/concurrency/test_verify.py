"""``durable verify`` beside concurrent transitions: no false findings, no waiting for locks, and
each repair once.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_durable_tasks.choices import REPLAYABLE, Status
from django_durable_tasks.contrib.verify import runner
from django_durable_tasks.dependencies import resolve
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.models import DeadLetter, Task, TaskDependency, WorkflowRun
from django_durable_tasks.schedules import trigger
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import Run
from django_durable_tasks.tasks import attempts, operator_actions
from django_durable_tasks.workflows import Workflow, runs
from tests.concurrency.racing import WITHIN, no_errors, race
from tests.database.dependencies.worker_and_leader import HOPELESS, recount, resolve_all
from tests.database.recurring.schedules import a_schedule
from tests.database.transitions.transition_calls import FAILURE, PLACE, question
from tests.database.verify.corruptions import DAMAGES
from tests.database.verify.healthy_rows import ago, led
from tests.factories import QUEUE, a_task
from tests.messages import claim_due
from tests.project.tasks import noop
from tests.repetitions import repetitions

STEPS = repetitions(40)
LOOKS = repetitions(4, least=1)


def _findings(*only: str) -> list[str]:
    answers = runner.run(runner.chosen(only))
    assert not [answer.error for answer in answers if answer.error]
    return [f"{finding.check}: {finding.text}" for answer in answers for finding in answer.findings]


def _schedule(dice: random.Random) -> None:
    if dice.random() < 0.5:
        flow = Workflow("moving")
        above = [flow.add(noop, step=f"a{number}") for number in range(3)]
        flow.add(noop, after=above, step="last", join=dice.choice(("ALL", "ANY")))
        flow.start()
    else:
        noop.using(queue=QUEUE, key=f"key-{dice.randint(0, 3)}").schedule()


def _work(dice: random.Random) -> None:
    queues = (
        Task.objects.filter(status=Status.PENDING)
        .order_by()
        .values_list("queue", flat=True)
        .distinct()
    )
    for queue in list(queues):
        claim_due(queue, database_now(), 3, PLACE.node)
    for row in list(Task.objects.filter(status=Status.QUEUED).order_by("?")[:3]):
        run = attempts.open_run(row.pk, row.epoch, PLACE, "id", None)
        if isinstance(run, Run):
            _end(run, dice)


def _end(run: Run, dice: random.Random) -> None:
    if dice.random() < 0.7:
        attempts.succeed(run, None, "w")
    else:
        attempts.fail(run, dice.choice([FAILURE, HOPELESS]), "w")


def _lead(dice: random.Random) -> None:
    resolve.resolve_endings(20)
    runs.count_endings(20)
    trigger.fire_due(database_now(), 5, 3)


def _operate(dice: random.Random) -> None:
    rows = list(Task.objects.order_by("?")[:2])
    ended = list(Task.objects.filter(status__in=REPLAYABLE).order_by("?")[:1])
    operations: list[Callable[[], Any]] = [
        lambda: operator_actions.cancel(question(*rows), by="bob"),
        lambda: operator_actions.replay(question(*ended), by="bob"),
        lambda: operator_actions.discard_letters(
            DeadLetter.objects.filter(task__in=rows), by="bob", reason=""
        ),
    ]
    try:
        dice.choice(operations)()
    except TransitionRefused:
        dice.random()


def test_constantly_changing_rows_have_no_findings() -> None:
    led(since=1)
    for number in range(4):
        a_schedule(f"s{number}", interval=0.05 if number else 1, start_time=ago(1), overlap="ALLOW")
    moving, watched = threading.Semaphore(0), threading.Event()
    looks = list[list[str]]()
    movers = [_schedule, _work, _work, _lead, _operate]

    def move(act: Callable[[random.Random], None], seed: int) -> None:
        dice = random.Random(seed)
        end = monotonic() + WITHIN / 2
        try:
            for step in itertools.count():
                if step >= STEPS and (watched.is_set() or monotonic() > end):
                    return
                act(dice)
        finally:
            moving.release()

    def verify() -> None:
        ended = 0
        try:
            while ended < len(movers):
                looks.append(_findings())
                if len(looks) > 1:
                    watched.set()
                ended += sum(moving.acquire(blocking=False) for _ in movers)
        finally:
            watched.set()

    no_errors(race([*(partial(move, act, seed) for seed, act in enumerate(movers)), verify]))
    assert [found for found in looks if found] == []
    assert len(looks) > 1
    assert WorkflowRun.objects.count() > STEPS // 8
    resolve_all()
    assert recount() == []
    assert _findings() == []


def test_a_transition_between_any_two_statements_is_no_finding() -> None:
    led(since=1)
    a_schedule("often", interval=0.05, start_time=ago(5), overlap="ALLOW")
    dice, movers = (
        random.Random(7),
        itertools.cycle([_schedule, _work, _lead, _work, _lead, _operate]),
    )
    moves: list[None] = []

    def moving(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if not connection.in_atomic_block:
            moves.append(mover.submit(next(movers), dice).result(WITHIN))
        return execute(sql, params, many, context)

    with ThreadPoolExecutor(1) as mover:
        try:
            with connection.execute_wrapper(moving):
                looks = [_findings("graphs", "tasks", "recurring") for _ in range(LOOKS)]
        finally:
            mover.submit(connections.close_all).result(WITHIN)
    assert looks == [[]] * LOOKS
    assert len(moves) > 25 * LOOKS
    resolve_all()
    assert _findings() == []


@pytest.mark.parametrize(
    "name", ["dependency-counts", "dead-letters-missing", "duplicate-endings", "unresolved-edges"]
)
def test_two_concurrent_repairs_repair_a_row_once(name: str) -> None:
    led()
    for _ in range(1 if name == "duplicate-endings" else 5):
        DAMAGES[name]()

    def repair() -> list[Any]:
        return runner.repair(runner.run(runner.chosen([name])))

    no_errors(race([repair, repair, repair]))
    repair()
    resolve_all()
    assert _findings() == []
    assert recount() == []


def _with_locked_row(row: Task | WorkflowRun, act: Callable[[], Any]) -> Any:
    """Run the function while another transaction locks the row, and return its result when that has
    ended too.
    """
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            type(row).objects.select_for_update().get(pk=row.pk)
            held.set()
            assert over.wait(WITHIN)

    def look() -> Any:
        assert held.wait(WITHIN)
        try:
            return act()
        finally:
            over.set()

    return no_errors(race([hold, look]))[1]


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_a_locked_row_is_neither_waited_for_nor_reported() -> None:
    led()
    row = Task.objects.get(pk=DAMAGES["dependency-counts"]())
    assert _with_locked_row(row, partial(_findings, "dependency-counts")) == []
    assert len(_findings("dependency-counts")) == 1
    edge = TaskDependency.objects.select_related("depends_on").get(pk=DAMAGES["unresolved-edges"]())
    assert edge.depends_on is not None
    assert _with_locked_row(edge.depends_on, partial(_findings, "unresolved-edges")) == []
    assert len(_findings("unresolved-edges")) == 1


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_a_repair_skips_a_locked_row() -> None:
    led()
    row = a_task(Status.FAILED)
    DeadLetter.objects.unguarded().filter(task=row).delete()
    answers = runner.run(runner.chosen(["dead-letters-missing"]))
    [repaired] = _with_locked_row(row, partial(runner.repair, answers))
    assert (repaired.done, repaired.left) == (
        "",
        "The row is locked by another transaction. Run the check again.",
    )
    [repaired] = runner.repair(answers)
    assert repaired.done == "opened a dead letter"
