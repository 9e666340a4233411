"""Building a workflow: edges, joins, labels, references, sub-workflows, limits. Errors are raised
early, with names.
"""

from __future__ import annotations

import itertools
import re
import uuid
from collections import namedtuple
from typing import Any

import pytest

from django_durable_tasks.dependencies.rules import PlannedEdge, edges_to
from django_durable_tasks.exceptions import (
    DependencyCycle,
    InvalidOption,
    InvalidReference,
    WorkflowTooLarge,
)
from django_durable_tasks.workflows.builder import END, AddedTasks, Builder, Plan, PlannedTask, Step
from tests.project.tasks import echo

HERE = uuid.UUID(int=1)
Point = namedtuple("Point", "x y")


def _plan(flow: Builder, tasks: int = 100, edges: int = 100) -> Plan:
    return flow.plan(most_tasks=tasks, most_edges=edges)


def _named(plan: Plan) -> dict[str, PlannedTask]:
    return {task.step: task for task in plan.tasks}


def _ups(plan: Plan, step: str) -> set[str | uuid.UUID]:
    edges = _named(plan)[step].edges
    return {
        edge.upstream if isinstance(edge.upstream, uuid.UUID) else plan.tasks[edge.upstream].step
        for edge in edges
    }


def _chain(flow: Builder, length: int) -> list[Step]:
    steps = [flow.add("job", step=f"s{number}") for number in range(length)]
    for upper, lower in itertools.pairwise(steps):
        lower.after(upper)
    return steps


# Options of a call --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"depends_on": HERE}, "give after=... to .add()"),
        ({"depends_on": HERE, "join": "ANY"}, "give after=... to .add()"),
        ({"on_upstream_failure": "SKIP", "depends_on": HERE}, "give after=... to .add()"),
        ({"tenant": 1}, "give tenant=... to .start()"),
        ({"task_id": HERE}, "its tasks get new ids"),
    ],
)
def test_an_option_that_a_workflow_would_ignore_is_refused(
    options: dict[str, Any], instead: str
) -> None:
    flow, call = Builder("options"), echo.using(**options)
    with pytest.raises(InvalidOption, match=rf"has no effect in a workflow: {re.escape(instead)}"):
        flow.add(call, 1)
    flow.add(echo.using(priority=9, key="one"), 1)
    with pytest.raises(InvalidOption, match="has no effect on a callback"):
        Builder("callback", on_success=echo.using(priority=9))
    assert Builder("callback", on_success=echo).callbacks == {"on_success": echo.name}


# Edges --------------------------------------------------------------------------------------------


def test_edges_are_given_in_many_forms() -> None:
    flow = Builder("forms")
    a, b, c, d = (flow.add("job", step=name) for name in "abcd")
    flow.add(
        "job",
        step="last",
        after=[a, {b: "MUST_FAIL", c: ("MUST_FINISH", "WAIT")}, (d,), None, HERE, str(HERE)],
    )
    edges = {edge.upstream: (edge.kind, edge.policy) for edge in _named(_plan(flow))["last"].edges}
    plain = ("MUST_SUCCEED", None)
    assert edges == {
        0: plain,
        1: ("MUST_FAIL", None),
        2: ("MUST_FINISH", "WAIT"),
        3: plain,
        HERE: plain,
    }


@pytest.mark.parametrize(
    "after",
    [
        {"step": "MUST_DIE"},
        {"step": ("MUST_FAIL", "EXPLODE")},
        {"step": ("MUST_FAIL",)},
        {"step": ("MUST_FAIL", "SKIP", "x")},
        {"step": None},
        "no id",
        5,
    ],
)
def test_an_invalid_edge_is_refused_and_adds_no_task(after: Any) -> None:
    flow = Builder("bad")
    first = flow.add("job", step="first")
    given = dict.fromkeys([first], after["step"]) if isinstance(after, dict) else after
    with pytest.raises(InvalidOption):
        flow.add("job", after=given, step="second")
    assert [task.step for task in _plan(flow).tasks] == ["first"]


@pytest.mark.parametrize("kind", [("MUST_FAIL", "EXPLODE"), ("MUST_FAIL",), "MUST_DIE", None])
def test_an_invalid_dependency_of_a_call_is_refused(kind: Any) -> None:
    with pytest.raises(InvalidOption):
        edges_to({HERE: kind})


def test_the_policy_of_a_dependency_overrides_that_of_the_call() -> None:
    other = uuid.UUID(int=2)
    found = edges_to({HERE: ("MUST_FINISH", "RUN"), other: "MUST_FAIL"}, "WAIT")
    assert found[HERE] == PlannedEdge(upstream=HERE, kind="MUST_FINISH", policy="RUN")
    assert found[other] == PlannedEdge(upstream=other, kind="MUST_FAIL", policy="WAIT")


