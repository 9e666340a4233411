"""A canvas is translated into a workflow, or refused with the name of the unsupported part. The
caller's canvas is not changed.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Signature, chain, chord, group, shared_task
from celery.canvas import xmap

from django_durable_tasks import Workflow, durable_task
from django_durable_tasks.celery import canvas
from django_durable_tasks.dependencies.rules import Reference, TaskId, written
from django_durable_tasks.exceptions import InvalidReference, UntranslatableCanvas
from django_durable_tasks.workflows.builder import END, MAP, STARMAP, Plan, PlannedTask
from tests.project.tasks import add, echo, noop, third_time_lucky, urgent

TOMORROW = datetime.now(UTC) + timedelta(days=1)


MOST = {"most_tasks": 10_000, "most_edges": 50_000}


@durable_task
def errback_with_everything(request: Any, exc: Any, traceback: Any) -> None:
    """An errback with Celery's new signature."""


@durable_task
def errback_with_id(task_id: str) -> None:
    """An errback with Celery's old signature."""


@durable_task
def errback_with_more(task_id: str, note: str) -> None:
    """An errback that needs one argument besides the id."""


def planned(canvas: Any) -> Plan:
    """Return the plan of the workflow into which a canvas is translated."""
    return Workflow.from_canvas(canvas).plan(**MOST)


def only(canvas: Any) -> PlannedTask:
    """Return the only task of the plan."""
    (task,) = planned(canvas).tasks
    return task


def upstreams(plan: Plan) -> list[list[str]]:
    """Return for each task the steps it depends on."""
    return [
        [plan.tasks[int(str(edge.upstream))].step for edge in task.edges] for task in plan.tasks
    ]


@shared_task(name="tests.unit.workflows.test_canvas.plain")
def plain() -> None:
    """A task that is not durable."""


@durable_task
def with_names_of_ours(value: Any = None, *, after: Any, step: Any, join: Any, hold: Any) -> None:
    """A task with keywords that ``Workflow.add`` has too."""


@Signature.register_type(name="unknown")
class Custom(group):
    """A canvas part that Celery does not define."""


