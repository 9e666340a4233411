"""Replaces references in arguments by results, when a task function starts."""

from __future__ import annotations

import json
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.engine.db import tables
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.workflows.plan import check_size, referred, resolved


def resolve(
    args: list[Any], kwargs: dict[str, Any], tenant_id: int
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments with results instead of references, None for a task without success and
    for the task of another tenant.

    Raises ResultTooLarge if the results together are larger than REFERENCES_MAX_BYTES, and
    InvalidReference if a result does not have the referenced part.
    """
    references = referred(args) | referred(kwargs)
    ended = tables.tasks().for_tenant(tenant_id).filter(pk__in=references, status=Status.SUCCESS)
    results = dict(ended.values_list("pk", "result"))
    check_size(
        sum(len(json.dumps(result)) for result in results.values()),
        conf.settings().REFERENCES_MAX_BYTES,
    )
    return resolved(args, results), resolved(kwargs, results)