def test_a_duplicate_edge_is_one_and_of_two_types_is_refused() -> None:
    flow = Builder("twice")
    first = flow.add("job")
    second = flow.add("job", after=[first, first]).after(first)
    assert len(_plan(flow).tasks[1].edges) == 1
    for other in ({first: "MUST_FAIL"}, {first: ("MUST_SUCCEED", "RUN")}):
        with pytest.raises(InvalidOption, match="waits twice"):
            second.after(other)
    with pytest.raises(InvalidOption, match="twice"):
        edges_to([HERE, {HERE: "MUST_FAIL"}])


def test_no_step_depends_on_itself_or_on_a_step_of_another_workflow() -> None:
    flow = Builder("self")
    first = flow.add("job")
    with pytest.raises(DependencyCycle, match="itself"):
        first.after(first)
    with pytest.raises(InvalidOption, match="another workflow"):
        Builder("other").add("job", after=first)


@pytest.mark.parametrize("length", [2, 3, 10, 1_000])
def test_a_cycle_is_refused_with_its_path(length: int) -> None:
    flow = Builder("circle")
    steps = _chain(flow, length)
    steps[0].after(steps[-1])
    with pytest.raises(DependencyCycle) as refused:
        _plan(flow, length, length)
    path = str(refused.value).partition(": ")[2].split(" -> ")
    assert path[0] == path[-1]
    assert set(path) == {step.name for step in steps}
    follows = {f"s{number}": f"s{(number + 1) % length}" for number in range(length)}
    assert all(follows[upper] == lower for upper, lower in itertools.pairwise(path))


def test_a_cycle_through_a_sub_workflow_is_refused() -> None:
    flow, sub = Builder("outer"), Builder("inner")
    sub.add("job", step="in")
    step = flow.add_workflow(sub)
    step.after(flow.add("job", step="out", after=step))
    with pytest.raises(DependencyCycle, match=r"in -> |-> in"):
        _plan(flow)


@pytest.mark.parametrize("join", [2, 3, 0, "SOME", True])
def test_a_join_larger_than_its_edges_or_invalid_is_refused(join: Any) -> None:
    flow = Builder("join")
    flow.add("job", after=flow.add("job"), join=join)
    with pytest.raises(InvalidOption, match="join="):
        _plan(flow)


# Labels -------------------------------------------------------------------------------------------


def test_every_step_has_a_unique_label() -> None:
    flow = Builder("labels")
    flow.add("app.tasks.job", step="job-2")
    for _ in range(3):
        flow.add("app.tasks.job")
    flow.add("app.other.job")
    names = [task.step for task in _plan(flow).tasks]
    assert names[:2] == ["job-2", "job"]
    assert len(set(names)) == 5
    with pytest.raises(InvalidOption, match="'job' is taken"):
        flow.add("job", step="job")


@pytest.mark.parametrize("task", [None, 5, object()])
def test_a_plain_function_is_refused(task: Any) -> None:
    with pytest.raises(InvalidOption, match="no durable task"):
        Builder("bad").add(task)


# References ---------------------------------------------------------------------------------------


def test_a_result_may_come_from_any_upstream_however_far() -> None:
    flow = Builder("far")
    steps = _chain(flow, 50)
    flow.add(
        "job",
        steps[0].result["rows"][0],
        {"deep": [steps[20].result]},
        after=steps[-1],
        step="last",
    )
    last = _named(_plan(flow))["last"]
    assert last.refers
    assert (last.args[0].place, last.args[0].path, last.args[1]["deep"][0].place) == (
        0,
        ("rows", 0),
        20,
    )


def test_a_result_of_a_task_that_is_not_upstream_is_refused() -> None:
    flow = Builder("stray")
    a, b = flow.add("job", step="a"), flow.add("job", step="b")
    c = flow.add("job", a.result, after=b, step="c")
    with pytest.raises(
        InvalidReference, match="'c' refers to the result of 'a', which is not upstream"
    ):
        _plan(flow)
    c.after(a)
    assert _ups(_plan(flow), "c") == {"a", "b"}
    flow.add("job", c.result, step="own", after=a)
    with pytest.raises(InvalidReference, match="'own' refers to the result of 'c'"):
        _plan(flow)


def test_a_result_of_another_workflow_is_refused() -> None:
    other = Builder("other").add("job")
    flow = Builder("foreign")
    flow.add("job", [{"x": other.result}])
    with pytest.raises(InvalidReference, match="another workflow"):
        _plan(flow)


def test_arguments_stay_unchanged() -> None:
    flow = Builder("arguments")
    first = flow.add("job")
    flow.add(
        "job",
        Point(1, first.result),
        [],
        (),
        {},
        {"$result": "no reference"},
        after=first,
        step="last",
    )
    args = _named(_plan(flow))["last"].args
    assert args[0][0] == 1
    assert args[1:] == ([], (), {}, {"$result": "no reference"})


