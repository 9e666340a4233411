"""Celery's canvas as a workflow: by edges and references each task gets what Celery would hand it.

Rules from celery/canvas.py and celery/backends/base.py of Celery 5.7; tests/broker/test_canvas.py runs the same
canvases by both. Where Celery itself forgets something without a word (options of an inner chain, say), it is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

from celery.canvas import Signature, chain, chord, chunks, group, maybe_signature
from celery.utils.functional import arity_greater, maybe_list

from django_durable_tasks import registry
from django_durable_tasks.celery import calls
from django_durable_tasks.exceptions import UntranslatableCanvas
from django_durable_tasks.rules.building import END, MAP, STARMAP, Builder, Step
from django_durable_tasks.rules.graphs import DependencyType

CHAIN, GROUP, CHORD = "celery.chain", "celery.group", "celery.chord"
MAPS = {"celery.map": MAP, "celery.starmap": STARMAP}
CHUNKS = "celery.chunks"
JOIN_ABOVE = 100
"""Between two groups with more edges than this stands a task that joins the first."""

_KNOWN = {
    Signature,
    chain,
    *(Signature.TYPES[name] for name in ("chain", "group", "chord", "xmap", "xstarmap", "chunks")),
}
_KEPT = ("queue", "priority", "eta", "countdown", "expires", "time_limit", "soft_time_limit")
_WITHOUT_MEANING = ("immutable",)  # Celery's chord.link_error() writes it among the options, where nothing reads it
_CALLBACKS = ("link", "link_error")
_REMEDIES = {
    "stamped_headers": "stamps travel on messages, and a row's message carries none",
    "task_id": "ids are given at the start; translate a canvas before it is frozen or sent",
    "retry": "a row is published until it is taken",
    "retry_policy": "a row is published until it is taken",
    "exchange": "name the queue, queue=...",
    "routing_key": "name the queue, queue=...",
    "interval": "nothing polls for the end of the header",
    "max_retries": "nothing polls for the end of the header",
    "ignore_result": "the row keeps its result",
}


@dataclass(frozen=True, slots=True)
class _Flow:
    """What a part hands on: arguments for those that follow, the steps these wait for, and all of its tasks."""

    args: tuple[Any, ...] = ()
    waits: tuple[Step, ...] = ()
    tasks: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class _Around:
    """What a part takes over: options that count before its own, and the tasks of the header whose body it begins."""

    options: Mapping[str, Any] = field(default_factory=dict)
    header: tuple[Step, ...] = ()


def translate(canvas: Any, builder: Builder) -> None:
    """Add the tasks of a canvas to a workflow; raises UntranslatableCanvas, which names what has no counterpart."""
    try:
        _Translation(builder).lay(canvas, _Flow(), _Around())
    except RecursionError:
        raise UntranslatableCanvas("The canvas is nested too deep; split it into workflows.") from None
    if not len(builder):
        raise UntranslatableCanvas(f"{canvas!r} holds no task.")


def _refuse(what: str, why: str) -> NoReturn:
    raise UntranslatableCanvas(f"{what} cannot be translated: {why}.")


class _Translation:
    """One canvas on its way into one workflow."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._queues: dict[Step, str | None] = {}
        self._ways: dict[str, Callable[[Any, _Flow, _Around], _Flow]] = {
            CHAIN: self._chain, GROUP: self._group, CHORD: self._chord, CHUNKS: self._chunks,
            **dict.fromkeys(MAPS, self._map),
        }  # fmt: skip

    def lay(self, given: Any, before: _Flow, around: _Around) -> _Flow:
        """Add a part that follows what stands before it."""
        part = _signature(given)
        return self._ways.get(part["task"], self._call)(part, before, around)

    # One task -----------------------------------------------------------------------------------------------------

    def _call(self, part: Any, before: _Flow, around: _Around, **own: Any) -> _Flow:
        name, options = _durable(part["task"]), {**part["options"], **around.options}
        links, errbacks = _callbacks_of(options)
        kept = {**own, **_row_options(name, options, waits=bool(before.waits))}
        step = self._add(part, kept, before.args, after=before.waits)
        for link in links:
            self.lay(link, _Flow((step.result,), (step,)), _Around())
        for errback in _distinct(errbacks):
            self._errback(errback, step, around.header)
        return _Flow((step.result,), (step,), (step,))

    def _add(self, part: Any, options: Mapping[str, Any], args: tuple[Any, ...], **edges: Any) -> Step:
        using = calls.of(part["task"]).using(**options)
        args = tuple(part["args"]) if part["immutable"] else (*args, *part["args"])
        step = self._builder.add_call(using, args, part["kwargs"], **edges)
        self._queues[step] = using.options.queue or using.registered.options.queue
        return step

    def _errback(self, given: Any, step: Step, header: Sequence[Step]) -> None:
        """Call it with the id of the failed task; for a chord's body also when the header fails, with the body's id."""
        part = _signature(given)
        if part["task"] in self._ways:
            _refuse(f"An errback that is a {part['task']}", "Celery calls tasks only; start a workflow in the errback")
        name, options = _durable(part["task"]), dict(part["options"])
        _check_errback(part)
        links, errbacks = _callbacks_of(options)
        after = dict.fromkeys([step, *header], DependencyType.MUST_FAIL.value)
        called = self._add(part, _row_options(name, options, waits=True), (step.id,), after=after, join="ANY")
        for link in links:
            self.lay(link, _Flow((called.result,), (called,)), _Around())
        for errback in _distinct(errbacks):
            self._errback(errback, called, ())

    def _map(self, part: Any, before: _Flow, around: _Around) -> _Flow:
        mapped = _signature(part["kwargs"]["task"])
        if mapped["args"] or mapped["kwargs"] or mapped["options"]:
            _refuse(
                f"{part['task']} of {mapped!r}", "Celery drops arguments and options of the task; put them elsewhere"
            )
        known = registry.get(_durable(mapped["task"])).options
        call = Signature(
            MAPS[part["task"]], kwargs={"task": known.name, "it": list(part["kwargs"]["it"])}, immutable=True,
            options=part["options"],
        )  # fmt: skip
        return self._call(
            call, before, around, queue=known.queue, priority=known.priority, max_attempts=known.max_attempts,
            max_crashes=known.max_crashes, on_orphan=known.on_orphan,
        )  # fmt: skip

    # Many tasks ---------------------------------------------------------------------------------------------------

    def _chain(self, part: Any, before: _Flow, around: _Around) -> _Flow:
        if part["immutable"] or part["args"]:
            _refuse("A chain that is immutable or has arguments", "Celery forgets both; give them to its first task")
        options = {**part["options"], **around.options}
        links, errbacks = _callbacks_of(options)
        steps = [_guarded(step, errbacks) for step in _steps(part)]
        if links and steps:
            steps[-1] = steps[-1].clone()
            steps[-1].extend_list_option("link", links)
        tasks: list[Step] = []
        flow, around = before, _Around(options, around.header)
        for place, step in enumerate(steps):
            if place:
                _check_followed(steps[place - 1])
            flow = self.lay(step, flow, around)
            around = _Around()
            tasks += flow.tasks
        return _Flow(flow.args, flow.waits, tuple(tasks))

    def _group(self, part: Any, before: _Flow, around: _Around) -> _Flow:
        if part["args"]:
            _refuse("A group with arguments of its own", "Celery drops them; give them to its members")
        return self._all(_members(part), before, _Around({**part["options"], **around.options}, around.header))

    def _all(self, members: Sequence[Any], before: _Flow, around: _Around) -> _Flow:
        joined = self._joined(before, len(members))
        flows = [self.lay(member, joined, around) for member in members]
        return _Flow(
            ([flow.args[0] for flow in flows],),
            tuple(dict.fromkeys(step for flow in flows for step in flow.waits)) or joined.waits,
            tuple(step for flow in flows for step in flow.tasks),
        )

    def _joined(self, before: _Flow, followers: int) -> _Flow:
        """Let many that wait for many wait for one task between them; results are referred to directly all the same."""
        waits = before.waits
        if len(waits) < 2 or followers < 2 or len(waits) * followers <= JOIN_ABOVE:
            return before
        join = calls.of(END).using(queue=self._queues[waits[0]])
        return _Flow(before.args, (self._builder.add_call(join, after=waits),), before.tasks)

    def _chord(self, part: Any, before: _Flow, around: _Around) -> _Flow:
        if part["kwargs"].get("kwargs"):
            _refuse("chord(kwargs=...)", "give the keywords to the members of its header")
        if part["kwargs"].get("body") is None:
            _refuse("A chord without a body", "use a group")
        options = {**part["options"], **around.options}
        links, errbacks = _callbacks_of(options)
        body = _guarded(_signature(part["kwargs"]["body"]), errbacks)
        for link in links:
            body = _linked(body, link)
        members = _members(part)
        for member in members:
            _check_handed_on(member)
        given = tuple(part["args"]) if part["immutable"] else (*before.args, *part["args"])
        head = self._all(members, _Flow(given, before.waits), _Around(options))
        later = {option: value for option, value in options.items() if option not in ("countdown", "eta")}
        tail = self.lay(body, head, _Around(later, head.tasks))
        return _Flow(tail.args, tail.waits, (*head.tasks, *tail.tasks))

    def _chunks(self, part: Any, before: _Flow, around: _Around) -> _Flow:
        if part["options"]:
            _refuse("chunks with options", "Celery drops them; set them on .group()")
        return self.lay(_grouped(part), before, around)


