"""Converts Celery's canvas to a workflow."""

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
from django_durable_tasks.choices import DependencyType
from django_durable_tasks.exceptions import UntranslatableCanvas
from django_durable_tasks.option_values import hint
from django_durable_tasks.workflows.builder import END, MAP, STARMAP, Builder, Step

# The parts of a Celery canvas: signatures, members, links, and options of messages.


CHAIN, GROUP, CHORD = "celery.chain", "celery.group", "celery.chord"
CHUNKS = "celery.chunks"


_KNOWN = {
    Signature,
    chain,
    *(Signature.TYPES[name] for name in ("chain", "group", "chord", "xmap", "xstarmap", "chunks")),
}


_KEPT = (
    "queue",
    "priority",
    "eta",
    "countdown",
    "expires",
    "headers",
    "time_limit",
    "soft_time_limit",
)
"""Celery's options that a task of a workflow has."""


_KEPT_OF_USING = frozenset(
    {
        "expected_duration",
        "expires_at",
        "expires_in",
        "lease",
        "max_attempts",
        "max_crashes",
        "on_orphan",
        "run_at",
        "soft_timeout",
        "timeout",
        "weight",
    }
)
"""The options of ``.using()`` that a task of a workflow has."""


_WITHOUT_MEANING = (
    "immutable",
)  # Celery's chord.link_error() sets it among the options, where it has no effect


_CALLBACKS = ("link", "link_error")


_SENT = "Celery sets it when it sends a canvas; convert the canvas before that"
_MESSAGE = (
    "it is an option of a message, and the message of a durable task carries only an id; leave it"
    " out"
)
_DEPENDENCIES = (
    "the canvas itself says which tasks wait for which; build other dependencies by Workflow.add()"
)
_KEYS = "it may name a task outside of the workflow; give the workflow a key, start(key=...)"
_REMEDIES = {
    **dict.fromkeys(calls.OF_MESSAGES - _KEPT_OF_USING, _MESSAGE),
    "stamped_headers": "stamps travel on messages; give headers=... instead",
    "stamps": "stamps travel on messages; give headers=... instead",
    "task_id": "each start gives new ids; convert a canvas before it is frozen or sent",
    **dict.fromkeys(("group_id", "group_index", "chord", "chain", "root_id", "parent_id"), _SENT),
    "retry": "the message of a durable task is published again until the task starts; leave it out",
    "retry_policy": (
        "the message of a durable task is published again until the task starts; leave it out"
    ),
    "exchange": "name the queue, queue=...",
    "routing_key": "name the queue, queue=...",
    "interval": "nothing polls for the end of the header; leave it out",
    "max_retries": (
        "on a chord it limits how often Celery polls for the end of the header, which a workflow"
        " does not do; for a task write @durable_task(max_retries=...) or .set(max_attempts=...)"
    ),
    "ignore_result": "the task keeps its result, which the next one reads; leave it out",
    **dict.fromkeys(("key", "idempotency_key"), _KEYS),
    "tenant": "all tasks of a workflow have its tenant; give it to start(tenant=...)",
    **dict.fromkeys(("depends_on", "join", "on_upstream_failure"), _DEPENDENCIES),
}


def refuse(what: str, why: str) -> NoReturn:
    """Raise UntranslatableCanvas."""
    raise UntranslatableCanvas(f"{what} cannot be translated: {why}.")


def signature(value: Any) -> Any:
    """Return a part of a canvas; raises UntranslatableCanvas for anything else."""
    if not isinstance(value, Mapping) or "task" not in value:
        refuse(repr(value), "it is no signature; write task.s(...)")
    if value.get("subtask_type") not in (None, *Signature.TYPES):
        refuse(f"A signature of type {value['subtask_type']!r}", "only those of Celery are known")
    sig = maybe_signature(value)
    if type(sig) not in _KNOWN:
        refuse(f"A signature of class {type(sig).__qualname__}", "only those of Celery are known")
    return sig


def durable(name: str) -> str:
    """Return the name; raise UntranslatableCanvas if it is not that of a durable task."""
    if registry.find(name) is None:
        refuse(
            f"{name!r}",
            "it is no durable task; put @durable_task on it, or call it from a durable one",
        )
    return name


