"""The durable tasks and schedules that are declared in this process.

``@durable_task`` and ``@recurring`` add to it.
"""

from __future__ import annotations

import dataclasses
import inspect
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django_durable_tasks import ports
from django_durable_tasks.argument_types import ArgumentTypes
from django_durable_tasks.choices import TargetType
from django_durable_tasks.exceptions import InvalidArguments, InvalidOption, UnknownTask
from django_durable_tasks.tasks.options import TaskOptions
from django_durable_tasks.texts import nearest_function

# The registered names of tasks of this package that several packages know.


HTTP_CALLBACK_TASK = "django_durable_tasks.http_callback"
QUEUE_MESSAGE_TASK = "django_durable_tasks.queue_message"

NOTIFICATION_TASK = "django_durable_tasks.deliver_notification"
WATCHDOG_TASK = "django_durable_tasks.watchdog"
OWN_TASKS = frozenset({NOTIFICATION_TASK, WATCHDOG_TASK})
"""Tasks whose endings are no events. Otherwise a failed delivery would cause another one."""

PLAIN_CELERY_TASK = "django_durable_tasks.plain_celery_task"
"""The durable task that sends a message to a Celery task that is not durable."""


@dataclass(frozen=True, slots=True)
class TaskTarget:
    """What the tasks of a function do outside of the function itself.

    ``prepared`` checks the keyword arguments of a call and returns them as they are stored. It
    raises an error of this package. ``endpoint`` returns the key of the receiver from the tenant's
    id and the keyword arguments: the ``limit_key`` of the task and the key of its breaker.
    ``postpone`` returns a QUEUED task, by id and epoch, to PENDING if its breaker is open, and
    whether it did. ``check_tenant`` raises an error of this package if the tenant of this slug may
    not make the call.
    """

    type: TargetType = TargetType.CELERY_TASK
    prepared: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    endpoint: Callable[[int, Mapping[str, Any]], str | None] | None = None
    postpone: Callable[[uuid.UUID, int], bool] | None = None
    check_tenant: Callable[[Mapping[str, Any], str], None] | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """One durable task: its options, and the signature that a call must fit (without ``self``)."""

    options: TaskOptions
    signature: inspect.Signature
    function: Any
    target: TaskTarget = TaskTarget()
    shape: CallShape = field(init=False, repr=False, compare=False)
    _types: ArgumentTypes | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", CallShape(self.signature))

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function, which is cancelled in threads, too."""
        return inspect.iscoroutinefunction(inspect.unwrap(self.function))

    @property
    def types(self) -> ArgumentTypes | None:
        """The types of the parameters, or None if no argument is converted.

        They are read at the first call, because annotations may name classes that are defined after
        the function.
        """
        if self._types is None:
            types = ArgumentTypes(self.signature, self.function)
            object.__setattr__(self, "_types", types)
        return self._types if self._types is not None and self._types.converts else None

    @property
    def positional_parameters(self) -> list[str]:
        """The names of the parameters of positional arguments; ``*values`` is the last of them."""
        return [
            parameter.name
            for parameter in self.signature.parameters.values()
            if parameter.kind not in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        ]

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


def load_for(task: Any) -> None:
    """Import the project's task modules if this process, for example a web process, has not
    imported the task of this name.
    """
    if isinstance(task, str) and find(task) is None:
        ports.load_tasks()


importers: list[Callable[[str], bool]] = []
"""Functions that import the durable task of a name and return whether it is registered then. The
backend of ``django.tasks`` adds one.
"""


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


_NONE = inspect.Parameter.empty
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class CallShape:
    """Decides whether the usual calls fit a signature, in a tenth of the time of ``bind``."""

    __slots__ = ("_least", "_most", "_names", "_required")

    def __init__(self, signature: inspect.Signature) -> None:
        parameters = signature.parameters.values()
        kinds = {parameter.kind for parameter in parameters}
        by_place = [
            parameter
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        by_name = [
            parameter
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        ]
        required = [
            parameter
            for parameter in parameters
            if parameter.kind not in _VARIABLE and parameter.default is _NONE
        ]
        self._least: float = len(required)
        if any(parameter.kind == parameter.KEYWORD_ONLY for parameter in required):
            self._least = float("inf")
        self._most = float("inf") if inspect.Parameter.VAR_POSITIONAL in kinds else len(by_place)
        self._names = {parameter.name for parameter in by_name}
        # A parameter without a name for callers is in no call by names only.
        self._required = {parameter.name for parameter in required}

    def fits(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return True if the call certainly fits. Otherwise ``bind`` decides."""
        if not kwargs:
            return self._least <= len(args) <= self._most
        return not args and kwargs.keys() <= self._names and self._required <= kwargs.keys()


def bind(
    signature: inspect.Signature, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Check that the call fits; raises InvalidArguments that names the parameter."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidArguments(f"{name}{signature}: {error}.") from None
