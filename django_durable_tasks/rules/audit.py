"""Audit entries as values: the sources of a write, the changed fields, and their bounded size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django_durable_tasks.masking import masked

IDS_MAX = 1_000
"""The most ids that the entry of a set contains."""
CHANGES_MAX_BYTES = 16_384
"""The largest ``before`` or ``after`` of an entry."""
OBJECT_TYPES = (
    "task",
    "dead letter",
    "workflow run",
    "schedule",
    "queue",
    "limit",
    "calendar",
    "tenant",
    "API key",
    "notification setting",
    "workflow",
    "operation",
    "installation",
)
OMITTED = "(omitted: too large)"
_SHORT = 500


def changed_fields(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of both whose values differ; a field may be missing in one of them."""
    names = [
        name
        for name in dict.fromkeys([*before, *after])
        if name not in before or name not in after or before[name] != after[name]
    ]
    return (
        {name: before[name] for name in names if name in before},
        {name: after[name] for name in names if name in after},
    )


def stored_fields(values: Mapping[str, Any], secret_names: str) -> dict[str, Any]:
    """Return JSON values with secrets masked. If they are larger than CHANGES_MAX_BYTES, long ones
    are omitted.
    """
    hidden: dict[str, Any] = masked(json.loads(json.dumps(dict(values), default=str)), secret_names)
    if _size(hidden) <= CHANGES_MAX_BYTES:
        return hidden
    short = {name: value if _size(value) <= _SHORT else OMITTED for name, value in hidden.items()}
    return short if _size(short) <= CHANGES_MAX_BYTES else dict.fromkeys(list(short)[:100], OMITTED)


def _size(value: Any) -> int:
    return len(json.dumps(value))
