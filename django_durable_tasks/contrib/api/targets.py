"""Targets as durable tasks: ``target_type`` and ``target_config`` of a request are the name and the
arguments of a registered task.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.audit import masked_arguments
from django_durable_tasks.choices import TargetType
from django_durable_tasks.conf import TENANT
from django_durable_tasks.contrib.api import problems
from django_durable_tasks.contrib.api.authentication import Caller
from django_durable_tasks.contrib.api.fields import BUILT_IN, config_of, kind_of
from django_durable_tasks.contrib.api.problems import Problem, invalid_field
from django_durable_tasks.contrib.api.quotas import check_payload
from django_durable_tasks.dependencies.rules import MARK
from django_durable_tasks.exceptions import DurableTasksError, EncryptionError
from django_durable_tasks.limits.scopes import key_of
from django_durable_tasks.masking import MASK, masked, masked_text
from django_durable_tasks.models import Tenant
from django_durable_tasks.models.tasks import BUILT_IN_MEMBERS, CELERY_MEMBERS
from django_durable_tasks.registry import Registered
from django_durable_tasks.tasks.enqueue import Call, keys_of
from django_durable_tasks.tasks.options import formatted
from django_durable_tasks.texts import did_you_mean

logger = logging.getLogger("django_durable_tasks.api")


def target_of(
    data: Mapping[str, Any],
    caller: Caller,
    pointer: str = "#",
    resolved: Callable[[Any, str], Any] | None = None,
) -> Call:
    """Return the call of a new object with these validated fields. ``pointer`` is the place of the
    object. ``resolved`` replaces the references in a ``target_config`` at a place.

    Raises Problem, PayloadTooLarge or InvalidTarget.
    """
    # First, because the other checks read each value of a body that the quota may refuse.
    tenant, config, place = caller.tenant, data["target_config"], f"{pointer}/target_config"
    is_call = data["target_type"] == TargetType.CELERY_TASK
    check_payload(
        tenant, [config.get("args", []), config.get("kwargs", {})] if is_call else [[], config]
    )
    if resolved is not None:
        config = resolved(config, place)
    # A new object has nothing to keep.
    if _has_mask(config):
        raise invalid_field(place, "contains a mask; send the value itself", "masked")
    if _references(config):
        raise invalid_field(place, f"contains {MARK!r}, the key of references", "reference")
    check_queue(data, tenant, pointer)
    call = call_of(data["target_type"], config, tenant, pointer)
    _refuse_secret_keys(call, caller, pointer)
    return call


def call_of(kind: str, config: Mapping[str, Any], tenant: Tenant, pointer: str = "#") -> Call:
    """Return the call of a target. ``pointer`` is the place of the object that has the two fields.

    Raises InvalidTarget for a queue of another tenant. Raises Problem for an unknown task and for
    one that API_TASKS does not name; the answers are the same, so that they do not reveal which
    tasks exist.
    """
    place = f"{pointer}/target_config"
    if kind != TargetType.CELERY_TASK:
        built_in = _registered(BUILT_IN[TargetType(kind)], f"{pointer}/target_type", tenant)
        parameters = built_in.signature.parameters
        _check_members(config, parameters, place)
        for required, parameter in parameters.items():
            if parameter.default is parameter.empty and required not in config:
                raise invalid_field(f"{place}/{required}", "is required", "required")
        if built_in.target.check_tenant is not None:
            built_in.target.check_tenant(config, tenant.slug)
        return Call(built_in, (), config)
    _check_members(config, CELERY_MEMBERS, place)
    name, args, kwargs = config.get("task"), config.get("args", []), config.get("kwargs", {})
    if not isinstance(name, str):
        raise invalid_field(f"{place}/task", "is required: the name of a durable task", "required")
    if not isinstance(args, list):
        raise invalid_field(f"{place}/args", "is no list", "type")
    if not isinstance(kwargs, dict):
        raise invalid_field(f"{place}/kwargs", "is no object", "type")
    return Call(_registered(name, f"{place}/task", tenant), tuple(args), kwargs)


def _check_members(config: Mapping[str, Any], known: Collection[str], place: str) -> None:
    for member in config:
        if member not in known:
            hint = did_you_mean(member, known)
            if known is CELERY_MEMBERS and member in BUILT_IN_MEMBERS:
                hint = "Set target_type: by default it is CELERY_TASK."
            raise invalid_field(f"{place}/{member[:100]}", f"is no field. {hint}", "unknown_field")


def _registered(name: str, pointer: str, tenant: Tenant) -> Registered:
    if any(fnmatchcase(name, pattern) for pattern in conf.allowed("API_TASKS", tenant.slug)):
        problem = ports.load_tasks() if registry.find(name) is None else None
        registered = registry.find(name)
        if registered is not None:
            return registered
        if problem is not None:
            # The task may exist. A client takes 422 as final, and would lose its task.
            logger.error("The task modules cannot be imported: %s", problem)
            raise Problem(
                problems.NOT_READY,
                "The tasks of this server are not loaded; it was logged.",
                headers={"Retry-After": "5"},
            )
    raise invalid_field(
        pointer,
        f"{name[:200]!r} is no task that clients of the API may create. Check the name, or ask the"
        " operator to allow it.",
        "unknown_task",
    )


def without_secrets(body: Any) -> Any:
    """Return a body with the secrets masked that its objects would not show, at every depth."""
    return masked(_without_positional(body), conf.settings().SECRET_NAMES)


def _without_positional(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_positional(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    values = {name: _without_positional(item) for name, item in value.items()}
    config = values.get("target_config")
    if isinstance(config, dict) and isinstance(config.get("args"), list):
        name = config.get("task")
        if isinstance(name, str) and registry.find(name) is None:
            # The names of the parameters must be the same in a process that has just started.
            ports.load_tasks()
        hidden = masked_arguments(name if isinstance(name, str) else "", config["args"], {})
        config["args"] = hidden["args"]
    return values


def _refuse_secret_keys(
    call: Call, caller: Caller, pointer: str = "#", overlap_key: str = ""
) -> None:
    """Raise Problem if a key of the task contains a secret argument and the caller may not read
    secrets. ``overlap_key``: the template of a recurring task.

    Equal keys return the existing task, or make tasks wait for each other, so that the caller would
    learn whether a guess equals a stored secret. Only the arguments of the request decide here.
    """
    options = call.task.options
    limit = key_of(options.rate_limit, options.max_concurrency)
    if caller.reads_secrets or (options.unique is None and limit is None and not overlap_key):
        return

    def keys(args: Any, kwargs: Any) -> list[Any]:
        keys_of_call = [*keys_of(call.task, args, kwargs)]
        if overlap_key:
            named = {**kwargs, "task": options.name}
            keys_of_call.append(formatted("overlap_key", overlap_key, args, named))
        return keys_of_call

    try:
        plain = keys(call.args, call.kwargs)
    except DurableTasksError:
        return  # The call is refused for this reason, or its arguments do not fit.
    shown = masked_arguments(options.name, [*call.args], dict(call.kwargs))
    try:
        hidden = keys(shown["args"], shown["kwargs"])
    except DurableTasksError:
        hidden = []
    if plain != hidden:
        raise invalid_field(
            f"{pointer}/target_config",
            "has a secret in an argument that identifies the task or its limit: use a key with the"
            " scope `secrets`",
            "secret_key",
        )


# Arguments that a client sends for a task that exists: masks, references and permitted names.
#
# PATCH and replay build their arguments here only.


_POINTER = "#/target_config"


def edited_arguments(
    name: str,
    row: Any,
    new: Mapping[str, Any],
    caller: Caller,
    overlap_key: str = "",
) -> dict[str, Any]:
    """Return ``args`` and ``kwargs`` of a task, or of a recurring task, with this name after a
    change of its ``target_config``.

    ``overlap_key`` is the template of a recurring task. Members that CELERY_TASK leaves out keep
    their values, as masks and references to results do. A caller that may not read secrets may keep
    one of them only if it changes nothing: otherwise it could send the secret, or the result with
    its secrets, to a recipient of its choice. For it everything is compared with what it is shown,
    so that no answer reveals whether a guess at a secret is right. Raises Problem, or
    PayloadTooLarge.
    """
    is_call = kind_of(name) == TargetType.CELERY_TASK
    sent = [new.get("args", []), new.get("kwargs", {})] if is_call else [[], new]
    # First, because the other checks read each value.
    check_payload(caller.tenant, sent)
    # Of a row that cannot be decrypted the stored one is empty, if the edit replaces all of it.
    try:
        args, kwargs = row.args, row.kwargs
    except EncryptionError:
        is_whole = kind_of(name) != TargetType.CELERY_TASK or {"args", "kwargs"} <= new.keys()
        if not is_whole or _has_mask(new):
            raise
        args, kwargs = [], {}
    stored = config_of(name, args, kwargs)
    left_out = stored if is_call else {}
    config, is_kept = {**left_out, **new}, False
    if not caller.reads_secrets:
        shown = config_of(name, args, kwargs, plain=False)
        seen = {**{member: shown[member] for member in left_out}, **new}
        is_kept = _has_mask(seen) or bool(_references(seen))
        if is_kept and seen != shown:
            if _has_mask(seen):
                text, code = "send all of its secrets again, not their masks", "masked"
            else:
                text, code = f"a reference to a result ({MARK!r}) keeps its recipient", "reference"
            raise invalid_field(_POINTER, f"is changed: {text}", code)
        if is_kept:
            config = stored
    elif _has_mask(new):
        config = _kept(config, stored, _POINTER)
    known = _references(stored)
    if any(reference not in known for reference in _references(config)):
        raise invalid_field(_POINTER, f"adds {MARK!r}, the key of references", "reference")
    target = call_of(kind_of(name), config, caller.tenant)
    if target.task.options.name != name:
        raise invalid_field(f"{_POINTER}/task", "cannot be changed", "read_only")
    if not is_kept:
        _refuse_secret_keys(target, caller, overlap_key=overlap_key)
    edited = {"args": list(target.args), "kwargs": dict(target.kwargs)}
    check_payload(caller.tenant, [edited["args"], edited["kwargs"]])
    return edited


def _has_mask(value: Any) -> bool:
    if isinstance(value, str):
        return MASK in value
    if isinstance(value, Mapping):
        return any(map(_has_mask, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_mask, value))


def _references(value: Any) -> list[Any]:
    """Return the objects that refer to results, at every depth."""
    if isinstance(value, Mapping):
        references = [dict(value)] if MARK in value else []
        return references + [
            reference for item in value.values() for reference in _references(item)
        ]
    if isinstance(value, list | tuple):
        return [reference for item in value for reference in _references(item)]
    return []


def _kept(new: Any, stored: Any, pointer: str) -> Any:
    """Replace masks by the stored values at their places; raises Problem if there is none."""
    if isinstance(new, str) and MASK in new:
        names = conf.settings().SECRET_NAMES
        if stored is None or (new != MASK and masked_text(str(stored), names) != new):
            raise invalid_field(
                pointer, "is a mask, and there is no stored value to keep", "masked"
            )
        return stored
    if isinstance(new, Mapping):
        source = stored if isinstance(stored, Mapping) else {}
        return {
            name: _kept(item, source.get(name), f"{pointer}/{name}"[:200])
            for name, item in new.items()
        }
    if isinstance(new, list):
        items = stored if isinstance(stored, list) and len(stored) == len(new) else []
        return [
            _kept(item, items[at] if items else None, f"{pointer}/{at}"[:200])
            for at, item in enumerate(new)
        ]
    return new


def check_queue(data: Mapping[str, Any], tenant: Tenant, pointer: str = "#") -> None:
    """Raise Problem unless the body names no queue, or one of API_QUEUES for this tenant."""
    name = data.get("queue")
    allowed = [entry.replace(TENANT, tenant.slug) for entry in conf.settings().API_QUEUES]
    if name and not any(fnmatchcase(name, entry) for entry in allowed):
        raise invalid_field(
            f"{pointer}/queue",
            f"{name!r} is no queue that clients of the API may choose. Leave it out, or ask the"
            " operator to allow it.",
            "unknown_queue",
        )