class Longer(chain):
    """A subclass of chain."""


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a function": (lambda: add, r"it is no signature; write task\.s"),
    "no canvas": (lambda: 7, "7 cannot be translated: it is no signature"),
    "a member that is none": (lambda: _with_member(7), "7 cannot be translated"),
    "an empty chain": (chain, "holds no task"),
    "an empty group": (group, "holds no task"),
    "a plain task": (
        lambda: chain(noop.si(), plain.si()),
        "'tests.unit.workflows.test_canvas.plain' .* it is no durable task",
    ),
    "a plain link": (
        lambda: _linked(noop.si(), plain.si()),
        "test_canvas.plain' .* no durable task",
    ),
    "a plain errback": (
        lambda: noop.si().on_error(plain.si()),
        "test_canvas.plain' .* no durable task",
    ),
    "a map of a plain task": (
        lambda: xmap(plain.s(), [1]),
        "test_canvas.plain' .* no durable task",
    ),
    "a new errback": (
        lambda: noop.si().on_error(errback_with_everything.s()),
        r"errback_with_everything.*\(request, exc, traceback\)",
    ),
    "an errback of two": (
        lambda: noop.si().on_error(errback_with_more.s()),
        r"errback_with_more.*let it take the id only",
    ),
    "an errback that is a chain": (
        lambda: noop.si().on_error(noop.si() | noop.si()),
        "errback that is a celery.chain",
    ),
    "a chord without a body": (lambda: chord([noop.si()]), "A chord without a body"),
    "a chord with keywords": (
        lambda: chord([echo.s()], echo.s(), kwargs={"kwargs": {"a": 1}}),
        r"chord\(kwargs=...\)",
    ),
    "a group with arguments": (
        lambda: _with_arguments(group(echo.s())),
        "group with arguments of its own",
    ),
    "an immutable chain": (
        lambda: chain(echo.s(), echo.s()).set(immutable=True),
        "chain that is immutable",
    ),
    "a chord after a chord of groups": (
        lambda: chain(
            noop.si(), chord([echo.s()], group(echo.s(), echo.s())), chord([echo.s()], echo.s())
        ),
        "chord whose body is a group.*once for each member",
    ),
    "chunks before a task": (
        lambda: chain(add.chunks([(1, 2)], 1), echo.s()),
        r"write chunks\(\.\.\.\)\.group\(\)",
    ),
    "chunks in a header": (
        lambda: chord([add.chunks([(1, 2)], 1)], echo.s()),
        r"write chunks\(\.\.\.\)\.group\(\)",
    ),
    "chunks with options": (lambda: add.chunks([(1, 2)], 1).set(queue="q"), "chunks with options"),
    "a map of a signature": (
        lambda: xmap(add.s(1), [2]),
        "Celery drops arguments and options of the task",
    ),
    "options of an inner group": (
        lambda: group(noop.si(), group(noop.si(), noop.si()).set(queue="q")),
        "queue='q' on a group inside a group",
    ),
    "options of an inner chain": (
        lambda: chain(noop.si(), chain(noop.si(), noop.si(), queue="q"), link=[]),
        "queue='q' on a chain inside",
    ),
    "options of a group of one": (
        lambda: chain(group(noop.si(), queue="q"), noop.si(), link=[]),
        "on a group of one",
    ),
    "options of a header": (
        lambda: chain(group(noop.si(), noop.si(), queue="q"), noop.si(), link=[]),
        "queue='q' on a group inside",
    ),
    "stamps": (lambda: _stamped(noop.si()), "stamped_headers=.*stamps travel on messages"),
    "an id": (
        lambda: noop.si().set(task_id="x"),
        "task_id='x' on tests.project.tasks.noop.*before it is frozen",
    ),
    "a frozen canvas": (lambda: _frozen(noop.si()), "task_id="),
    "a group's id": (
        lambda: noop.si().set(group_id="g"),
        "group_id='g' on .*Celery sets it when it sends a canvas",
    ),
    "a retry policy": (lambda: noop.si().set(retry_policy={"max_retries": 1}), "retry_policy="),
    "an exchange": (lambda: noop.si().set(exchange="e"), "exchange='e'.*name the queue"),
    "an interval": (
        lambda: chord([noop.si()], echo.s()).set(interval=1),
        "interval=1.*nothing polls",
    ),
    "a serializer": (
        lambda: noop.si().set(serializer="pickle"),
        "serializer='pickle' .*carries only an id; leave it out",
    ),
    "a misspelt option": (
        lambda: noop.si().set(priorty=5),
        "priorty=5 on .*no such option. Did you mean 'priority'",
    ),
    "a key": (lambda: noop.si().set(key="k"), r"key='k' .*start\(key=...\)"),
    "a tenant": (lambda: noop.si().set(tenant=2), r"tenant=2 .*start\(tenant=...\)"),
    "a dependency": (lambda: noop.si().set(join="ANY"), r"join='ANY' .*Workflow.add\(\)"),
    "a countdown of what waits": (
        lambda: chain(noop.si(), noop.si().set(countdown=5)),
        "countdown=5.*give a date",
    ),
    "an expiry of what waits": (
        lambda: chain(noop.si(), noop.si().set(expires=5)),
        "expires=5.*give a date",
    ),
    "a custom type": (
        lambda: Custom(noop.si()),
        "class Custom cannot be translated: only those of Celery",
    ),
    "a custom class": (lambda: Longer(noop.si(), noop.si(), link=[]), "class Longer"),
    "an unknown type": (
        lambda: {"task": "x", "subtask_type": "y", "args": [], "kwargs": {}},
        "of type 'y'",
    ),
}


def _with_member(member: Any) -> Any:
    found = group(noop.si(), noop.si())
    found["kwargs"]["tasks"] = [noop.si(), member]
    return found


def _with_arguments(part: Any) -> Any:
    part["args"] = (7,)
    return part


def _linked(part: Any, link: Any) -> Any:
    part.link(link)
    return part


def _stamped(part: Any) -> Any:
    part.stamp(visited="yes")
    return part


