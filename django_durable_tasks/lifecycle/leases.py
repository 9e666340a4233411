"""Leases of RUNNING tasks, as a watcher reads them. Whether one is over is judged by looks, not by a clock.

``lease_until`` is compared with what it was at earlier looks only. A database clock that jumps changes what is written
next, not whether it changes.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from django_durable_tasks import conf, registry
from django_durable_tasks.lifecycle import transitions


class Lease(NamedTuple):
    """Which run of a task has its lease, on which node, and until when."""

    run_id: uuid.UUID
    node: uuid.UUID | None
    until: datetime


def leases() -> dict[uuid.UUID, Lease]:
    """Return the leases of all RUNNING tasks; one statement."""
    rows = transitions.tasks().running().order_by().values_list("pk", "run_id", "node", "lease_until")
    return {pk: Lease(run_id, node, until) for pk, run_id, node, until in rows if run_id and until}


def shortest() -> float:
    """Return the shortest lease that a task may have (seconds)."""
    return min(2 * conf.settings().HEARTBEAT, conf.settings().LEASE)


def over(unrenewed: Mapping[uuid.UUID, tuple[Lease, int]], now: datetime) -> dict[uuid.UUID, Lease]:
    """Return those of these leases that were not renewed for as long as they last, given the looks that saw each.

    If the scheduler does not know the task, and so not its ``lease=``, the database's clock has to agree.
    """
    options = transitions.tasks().filter(pk__in=list(unrenewed)).values_list("pk", "name", "options")
    found = {}
    for pk, name, overrides in options:
        lease, looks = unrenewed[pk]
        task = registry.find(name)
        given = (overrides or {}).get("lease") or (task.options.lease if task else None)
        lasts = given or conf.settings().LEASE
        if looks >= looks_for(lasts) and (given or task or lease.until < now):
            found[pk] = lease
    return found


def looks_for(seconds: float) -> int:
    """Return how many looks in a row, one a NODE_HEARTBEAT, span this time."""
    return max(1, math.ceil(seconds / conf.settings().NODE_HEARTBEAT))
