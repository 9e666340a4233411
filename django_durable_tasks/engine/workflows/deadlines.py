"""Cancels workflow runs whose deadline has passed, or that a newer run replaced.

First, one UPDATE sets ``cancel_requested_at`` on the run and all runs inside it, so that none of
them is extended any more. Then their open tasks are cancelled, or requested to stop, in batches. If
the process dies in between, the next batch continues from the flag. The run itself ends when its
endings are counted: as FAILED after its deadline, otherwise as CANCELLED. Called by the maintenance
job ``end_late_workflows``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime

from django.db.models import Q

from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.isolation import Isolation
from django_durable_tasks.engine.dependencies.edges import runs
from django_durable_tasks.engine.dependencies.run_tree import request_cancel_runs, sub_workflows_of
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.rules.states import OPEN, Status
from django_durable_tasks.rules.workflows.plan import DEADLINE, WorkflowStatus

_isolation = Isolation[uuid.UUID]("workflow")


def cancel_late(now: datetime, limit: int) -> int:
    """Request the cancellation of at most ``limit`` runs whose deadline has passed; return how many
    runs were flagged.

    A run without open tasks is left alone, because it only has to be counted.
    """
    found = list(
        runs().late(now).exclude(pk__in=_isolation.postponed()).order_by("deadline_at")[:limit]
    )
    parts = sub_workflows_of(found) if found else {}
    late = [
        run.pk for run in found if _open_in([run.pk, *(part.pk for part in parts[run.pk])]).exists()
    ]
    return sum(
        _isolation.batch(
            lambda: request_cancel_runs(runs().filter(pk__in=late), DEADLINE),
            lambda: late,
            lambda key: request_cancel_runs(runs().filter(pk=key), DEADLINE),
        )
    )


def _open_in(parts: Iterable[uuid.UUID]) -> TaskQuerySet:
    return tables.tasks().filter(workflow__in=list(parts), status__in=OPEN)


def cancel_called_off(limit: int) -> int:
    """Cancel at most ``limit`` open tasks of flagged runs, or request RUNNING ones to stop; return
    how many.

    The oldest tasks come first. They are mostly upstreams, so this stops what would start next.
    Call it until it returns 0.
    """
    flagged = runs().filter(
        status=WorkflowStatus.RUNNING, completed_at__isnull=True, cancel_requested_at__isnull=False
    )
    reached, reasons = 0, dict(flagged.order_by("pk").values_list("pk", "reason"))

    def cancel(key: uuid.UUID) -> None:
        nonlocal reached
        reached += _cancel_in(key, reasons[key], limit - reached) if reached < limit else 0

    _isolation.each(reasons, cancel)
    return reached


def _cancel_in(key: uuid.UUID, reason: str, limit: int) -> int:
    requested = Q(status=Status.RUNNING, cancel_requested_at__isnull=False)
    batch = list(
        _open_in([key]).exclude(requested).order_by("pk").values_list("pk", flat=True)[:limit]
    )
    if not batch:
        return 0
    these = tables.tasks().filter(pk__in=batch)
    with tables.atomic():
        return transitions.cancel(these, reason) + transitions.request_cancel(these, reason)
