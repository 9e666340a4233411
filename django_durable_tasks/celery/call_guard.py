"""Checks canvases and calls by name before Celery publishes anything.

Celery calls the later parts of a canvas in a worker, after the earlier parts have run. A durable
task cannot store the options that it would receive there (a chord, a group, errbacks, the rest of a
chain), so that work would be lost. Celery has no hook that can refuse a call: receivers of
``before_task_publish`` cannot raise. So its calling forms are wrapped.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from celery import Celery
from celery.canvas import Signature
from celery.utils.functional import maybe_list

from django_durable_tasks import registry
from django_durable_tasks.celery import calls
from django_durable_tasks.exceptions import InvalidOption

CHAIN, GROUP, CHORD, CHUNKS = "celery.chain", "celery.group", "celery.chord", "celery.chunks"
_MAPS = ("celery.map", "celery.starmap", CHUNKS)
_COMPOSITES = (CHAIN, GROUP, CHORD, *_MAPS)
_CANVAS = "make all its tasks durable and use Workflow.from_canvas(...).start()"
_REMEDIES = {
    "link_error": "let the errback be a plain Celery task that calls {name}.delay(...)",
    "link": "give one callback, or let a plain Celery task call {name}.delay(...)",
    "chain": f"let a durable task stand last and without link or link_error, or {_CANVAS}",
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
            return calls.of(name).apply_async(args, kwargs, **options)
        if name in _MAPS and kwargs:
            check({"task": name, "kwargs": kwargs})
        check_callbacks(options)
        return original(self, name, args, kwargs, **options)

    return send_task


def check(canvas: Any, options: Mapping[str, Any] | None = None, body: Any = None) -> None:
    """Raise InvalidOption if a durable task in this canvas could not run once Celery gets to it.

    ``options`` are those of the call, and ``body`` is the body that a chord is called with.
    """
    kind, options = canvas["task"], {**canvas.get("options", {}), **(options or {})}
    if kind not in _COMPOSITES:
        _check_task(canvas, options)
    elif kind == CHAIN:
        _check_chain(canvas, options)
    else:
        parts = [*_parts(canvas), *([body] if body is not None else [])]
        for name in _all_names(parts):
            _refuse(
                "map, starmap and chunks" if kind in _MAPS else f"a {kind.removeprefix('celery.')}",
                name,
                _CANVAS,
            )
        check_callbacks(options)
        for part in parts:
            check(part)


def check_callbacks(options: Mapping[str, Any]) -> None:
    """Raise InvalidOption if a plain task's callbacks contain a durable task that could not run."""
    for option in ("link_error", "chord"):
        for name in _all_names(maybe_list(options.get(option)) or ()):
            _refuse(f"{option}=", name, _REMEDIES.get(option, _CANVAS))
    callbacks = maybe_list(options.get("link")) or ()
    for name in _all_names(callbacks) if len(callbacks) > 1 else ():
        _refuse("several callbacks in link=", name, _REMEDIES["link"])
    for callback in callbacks:
        check(callback)


def _check_task(task: Any, options: Mapping[str, Any]) -> None:
    if registry.find(task["task"]) is None:
        check_callbacks(options)
    else:
        calls.translated(options)


def _check_chain(canvas: Any, options: Mapping[str, Any]) -> None:
    """Check a chain: a durable task can be its last step, if all others are plain tasks."""
    *steps, last = list(_steps(canvas)) or [None]
    for step in steps:
        for name in _names(step):
            _refuse("a chain", name, _REMEDIES["chain"])
        check(step)
    if last is None:
        return
    grouped = any(part["task"] in _COMPOSITES for part in [*steps, last])
    for name in _names(last):
        if grouped or options.get("link") or options.get("link_error"):
            _refuse("a chain", name, _REMEDIES["chain"])
    check(last)
    check_callbacks(options)


def _refuse(place: str, name: str, remedy: str) -> NoReturn:
    raise InvalidOption(
        f"{place} cannot contain the durable task {name!r}: it would be lost after the other tasks"
        f" have run. Instead, {remedy.format(name=name.rpartition('.')[2])}."
    )


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
    """Return the names of the durable tasks that are parts of a canvas, without its callbacks."""
    if canvas["task"] in _COMPOSITES:
        yield from _all_names(_parts(canvas))
    elif registry.find(canvas["task"]) is not None:
        yield canvas["task"]


def _all_names(canvases: Iterable[Any]) -> Iterator[str]:
    for canvas in canvases:
        yield from _names(canvas)
