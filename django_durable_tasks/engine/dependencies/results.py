"""References in arguments become results when the body starts."""

from __future__ import annotations

import json
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.engine.db import tables
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.workflows.plan import check_size, referred, resolved


def resolve(args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments with results in the place of references; None for a task that did not
    succeed.

    Raises ResultTooLarge when the results have more than REFERENCES_MAX_BYTES together,
    InvalidReference for a part that is not there.
    """
    wanted = referred(args) | referred(kwargs)
    ended = tables.tasks().filter(pk__in=wanted, status=Status.SUCCESS)
    results = dict(ended.values_list("pk", "result"))
    check_size(
        sum(len(json.dumps(result)) for result in results.values()),
        conf.settings().REFERENCES_MAX_BYTES,
    )
    return resolved(args, results), resolved(kwargs, results)
