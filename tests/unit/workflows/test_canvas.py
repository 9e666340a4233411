"""A canvas is translated into a workflow, or refused with the name of the unsupported part. The
caller's canvas is not changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Signature, chain, chord, group, shared_task
from celery.canvas import xmap

from django_durable_tasks import Workflow, durable_task
from django_durable_tasks.exceptions import UntranslatableCanvas
from tests.project.tasks import add, echo, noop
from tests.unit.workflows.canvas_tasks import (
    errback_with_everything,
    errback_with_id,
    errback_with_more,
    only,
    planned,
    upstreams,
)

TOMORROW = datetime.now(UTC) + timedelta(days=1)


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
        "group_id='g' on .*a row has nothing like it",
    ),
    "a retry policy": (lambda: noop.si().set(retry_policy={"max_retries": 1}), "retry_policy="),
    "an exchange": (lambda: noop.si().set(exchange="e"), "exchange='e'.*name the queue"),
    "an interval": (
        lambda: chord([noop.si()], echo.s()).set(interval=1),
        "interval=1.*nothing polls",
    ),
    "a serializer": (lambda: noop.si().set(serializer="pickle"), "serializer='pickle'"),
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