def _inside(sig: Any) -> list[Any]:
    """Return the tasks of a chain or a group, or the header of a chord."""
    tasks = sig["kwargs"].get("tasks", sig["kwargs"].get("header"))
    return _inside(tasks) if isinstance(tasks, group) else list(tasks or ())


def _no_options(sig: Any, what: str) -> None:
    for option, value in sig["options"].items():
        if value is not None:
            refuse(f"{option}={value!r} on {what}", "Celery forgets it; set it on the tasks")


def steps_of(sig: Any) -> list[Any]:
    """Return the steps of a chain as Celery prepares them.

    Inner chains are spliced, a group of one task is replaced by the task, an empty group is
    removed, and a group with a step after it is a chord with that step as its body.
    """
    spliced = list(_spliced(sig))
    steps: list[Any] = []
    for step in reversed(
        [step for step in spliced if step["task"] != GROUP or _inside(step)] or spliced[-1:]
    ):
        if step["task"] == GROUP and steps:
            _no_options(step, "a group inside a chain")
            steps.append(chord(_inside(step), steps.pop()))
        else:
            steps.append(step)
    return steps[::-1]


def _spliced(sig: Any) -> Iterator[Any]:
    for member in _inside(sig):
        step = signature(member)
        while step["task"] == GROUP and len(_inside(step)) == 1:
            _no_options(step, "a group of one inside a chain")
            step = signature(_inside(step)[0])
        if step["task"] == CHAIN:
            _no_options(step, "a chain inside a chain")
            yield from _spliced(step)
        else:
            yield step


def members_of(sig: Any) -> list[Any]:
    """Return the members of a group; those of an inner group are in reverse order, as Celery passes
    their results.
    """
    members, remaining = [], deque(_inside(sig))
    while remaining:
        member = signature(remaining.popleft())
        if member["task"] == GROUP:
            _no_options(member, "a group inside a group")
            remaining.extendleft(_inside(member))
        elif member["task"] != CHAIN or _inside(member):
            members.append(member)
    return members


def check_handed_on(sig: Any) -> None:
    """Refuse chunks whose results are used: the results of one task would not be equal after JSON
    encoding.
    """
    if sig["task"] == CHUNKS:
        refuse(
            "chunks in a header, or with a task after them",
            "Celery loses their results; write chunks(...).group()",
        )


def check_followed(sig: Any) -> None:
    """Refuse parts to which Celery cannot append others in a chain."""
    check_handed_on(sig)
    inner = sig
    while inner["task"] == CHORD and inner["kwargs"].get("body") is not None:
        inner = signature(inner["kwargs"]["body"])
    if sig["task"] == CHORD and inner["task"] == GROUP:
        refuse(
            "A chord whose body is a group, with a chord after it in a chain",
            "Celery would run that chord once for each member; put a task between them",
        )


