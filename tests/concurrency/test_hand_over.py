"""Processes that hand over capacity at once, beside claims and releases, never exceed a limit."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connection

from django_durable_tasks.choices import Status
from django_durable_tasks.limits import release
from django_durable_tasks.models import Limit, Task
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.states import claims
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import Run, RunLocation
from django_durable_tasks.tasks import attempts
from tests.concurrency.racing import WITHIN, no_errors, race
from tests.factories import NOOP, QUEUE, a_node, a_tenant, many_tasks, take_batch
from tests.messages import claim_due
from tests.process_state import new_process_state
from tests.waiting import until

_PLACE = RunLocation(node=uuid.uuid4(), worker="worker@host", lease=60.0)
_ROUNDS = 6


def _limit(scope: str, places: int) -> None:
    Limit.objects.create(scope=scope, max_concurrency=places)
    new_process_state()


def _claim() -> int:
    return len(claim_due(QUEUE, database_now(), 10, uuid.uuid4()))


def _runs() -> list[Run]:
    """Start every QUEUED task."""
    found = [
        attempts.open_run(task_id, epoch, _PLACE, "", None)
        for task_id, epoch in Task.objects.queued().values_list("pk", "epoch")
    ]
    return [run for run in found if isinstance(run, Run)]


def _end(run: Run) -> int:
    """End a run and hand its capacity over, as its process does."""
    assert attempts.succeed(run, None, "worker@host")
    return len(attempts.claim_next([run], _PLACE.node))


def _weight_in_use() -> int:
    under_way = Task.objects.filter(status__in=[Status.QUEUED, Status.RUNNING])
    return sum(under_way.values_list("weight", flat=True))


@pytest.mark.parametrize("scope", [f"task:{NOOP}", "tenant:1", "key:acme"])
def test_processes_that_hand_over_at_once_use_the_whole_limit_and_no_more(scope: str) -> None:
    many_tasks(40, limit_key="acme")
    _limit(scope, 4)
    assert _claim() == 4
    for _ in range(_ROUNDS):
        no_errors(race([partial(_end, run) for run in _runs()]))
        assert Task.objects.queued().count() == 4
        assert not Task.objects.running().exists()


@pytest.mark.parametrize("scope", [f"task:{NOOP}", "tenant:1", "key:acme"])
def test_handing_over_beside_claims_and_releases_never_exceeds_a_limit(scope: str) -> None:
    for weight in (1, 2, 3):
        many_tasks(12, limit_key="acme", weight=weight)
    _limit(scope, 5)
    _claim()
    ended = 0
    for _ in range(_ROUNDS):
        runs = _runs()
        acts: list[Callable[[], Any]] = [partial(_end, run) for run in runs]
        acts += [_claim, _claim, partial(release.release_waiting, database_now(), 50)]
        no_errors(race(acts))
        ended += len(runs)
        assert _weight_in_use() <= 5
    assert ended >= _ROUNDS


@pytest.mark.parametrize("scope", [f"task:{NOOP}", "tenant:1", "key:acme"])
def test_batches_beside_hand_overs_claims_and_releases_never_exceed_a_limit(scope: str) -> None:
    for weight in (1, 2, 3):
        many_tasks(12, limit_key="acme", weight=weight, in_batch=True)
        many_tasks(4, limit_key="acme", weight=weight)
    _limit(scope, 5)
    started, ended = take_batch(5, _PLACE), 0
    for _ in range(_ROUNDS):
        assert _weight_in_use() <= 5
        runs = [*started, *_runs()]
        batch = list[Run]()
        acts: list[Callable[[], Any]] = [partial(_end, run) for run in runs]
        acts += [partial(lambda: batch.extend(take_batch(5, _PLACE)))] * 2  # noqa: B023
        acts += [_claim, partial(release.release_waiting, database_now(), 50)]
        no_errors(race(acts))
        started, ended = batch, ended + len(runs)
    assert _weight_in_use() <= 5
    assert ended >= _ROUNDS


def test_an_ended_run_whose_process_died_leaves_its_capacity_to_the_release() -> None:
    many_tasks(3)
    _limit(f"task:{NOOP}", 1)
    assert _claim() == 1
    (run,) = _runs()
    assert attempts.succeed(run, None, "worker@host")
    assert _claim() == 0
    assert release.release_waiting(database_now(), 50) == 1
    assert _claim() == 1


@pytest.mark.skipif(
    connection.vendor == "sqlite", reason="SQLite has one writer: no run ends during a claim"
)
@pytest.mark.parametrize("limited_by", [f"task:{NOOP}", "the processes of a customer"])
def test_capacity_that_becomes_free_while_a_claim_makes_a_task_wait_is_used_at_once(
    limited_by: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A scheduler that waits for the next look would do so for longer than this test.
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "POLL": 10 * WITHIN}
    if limited_by.startswith("task:"):
        many_tasks(2, due=-9)
        _limit(limited_by, 1)
    else:
        a_node(concurrency=2, queues=[QUEUE])
        many_tasks(2, due=-9, tenant_id=a_tenant().pk)
        new_process_state()
    claim_due(QUEUE, database_now(), 1, uuid.uuid4())
    (run,) = _runs()
    make_wait, handed_over = claims.make_claimed_wait, list[int]()

    def end_first(refused: Any, *arguments: Any) -> int:
        if refused and not handed_over:
            handed_over.extend(no_errors(race([partial(_end, run)])))
        return make_wait(refused, *arguments)

    monkeypatch.setattr(claims, "make_claimed_wait", end_first)
    scheduler = Scheduler("waits")
    scheduler.releasing.start()
    try:
        until(lambda: scheduler.round() and Task.objects.queued().exists(), within=WITHIN)
    finally:
        scheduler.releasing.stop()
    assert handed_over == [0], "the ended run found no waiting task"
