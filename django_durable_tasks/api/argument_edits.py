"""Arguments that a client sends for a task that exists: masks, references and permitted names.

PATCH and replay build their arguments here only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.problems import invalid_field
from django_durable_tasks.api.target_mapping import call_of, config_of, kind_of
from django_durable_tasks.rules.target_types import TargetType
from django_durable_tasks.rules.tasks.masking import MASK, masked_text
from django_durable_tasks.rules.workflows.plan import MARK

_POINTER = "#/target_config"


def refuse_masks(value: Any, pointer: str = _POINTER) -> None:
    """Refuse masks and references in the arguments of a new object, which has nothing to keep.

    Raises Problem.
    """
    if any(MASK in text for text in _texts(value)):
        raise invalid_field(pointer, "contains a mask; send the value itself", "masked")
    if _references(value):
        raise invalid_field(pointer, f"contains {MARK!r}, the key of references", "reference")


def edited_arguments(
    name: str,
    args: list[Any],
    kwargs: Mapping[str, Any],
    given: Mapping[str, Any],
    caller: Caller,
) -> dict[str, Any]:
    """Return ``args`` and ``kwargs`` of a task after a change of its ``target_config``.

    Members that CELERY_TASK leaves out keep their values. A mask keeps the stored value only if
    everything else is unchanged too, or if the caller may read secrets: otherwise a client that
    cannot read a secret could send it to a recipient of its choice. Raises Problem.
    """
    stored = config_of(name, args, kwargs)
    merged = kind_of(name) == TargetType.CELERY_TASK
    config = {**stored, **given} if merged else dict(given)
    if any(MASK in text for text in _texts(given)):
        config = _kept(config, stored, _POINTER)
        if config != stored and not caller.reads_secrets:
            raise invalid_field(
                _POINTER, "is changed: send its secrets again instead of their masks", "masked"
            )
    known = _references(stored)
    if any(reference not in known for reference in _references(config)):
        raise invalid_field(_POINTER, f"adds {MARK!r}, the key of references", "reference")
    target = call_of(kind_of(name), config, caller.tenant)
    if target.registered.options.name != name:
        raise invalid_field(f"{_POINTER}/task", "cannot be changed", "read_only")
    return {"args": list(target.args), "kwargs": dict(target.kwargs)}


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
