"""Targets as durable tasks: ``target_type`` and ``target_config`` of a request are the name and the
arguments of a registered task, and back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.api import problems
from django_durable_tasks.api.problems import Problem, invalid_field
from django_durable_tasks.celery.publishing.task_queues import refuse_task_queues
from django_durable_tasks.did_you_mean import did_you_mean
from django_durable_tasks.engine.audit.task_values import masked_arguments
from django_durable_tasks.exceptions import EncryptionError
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
from django_durable_tasks.rules.targets.urls import parsed_url
from django_durable_tasks.rules.tasks.masking import masked
from django_durable_tasks.targets.http import outgoing

logger = logging.getLogger("django_durable_tasks.api")
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
        built_in = _registered(_BUILT_IN[TargetType(kind)], f"{pointer}/target_type", tenant)
        parameters = built_in.signature.parameters
        _check_members(config, parameters, place)
        for required, parameter in parameters.items():
            if parameter.default is parameter.empty and required not in config:
                raise invalid_field(f"{place}/{required}", "is required", "required")
        url = config.get("url") if kind == TargetType.HTTP_CALLBACK else None
        if isinstance(url, str) and conf.names_tenants("HTTP_ALLOW"):
            # The check of every call does not know the tenant.
            outgoing.policy(tenant.slug).check(parsed_url(url))
        if kind == TargetType.QUEUE_MESSAGE:
            refuse_other_tenants(config, conf.settings().QUEUE_ALLOW, tenant.slug)
            _refuse_task_queues(config, tenant)
        return TargetCall(built_in, (), config)
    _check_members(config, CELERY_MEMBERS, place)
    name, args, kwargs = config.get("task"), config.get("args", []), config.get("kwargs", {})
    if not isinstance(name, str):
        raise invalid_field(f"{place}/task", "is required: the name of a durable task", "required")
    if not isinstance(args, list):
        raise invalid_field(f"{place}/args", "is no list", "type")
    if not isinstance(kwargs, dict):
        raise invalid_field(f"{place}/kwargs", "is no object", "type")
    return TargetCall(_registered(name, f"{place}/task", tenant), tuple(args), kwargs)


def _refuse_task_queues(config: Mapping[str, Any], tenant: Tenant) -> None:
    names = (config.get("exchange"), config.get("routing_key"), config.get("queue"))
    exchange, routing_key, queue = (name if isinstance(name, str) else "" for name in names)
    if exchange or queue:
        refuse_task_queues(exchange, routing_key if exchange else queue, tenant.slug)


def _check_members(config: Mapping[str, Any], known: Collection[str], place: str) -> None:
    for member in config:
        if member not in known:
            hint = did_you_mean(member, known)
            raise invalid_field(f"{place}/{member[:100]}", f"is no field. {hint}", "unknown_field")


def _registered(name: str, pointer: str, tenant: Tenant) -> Registered:
    if any(fnmatchcase(name, pattern) for pattern in conf.allowed("API_TASKS", tenant.slug)):
        problem = ports.load_tasks() if registry.find(name) is None else None
        found = registry.find(name)
        if found is not None:
            return found
        if problem is not None:
            # The task may exist. A client takes 422 as final, and would lose its task.
            logger.error("The task modules cannot be imported: %s", problem)
            raise Problem(
                problems.NOT_READY,
                "The tasks of this server are not loaded; it was logged.",
                headers={"Retry-After": "5"},
            )
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


def shown_config(name: str, args: Any, kwargs: Any, *, plain: bool) -> dict[str, Any]:
    """Return the ``target_config`` as it is shown: with its secrets masked unless ``plain``."""
    if plain:
        return config_of(name, args, kwargs)
    hidden = masked_arguments(name, args, kwargs)
    return config_of(name, hidden["args"], hidden["kwargs"])


UNREADABLE = "The stored value cannot be decrypted. The operator was informed by the log."


def readable(read: Callable[[], Any], row: Any) -> tuple[Any, str]:
    """Return a stored value and an empty text; None and the reason if it cannot be decrypted.

    One such value must not hide the other objects of a list, or stop an operation that does not
    need it.
    """
    try:
        return read(), ""
    except EncryptionError as error:
        # The text names the key and the row, which concern operators only.
        logger.error("%s %s cannot be decrypted: %s", type(row).__name__, row.pk, error)
        return None, UNREADABLE


def without_secrets(body: Any) -> Any:
    """Return a body with the secrets masked that its objects would not show, at every depth."""
    return masked(_without_positional(body), conf.settings().SECRET_NAMES)


def _without_positional(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_positional(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    found = {name: _without_positional(item) for name, item in value.items()}
    config = found.get("target_config")
    if isinstance(config, dict) and isinstance(config.get("args"), list):
        name = config.get("task")
        if isinstance(name, str) and registry.find(name) is None:
            # The names of the parameters must be the same in a process that has just started.
            ports.load_tasks()
        hidden = masked_arguments(name if isinstance(name, str) else "", config["args"], {})
        config["args"] = hidden["args"]
    return found
