"""Maps, starmaps, chunks, links and error callbacks of a canvas become tasks of a workflow."""

from __future__ import annotations

import uuid

import pytest
from celery import chain, chord, group

from django_durable_tasks import Workflow
from django_durable_tasks.celery import canvas
from django_durable_tasks.dependencies.references import Reference, TaskId, written
from django_durable_tasks.exceptions import InvalidReference
from django_durable_tasks.workflows.builder import END, MAP, STARMAP
from tests.project.tasks import echo, noop, third_time_lucky, urgent
from tests.unit.workflows.canvas_tasks import (
    errback_with_everything,
    errback_with_id,
    errback_with_more,
    only,
    planned,
    upstreams,
)


def test_a_map_is_one_task_with_the_queue_and_the_retries_of_its_task() -> None:
    task = only(urgent.map([1, 2]))
    assert (task.task, task.kwargs) == (MAP, {"task": "tests.project.tasks.urgent", "it": [1, 2]})
    assert (task.options.queue, task.options.priority) == ("urgent", 7)
    task = only(third_time_lucky.starmap([(1,)]).set(queue="other"))
    assert (task.task, task.options.queue, task.options.max_attempts) == (STARMAP, "other", 5)


def test_two_large_groups_are_connected_by_a_joining_task() -> None:
    plan = planned(
        chain(noop.si(), group(urgent.si() for _ in range(20)), group(echo.s() for _ in range(30)))
    )
    joins = [task for task in plan.tasks if task.task == END]
    assert (len(plan.tasks), plan.edges, [join.options.queue for join in joins]) == (
        52,
        20 + 20 + 30,
        ["urgent"],
    )
    results = plan.tasks[-1].args[0]
    assert [(type(result), plan.tasks[result.place].step[:6]) for result in results] == [
        (Reference, "urgent")
    ] * 20


def test_two_small_groups_are_connected_directly() -> None:
    plan = planned(group(noop.si(), noop.si()) | group(echo.s() for _ in range(50)))
    assert (len(plan.tasks), plan.edges) == (52, 100)


def test_an_errback_gets_the_future_id_of_the_failed_task() -> None:
    plan = planned(noop.si().on_error(errback_with_id.s()))
    failed, errback = plan.tasks
    assert [edge.kind for edge in errback.edges] == ["MUST_FAIL"]
    assert errback.refers
    key = uuid.uuid4()
    assert written(list(errback.args), {0: key, 1: uuid.uuid4()}) == [str(key)]
    assert not failed.edges


def test_an_errback_whose_other_arguments_are_given_takes_the_id_only() -> None:
    plan = planned(noop.si().on_error(errback_with_more.s(note="x")))
    assert plan.tasks[1].kwargs == {"note": "x"}
    assert planned(noop.si().on_error(errback_with_everything.si(1, 2, 3))).tasks[1].args == (
        1,
        2,
        3,
    )


def test_an_errback_of_a_body_waits_for_a_failure_of_any_task_of_the_header() -> None:
    plan = planned(
        chord([chain(noop.si(), noop.si()), noop.si()], echo.s().on_error(errback_with_id.s()))
    )
    errback = plan.tasks[-1]
    assert upstreams(plan)[-1] == ["echo", "noop", "noop-2", "noop-3"]
    assert ({edge.kind for edge in errback.edges}, errback.needed) == ({"MUST_FAIL"}, 1)


def test_errbacks_apply_to_the_header_if_the_application_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    canvas = chain(
        noop.si(), chord([noop.si(), noop.si()], echo.s()), link_error=[errback_with_id.s()]
    )
    assert sum(task.task.endswith("errback_with_id") for task in planned(canvas).tasks) == 2
    monkeypatch.setitem(canvas.app.conf, "task_allow_error_cb_on_chord_header", True)
    assert sum(task.task.endswith("errback_with_id") for task in planned(canvas).tasks) == 4


def test_the_id_of_a_step_has_no_parts() -> None:
    step = Workflow("one").add(noop)
    assert isinstance(step.id, TaskId)
    with pytest.raises(InvalidReference, match="has no parts"):
        step.id["a"]


def test_a_chain_of_a_thousand_tasks_is_translated() -> None:
    plan = planned(chain(*[noop.si() for _ in range(1_000)]))
    assert (len(plan.tasks), plan.edges) == (1_000, 999)


def test_only_signatures_of_celery_are_accepted() -> None:
    assert {kind.__name__ for kind in canvas._KNOWN} == {
        "Signature",
        "chain",
        "_chain",
        "group",
        "_chord",
        "xmap",
        "xstarmap",
        "chunks",
    }
