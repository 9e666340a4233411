"""The calling forms of a durable task. Celery's options and ``.using(...)`` become one ``Call``."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from asgiref.sync import sync_to_async
from celery import Celery, current_app
from celery.canvas import Signature
from celery.contrib.django.task import DjangoTask
from celery.utils.functional import maybe_list, regen

from django_durable_tasks import registry
from django_durable_tasks.celery.prepared_messages import queue_of_options
from django_durable_tasks.celery.result import DurableResult
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import Task
from django_durable_tasks.option_values import LONGEST, instant, seconds
from django_durable_tasks.registry import Registered
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.tasks import enqueue
from django_durable_tasks.tasks.enqueue import Call
from django_durable_tasks.tasks.options import CallOptions, call_options, task_options
from django_durable_tasks.texts import nearest, warn_caller

_OF_CANVAS = ("chord", "chain", "group_id", "group_index")
_CANVAS = ("link", "link_error", *_OF_CANVAS)
_TRANSLATED = {"time_limit": "timeout", "soft_time_limit": "soft_timeout", "priority": "priority"}
OF_MESSAGES = frozenset(
    {
        "add_to_parent",
        "argsrepr",
        "compression",
        "confirm_timeout",
        "connection",
        "correlation_id",
        "declare",
        "delivery_mode",
        "expiration",
        "ignore_result",
        "immediate",
        "kwargsrepr",
        "mandatory",
        "origin",
        "parent_id",
        "producer",
        "publisher",
        "replaced_task_nesting",
        "reply_to",
        "result_cls",
        "retry",
        "retry_policy",
        "root_id",
        "route_name",
        "router",
        "serializer",
        "shadow",
        "stamped_headers",
        "stamps",
        "task_type",
        "timeout",
    }
)
"""Celery's options about the message only. They have no effect for a durable task, whose message
this package builds.
"""
_CELERYS = frozenset(
    {
        *_CANVAS,
        *_TRANSLATED,
        *OF_MESSAGES,
        "countdown",
        "eta",
        "exchange",
        "expires",
        "headers",
        "queue",
        "routing_key",
        "task_id",
    }
)
_OURS = frozenset(spec.name for spec in dataclasses.fields(CallOptions)) - _CELERYS


OPTIONS = "durable_options"
"""The option of ``apply_async`` with the options of a call that Celery does not have."""
_AS_CELERYS = {
    "headers": "headers",
    "queue": "queue",
    "priority": "priority",
    "task_id": "task_id",
    "run_at": "eta",
    "expires_at": "expires",
    "timeout": "time_limit",
    "soft_timeout": "soft_time_limit",
}
"""The options of a call that ``apply_async`` receives by the names of Celery."""
_overriding = ContextVar[frozenset[str]]("durable_tasks_overriding", default=frozenset())
"""The tasks whose overridden ``apply_async`` is being called through ``Using``. It may use
``.using(...)`` itself.
"""


@dataclass(frozen=True, slots=True)
class Using:
    """A durable task with options for the calls made through it.

    ``overridden``: the Celery task if its class overrides ``apply_async``. Every call of a single
    task goes through that method, as in Celery.
    """

    registered: Registered
    options: CallOptions
    overridden: Any = None

    def using(self, **options: Any) -> Using:
        """Return a copy with more options."""
        return dataclasses.replace(self, options=call_options(self.options, options))

    def schedule(self, /, *args: Any, **kwargs: Any) -> Task:
        """Create the task in the caller's transaction and return it; ``run_at`` is the earliest
        start.

        If an overridden ``apply_async`` does not return a DurableResult, its value is returned.
        """
        options = self.options
        # The decorator refuses a task function with a parameter of this name.
        if "run_at" in kwargs:
            options = call_options(options, {"run_at": kwargs.pop("run_at")})
        if self.overridden is not None:
            result: Any = self._by_override(args, kwargs, options)
            return result.task if isinstance(result, DurableResult) else result
        return enqueue.schedule(Call(self.registered, args, kwargs, options))

    def delay(self, /, *args: Any, **kwargs: Any) -> DurableResult:
        """Create the task in the caller's transaction and return its result."""
        if self.overridden is not None:
            result: DurableResult = self._by_override(args, kwargs, self.options)
            return result
        return _submitted(Call(self.registered, args, kwargs, self.options))

    def _by_override(
        self, args: Any, kwargs: Any, options: CallOptions, **celery_options: Any
    ) -> Any:
        """Call the overridden ``apply_async`` with the options by their names in Celery."""
        call_options: dict[str, Any] = {}
        for spec in dataclasses.fields(options):
            value = getattr(options, spec.name)
            if value == spec.default:
                continue
            if spec.name in _AS_CELERYS:
                call_options[_AS_CELERYS[spec.name]] = value
            else:
                call_options.setdefault(OPTIONS, {})[spec.name] = value
        token = _overriding.set(_overriding.get() | {self.registered.options.name})
        try:
            return self.overridden.apply_async(args, kwargs, **{**call_options, **celery_options})
        finally:
            _overriding.reset(token)

    def schedule_many(
        self, arguments: Iterable[Iterable[Any]], *, run_at: datetime | None = None
    ) -> list[uuid.UUID]:
        """Create one task per tuple of arguments, all or none; return their ids."""
        self._check_not_overridden("schedule_many")
        return enqueue.schedule_many(self.registered, self._at(run_at), arguments)

    def schedule_stream(
        self,
        arguments: Iterable[Iterable[Any]],
        *,
        run_at: datetime | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Create one task per tuple of an iterable of any length, all or none, in constant memory;
        return their number.

        ``progress`` is called after each 5,000 tasks with the number of tasks so far.
        """
        self._check_not_overridden("schedule_stream")
        return enqueue.schedule_stream(self.registered, self._at(run_at), arguments, progress)

    def _check_not_overridden(self, form: str) -> None:
        if self.overridden is None:
            return
        classes = type(self.overridden).__mro__
        owner = next(kind for kind in classes if "apply_async" in vars(kind))
        raise InvalidOption(
            f"{form}() inserts many tasks at once and does not call the apply_async() that"
            f" {owner.__name__} overrides: call .delay() for each tuple of arguments."
        )

    async def aschedule(self, /, *args: Any, **kwargs: Any) -> Task:
        """Create the task as ``schedule`` does, without blocking the event loop."""
        return await sync_to_async(self.schedule)(*args, **kwargs)

    async def adelay(self, /, *args: Any, **kwargs: Any) -> DurableResult:
        """Create the task as ``delay`` does, without blocking the event loop."""
        return await sync_to_async(self.delay)(*args, **kwargs)

    async def aschedule_many(
        self, arguments: Iterable[Iterable[Any]], *, run_at: datetime | None = None
    ) -> list[uuid.UUID]:
        """Create tasks as ``schedule_many`` does, without blocking the event loop."""
        return await sync_to_async(self.schedule_many)(arguments, run_at=run_at)

    def _at(self, run_at: datetime | None) -> CallOptions:
        return self.options if run_at is None else call_options(self.options, {"run_at": run_at})

    def apply_async(
        self, args: Any = None, kwargs: Any = None, **celery_options: Any
    ) -> DurableResult:
        """Create the task with the options of Celery's ``apply_async``."""
        if self.overridden is not None:
            result: DurableResult
            result = self._by_override(args, kwargs, self.options, **celery_options)
            return result
        durable_options = celery_options.pop(OPTIONS, None) or {}
        options = call_options(self.options, {**durable_options, **translated(celery_options)})
        return _submitted(Call(self.registered, tuple(args or ()), dict(kwargs or {}), options))


def _submitted(call: Call) -> DurableResult:
    task_id = enqueue.submit(call)
    result = DurableResult(task_id)
    result.created_here = True
    return result


def of_task(task: Any, base: type) -> Using:
    """Return the calling forms of a Celery task, through ``apply_async`` if its class overrides
    that of ``base``.
    """
    name = task.name
    is_overridden = (
        type(task).apply_async is not base.apply_async  # type: ignore[attr-defined]
        or "apply_async" in vars(task)
    )
    if not is_overridden or name in _overriding.get():
        return of(name)
    return dataclasses.replace(of(name), overridden=task)


def of(name: str) -> Using:
    """Return the calling forms of the durable task of this name; raises UnknownTask."""
    return Using(registry.get(name), CallOptions())


def translated(celery_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return Celery's options as options of this package. Raises InvalidOption for those that a
    task cannot store.
    """
    for option in _CANVAS:
        if celery_options.get(option):
            raise InvalidOption(
                f"{option}=... cannot be kept by a durable task: its callbacks would travel on the"
                " message and be lost or doubled by a retry. Give the canvas to"
                " Workflow.from_canvas(...), or return Schedule(...)."
            )
    _check_known(celery_options)
    options = {name: celery_options.get(celery_name) for celery_name, name in _TRANSLATED.items()}
    options["queue"] = queue_of_options(celery_options)
    options["run_at"] = _start(celery_options.get("eta"), celery_options.get("countdown"))
    expires = celery_options.get("expires")
    if isinstance(expires, int | float | timedelta) and not isinstance(expires, bool):
        # From the call, as in Celery; our own expires_in counts from run_at.
        options["expires_at"] = estimated_now() + timedelta(seconds=seconds("expires", expires))
    elif expires is not None:
        options["expires_at"] = instant("expires", expires)
    options["headers"] = celery_options.get("headers") or None
    if celery_options.get("task_id") is not None:
        options["task_id"] = celery_options["task_id"]
    return {option: value for option, value in options.items() if value is not None}


def _check_known(celery_options: Mapping[str, Any]) -> None:
    """Refuse unknown options, and options of ``.using()``, which Celery would pass on to its
    transport.
    """
    names = _CELERYS.union(celery_options.get("stamped_headers") or ())
    for option in celery_options:
        if option in names:
            continue
        if option in _OURS:
            raise InvalidOption(
                f"apply_async() has no option {option!r}: write"
                f" .using({option}=...).apply_async(...)."
            )
        hint, near = "", nearest(option, _CELERYS | _OURS)
        if near in _OURS:
            hint = f" Did you mean .using({near}=...)?"
        elif near:
            hint = f" Did you mean {near!r}?"
        raise InvalidOption(f"apply_async() has no option {option!r}.{hint}")


def _start(eta: object, countdown: object) -> datetime | None:
    """Return the earliest start. As in Celery a countdown takes precedence over an eta, unless it
    is 0, and a negative one has passed.
    """
    if countdown and not isinstance(countdown, bool):
        wait = seconds("countdown", countdown, minimum=-LONGEST)
        return estimated_now() + timedelta(seconds=wait) if wait > 0 else None
    if countdown is True:
        seconds("countdown", countdown)
    return None if eta is None else instant("eta", eta)


class RehearsedTask(DjangoTask):
    """The class of a plain Celery task whose calls are also checked as calls of a durable task.

    It warns, at the line of the caller, of each call that ``@durable_task`` would refuse, and
    publishes it as Celery does. Use it as ``base=`` of a task, or as ``task_cls=`` of the app.
    """

    abstract: ClassVar[bool] = True

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: Any = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: Any = None,
        **options: Any,
    ) -> Any:
        """Check the call, and publish its message."""
        options |= {"task_id": task_id, "link": link, "link_error": link_error, "shadow": shadow}
        self.rehearse(args, kwargs, options)
        return super().apply_async(args, kwargs, producer=producer, **options)

    def rehearse(self, args: Any, kwargs: Any, options: Mapping[str, Any]) -> None:
        """Warn if these arguments and options of ``apply_async`` would be refused."""
        # Celery's own tasks cannot be converted, and its ``self.retry()`` sends the message again.
        if self.name.startswith("celery.") or options.get("retries"):
            return
        # Celery calls the parts of a canvas with these. The canvas was checked as a whole.
        options = {name: options[name] for name in options if name not in _OF_CANVAS}
        try:
            values = call_options(CallOptions(), translated(options))
            call = Call(self._as_durable, tuple(args or ()), dict(kwargs or {}), values)
            enqueue.new_task(call)
        except Exception as error:  # noqa: BLE001 - the rehearsal of a call must not fail it
            self.warn(error)

    @functools.cached_property
    def _as_durable(self) -> Registered:
        return Registered(task_options(self.name, {}), inspect.signature(self.run), self.run)

    def warn(self, error: Exception) -> None:
        """Warn of a call that would be refused with this error."""
        kind = type(error).__name__
        warn_caller(f"Refused if {self.name} were a durable task: {kind}: {error}", UserWarning)


def _rehearsed(name: str) -> RehearsedTask | None:
    # An app that is not finalized has created no task yet.
    task = current_app.tasks.get(name) if current_app.finalized else None
    return task if isinstance(task, RehearsedTask) else None


# Checks canvases and calls by name before Celery publishes anything.
#
# Celery calls the later parts of a canvas in a worker, after the earlier parts have run. A durable
# task cannot store the options that it would receive there (a chord, a group, errbacks, the rest of
# a chain), so that work would be lost. Celery has no hook that can refuse a call: receivers of
# ``before_task_publish`` cannot raise. So its calling forms are wrapped.


CHAIN, GROUP, CHORD, CHUNKS = "celery.chain", "celery.group", "celery.chord", "celery.chunks"
_MAPS = ("celery.map", "celery.starmap", CHUNKS)
_COMPOSITES = (CHAIN, GROUP, CHORD, *_MAPS)
# The type of what Celery makes of a generator of tasks.
_GENERATED = type(regen(iter(())))
_AS_WORKFLOW = (
    "if all its tasks are durable, use Workflow.from_canvas(...).start(), or for a group"
    " task.schedule_many([...]); otherwise make them durable first"
)
_REMEDIES = {
    "link_error": "let the errback be a plain Celery task that calls {name}.delay(...)",
    "link": "give one callback, or let a plain Celery task call {name}.delay(...)",
    "chain": f"let a durable task stand last and without link or link_error, or {_AS_WORKFLOW}",
}
_WRAPPED = "_durable_tasks_wrapped"


def install() -> None:
    """Wrap Celery's calling forms, once."""
    for kind in ("chain", "group", "chord", "chunks"):
        _wrap(Signature.TYPES[kind], "apply_async", _checked)
    _wrap(Celery, "send_task", _by_name)


def _wrap(owner: type, method: str, wrapper: Callable[[Any], Any]) -> None:
    original = getattr(owner, method)
    if not hasattr(original, _WRAPPED):
        wrapped = functools.wraps(original)(wrapper(original))
        setattr(wrapped, _WRAPPED, True)
        setattr(owner, method, wrapped)


def _checked(original: Any) -> Any:
    def apply_async(
        self: Any, args: Any = None, kwargs: Any = None, *more: Any, **options: Any
    ) -> Any:
        check(self, options, (kwargs or {}).get("body") if self["task"] == CHORD else None)
        return original(self, args, kwargs, *more, **options)

    return apply_async


def _by_name(original: Any) -> Any:
    positions = list(inspect.signature(original).parameters)[4:]

    def send_task(
        self: Any, name: str, args: Any = None, kwargs: Any = None, *more: Any, **options: Any
    ) -> Any:
        options.update(zip(positions, more, strict=False))
        if registry.find(name) is not None:
            return of(name).apply_async(args, kwargs, **options)
        rehearsed = None if "task_type" in options else _rehearsed(name)
        if rehearsed is not None:
            rehearsed.rehearse(args, kwargs, options)
        if name in _MAPS and kwargs:
            check({"task": name, "kwargs": kwargs})
        check_callbacks(options)
        return original(self, name, args, kwargs, **options)

    return send_task


def check(canvas: Any, options: Mapping[str, Any] | None = None, body: Any = None) -> None:
    """Raise InvalidOption if a durable task in this canvas could not run once Celery gets to it,
    and warn if it is a RehearsedTask.

    ``options`` are those of the call, and ``body`` is the body that a chord is called with.
    """
    kind, options = canvas["task"], {**canvas.get("options", {}), **(options or {})}
    if kind not in _COMPOSITES:
        if registry.find(kind) is None:
            check_callbacks(options)
        else:
            translated(options)
    elif kind == CHAIN:
        _check_chain(canvas, options)
    else:
        place = "map, starmap and chunks" if kind in _MAPS else f"a {kind.removeprefix('celery.')}"

        def checked(part: Any) -> Any:
            for name in _names(part):
                _refuse(place, name, _AS_WORKFLOW)
            check(part)
            return part

        kwargs, parts = canvas["kwargs"], [] if body is None else [body]
        # Celery makes a group with this option of the header of a chord.
        is_header = kind == GROUP and "chord" in canvas.get("options", {})
        header = kwargs["header"] if kind == CHORD else kwargs["tasks"] if is_header else None
        if isinstance(header, _GENERATED):
            # Celery publishes the tasks of this header while the project generates them. So each is
            # checked when it is generated. Celery's list reads the first two here.
            header.map(checked)
            bool(header)
            parts += maybe_list(kwargs.get("body")) or ()
        else:
            parts += _parts(canvas)
        check_callbacks(options)
        for part in parts:
            checked(part)


def check_callbacks(options: Mapping[str, Any]) -> None:
    """Raise InvalidOption if a plain task's callbacks contain a durable task that could not run."""
    for option in ("link_error", "chord"):
        for name in _all_names(maybe_list(options.get(option)) or ()):
            _refuse(f"{option}=", name, _REMEDIES.get(option, _AS_WORKFLOW))
    callbacks = maybe_list(options.get("link")) or ()
    for name in _all_names(callbacks) if len(callbacks) > 1 else ():
        _refuse("several callbacks in link=", name, _REMEDIES["link"])
    for callback in callbacks:
        check(callback)


def _check_chain(canvas: Any, options: Mapping[str, Any]) -> None:
    """Check a chain: a durable task can be its last step, if all others are plain tasks."""
    *steps, last = list(_steps(canvas)) or [None]
    for step in steps:
        for name in _names(step):
            _refuse("a chain", name, _REMEDIES["chain"])
        check(step)
    if last is None:
        return
    grouped = any(sig["task"] in _COMPOSITES for sig in [*steps, last])
    for name in _names(last):
        if grouped or options.get("link") or options.get("link_error"):
            _refuse("a chain", name, _REMEDIES["chain"])
    check(last)
    check_callbacks(options)


def _refuse(place: str, name: str, remedy: str) -> None:
    error = InvalidOption(
        f"{place} cannot contain the durable task {name!r}: Celery sends it without its row, so it"
        f" would be lost. Instead, {remedy.format(name=name.rpartition('.')[2])}."
    )
    rehearsed = _rehearsed(name)
    if rehearsed is None:
        raise error
    rehearsed.warn(error)


def _parts(canvas: Any) -> Iterator[Any]:
    """Return the direct parts of a composite canvas."""
    kwargs, kind = canvas["kwargs"], canvas["task"]
    if kind in _MAPS:
        yield kwargs["task"]
    elif kind == CHORD:
        header = kwargs["header"]
        yield from [header] if isinstance(header, Mapping) else header
        yield from maybe_list(kwargs.get("body")) or ()
    else:
        yield from kwargs["tasks"]


def _steps(chain: Any) -> Iterator[Any]:
    """Return the steps of a chain, with those of chains in it."""
    for step in _parts(chain):
        if step["task"] == CHAIN:
            yield from _steps(step)
        else:
            yield step


def _names(canvas: Any) -> Iterator[str]:
    """Return the names of the durable and the rehearsed tasks that are parts of a canvas, without
    its callbacks.
    """
    if canvas["task"] in _COMPOSITES:
        yield from _all_names(_parts(canvas))
    elif registry.find(canvas["task"]) is not None or _rehearsed(canvas["task"]) is not None:
        yield canvas["task"]


def _all_names(canvases: Iterable[Any]) -> Iterator[str]:
    for canvas in canvases:
        yield from _names(canvas)