# Parts ------------------------------------------------------------------------------------------------------------


def _signature(given: Any) -> Any:
    """Return a part of a canvas; raises UntranslatableCanvas for what Celery's own signatures cannot be."""
    if not isinstance(given, Mapping) or "task" not in given:
        _refuse(repr(given), "it is no signature; write task.s(...)")
    if given.get("subtask_type") not in (None, *Signature.TYPES):
        _refuse(f"A signature of type {given['subtask_type']!r}", "only those of Celery are known")
    part = maybe_signature(given)
    if type(part) not in _KNOWN:
        _refuse(f"A signature of class {type(part).__qualname__}", "only those of Celery are known")
    return part


def _durable(name: str) -> str:
    if registry.find(name) is None:
        _refuse(f"{name!r}", "it is no durable task; put @durable_task on it, or call it from a durable one")
    return name


def _inside(part: Any) -> list[Any]:
    """Return the tasks of a chain or a group, or the header of a chord."""
    found = part["kwargs"].get("tasks", part["kwargs"].get("header"))
    return _inside(found) if isinstance(found, group) else list(found or ())


def _no_options(part: Any, what: str) -> None:
    for option, value in part["options"].items():
        if value is not None:
            _refuse(f"{option}={value!r} on {what}", "Celery forgets it; set it on the tasks")


