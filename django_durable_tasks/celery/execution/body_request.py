"""Makes ``self.request``, Celery's hooks and an overridden ``__call__`` show the task, not its
message.

Each attempt has a message with its own id and without arguments. Celery's events, acknowledgements
and logs use the id of the message, so the request is changed only while the function runs.

Celery calls ``Task.__call__`` for a message. The request records how far that call has come:
received by this package, then in the function. So one method serves the message, the call of the
function that the gate makes, and direct calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from celery import Task as CeleryTask

from django_durable_tasks.celery.execution.live_runs import LiveRun, process_runs
from django_durable_tasks.celery.publishing.message_id import parse

_PLACE_OF_ID = {"on_success": 1, "on_failure": 1, "on_retry": 1, "after_return": 2}
_BEFORE = "before_start"
_WRAPPED = "_durable_tasks_wrapped"
STATE = "durable_call_state"
"""The attribute of a request that holds its CallState."""


class CallState:
    """How far the call of the task of a request has come.

    ``run``: calls the function of a task of a batch, whose request has no message. Headers of a
    message become attributes of its request, so another value of the attribute STATE is ignored.
    """

    __slots__ = ("in_function", "received", "run")

    def __init__(self, run: Callable[[], Any] | None = None) -> None:
        self.run, self.received, self.in_function = run, False, False


def state_of(request: Any) -> CallState:
    """Return the state of this request, which is created if it has none."""
    state = getattr(request, STATE, None)
    if not isinstance(state, CallState):
        state = CallState()
        setattr(request, STATE, state)
    return state


@contextmanager
def of_row(request: Any, live: LiveRun) -> Iterator[None]:
    """Make the request show the task's id, its arguments and the headers of its call."""
    task_id, headers = str(live.run.task_id), live.run.options.get("headers")
    before = {
        "id": request.id,
        "root_id": request.root_id,
        "args": request.args,
        "kwargs": request.kwargs,
    }
    request.update(id=task_id, root_id=task_id, args=live.args, kwargs=live.kwargs)
    request.headers = {**(request.headers or {}), **(headers or {})}
    if headers:
        kind = type(request)
        request.update({name: value for name, value in headers.items() if not hasattr(kind, name)})
    try:
        yield
    finally:
        request.update(before)


def wrap_hooks(owner: type) -> None:
    """Make the hooks that this class defines or inherits from a mixin receive the id and the
    arguments of the task.
    """
    for name in (_BEFORE, *_PLACE_OF_ID):
        hook = getattr(owner, name)
        if hook is getattr(CeleryTask, name) or getattr(hook, _WRAPPED, False):
            continue
        wrapped = _after_the_start(hook) if name == _BEFORE else _with_row(hook, _PLACE_OF_ID[name])
        setattr(wrapped, _WRAPPED, True)
        setattr(owner, name, wrapped)


def wrap_call(owner: Any, base: Any) -> None:
    """If this class defines ``__call__`` or inherits it from a mixin, call it around the function
    of an accepted message, with the arguments of the task, instead of around the message.
    """
    override = owner.__call__
    if override is base.__call__ or getattr(override, _WRAPPED, False):
        return

    @wraps(override)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = self.request
        if request.called_directly or state_of(request).received:
            return override(self, *args, **kwargs)
        return base.__call__(self, *args, **kwargs)

    setattr(call, _WRAPPED, True)
    owner.__call__ = call
    owner.around_function = staticmethod(override)


def _with_row(hook: Callable[..., Any], place: int) -> Callable[..., Any]:
    @wraps(hook)
    def call(self: Any, *given: Any) -> Any:
        live = (
            process_runs.find(given[place])
            if len(given) > place and isinstance(given[place], str)
            else None
        )
        if live is not None:
            given = (
                *given[:place],
                str(live.run.task_id),
                live.args,
                live.kwargs,
                *given[place + 3 :],
            )
        return hook(self, *given)

    return call


def _after_the_start(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Ignore Celery's call of ``before_start`` for a message, which may be refused. The gate calls
    it for a run.
    """

    @wraps(hook)
    def call(self: Any, task_id: str, args: Any, kwargs: Any) -> Any:
        return None if parse(task_id) else hook(self, task_id, args, kwargs)

    return call
