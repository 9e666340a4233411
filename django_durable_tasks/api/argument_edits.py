"""Arguments that a client sends for a task that exists: masks, references and permitted names.

PATCH and replay build their arguments here only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.problems import invalid_field
from django_durable_tasks.api.target_mapping import call_of, config_of, kind_of, shown_config
from django_durable_tasks.engine.tenants.quotas import check_payload
from django_durable_tasks.exceptions import EncryptionError
from django_durable_tasks.rules.target_types import TargetType
from django_durable_tasks.rules.tasks.masking import MASK, masked_text
from django_durable_tasks.rules.workflows.plan import MARK

_POINTER = "#/target_config"


def refuse_masks(value: Any, pointer: str = _POINTER) -> None:
    """Refuse masks and references in the arguments of a new object, which has nothing to keep.

    Raises Problem.
    """
    if _has_mask(value):
        raise invalid_field(pointer, "contains a mask; send the value itself", "masked")
    if _references(value):
        raise invalid_field(pointer, f"contains {MARK!r}, the key of references", "reference")


def edited_arguments(
    name: str,
    row: Any,
    given: Mapping[str, Any],
    caller: Caller,
) -> dict[str, Any]:
    """Return ``args`` and ``kwargs`` of a task, or of a recurring task, with this name after a
    change of its ``target_config``.

    Members that CELERY_TASK leaves out keep their values, as masks do. A caller that may not read
    secrets may keep one only if it changes nothing: otherwise it could send the secret to a
    recipient of its choice. For it everything is compared with what it is shown, so that no answer
    reveals whether a guess at a secret is right. Raises Problem, or PayloadTooLarge.
    """
    is_call = kind_of(name) == TargetType.CELERY_TASK
    sent = [given.get("args", []), given.get("kwargs", {})] if is_call else [[], given]
    # First, because the other checks read each value.
    check_payload(caller.tenant, sent)
    stored, args, kwargs = _stored_config(name, row, given)
    left_out = stored if is_call else {}
    config = {**left_out, **given}
    if not caller.reads_secrets:
        shown = shown_config(name, args, kwargs, plain=False)
        seen = {**{member: shown[member] for member in left_out}, **given}
        if _has_mask(seen):
            if seen != shown:
                raise invalid_field(
                    _POINTER, "is changed: send all of its secrets again, not their masks", "masked"
                )
            config = stored
    elif _has_mask(given):
        config = _kept(config, stored, _POINTER)
    known = _references(stored)
    if any(reference not in known for reference in _references(config)):
        raise invalid_field(_POINTER, f"adds {MARK!r}, the key of references", "reference")
    target = call_of(kind_of(name), config, caller.tenant)
    if target.registered.options.name != name:
        raise invalid_field(f"{_POINTER}/task", "cannot be changed", "read_only")
    edited = {"args": list(target.args), "kwargs": dict(target.kwargs)}
    check_payload(caller.tenant, [edited["args"], edited["kwargs"]])
    return edited


def _stored_config(
    name: str, row: Any, given: Mapping[str, Any]
) -> tuple[dict[str, Any], Any, Any]:
    """Return the stored ``target_config``, args and kwargs; of a row that cannot be decrypted, an
    empty one, if the edit replaces all of it.
    """
    try:
        args, kwargs = row.args, row.kwargs
    except EncryptionError:
        is_whole = kind_of(name) != TargetType.CELERY_TASK or {"args", "kwargs"} <= given.keys()
        if not is_whole or _has_mask(given):
            raise
        args, kwargs = [], {}
    return config_of(name, args, kwargs), args, kwargs


def _has_mask(value: Any) -> bool:
    return any(MASK in text for text in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _references(value: Any) -> list[Any]:
    """Return the objects that refer to results, at every depth."""
    if isinstance(value, Mapping):
        own = [dict(value)] if MARK in value else []
        return own + [found for item in value.values() for found in _references(item)]
    if isinstance(value, list | tuple):
        return [found for item in value for found in _references(item)]
    return []


def _kept(given: Any, stored: Any, pointer: str) -> Any:
    """Replace masks by the stored values at their places; raises Problem if there is none."""
    if isinstance(given, str) and MASK in given:
        names = conf.settings().SECRET_NAMES
        if stored is None or (given != MASK and masked_text(str(stored), names) != given):
            raise invalid_field(
                pointer, "is a mask, and there is no stored value to keep", "masked"
            )
        return stored
    if isinstance(given, Mapping):
        source = stored if isinstance(stored, Mapping) else {}
        return {
            name: _kept(item, source.get(name), f"{pointer}/{name}"[:200])
            for name, item in given.items()
        }
    if isinstance(given, list):
        items = stored if isinstance(stored, list) and len(stored) == len(given) else []
        return [
            _kept(item, items[at] if items else None, f"{pointer}/{at}"[:200])
            for at, item in enumerate(given)
        ]
    return given
