"""Converts Celery's canvas to a workflow: edges and references give each task the arguments that
Celery would pass.

The rules are those of celery/canvas.py and celery/backends/base.py of Celery 5.7;
tests/broker/test_canvas.py runs the same canvases with both. Parts that Celery silently ignores
(such as options of an inner chain) are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery.canvas import Signature

from django_durable_tasks import registry
from django_durable_tasks.celery import calls
from django_durable_tasks.exceptions import UntranslatableCanvas
from django_durable_tasks.rules.dependencies import DependencyType
from django_durable_tasks.rules.workflows.builder import Builder
from django_durable_tasks.rules.workflows.step import END, MAP, STARMAP, Step
from django_durable_tasks.workflows.canvas_parts import (
    CHAIN,
    CHORD,
    CHUNKS,
    GROUP,
    callbacks_of,
    check_errback,
    check_followed,
    check_handed_on,
    distinct,
    durable,
    grouped,
    guarded,
    linked,
    members_of,
    refuse,
    row_options,
    signature,
    steps_of,
)

MAPS = {"celery.map": MAP, "celery.starmap": STARMAP}
JOIN_ABOVE = 100
"""Between two groups with more edges than this, a task is added that joins the first group."""


@dataclass(frozen=True, slots=True)
class _Flow:
    """The output of a part: the arguments for its successors, the steps for which these wait, and
    all of its tasks.
    """

    args: tuple[Any, ...] = ()
    waits: tuple[Step, ...] = ()
    tasks: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class _Around:
    """The input of a part: options that take precedence over its own, and the tasks of the header
    of the chord whose body it begins.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    header: tuple[Step, ...] = ()


def translate(canvas: Any, builder: Builder) -> None:
    """Add the tasks of a canvas to a workflow; raises UntranslatableCanvas for parts without an
    equivalent.
    """
    try:
        _Translation(builder).lay(canvas, _Flow(), _Around())
    except RecursionError:
        raise UntranslatableCanvas(
            "The canvas is nested too deep; split it into workflows."
        ) from None
    if not len(builder):
        raise UntranslatableCanvas(f"{canvas!r} holds no task.")