def _frozen(part: Any) -> Any:
    part.freeze()
    return part


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_parts_are_refused_with_their_name(name: str) -> None:
    make, reason = REFUSED[name]
    with pytest.raises(UntranslatableCanvas, match=reason):
        Workflow.from_canvas(make())


def test_a_canvas_that_is_nested_too_deeply_is_refused() -> None:
    deep = noop.si()
    for _ in range(600):
        deep = (
            {**group(), "kwargs": {"tasks": [deep, noop.si()]}} if isinstance(deep, dict) else deep
        )
        deep = {
            **chord([noop.si()], noop.si()),
            "kwargs": {"header": [noop.si()], "body": deep, "kwargs": {}},
        }
    with pytest.raises(UntranslatableCanvas, match="nested too deep"):
        Workflow.from_canvas(deep)


def test_the_keywords_are_those_of_a_workflow() -> None:
    workflow = Workflow.from_canvas(
        noop.si() | noop.si(), name="nightly", deadline=60, on_failure=echo
    )
    assert (workflow.name, workflow.deadline, len(workflow)) == ("nightly", 60, 2)
    assert workflow.callbacks == {"on_failure": "tests.project.tasks.echo"}


def test_the_callers_canvas_is_not_changed() -> None:
    canvas = chain(
        noop.si(),
        chord([noop.si()], group(echo.s(), echo.s()), link=[echo.s()]),
        link_error=[errback_with_id.s()],
    )
    before = copy.deepcopy(dict(canvas))
    first, second = planned(canvas), planned(canvas)
    assert dict(canvas) == before
    assert upstreams(first) == upstreams(second)


def test_options_of_a_signature_become_those_of_the_task() -> None:
    signature = noop.si().set(
        queue="slow",
        priority=7,
        eta=TOMORROW,
        expires=TOMORROW + timedelta(1),
        time_limit=9,
        soft_time_limit=8,
        shadow=None,
    )
    options = only(signature).options
    assert (options.queue, options.priority, options.run_at) == ("slow", 7, TOMORROW)
    assert (options.expires_at, options.timeout, options.soft_timeout) == (
        TOMORROW + timedelta(1),
        9,
        8,
    )


def test_headers_and_options_of_using_become_those_of_each_task() -> None:
    source = {"trigger_source": "web_ui"}
    options = {"max_attempts": 7, "timeout": 9, "lease": 90, "weight": 2, "expires_in": 60}
    member = noop.si().set(headers=source, **options)
    plan = planned(chord([member, noop.si().set(headers=source)], noop.si().set(headers={"n": 1})))
    assert [task.options.headers for task in plan.tasks] == [source, source, {"n": 1}]
    assert {option: getattr(plan.tasks[0].options, option) for option in options} == options


def test_options_of_a_chain_are_those_of_its_first_task_and_of_a_group_those_of_all() -> None:
    plan = planned(chain(noop.si(), noop.si(), queue="q"))
    assert [task.options.queue for task in plan.tasks] == ["q", None]
    plan = planned(group(noop.si().set(queue="own"), noop.si(), queue="q"))
    assert [task.options.queue for task in plan.tasks] == ["q", "q"]


def test_options_of_a_chord_apply_to_header_and_body_but_only_the_header_waits() -> None:
    plan = planned(chord([noop.si(), noop.si()], echo.s()).set(queue="q", eta=TOMORROW))
    assert [task.options.queue for task in plan.tasks] == ["q", "q", "q"]
    assert [task.options.run_at for task in plan.tasks] == [TOMORROW, TOMORROW, None]


def test_keywords_that_add_has_too_reach_the_task() -> None:
    given = {"after": 1, "step": 2, "join": 3, "hold": 4}
    plan = planned(chain(noop.si(), with_names_of_ours.s(**given)))
    assert (plan.tasks[1].kwargs, plan.tasks[1].gates, upstreams(plan)) == (
        given,
        (),
        [[], ["noop"]],
    )


# Maps, starmaps, chunks, links and error callbacks of a canvas become tasks of a workflow.


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
