"""A dry run reports exactly what the operation then does, and writes nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_durable_tasks import Workflow
from django_durable_tasks.choices import DependencyType, OnUpstreamFailure
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import (
    DeadLetter,
    EndingEvent,
    Task,
    TaskDependency,
    TaskExecutionLog,
    WorkflowRun,
)
from django_durable_tasks.signals import tasks_transitioned
from django_durable_tasks.store import tables
from django_durable_tasks.workflows import operations
from django_durable_tasks.workflows.builder import Step
from django_durable_tasks.workflows.operations import GraphReport
from tests.database.dependencies.worker_and_leader import (
    begin,
    fail,
    of,
    question,
    recount,
    resolve_all,
    succeed,
)
from tests.project.tasks import noop
from tests.repetitions import repetitions

pytestmark = pytest.mark.django_db
TABLES = (Task, TaskDependency, WorkflowRun, EndingEvent, DeadLetter, TaskExecutionLog)
_COST = 24
DUE = ("PENDING", "QUEUED")
WHOLE = ("cancel", "all", "failed", "downstream")

Act = Callable[[Task, Task, bool], GraphReport]


def _mode(mode: str) -> Act:
    return lambda row, _, dry: operations.retry_workflow(_run(row), mode, by="ann", dry_run=dry)


def _run(row: Task) -> WorkflowRun:
    assert row.workflow is not None
    return row.workflow


OPERATIONS: dict[str, Act] = {
    "cancel": lambda row, _, dry: operations.cancel_workflow(_run(row), by="ann", dry_run=dry),
    "branch": lambda row, _, dry: operations.cancel_branch(row, by="ann", dry_run=dry),
    "all": _mode("ALL"),
    "failed": _mode("FAILED"),
    "downstream": _mode("FAILED_AND_DOWNSTREAM"),
    "from": lambda row, _, dry: operations.retry_from(row, by="ann", dry_run=dry),
    "complete": lambda row, two, dry: operations.force_complete(
        _both(row, two), by="ann", dry_run=dry
    ),
    "run": lambda row, two, dry: operations.force_run(_both(row, two), by="ann", dry_run=dry),
    "approve": lambda row, _, dry: operations.approve(row, by="ann", dry_run=dry),
    "reject": lambda row, _, dry: operations.reject(row, by="ann", dry_run=dry),
    "hold": lambda row, _, dry: operations.hold(row, by="ann", dry_run=dry),
    "unhold": lambda row, _, dry: operations.unhold(row, by="ann", dry_run=dry),
    "add": lambda row, two, dry: operations.add_edge(
        row, two, "MUST_SUCCEED", by="ann", dry_run=dry
    ),
    "remove": lambda row, two, dry: operations.remove_edge(row, two, by="ann", dry_run=dry),
}


def _both(row: Task, two: Task) -> Any:
    return Task.objects.filter(pk__in=[row.pk, two.pk])


def _dump() -> dict[str, list[Any]]:
    return {table.__name__: list(table.objects.order_by("pk").values()) for table in TABLES}


def _statuses() -> dict[uuid.UUID, str]:
    return dict(Task.objects.values_list("pk", "status"))


def _asked() -> set[uuid.UUID]:
    running = Task.objects.filter(status="RUNNING", cancel_requested_at__isnull=False)
    return set(running.values_list("pk", flat=True))


# Graphs and histories -----------------------------------------------------------------------------

kinds = st.sampled_from([str(kind) for kind in DependencyType])
policies = st.sampled_from([str(policy) for policy in OnUpstreamFailure])


@st.composite
def shapes(draw: Any, above: int) -> dict[str, Any]:
    """Draw the dependencies of one task."""
    ups = sorted(draw(st.sets(st.integers(0, above - 1), max_size=3))) if above else []
    join = draw(st.sampled_from(["ALL", "ALL", "ANY"])) if ups else "ALL"
    gate = draw(st.sampled_from([None, None, "approval", "hold"]))
    return {
        "ups": {up: draw(kinds) for up in ups},
        "join": join,
        "policy": draw(policies),
        "gate": gate,
        "inside": draw(st.booleans()),
    }


@st.composite
def graphs(draw: Any) -> list[dict[str, Any]]:
    """Draw a graph, in which each task depends on earlier ones only."""
    return [draw(shapes(number)) for number in range(draw(st.integers(2, 7)))]


def _create(graph: list[dict[str, Any]]) -> list[Task]:
    """Start a workflow with a detached sub-workflow, and a task outside that depends on the first
    of its tasks.
    """
    flow, part, steps = Workflow("whole"), Workflow("part"), list[Step]()
    part.add(noop, step="in the part")
    for number, shape in enumerate(graph):
        given = {shape["gate"]: "look"} if shape["gate"] else {}
        after = {steps[up]: kind for up, kind in shape["ups"].items()}
        steps.append(
            flow.add(
                noop,
                step=f"t{number}",
                after=after,
                join=shape["join"],
                on_upstream_failure=shape["policy"],
                **given,
            )
        )
    flow.add_workflow(part, step="part", after=steps[0])
    run = flow.start()
    first = Task.objects.get(workflow=run, step="t0")
    return [
        *Task.objects.filter(workflow__root=run.pk).order_by("pk"),
        noop.using(depends_on=[first]).schedule(),
    ]


def _play(tasks: list[Task], history: list[tuple[int, str]]) -> None:
    actions: dict[str, Callable[..., Any]] = {"succeed": succeed, "fail": fail, "begin": begin}
    for pick, what in history:
        due = list(Task.objects.filter(status__in=DUE).order_by("pk").values_list("pk", flat=True))
        if what == "resolve":
            resolve_all()
        elif what == "cancel":
            operations.cancel_branch(tasks[pick % len(tasks)], by="bob")
        elif due:
            actions[what](due[pick % len(due)])


histories = st.lists(
    st.tuples(
        st.integers(0, 99),
        st.sampled_from(["succeed", "succeed", "fail", "fail", "begin", "resolve", "cancel"]),
    ),
    max_size=9,
)


@settings(max_examples=repetitions(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    graph=graphs(),
    history=histories,
    name=st.sampled_from(sorted(OPERATIONS)),
    pick=st.integers(0, 99),
    other=st.integers(0, 99),
    resolved=st.booleans(),
)
def test_a_dry_run_reports_what_the_operation_then_does(
    graph: list[dict[str, Any]],
    history: list[tuple[int, str]],
    name: str,
    pick: int,
    other: int,
    resolved: bool,
) -> None:
    with tables.atomic():
        tasks = _create(graph)
        _play(tasks, history)
        if resolved:
            resolve_all()
        row = tasks[pick % (len(tasks) - 1 if name in WHOLE else len(tasks))]
        _compare(OPERATIONS[name], row, tasks[other % len(tasks)])
        resolve_all()
        assert not recount()
        transaction.set_rollback(True)


def _compare(act: Act, row: Task, two: Task) -> None:
    before, stood, asked = _dump(), _statuses(), _asked()
    preview, refusal = _tried(act, row, two, dry_run=True)
    assert _dump() == before
    done, again = _tried(act, row, two, dry_run=False)
    assert again == refusal
    if done is None or preview is None:
        assert _dump() == before
        return
    assert done == replace(preview, dry_run=False)
    moved = {
        change.task_id: (change.before, change.after)
        for change in done.changes
        if change.before != change.after
    }
    assert moved == {
        key: (stood[key], now) for key, now in _statuses().items() if now != stood[key]
    }
    assert set(done.stop_requested) == _asked() - asked


def _tried(act: Act, row: Task, two: Task, *, dry_run: bool) -> tuple[GraphReport | None, str]:
    try:
        return act(row, two, dry_run), ""
    except DurableTasksError as refused:
        return None, f"{type(refused).__name__}: {refused}"


def _waiting_for_one() -> WorkflowRun:
    flow = Workflow("two")
    flow.add(noop, step="low", after=flow.add(noop, step="high"))
    return flow.start()


def test_a_dry_run_publishes_nothing_and_calls_no_receiver() -> None:
    run = _waiting_for_one()
    received: list[str] = []

    def record(transition: str, **_: Any) -> None:
        received.append(transition)

    tasks_transitioned.connect(record, sender=Task)
    try:
        connection.run_on_commit.clear()
        preview = operations.force_complete(question(of(run, "high")), by="ann", dry_run=True)
        (after,) = {change.after for change in preview.changes if change.step == "low"}
        assert after in DUE
        assert (received, connection.run_on_commit) == ([], [])
        operations.force_complete(question(of(run, "high")), by="ann")
        assert received == ["force_complete", "release"]
        hooks = [
            hook
            for _, hook, *_ in connection.run_on_commit
            if isinstance(hook, tables._PublishHook)
        ]
        assert len(hooks) == (after == "QUEUED")
    finally:
        tasks_transitioned.disconnect(record, sender=Task)


@pytest.mark.parametrize("steps", [3, 30])
def test_a_dry_run_of_a_whole_workflow_needs_a_constant_number_of_statements(
    steps: int, django_assert_max_num_queries: Any
) -> None:
    flow = Workflow("wide")
    top = flow.add(noop, step="top")
    for _ in range(steps):
        flow.add(noop, after=top)
    run = flow.start()
    with django_assert_max_num_queries(_COST):
        assert operations.cancel_workflow(run, by="ann", dry_run=True).total == steps + 1


@pytest.mark.django_db(transaction=True)
def test_a_dry_run_rolls_back_its_own_transaction() -> None:
    run = _waiting_for_one()
    before = _dump()
    assert operations.cancel_workflow(run, by="ann", dry_run=True).total == 2
    assert _dump() == before
    assert operations.cancel_workflow(run, by="ann").total == 2
    assert set(_statuses().values()) == {"CANCELLED"}