def callbacks_of(options: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Remove link and link_error from options."""
    links, errbacks = (list(maybe_list(options.pop(option, None)) or ()) for option in _CALLBACKS)
    return links, errbacks


def distinct(signatures: Iterable[Any]) -> list[Any]:
    """Return the distinct callbacks, as Celery's link_error() stores them."""
    result: list[Any] = []
    for signature in signatures:
        if signature not in result:
            result.append(signature)
    return result


def linked(sig: Any, link: Any) -> Any:
    """Return a part with a callback. Unlike its own ``link()``, this does not change the caller's
    canvas.
    """
    copy = sig.clone()
    if sig["task"] == GROUP and _inside(sig):
        first, *members = map(signature, _inside(sig))
        copy["kwargs"]["tasks"] = [
            linked(first, signature(link).clone().set(immutable=True)),
            *members,
        ]
    elif sig["task"] == CHORD:
        copy["kwargs"]["body"] = linked(signature(sig["kwargs"]["body"]), link)
    else:
        copy.link(link)
    return copy


def guarded(sig: Any, errbacks: Sequence[Any]) -> Any:
    """Return a part with the errbacks of the part that contains it.

    The header of a chord gets them only if ``task_allow_error_cb_on_chord_header`` is set.
    """
    if not errbacks:
        return sig
    copy = sig.clone()
    if sig["task"] == GROUP and "link_error" not in sig["options"]:
        copy["kwargs"]["tasks"] = [guarded(signature(member), errbacks) for member in _inside(sig)]
    elif sig["task"] == CHORD:
        if sig.app.conf.task_allow_error_cb_on_chord_header:
            copy["kwargs"]["header"] = [
                guarded(signature(member), errbacks) for member in _inside(sig)
            ]
        copy["kwargs"]["body"] = guarded(signature(sig["kwargs"]["body"]), errbacks)
    else:
        copy.extend_list_option("link_error", errbacks)
    return copy


def check_errback(sig: Any) -> None:
    """Refuse an errback that Celery would call with (request, exc, traceback), by the rule of its
    backends.
    """
    header = sig.type.__header__
    if sig["immutable"] or isinstance(header, partial):
        return
    if arity_greater(partial(header, *sig["args"], **sig["kwargs"]), 1):
        refuse(
            f"The errback {sig['task']!r}",
            "it takes more than the id of the failed task, so Celery would call it with (request,"
            " exc, traceback), which no row can keep; let it take the id only, or bind it",
        )


def row_options(name: str, options: Mapping[str, Any], *, waits: bool) -> dict[str, Any]:
    """Return the options of the task for these Celery options; raises UntranslatableCanvas with the
    name of an option.
    """
    kept = {option: value for option, value in options.items() if value is not None}
    names = {*_KEPT, *_KEPT_OF_USING, *_WITHOUT_MEANING}
    for option in sorted(kept, key=lambda option: option not in _REMEDIES):
        if option not in names:
            no_such = f"a durable task has no such option. {hint(option, names)}".rstrip(". ")
            refuse(f"{option}={kept[option]!r} on {name}", _REMEDIES.get(option, no_such))
    for option in ("countdown", "expires") if waits else ():
        if kept.get(option) and isinstance(kept[option], int | float | timedelta):
            refuse(
                f"{option}={kept[option]!r} on {name}",
                "it counts from the moment when Celery sends the task, which waits for others; give"
                " a date",
            )
    of_using = {option: kept[option] for option in sorted(_KEPT_OF_USING & kept.keys())}
    return {
        **of_using,
        **calls.translated({option: kept[option] for option in _KEPT if option in kept}),
    }


# Converts Celery's canvas to a workflow: edges and references give each task the arguments that
# Celery would pass.
#
# The rules are those of celery/canvas.py and celery/backends/base.py of Celery 5.7;
# tests/broker/test_canvas.py runs the same canvases with both. Parts that Celery silently ignores
# (such as options of an inner chain) are refused.


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

    def lay(self, value: Any, before: _Flow, around: _Around) -> _Flow:
        """Add a part after its predecessors."""
        sig = signature(value)
        return self._ways.get(sig["task"], self._call)(sig, before, around)

    # One task -------------------------------------------------------------------------------------

    def _call(self, sig: Any, before: _Flow, around: _Around, **defaults: Any) -> _Flow:
        name, options = durable(sig["task"]), {**sig["options"], **around.options}
        links, errbacks = callbacks_of(options)
        kept = {**defaults, **row_options(name, options, waits=bool(before.waits))}
        step = self._add(sig, kept, before.args, after=before.waits)
        for link in links:
            self.lay(link, _Flow((step.result,), (step,)), _Around())
        for errback in distinct(errbacks):
            self._errback(errback, step, around.header)
        return _Flow((step.result,), (step,), (step,))

    def _add(
        self, sig: Any, options: Mapping[str, Any], args: tuple[Any, ...], **edges: Any
    ) -> Step:
        using = calls.of(sig["task"]).using(**options)
        args = tuple(sig["args"]) if sig["immutable"] else (*args, *sig["args"])
        step = self._builder.add_call(using, args, sig["kwargs"], **edges)
        self._queues[step] = using.options.queue or using.registered.options.queue
        return step

    def _errback(self, value: Any, step: Step, header: Sequence[Step]) -> None:
        """Call it with the id of the failed task; for a chord's body also if the header fails, with
        the body's id.
        """
        sig = signature(value)
        if sig["task"] in self._ways:
            refuse(
                f"An errback that is a {sig['task']}",
                "Celery calls tasks only; start a workflow in the errback",
            )
        name, options = durable(sig["task"]), dict(sig["options"])
        check_errback(sig)
        links, errbacks = callbacks_of(options)
        after = dict.fromkeys([step, *header], DependencyType.MUST_FAIL.value)
        called = self._add(
            sig, row_options(name, options, waits=True), (step.id,), after=after, join="ANY"
        )
        for link in links:
            self.lay(link, _Flow((called.result,), (called,)), _Around())
        for errback in distinct(errbacks):
            self._errback(errback, called, ())

    def _map(self, sig: Any, before: _Flow, around: _Around) -> _Flow:
        mapped = signature(sig["kwargs"]["task"])
        if mapped["args"] or mapped["kwargs"] or mapped["options"]:
            refuse(
                f"{sig['task']} of {mapped!r}",
                "Celery drops arguments and options of the task; put them elsewhere",
            )
        registered = registry.get(durable(mapped["task"]))
        target, items = registered.options, list(sig["kwargs"]["it"])
        if registered.types is not None:
            is_spread = MAPS[sig["task"]] == STARMAP
            for index, item in enumerate(items):
                args, _ = registered.types.to_json(target.name, item if is_spread else [item], {})
                items[index] = list(args) if is_spread else args[0]
        call = Signature(
            MAPS[sig["task"]],
            kwargs={"task": target.name, "it": items},
            immutable=True,
            options=sig["options"],
        )
        return self._call(
            call,
            before,
            around,
            queue=target.queue,
            priority=target.priority,
            max_attempts=target.max_attempts,
            max_crashes=target.max_crashes,
            on_orphan=target.on_orphan,
        )

    # Many tasks -----------------------------------------------------------------------------------

    def _chain(self, sig: Any, before: _Flow, around: _Around) -> _Flow:
        if sig["immutable"] or sig["args"]:
            refuse(
                "A chain that is immutable or has arguments",
                "Celery forgets both; give them to its first task",
            )
        options = {**sig["options"], **around.options}
        links, errbacks = callbacks_of(options)
        steps = [guarded(step, errbacks) for step in steps_of(sig)]
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

    def _group(self, sig: Any, before: _Flow, around: _Around) -> _Flow:
        if sig["args"]:
            refuse(
                "A group with arguments of its own", "Celery drops them; give them to its members"
            )
        return self._all(
            members_of(sig), before, _Around({**sig["options"], **around.options}, around.header)
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

    def _chord(self, sig: Any, before: _Flow, around: _Around) -> _Flow:
        if sig["kwargs"].get("kwargs"):
            refuse("chord(kwargs=...)", "give the keywords to the members of its header")
        if sig["kwargs"].get("body") is None:
            refuse("A chord without a body", "use a group")
        options = {**sig["options"], **around.options}
        links, errbacks = callbacks_of(options)
        body = guarded(signature(sig["kwargs"]["body"]), errbacks)
        for link in links:
            body = linked(body, link)
        members = members_of(sig)
        for member in members:
            check_handed_on(member)
        args = tuple(sig["args"]) if sig["immutable"] else (*before.args, *sig["args"])
        head = self._all(members, _Flow(args, before.waits), _Around(options))
        later = {
            option: value for option, value in options.items() if option not in ("countdown", "eta")
        }
        tail = self.lay(body, head, _Around(later, head.tasks))
        return _Flow(tail.args, tail.waits, (*head.tasks, *tail.tasks))

    def _chunks(self, sig: Any, before: _Flow, around: _Around) -> _Flow:
        if sig["options"]:
            refuse("chunks with options", "Celery drops them; set them on .group()")
        task, items, size = (sig["kwargs"][name] for name in ("task", "it", "n"))
        return self.lay(chunks(signature(task), items, size).group(), before, around)
