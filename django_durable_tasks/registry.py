"""The durable tasks and declared schedules that this process knows. Filled by ``@durable_task`` and
``@recurring``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django_durable_tasks.did_you_mean import did_you_mean
from django_durable_tasks.exceptions import InvalidOption, UnknownTask
from django_durable_tasks.rules.tasks.options import TaskOptions


@dataclass(frozen=True, slots=True)
class Registered:
    """One durable task: its options, and the signature that a call must fit (without ``self``)."""

    options: TaskOptions
    signature: inspect.Signature
    function: Any


@dataclass(frozen=True, slots=True)
class Declaration:
    """One schedule as it was declared: its name, its task's, the keywords of ``upsert``, and who
    declares it.
    """

    name: str
    task: str
    options: Mapping[str, Any]
    source: str


_tasks: dict[str, Registered] = {}
_declarations: dict[str, tuple[Declaration, Any]] = {}


def add(registered: Registered) -> None:
    """Enter a durable task; raises InvalidOption when another function has the name."""
    name = registered.options.name
    known = _tasks.get(name)
    if known is not None and _origin(known.function) != _origin(registered.function):
        raise InvalidOption(
            f"name={name!r} is taken by {'.'.join(_origin(known.function))}; give another name."
        )
    _tasks[name] = registered


def _origin(function: Any) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def find(name: str) -> Registered | None:
    """Return the durable task of this name, or None."""
    return _tasks.get(name)


def get(name: str) -> Registered:
    """Return the durable task of this name; raises UnknownTask with the nearest known name."""
    known = _tasks.get(name)
    if known is None:
        hint = did_you_mean(name, _tasks)
        message = f"No durable task is registered as {name!r} in this process. {hint}"
        raise UnknownTask(message.strip())
    return known


def names() -> frozenset[str]:
    """Return the names of all durable tasks of this process."""
    return frozenset(_tasks)


def declare(declaration: Declaration, function: Any) -> None:
    """Enter a schedule that stands on a function; raises InvalidOption when its name is taken.

    A module that is loaded anew declares its schedules anew.
    """
    known, over = _declarations.get(declaration.name, (declaration, None))
    if over is not None and (over is function or _origin(over) != _origin(function)):
        raise InvalidOption(
            f"@recurring({declaration.name!r}) stands on {'.'.join(_origin(over))} already, for"
            f" {known.task}; give another name."
        )
    _declarations[declaration.name] = declaration, function


def declarations() -> dict[str, Declaration]:
    """Return the schedules that code declares, by name."""
    return {name: declaration for name, (declaration, _) in _declarations.items()}