class _Translation:
    """The conversion of one canvas to one workflow."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._queues: dict[Step, str | None] = {}
        self._ways: dict[str, Callable[[Any, _Flow, _Around], _Flow]] = {
            CHAIN: self._chain,
            GROUP: self._group,
            CHORD: self._chord,
            CHUNKS: self._chunks,
            **dict.fromkeys(MAPS, self._map),
        }

    def lay(self, given: Any, before: _Flow, around: _Around) -> _Flow:
        """Add a part after its predecessors."""
        part = signature(given)
        return self._ways.get(part["task"], self._call)(part, before, around)

    # One task -------------------------------------------------------------------------------------

    def _call(self, part: Any, before: _Flow, around: _Around, **own: Any) -> _Flow:
        name, options = durable(part["task"]), {**part["options"], **around.options}
        links, errbacks = callbacks_of(options)
        kept = {**own, **row_options(name, options, waits=bool(before.waits))}
        step = self._add(part, kept, before.args, after=before.waits)
        for link in links:
            self.lay(link, _Flow((step.result,), (step,)), _Around())
        for errback in distinct(errbacks):
            self._errback(errback, step, around.header)
        return _Flow((step.result,), (step,), (step,))

    def _add(
        self, part: Any, options: Mapping[str, Any], args: tuple[Any, ...], **edges: Any
    ) -> Step:
        using = calls.of(part["task"]).using(**options)
        args = tuple(part["args"]) if part["immutable"] else (*args, *part["args"])
        step = self._builder.add_call(using, args, part["kwargs"], **edges)
        self._queues[step] = using.options.queue or using.registered.options.queue
        return step

    def _errback(self, given: Any, step: Step, header: Sequence[Step]) -> None:
        """Call it with the id of the failed task; for a chord's body also if the header fails, with
        the body's id.
        """
        part = signature(given)
        if part["task"] in self._ways:
            refuse(
                f"An errback that is a {part['task']}",
                "Celery calls tasks only; start a workflow in the errback",
            )
        name, options = durable(part["task"]), dict(part["options"])
        check_errback(part)
        links, errbacks = callbacks_of(options)
        after = dict.fromkeys([step, *header], DependencyType.MUST_FAIL.value)
        called = self._add(
            part, row_options(name, options, waits=True), (step.id,), after=after, join="ANY"
        )
        for link in links:
            self.lay(link, _Flow((called.result,), (called,)), _Around())
        for errback in distinct(errbacks):
            self._errback(errback, called, ())

    def _map(self, part: Any, before: _Flow, around: _Around) -> _Flow:
        mapped = signature(part["kwargs"]["task"])
        if mapped["args"] or mapped["kwargs"] or mapped["options"]:
            refuse(
                f"{part['task']} of {mapped!r}",
                "Celery drops arguments and options of the task; put them elsewhere",
            )
        known = registry.get(durable(mapped["task"])).options
        call = Signature(
            MAPS[part["task"]],
            kwargs={"task": known.name, "it": list(part["kwargs"]["it"])},
            immutable=True,
            options=part["options"],
        )
        return self._call(
            call,
            before,
            around,
            queue=known.queue,
            priority=known.priority,
            max_attempts=known.max_attempts,
            max_crashes=known.max_crashes,
            on_orphan=known.on_orphan,
        )

    # Many tasks -----------------------------------------------------------------------------------

    def _chain(self, part: Any, before: _Flow, around: _Around) -> _Flow:
        if part["immutable"] or part["args"]:
            refuse(
                "A chain that is immutable or has arguments",
                "Celery forgets both; give them to its first task",
            )
        options = {**part["options"], **around.options}
        links, errbacks = callbacks_of(options)
        steps = [guarded(step, errbacks) for step in steps_of(part)]
        if links and steps:
            steps[-1] = steps[-1].clone()
            steps[-1].extend_list_option("link", links)
        tasks: list[Step] = []
        flow, around = before, _Around(options, around.header)
        for place, step in enumerate(steps):
            if place:
                check_followed(steps[place - 1])
            flow = self.lay(step, flow, around)
            around = _Around()
            tasks += flow.tasks
        return _Flow(flow.args, flow.waits, tuple(tasks))

    def _group(self, part: Any, before: _Flow, around: _Around) -> _Flow:
        if part["args"]:
            refuse(
                "A group with arguments of its own", "Celery drops them; give them to its members"
            )
        return self._all(
            members_of(part), before, _Around({**part["options"], **around.options}, around.header)
        )

    def _all(self, members: Sequence[Any], before: _Flow, around: _Around) -> _Flow:
        joined = self._joined(before, len(members))
        flows = [self.lay(member, joined, around) for member in members]
        return _Flow(
            ([flow.args[0] for flow in flows],),
            tuple(dict.fromkeys(step for flow in flows for step in flow.waits)) or joined.waits,
            tuple(step for flow in flows for step in flow.tasks),
        )

    def _joined(self, before: _Flow, followers: int) -> _Flow:
        """Insert one task between two groups to reduce the number of edges; references to results
        are not affected.
        """
        waits = before.waits
        if len(waits) < 2 or followers < 2 or len(waits) * followers <= JOIN_ABOVE:
            return before
        join = calls.of(END).using(queue=self._queues[waits[0]])
        return _Flow(before.args, (self._builder.add_call(join, after=waits),), before.tasks)

    def _chord(self, part: Any, before: _Flow, around: _Around) -> _Flow:
        if part["kwargs"].get("kwargs"):
            refuse("chord(kwargs=...)", "give the keywords to the members of its header")
        if part["kwargs"].get("body") is None:
            refuse("A chord without a body", "use a group")
        options = {**part["options"], **around.options}
        links, errbacks = callbacks_of(options)
        body = guarded(signature(part["kwargs"]["body"]), errbacks)
        for link in links:
            body = linked(body, link)
        members = members_of(part)
        for member in members:
            check_handed_on(member)
        given = tuple(part["args"]) if part["immutable"] else (*before.args, *part["args"])
        head = self._all(members, _Flow(given, before.waits), _Around(options))
        later = {
            option: value for option, value in options.items() if option not in ("countdown", "eta")
        }
        tail = self.lay(body, head, _Around(later, head.tasks))
        return _Flow(tail.args, tail.waits, (*head.tasks, *tail.tasks))

    def _chunks(self, part: Any, before: _Flow, around: _Around) -> _Flow:
        if part["options"]:
            refuse("chunks with options", "Celery drops them; set them on .group()")
        return self.lay(grouped(part), before, around)


# Parts --------------------------------------------------------------------------------------------


# Callbacks and options ----------------------------------------------------------------------------
