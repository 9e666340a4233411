"""The calling forms of a durable task. Celery's options and ``.using(...)`` become one ``Call``."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django_durable_tasks import registry
from django_durable_tasks.celery.result import DurableResult
from django_durable_tasks.celery.routing import queue_of_options
from django_durable_tasks.did_you_mean import nearest
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import Task
from django_durable_tasks.option_values import LONGEST, instant, seconds
from django_durable_tasks.registry import Registered
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.tasks import enqueue
from django_durable_tasks.tasks.new_task import Call
from django_durable_tasks.tasks.options import CallOptions, call_options

_CANVAS = ("link", "link_error", "chord", "chain", "group_id", "group_index")
_TRANSLATED = {"time_limit": "timeout", "soft_time_limit": "soft_timeout", "priority": "priority"}
_OF_MESSAGES = (
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
)
"""Celery's options about the message only. They have no effect for a durable task, whose message
this package builds.
"""
_CELERYS = frozenset(
    {
        *_CANVAS,
        *_TRANSLATED,
        *_OF_MESSAGES,
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


@dataclass(frozen=True, slots=True)
class Using:
    """A durable task with options for the calls made through it."""

    registered: Registered
    options: CallOptions

    def using(self, **options: Any) -> Using:
        """Return a copy with more options."""
        return Using(self.registered, call_options(self.options, options))

    def schedule(self, /, *args: Any, **kwargs: Any) -> Task:
        """Create the task in the caller's transaction and return it; ``run_at`` is the earliest
        start.
        """
        options = self.options
        # The decorator refuses a task function with a parameter of this name.
        if "run_at" in kwargs:
            options = call_options(options, {"run_at": kwargs.pop("run_at")})
        return enqueue.schedule(Call(self.registered, args, kwargs, options))

    def delay(self, /, *args: Any, **kwargs: Any) -> DurableResult:
        """Create the task in the caller's transaction and return its result."""
        return _submitted(Call(self.registered, args, kwargs, self.options))

    def schedule_many(
        self, arguments: Iterable[Iterable[Any]], *, run_at: datetime | None = None
    ) -> list[uuid.UUID]:
        """Create one task per tuple of arguments, all or none; return their ids."""
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
        return enqueue.schedule_stream(self.registered, self._at(run_at), arguments, progress)

    def _at(self, run_at: datetime | None) -> CallOptions:
        return self.options if run_at is None else call_options(self.options, {"run_at": run_at})

    def apply_async(
        self, args: Any = None, kwargs: Any = None, **celery_options: Any
    ) -> DurableResult:
        """Create the task with the options of Celery's ``apply_async``."""
        options = call_options(self.options, translated(celery_options))
        return _submitted(Call(self.registered, tuple(args or ()), dict(kwargs or {}), options))


def _submitted(call: Call) -> DurableResult:
    task_id = enqueue.submit(call)
    result = DurableResult(task_id)
    result.created_here = True
    return result


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
    options = {ours: celery_options.get(theirs) for theirs, ours in _TRANSLATED.items()}
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
    known = _CELERYS.union(celery_options.get("stamped_headers") or ())
    for option in celery_options:
        if option in known:
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