def test_recursive_arguments_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidReference, match="'deep' are nested too deep"):
        Builder("deep").add("job", endless, step="deep")


# Sub-workflows ------------------------------------------------------------------------------------


def _nested(depth: int) -> Builder:
    flow = Builder(f"depth-{depth}")
    first = flow.add("job", step=f"first {depth}")
    middle = (
        flow.add_workflow(_nested(depth - 1), after=first, step=f"sub {depth}") if depth else first
    )
    flow.add("job", middle.result, after=middle, step=f"last {depth}")
    return flow


@pytest.mark.parametrize("depth", [0, 1, 3, 20])
def test_sub_workflows_nest(depth: int) -> None:
    flow = _nested(depth)
    plan = _plan(flow)
    assert len(plan.tasks) == len(flow) == 3 * depth + 2
    assert len(plan.scopes) == depth + 1
    for inner in range(depth):
        assert _ups(plan, f"first {inner}") == {f"first {inner + 1}"}
        assert _ups(plan, f"sub {inner + 1}") == {f"first {inner + 1}", f"last {inner}"}
        scope = plan.scopes[depth - inner]
        assert (scope.name, scope.parent) == (f"depth-{inner}", depth - inner - 1)
        assert plan.tasks[scope.end or 0].step == f"sub {inner + 1}"
        assert (plan.tasks[scope.end or 0].task, plan.tasks[scope.end or 0].scope) == (
            END,
            depth - inner - 1,
        )


def test_all_first_tasks_of_a_sub_workflow_depend_on_its_upstreams() -> None:
    flow, sub = Builder("outer"), Builder("inner")
    before = [flow.add("job", step=name) for name in ("one", "two")]
    sub.add("job", step="outside", after=HERE)
    low = sub.add("job", step="plain")
    sub.add("job", step="lower", after=[low, uuid.UUID(int=2)], join="ANY")
    flow.add_workflow(sub, after=before)
    plan = _plan(flow)
    assert _ups(plan, "outside") == {HERE, "one", "two"}
    assert _ups(plan, "plain") == {"one", "two"}
    assert _ups(plan, "lower") == {"plain", uuid.UUID(int=2)}
    assert [task.needed for task in plan.tasks if task.step in ("outside", "plain", "lower")] == [
        None,
        None,
        1,
    ]


@pytest.mark.parametrize(("after", "join"), [([HERE, uuid.UUID(int=2)], "ANY"), ([], 2)])
def test_a_partial_join_does_not_bypass_the_upstreams_of_its_sub_workflow(
    after: list[Any], join: Any
) -> None:
    flow, sub = Builder("outer"), Builder("inner")
    sub.add("job", step="outside", after=after, join=join)
    flow.add_workflow(sub, after=[flow.add("job"), flow.add("job")])
    with pytest.raises(InvalidOption, match="join"):
        _plan(flow)


def test_an_empty_workflow_and_an_empty_sub_workflow_are_refused() -> None:
    with pytest.raises(InvalidOption, match="'empty' has no tasks"):
        _plan(Builder("empty"))
    flow = Builder("outer")
    flow.add_workflow(Builder("hollow"))
    with pytest.raises(InvalidOption, match="'hollow' has no tasks"):
        _plan(flow)


def test_a_workflow_is_added_to_another_once_and_never_to_itself() -> None:
    outer, inner = Builder("outer"), Builder("inner")
    inner.add("job")
    outer.add_workflow(inner)
    for whole, part in ((outer, inner), (outer, outer), (inner, outer), (outer, "inner")):
        with pytest.raises(InvalidOption, match="add_workflow"):
            whole.add_workflow(part)
    with pytest.raises(InvalidOption):
        outer.add_workflow(AddedTasks("late"), after="no id")
    assert len(outer) == len(_plan(outer).tasks) == 2


# Limits -------------------------------------------------------------------------------------------


def _wide(nodes: int, each: int) -> Builder:
    flow = Builder("wide")
    steps: list[Step] = []
    for number in range(nodes):
        steps.append(flow.add("job", after=steps[max(0, number - each) :]))
    return flow


def test_a_workflow_over_its_limits_is_refused_with_both_numbers() -> None:
    flow = _wide(10, 2)
    assert _plan(flow, 10, 17).edges == 17
    with pytest.raises(WorkflowTooLarge, match=r"10 tasks, at most 9 .*WORKFLOW_MAX_TASKS"):
        _plan(flow, 9, 17)
    with pytest.raises(WorkflowTooLarge, match=r"17 edges, at most 16 .*WORKFLOW_MAX_TASKS"):
        _plan(flow, 10, 16)


def test_ten_thousand_tasks_and_fifty_thousand_edges_are_validated() -> None:
    plan = _plan(_wide(10_000, 5), 10_000, 50_000)
    assert (len(plan.tasks), plan.edges) == (10_000, 49_985)
