"""Invalid workflows and edges are refused, and invalid references fail the body."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks import Workflow
from django_durable_tasks.celery.gate import outcome_of
from django_durable_tasks.choices import Status
from django_durable_tasks.dependencies import edit, resolve
from django_durable_tasks.dependencies.rules import edges_to
from django_durable_tasks.exceptions import (
    DependencyCycle,
    InvalidArguments,
    InvalidDependency,
    InvalidOption,
    InvalidReference,
    ResultTooLarge,
    TransitionRefused,
    UniqueConflict,
    UnknownTask,
)
from django_durable_tasks.models import Task, TaskDependency, WorkflowRun
from django_durable_tasks.tasks.options import task_options
from tests.database.dependencies.worker_and_leader import (
    begin,
    of,
    recount,
    resolve_all,
    statuses,
    succeed,
)
from tests.factories import a_task, a_tenant
from tests.project.tasks import add, echo, noop

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("option", ["key", "idempotency_key"])
def test_a_key_that_is_in_use_is_named_with_its_step_and_owner(option: str) -> None:
    def call(key: str) -> Any:
        options: dict[str, Any] = {option: key}
        return echo.using(**options)

    owner = call("acme").schedule()

    def flow(*keys: str) -> Workflow:
        wf = Workflow("keys")
        for number, key in enumerate(keys):
            wf.add(call(key), step=f"s{number}")
        return wf

    with pytest.raises(UniqueConflict, match=f"{option}='acme' of step 's1' .* task {owner.id}"):
        flow("other", "acme").start()
    with pytest.raises(UniqueConflict, match=f"'s0' and 's2' have {option}='twice'"):
        flow("twice", "once", "twice").start()
    assert flow("other", "twice").start().status == "RUNNING"


def _referring(*path: str | int) -> Task:
    """Return a released task that refers to a part of the result {"rows": [1, 2]}."""
    wf = Workflow("referring")
    first = wf.add(add, 1, 2)
    part = first.result
    for key in path:
        part = part[key]
    wf.add(echo, part, after=first, step="second")
    run = wf.start()
    succeed(of(run, "add"), result=json.dumps({"rows": [1, 2]}))
    resolve_all()
    return of(run, "second")


@pytest.mark.parametrize("path", [("cols",), ("rows", 2), ("rows", 0, "x")])
def test_a_missing_part_of_a_result_fails_the_body_permanently(path: tuple[str | int, ...]) -> None:
    run = begin(_referring(*path))
    with pytest.raises(InvalidReference, match="there is no") as refused:
        resolve.resolve_references(run.args, run.kwargs, run.tenant_id)
    assert not outcome_of(refused.value, task_options("job", {})).retryable


def test_results_over_the_maximum_size_fail_the_body_permanently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = begin(_referring("rows"))
    assert resolve.resolve_references(run.args, run.kwargs, run.tenant_id) == ([[1, 2]], {})
    monkeypatch.setattr(resolve, "_REFERENCES_MAX_BYTES", 15)
    with pytest.raises(ResultTooLarge, match="have 16 bytes, at most 15") as refused:
        resolve.resolve_references(run.args, run.kwargs, run.tenant_id)
    assert not outcome_of(refused.value, task_options("job", {})).retryable


def test_arguments_that_look_like_a_reference_are_refused_beside_real_ones() -> None:
    wf = Workflow("look-alike")
    first = wf.add(add, 1, 2)
    wf.add(echo, first.result, {"$result": str(uuid.uuid4()), "path": []}, after=first)
    with pytest.raises(InvalidReference, match="kept for references"):
        wf.start()


def test_arguments_that_look_like_a_reference_are_plain_data_without_real_ones() -> None:
    wf = Workflow("data")
    wf.add(echo, {"$result": "mine"}, step="only")
    run = begin(of(wf.start(), "only"))
    assert run.args == [{"$result": "mine"}]
    assert "refers" not in run.options


def _build_and_start(build: Any) -> None:
    wf = Workflow("refused")
    build(wf)
    wf.start()


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda wf: wf.add(add, 1), InvalidArguments, "right"),
        (lambda wf: wf.add("no.such.task"), UnknownTask, "no.such.task"),
        (lambda wf: wf.add(noop, after=wf.add(noop), join=2), InvalidOption, "join=2"),
        (lambda wf: wf.add(noop, join=1), InvalidOption, "join=1"),
        (lambda wf: wf.add(noop, after=uuid.uuid4()), InvalidDependency, "there is none"),
        (
            lambda wf: wf.add(noop, after={wf.add(noop): "MUST_SUCEED"}),
            InvalidOption,
            "Did you mean 'MUST_SUCCEED'",
        ),
        (
            lambda wf: wf.add(noop, on_upstream_failure="IGNORE"),
            InvalidOption,
            "SKIP, FAIL, WAIT, RUN",
        ),
        (lambda wf: wf.add(lambda: None), InvalidOption, "no durable task"),
        (
            lambda wf: wf.add(noop, after=Workflow("other").add(noop)),
            InvalidOption,
            "another workflow",
        ),
        (lambda wf: None, InvalidOption, "has no tasks"),
    ],
)
def test_an_invalid_workflow_is_refused_and_nothing_is_written(
    build: Any, error: type, words: str
) -> None:
    with pytest.raises(error) as refused:
        _build_and_start(build)
    assert words in str(refused.value)
    assert not Task.objects.exists()
    assert not WorkflowRun.objects.exists()
    assert not TaskDependency.objects.exists()


# Edges between existing tasks ---------------------------------------------------------------------


def _link(task: Task, *upstreams: Task | uuid.UUID, kind: str = "MUST_SUCCEED") -> int:
    return edit.link(task.pk, edges_to(dict.fromkeys(upstreams, kind)), by="anna")


def test_an_edge_added_later_blocks_its_task() -> None:
    first, second = a_task(), a_task()
    assert _link(second, first) == 1
    assert statuses(second) == ["BLOCKED"]
    assert _link(second, first) == 0
    assert not recount()
    succeed(first)
    resolve_all()
    assert statuses(second)[0] in ("PENDING", "QUEUED")


def test_a_queued_task_returns_to_pending_before_it_is_blocked() -> None:
    first, second = a_task(), a_task(Status.QUEUED)
    _link(second, first)
    assert statuses(second) == ["BLOCKED"]


def test_an_edge_that_closes_a_cycle_is_refused_with_the_path() -> None:
    one, two, three = (a_task(due=3600.0) for _ in range(3))
    _link(two, one)
    _link(three, two)
    with pytest.raises(DependencyCycle) as refused:
        _link(one, three)
    assert all(str(task.pk) in str(refused.value) for task in (one, two, three))
    assert statuses(one, two, three) == ["PENDING", "BLOCKED", "BLOCKED"]
    with pytest.raises(DependencyCycle):
        _link(one, one)


def _chain(number: int, first: Task) -> list[Task]:
    """Return the first task and this number of tasks, of which each waits for the one before."""
    tasks = [first]
    for _ in range(number):
        tasks.append(noop.using(depends_on=[tasks[-1]]).schedule())
    return tasks


def test_the_search_for_a_cycle_ends_with_the_shorter_side() -> None:
    top, low = _chain(40, a_task(due=3600.0))[-1], a_task(due=3600.0)
    with CaptureQueriesContext(connection) as long_above:
        _link(low, top)
    with CaptureQueriesContext(connection) as again:
        _link(low, top)
    assert len(long_above) < 30, "the new dependent has no dependents of its own"
    assert sum("depends_on_id" in one["sql"] for one in again) <= 3, "the edge exists"
    below = _chain(40, a_task(due=3600.0))[0]
    with CaptureQueriesContext(connection) as long_below:
        _link(below, a_task(due=3600.0))
    assert len(long_below) < 30, "the new upstream has no upstreams"


def test_a_long_cycle_is_refused_with_its_whole_path() -> None:
    tasks = _chain(9, a_task(due=3600.0))
    with pytest.raises(DependencyCycle) as refused:
        _link(tasks[0], tasks[-1])
    keys = re.findall(r"\(([0-9a-f-]{36})\)", str(refused.value))
    assert keys == [str(task.pk) for task in [*tasks, tasks[0]]]


def test_a_search_for_a_cycle_through_too_many_levels_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(edit, "_LEVELS_MAX", 6)
    above, below = (_chain(5, a_task(due=3600.0)) for _ in range(2))
    with pytest.raises(InvalidDependency, match="too many levels"):
        _link(below[0], above[-1])
    assert _link(below[0], above[0]) == 1


def test_an_edge_of_another_type_between_the_same_tasks_is_refused() -> None:
    first, second = a_task(), a_task()
    _link(second, first)
    with pytest.raises(InvalidDependency, match="already"):
        _link(second, first, kind="MUST_FINISH")


def test_an_edge_to_another_tenants_task_is_refused_like_a_missing_task() -> None:
    with pytest.raises(InvalidDependency, match="there is none for this tenant"):
        _link(a_task(), a_task(tenant_id=a_tenant().pk))
    with pytest.raises(InvalidDependency, match="there is none for this tenant"):
        _link(a_task(), uuid.uuid4())


@pytest.mark.parametrize("status", [Status.RUNNING, Status.SUCCESS, Status.FAILED])
def test_a_started_task_accepts_no_further_upstreams(status: Status) -> None:
    with pytest.raises(TransitionRefused, match=f"is {status}"):
        _link(a_task(status), a_task())


def test_removing_an_edge_releases_its_task() -> None:
    first, second = a_task(), a_task()
    _link(second, first)
    edit.unlink(second.pk, [first.pk])
    assert statuses(second)[0] in ("PENDING", "QUEUED")
    with pytest.raises(TransitionRefused, match="does not wait"):
        edit.unlink(second.pk, [first.pk])
