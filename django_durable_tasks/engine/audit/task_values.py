"""The columns of a task that an audit entry shows, with masked arguments."""

from __future__ import annotations

import hashlib
from typing import Any

from django_durable_tasks import conf, registry
from django_durable_tasks.models import Task
from django_durable_tasks.models.encrypted_json import undecrypted
from django_durable_tasks.rules.encryption import EncryptedValue
from django_durable_tasks.rules.tasks.masking import MASK, masked, masked_positional

ENCRYPTED = "(encrypted)"
_COLUMNS = (
    "status",
    "queue",
    "priority",
    "run_at",
    "expires_at",
    "cancel_requested_at",
    "failures",
    "crashes",
    "reason",
)


def task_values(row: Task) -> dict[str, Any]:
    """Return the columns that operations change; secrets are masked."""
    found = {name: getattr(row, name) for name in _COLUMNS}
    if row.encryption_key is None:
        return found | masked_arguments(row.name, row.args, row.kwargs)
    return found | {name: encrypted_mark(undecrypted(row, name)) for name in ("args", "kwargs")}


def encrypted_mark(value: Any) -> str:
    """Return a text that differs if the value was encrypted again."""
    data = str(value.envelope.get("data")) if isinstance(value, EncryptedValue) else ""
    return f"{ENCRYPTED} {hashlib.sha256(data.encode()).hexdigest()[:8]}".strip()


def masked_arguments(name: str, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return ``args`` and ``kwargs`` of a task with its secrets masked by the names of the
    parameters; all positional values if this process does not know the task.
    """
    task, names = registry.find(name), conf.settings().SECRET_NAMES
    parameters = None if task is None else list(task.signature.parameters)
    return {
        "args": masked_positional(args, parameters, names) if isinstance(args, list) else MASK,
        "kwargs": masked(kwargs, names) if isinstance(kwargs, dict) else MASK,
    }
