"""Decrypts arguments, and replaces references in them by results, when a task function starts."""

from __future__ import annotations

import json
from typing import Any

from django_durable_tasks.encryption import decrypted
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.transitions.stored_arguments import place
from django_durable_tasks.rules.encryption import stored_value
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tasks.runs import Run
from django_durable_tasks.rules.workflows.plan import check_size, referred, resolved

# Bytes, as JSON, of the results to which the arguments of one task refer. A worker reads all of
# them into its memory before it starts the task.
_REFERENCES_MAX_BYTES = 1_048_576


def arguments_of(run: Run) -> tuple[list[Any], dict[str, Any]]:
    """Return the decrypted arguments of a run. Raises EncryptionError."""
    return _decrypted(run, "args", run.args), _decrypted(run, "kwargs", run.kwargs)


def _decrypted(run: Run, column: str, value: Any) -> Any:
    if stored_value(value) is None:
        return value  # without the description of the place, which takes longer than the check
    return decrypted(value, place(run.tenant_id, column, run.task_id))


def resolve(
    args: list[Any], kwargs: dict[str, Any], tenant_id: int
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments with results instead of references, None for a task without success and
    for the task of another tenant.

    Raises ResultTooLarge if the results together are larger than 1 MiB, and
    InvalidReference if a result does not have the referenced part.
    """
    references = referred(args) | referred(kwargs)
    ended = tables.tasks().for_tenant(tenant_id).filter(pk__in=references, status=Status.SUCCESS)
    results = {
        task_id: decrypted(result, place(tenant_id, "result", task_id))
        for task_id, result in ended.values_list("pk", "result")
    }
    check_size(sum(len(json.dumps(result)) for result in results.values()), _REFERENCES_MAX_BYTES)
    return resolved(args, results), resolved(kwargs, results)
