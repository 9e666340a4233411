"""Fifty endings, dependents or tasks need as many statements as one. Resolving a link of a chain
needs two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.db import connection

from django_durable_tasks import Workflow
from django_durable_tasks.choices import Status
from django_durable_tasks.dependencies import resolve
from django_durable_tasks.models import EndingEvent, Task, TaskDependency, WorkflowRun
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import operator_actions
from django_durable_tasks.workflows import runs
from tests.database.dependencies.worker_and_leader import fail, recount, resolve_all, succeed
from tests.insert_statements import insert_statements
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db

FEW, MANY = 1, 50


@pytest.fixture(autouse=True)
def slow_path(settings: Any) -> None:
    """Publish nothing. The queue snapshot is read once a second and would be counted at random."""
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "FAST_PATH": False}


def _cost(act: Callable[[], Any]) -> list[str]:
    """Return the statements that the function sends, without those of transactions and savepoints."""
    sent: list[str] = []

    def take(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.split(None, 1)[0] not in ("BEGIN", "SAVEPOINT", "RELEASE"):
            sent.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(take):
        act()
    return sent


def _pairs(number: int, **options: Any) -> Sequence[Task]:
    """Start this number of upstreams, each with one dependent. Returns the upstreams."""
    wf = Workflow("pairs")
    for _ in range(number):
        wf.add(noop, after=wf.add(noop), **options)
    run = wf.start()
    return list(Task.objects.filter(workflow=run.pk, status=Status.PENDING))


def _into_one(number: int) -> Sequence[Task]:
    wf = Workflow("into-one")
    wf.add(noop, after=[wf.add(noop) for _ in range(number)])
    run = wf.start()
    return list(Task.objects.filter(workflow=run.pk, status=Status.PENDING))


def _one_into(number: int) -> Task:
    wf = Workflow("one-into")
    first = wf.add(noop)
    for _ in range(number):
        wf.add(noop, after=first)
    run = wf.start()
    found: Task = Task.objects.get(workflow=run.pk, status=Status.PENDING)
    return found


def _met(number: int) -> list[str]:
    succeed(*_pairs(number))
    return _cost(lambda: resolve.resolve_endings(100))


def _met_by_some(number: int) -> list[str]:
    wf = Workflow("some")
    for _ in range(number):
        wf.add(noop, after=[wf.add(noop), wf.add(noop)], join="ANY")
    run = wf.start()
    succeed(*Task.objects.filter(workflow=run.pk, status=Status.PENDING))
    return _cost(lambda: resolve.resolve_endings(100))


def _failed(number: int, policy: str) -> list[str]:
    fail(*_pairs(number, on_upstream_failure=policy))
    return _cost(lambda: resolve.resolve_endings(100))


def _joined(number: int) -> list[str]:
    succeed(*_into_one(number))
    return _cost(lambda: resolve.resolve_endings(100))


def _resolved_by_its_worker(number: int) -> list[str]:
    first = _one_into(number)
    succeed(first)
    return _cost(lambda: resolve.resolve_endings_of(first.pk))


def _counted(number: int) -> list[str]:
    succeed(*_pairs(number))
    resolve.resolve_endings(100)
    return _cost(lambda: runs.count_endings(100))


def _started(number: int) -> list[str]:
    wf = Workflow("started")
    for _ in range(number):
        wf.add(noop, after=wf.add(noop))
    return _cost(wf.start)


def _released(number: int) -> list[str]:
    rows = _pairs(number)
    Task.objects.unguarded().filter(pk__in=[row.pk for row in rows]).update(
        status=Status.BLOCKED, due_at=None
    )
    WorkflowRun.objects.unguarded().update(released=False)
    return _cost(lambda: runs.finish_starts(database_now(), 100))


def _removed(number: int) -> list[str]:
    _pairs(number)
    WorkflowRun.objects.unguarded().update(status="STARTING", cancel_requested_at=database_now())
    return _cost(lambda: runs.finish_starts(database_now(), 100))


COSTS: dict[str, Callable[[int], list[str]]] = {
    "resolved for dependents that need all": _met,
    "resolved for dependents that need some": _met_by_some,
    "skipped": lambda number: _failed(number, "SKIP"),
    "failed": lambda number: _failed(number, "FAIL"),
    "joined": _joined,
    "resolved by its worker": _resolved_by_its_worker,
    "counted": _counted,
    "started": _started,
    "released": _released,
    "removed": _removed,
}


@pytest.mark.parametrize("operation", COSTS)
def test_fifty_need_as_many_statements_as_one(operation: str) -> None:
    costs = []
    for number in (FEW, MANY):
        costs.append(COSTS[operation](number))
        resolve_all()
        assert not recount() or operation == "removed"
        for model in (Task, TaskDependency, EndingEvent, WorkflowRun):
            model._base_manager.all().delete()
    one, fifty = costs
    assert one
    # The operation "started" inserts two tasks and an edge for each.
    parts = insert_statements(Task, 2 * MANY) + insert_statements(TaskDependency, MANY) - 2
    assert len(one) <= len(fifty) <= len(one) + parts, fifty


@pytest.mark.postgresql
def test_a_link_of_a_chain_is_resolved_by_two_statements() -> None:
    first = _one_into(1)
    succeed(first)
    below, spread = _cost(lambda: resolve.resolve_endings_of(first.pk))
    assert (below.split(None, 1)[0], spread.split(None, 1)[0]) == ("SELECT", "WITH")
    assert Task.objects.filter(status=Status.PENDING).count() == 1
    assert not EndingEvent.objects.filter(resolved=False).exists()


@pytest.mark.postgresql
def test_an_ending_that_is_left_to_the_leader_needs_one_statement() -> None:
    first, *_ = _into_one(resolve.FEW + 1)
    succeed(first)
    assert len(_cost(lambda: resolve.resolve_endings_of(first.pk))) == 1
    assert EndingEvent.objects.filter(resolved=False).count() == 1


def test_a_replay_sends_the_ids_of_tasks_and_not_of_edges() -> None:
    """A hundred dependencies a task are allowed. Each edge was read as a model, and its id sent."""
    wf, layers = Workflow("dense"), list[list[Any]]()
    for _ in range(4):
        above = layers[-1] if layers else []
        layers.append([wf.add(noop, after=above) for _ in range(25)])
    run = wf.start()
    tasks = Task.objects.filter(workflow=run.pk)
    fail(*tasks.filter(status=Status.PENDING))
    resolve_all()
    assert tasks.filter(status=Status.SKIPPED).count() == 75
    edges, parameters = TaskDependency.objects.count(), list[int]()

    def count(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        parameters.append(len(params or ()))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(count):
        replayed = operator_actions.replay(tasks.filter(status=Status.FAILED))
    assert len(replayed) == 25
    assert tasks.filter(status=Status.BLOCKED).count() == 75
    assert max(parameters) < edges / 4
    recount()
