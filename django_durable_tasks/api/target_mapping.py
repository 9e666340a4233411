"""Targets as durable tasks: ``target_type`` and ``target_config`` of a request are the name and the
arguments of a registered task, and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.api.problems import Problem, invalid_field
from django_durable_tasks.did_you_mean import did_you_mean
from django_durable_tasks.registry import Registered
from django_durable_tasks.rules.tasks.masking import MASK, masked_text


class TargetKind(StrEnum):
    """What a task does, in the words of a request."""

    CELERY_TASK = "CELERY_TASK"
    HTTP_CALLBACK = "HTTP_CALLBACK"
    QUEUE_MESSAGE = "QUEUE_MESSAGE"


BUILT_IN = {
    TargetKind.HTTP_CALLBACK: "django_durable_tasks.http_callback",
    TargetKind.QUEUE_MESSAGE: "django_durable_tasks.queue_message",
}
_KIND_OF = {name: kind for kind, name in BUILT_IN.items()}
_CONFIG = frozenset({"task", "args", "kwargs"})


@dataclass(frozen=True, slots=True)
class TargetCall:
    """A registered task and its arguments."""

    registered: Registered
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def call_of(kind: str, config: Mapping[str, Any], pointer: str = "#") -> TargetCall:
    """Return the call of a target. ``pointer`` is the place of the object that has the two fields.

    Raises Problem for an unknown task and for one that API_TASKS does not name; the answers are
    the same, so that they do not reveal which tasks exist.
    """
    place = f"{pointer}/target_config"
    if kind != TargetKind.CELERY_TASK:
        built_in = _registered(BUILT_IN[TargetKind(kind)], f"{pointer}/target_type")
        return TargetCall(built_in, (), config)
    for member in config:
        if member not in _CONFIG:
            hint = did_you_mean(member, _CONFIG)
            raise invalid_field(f"{place}/{member[:100]}", f"is no field. {hint}", "unknown_field")
    name, args, kwargs = config.get("task"), config.get("args", []), config.get("kwargs", {})
    if not isinstance(name, str):
        raise invalid_field(f"{place}/task", "is required: the name of a durable task", "required")
    if not isinstance(args, list):
        raise invalid_field(f"{place}/args", "is no list", "type")
    if not isinstance(kwargs, dict):
        raise invalid_field(f"{place}/kwargs", "is no object", "type")
    return TargetCall(_registered(name, f"{place}/task"), tuple(args), kwargs)


def _registered(name: str, pointer: str) -> Registered:
    if any(fnmatchcase(name, pattern) for pattern in conf.settings().API_TASKS):
        if registry.find(name) is None:
            ports.load_tasks()
        found = registry.find(name)
        if found is not None:
            return found
    raise _unknown(name, pointer)


def _unknown(name: str, pointer: str) -> Problem:
    return invalid_field(
        pointer,
        f"{name[:200]!r} is no task that clients of the API may create"
        " (DURABLE_TASKS['API_TASKS']).",
        "unknown_task",
    )


def kind_of(name: str) -> TargetKind:
    """Return the kind of target of a task with this name."""
    return _KIND_OF.get(name, TargetKind.CELERY_TASK)


def config_of(name: str, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the ``target_config`` of a task with this name and these arguments."""
    if name in _KIND_OF:
        return dict(kwargs)
    return {"task": name, "args": args, "kwargs": kwargs}


def unmasked(given: Any, stored: Any, pointer: str) -> Any:
    """Replace each mask in a changed value by the stored value at its place.

    A client that sends a masked object back has not changed its secrets. Raises Problem if there
    is no stored value at the place of a mask.
    """
    if isinstance(given, str) and MASK in given:
        if stored is None or (given != MASK and masked_text_of(stored) != given):
            raise invalid_field(
                pointer, "is a mask, and there is no stored value to keep", "masked"
            )
        return stored
    if isinstance(given, dict):
        source = stored if isinstance(stored, dict) else {}
        return {
            name: unmasked(item, source.get(name), f"{pointer}/{name}")
            for name, item in given.items()
        }
    if isinstance(given, list):
        items = stored if isinstance(stored, list) else []
        return [
            unmasked(item, items[at] if at < len(items) else None, f"{pointer}/{at}")
            for at, item in enumerate(given)
        ]
    return given


def masked_text_of(value: Any) -> str:
    """Return a text as it is shown; a secret may be a part of it."""
    return masked_text(str(value), conf.settings().SECRET_NAMES)


def check_recipient(name: str, given: Any, stored: Any, pointer: str) -> None:
    """Refuse to send the stored secrets of an HTTP callback to a new address; raises Problem."""
    if kind_of(name) != TargetKind.HTTP_CALLBACK or not isinstance(given, dict):
        return
    if given.get("url") != stored.get("url") and MASK in str(given):
        raise invalid_field(
            pointer, "has a new url: send its secrets again instead of their masks", "masked"
        )
