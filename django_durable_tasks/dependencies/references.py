"""References in arguments to the results of other tasks: made, stored, and replaced by the
results.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django_durable_tasks.exceptions import InvalidReference, ResultTooLarge

REFERS = "refers"
"""The key in a task's options that marks arguments with references."""
MASKED = "masked"
"""The value of REFERS if secrets are masked in the results that the task receives."""
MARK = "$result"
"""The key of a reference to another task's result in the stored arguments."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The result of a task of the plan, or a part of it; resolved when the referring task
    starts.
    """

    place: int
    builder: object = field(repr=False, compare=False)
    path: tuple[str | int, ...] = ()

    def __getitem__(self, key: str | int) -> Reference:
        """Return the reference to a part: a key of an object, or an index of a list."""
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise InvalidReference(
                f"result[{key!r}]: a part of a result is named by a string or a whole number."
            )
        return Reference(self.place, self.builder, (*self.path, key))

    def __iter__(self) -> Any:
        raise InvalidReference(
            "A result that is not available yet cannot be iterated over; pass it on unchanged."
        )


@dataclass(frozen=True, slots=True)
class TaskId(Reference):
    """The id that a task of the plan will have. It is replaced by a string when the plan is
    written.
    """

    def __getitem__(self, key: str | int) -> Reference:
        """Raise an error: an id has no parts."""
        raise InvalidReference(f"id[{key!r}]: the id of a task has no parts; pass it on unchanged.")


def references_in(value: Any) -> list[Reference]:
    """Return the references inside arguments."""
    if isinstance(value, Reference):
        return [value]
    if isinstance(value, Mapping):
        return [reference for item in value.values() for reference in references_in(item)]
    if isinstance(value, list | tuple):
        return [reference for item in value for reference in references_in(item)]
    return []


def written(value: Any, ids: Mapping[int, uuid.UUID]) -> Any:
    """Return arguments with their references in stored form; raises InvalidReference for a value
    that looks like a reference.
    """
    if isinstance(value, TaskId):
        return str(ids[value.place])
    if isinstance(value, Reference):
        return {MARK: str(ids[value.place]), "path": list(value.path)}
    if isinstance(value, Mapping):
        if MARK in value:
            raise InvalidReference(
                f"The key {MARK!r} in arguments is kept for references; name it otherwise."
            )
        return {key: written(item, ids) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [written(item, ids) for item in value]
    return value


def referred(value: Any) -> set[uuid.UUID]:
    """Return the tasks to whose results the stored arguments refer."""
    if isinstance(value, dict):
        if MARK in value:
            return {uuid.UUID(value[MARK])}
        return {task_id for item in value.values() for task_id in referred(item)}
    if isinstance(value, list):
        return {task_id for item in value for task_id in referred(item)}
    return set()


def resolved(value: Any, results: Mapping[uuid.UUID, Any]) -> Any:
    """Return arguments with results in place of references; None for a task without one.

    Raises InvalidReference for a part that the result does not have.
    """
    if isinstance(value, dict):
        if MARK in value:
            return _at_path(results.get(uuid.UUID(value[MARK])), value["path"], value[MARK])
        return {key: resolved(item, results) for key, item in value.items()}
    if isinstance(value, list):
        return [resolved(item, results) for item in value]
    return value


def _at_path(result: Any, path: list[str | int], task_id: str) -> Any:
    for key in path if result is not None else ():
        try:
            result = result[key]
        except (LookupError, TypeError):
            shown = "".join(f"[{step!r}]" for step in path)
            raise InvalidReference(
                f"result{shown} of task {task_id}: there is no {key!r} in what it returned."
            ) from None
    return result


def check_size(size: int, most: int) -> None:
    """Raise ResultTooLarge if the results together are too large."""
    if size > most:
        raise ResultTooLarge(
            f"The results that the arguments refer to have {size:,} bytes, at most {most:,} are"
            " allowed: return a key to where the data are instead."
        )