def _steps(part: Any) -> list[Any]:
    """Return the steps of a chain as Celery prepares them.

    Inner chains are spliced, a group of one is its member, an empty one is nothing, and a group with a step after it
    is a chord with that step as its body.
    """
    spliced = list(_spliced(part))
    steps: list[Any] = []
    for step in reversed([step for step in spliced if step["task"] != GROUP or _inside(step)] or spliced[-1:]):
        if step["task"] == GROUP and steps:
            _no_options(step, "a group inside a chain")
            steps.append(chord(_inside(step), steps.pop()))
        else:
            steps.append(step)
    return steps[::-1]


def _spliced(part: Any) -> Iterator[Any]:
    for given in _inside(part):
        step = _signature(given)
        while step["task"] == GROUP and len(_inside(step)) == 1:
            _no_options(step, "a group of one inside a chain")
            step = _signature(_inside(step)[0])
        if step["task"] == CHAIN:
            _no_options(step, "a chain inside a chain")
            yield from _spliced(step)
        else:
            yield step


def _members(part: Any) -> list[Any]:
    """Return the members of a group; those of an inner group are in reverse, as Celery hands their results on."""
    members, rest = [], deque(_inside(part))
    while rest:
        member = _signature(rest.popleft())
        if member["task"] == GROUP:
            _no_options(member, "a group inside a group")
            rest.extendleft(_inside(member))
        elif member["task"] != CHAIN or _inside(member):
            members.append(member)
    return members


