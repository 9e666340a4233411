"""The durable tasks and schedules that are declared in this process.

``@durable_task`` and ``@recurring`` add to it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django_durable_tasks.did_you_mean import nearest_function
from django_durable_tasks.exceptions import InvalidOption, UnknownTask
from django_durable_tasks.rules.target_types import (
    HTTP_CALLBACK_TASK,
    QUEUE_MESSAGE_TASK,
    TargetType,
)
from django_durable_tasks.rules.tasks.arguments import CallShape, bind
from django_durable_tasks.rules.tasks.options import TaskOptions


@dataclass(frozen=True, slots=True)
class TaskTarget:
    """What the tasks of a function do outside of the function itself.

    ``prepared`` checks the keyword arguments of a call and returns them as they are stored. It
    raises an error of this package. ``endpoint`` returns the key of the receiver from the tenant's
    id and the keyword arguments: the ``limit_key`` of the task and the key of its breaker.
    """

    type: TargetType = TargetType.CELERY_TASK
    prepared: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    endpoint: Callable[[int, Mapping[str, Any]], str | None] | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """One durable task: its options, and the signature that a call must fit (without ``self``)."""

    options: TaskOptions
    signature: inspect.Signature
    function: Any
    target: TaskTarget = TaskTarget()
    shape: CallShape = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", CallShape(self.signature))

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Check that a call fits the signature; raises InvalidArguments."""
        if not self.shape.fits(args, kwargs):
            bind(self.signature, self.options.name, args, kwargs)


@dataclass(frozen=True, slots=True)
class Declaration:
    """One declared schedule.

    ``name``: of the schedule. ``task``: the name of its task. ``options``: the keyword arguments of
    ``upsert``. ``source``: which code declares it.
    """

    name: str
    task: str
    options: Mapping[str, Any]
    source: str


_tasks: dict[str, Registered] = {}
_declarations: dict[str, tuple[Declaration, Any]] = {}


def add(registered: Registered) -> None:
    """Register a durable task. Raises InvalidOption if another function has the name."""
    name = registered.options.name
    existing = _tasks.get(name)
    if existing is not None and _origin(existing.function) != _origin(registered.function):
        raise InvalidOption(
            f"name={name!r} is taken by {'.'.join(_origin(existing.function))}; give another name."
        )
    _tasks[name] = registered


def declare_target(name: str, target: TaskTarget) -> None:
    """Declare what the tasks of this registered name do; for the tasks of this package."""
    _tasks[name] = dataclasses.replace(get(name), target=target)


def _origin(function: Any) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def find(name: str) -> Registered | None:
    """Return the durable task of this name, or None."""
    return _tasks.get(name)


def get(name: str) -> Registered:
    """Return the durable task of this name. Raises UnknownTask with the most similar name."""
    task = _tasks.get(name)
    if task is None:
        similar = nearest_function(name, _tasks)
        hint = f"Did you mean {similar!r}?" if similar else ""
        message = f"No durable task is registered as {name!r} in this process. {hint}"
        raise UnknownTask(message.strip())
    return task


_PACKAGE = "django_durable_tasks."


def is_internal(name: str) -> bool:
    """Return whether the task is one of this package that only the engine creates."""
    return name.startswith(_PACKAGE) and name not in (HTTP_CALLBACK_TASK, QUEUE_MESSAGE_TASK)


def names() -> frozenset[str]:
    """Return the names of all durable tasks of this process."""
    return frozenset(_tasks)


def declare(declaration: Declaration, function: Any) -> None:
    """Register a schedule that decorates a function. Raises InvalidOption if its name is taken.

    A module that is reloaded may declare its schedules again.
    """
    existing, decorated = _declarations.get(declaration.name, (declaration, None))
    if decorated is not None and (decorated is function or _origin(decorated) != _origin(function)):
        raise InvalidOption(
            f"@recurring({declaration.name!r}) already decorates {'.'.join(_origin(decorated))} for"
            f" {existing.task}; give another name."
        )
    _declarations[declaration.name] = declaration, function


def declarations() -> dict[str, Declaration]:
    """Return the declared schedules by name."""
    return {name: declaration for name, (declaration, _) in _declarations.items()}
