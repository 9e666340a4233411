"""Targets as durable tasks: ``target_type`` and ``target_config`` of a request are the name and the
arguments of a registered task, and back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.api.problems import Problem, invalid_field
from django_durable_tasks.did_you_mean import did_you_mean
from django_durable_tasks.models import Tenant
from django_durable_tasks.registry import Registered
from django_durable_tasks.rules.target_types import (
    CELERY_MEMBERS,
    HTTP_CALLBACK_TASK,
    QUEUE_MESSAGE_TASK,
    TargetType,
    target_config,
)
from django_durable_tasks.rules.targets.queue_message import refuse_other_tenants

_BUILT_IN = {
    TargetType.HTTP_CALLBACK: HTTP_CALLBACK_TASK,
    TargetType.QUEUE_MESSAGE: QUEUE_MESSAGE_TASK,
}
_TYPE_OF = {name: kind for kind, name in _BUILT_IN.items()}


@dataclass(frozen=True, slots=True)
class TargetCall:
    """A registered task and its arguments."""

    registered: Registered
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def call_of(kind: str, config: Mapping[str, Any], tenant: Tenant, pointer: str = "#") -> TargetCall:
    """Return the call of a target. ``pointer`` is the place of the object that has the two fields.

    Raises InvalidTarget for a queue of another tenant. Raises Problem for an unknown task and for
    one that API_TASKS does not name; the answers are the same, so that they do not reveal which
    tasks exist.
    """
    place = f"{pointer}/target_config"
    if kind != TargetType.CELERY_TASK:
        built_in = _registered(_BUILT_IN[TargetType(kind)], f"{pointer}/target_type")
        parameters = built_in.signature.parameters
        _check_members(config, parameters, place)
        for required, parameter in parameters.items():
            if parameter.default is parameter.empty and required not in config:
                raise invalid_field(f"{place}/{required}", "is required", "required")
        if kind == TargetType.QUEUE_MESSAGE:
            refuse_other_tenants(config, conf.settings().QUEUE_ALLOW, tenant.slug)
        return TargetCall(built_in, (), config)
    _check_members(config, CELERY_MEMBERS, place)
    name, args, kwargs = config.get("task"), config.get("args", []), config.get("kwargs", {})
    if not isinstance(name, str):
        raise invalid_field(f"{place}/task", "is required: the name of a durable task", "required")
    if not isinstance(args, list):
        raise invalid_field(f"{place}/args", "is no list", "type")
    if not isinstance(kwargs, dict):
        raise invalid_field(f"{place}/kwargs", "is no object", "type")
    return TargetCall(_registered(name, f"{place}/task"), tuple(args), kwargs)


def _check_members(config: Mapping[str, Any], known: Collection[str], place: str) -> None:
    for member in config:
        if member not in known:
            hint = did_you_mean(member, known)
            raise invalid_field(f"{place}/{member[:100]}", f"is no field. {hint}", "unknown_field")


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
        f"{name[:200]!r} is no task that clients of the API may create. Check the name, or ask the"
        " operator to allow it.",
        "unknown_task",
    )


def kind_of(name: str) -> TargetType:
    """Return the type of target of a task with this name."""
    return _TYPE_OF.get(name, TargetType.CELERY_TASK)


def config_of(name: str, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the ``target_config`` of a task with this name and these arguments."""
    return target_config(kind_of(name), name, args, kwargs)