def _grouped(part: Any) -> Any:
    return chunks(_signature(part["kwargs"]["task"]), part["kwargs"]["it"], part["kwargs"]["n"]).group()


def _check_handed_on(part: Any) -> None:
    """Refuse chunks whose results are wanted: as one task they would not come back from JSON."""
    if part["task"] == CHUNKS:
        _refuse(
            "chunks in a header, or with a task after them", "Celery loses their results; write chunks(...).group()"
        )


def _check_followed(part: Any) -> None:
    """Refuse what Celery cannot let others follow in a chain."""
    _check_handed_on(part)
    inner = part
    while inner["task"] == CHORD and inner["kwargs"].get("body") is not None:
        inner = _signature(inner["kwargs"]["body"])
    if part["task"] == CHORD and inner["task"] == GROUP:
        _refuse(
            "A chord whose body is a group, with a chord after it in a chain",
            "Celery would run that chord once for each member; put a task between them",
        )


# Callbacks and options --------------------------------------------------------------------------------------------


def _callbacks_of(options: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Take link and link_error out of options."""
    links, errbacks = (list(maybe_list(options.pop(option, None)) or ()) for option in _CALLBACKS)
    return links, errbacks


def _distinct(signatures: Iterable[Any]) -> list[Any]:
    """Return each once, as Celery's link_error() keeps them."""
    found: list[Any] = []
    for signature in signatures:
        if signature not in found:
            found.append(signature)
    return found


def _linked(part: Any, link: Any) -> Any:
    """Return a part that calls back, as its own ``link()`` does, which would change the caller's canvas."""
    copy = part.clone()
    if part["task"] == GROUP and _inside(part):
        first, *others = map(_signature, _inside(part))
        copy["kwargs"]["tasks"] = [_linked(first, _signature(link).clone().set(immutable=True)), *others]
    elif part["task"] == CHORD:
        copy["kwargs"]["body"] = _linked(_signature(part["kwargs"]["body"]), link)
    else:
        copy.link(link)
    return copy


def _guarded(part: Any, errbacks: Sequence[Any]) -> Any:
    """Return a part with the errbacks of what it stands in: in a chord not at its header, unless a setting says so."""
    if not errbacks:
        return part
    copy = part.clone()
    if part["task"] == GROUP and "link_error" not in part["options"]:
        copy["kwargs"]["tasks"] = [_guarded(_signature(member), errbacks) for member in _inside(part)]
    elif part["task"] == CHORD:
        if part.app.conf.task_allow_error_cb_on_chord_header:
            copy["kwargs"]["header"] = [_guarded(_signature(member), errbacks) for member in _inside(part)]
        copy["kwargs"]["body"] = _guarded(_signature(part["kwargs"]["body"]), errbacks)
    else:
        copy.extend_list_option("link_error", errbacks)
    return copy


def _check_errback(part: Any) -> None:
    """Refuse an errback that Celery would call with (request, exc, traceback): by the rule of its backends."""
    header = part.type.__header__
    if part["immutable"] or isinstance(header, partial):
        return
    if arity_greater(partial(header, *part["args"], **part["kwargs"]), 1):
        _refuse(
            f"The errback {part['task']!r}",
            "it takes more than the id of the failed task, so Celery would call it with (request, exc, traceback),"
            " which no row can keep; let it take the id only, or bind it",
        )


def _row_options(name: str, options: Mapping[str, Any], *, waits: bool) -> dict[str, Any]:
    """Return what Celery's options mean for the row; raises UntranslatableCanvas with the name of an option."""
    given = {option: value for option, value in options.items() if value is not None}
    for option in sorted(given, key=lambda option: option not in _REMEDIES):
        if option not in (*_KEPT, *_WITHOUT_MEANING):
            _refuse(f"{option}={given[option]!r} on {name}", _REMEDIES.get(option, "a row has nothing like it"))
    for option in ("countdown", "expires") if waits else ():
        if given.get(option) and isinstance(given[option], int | float | timedelta):
            _refuse(
                f"{option}={given[option]!r} on {name}",
                "it counts from the moment when Celery sends the task, which waits for others; give a date",
            )
    return calls.translated({option: given[option] for option in _KEPT if option in given})
