"""Runs of workflows are called off: when their deadline is over, or when a newer one takes their
place.

Calling off is one flag on the run and on all that it holds, so that none of them grows any more;
the open tasks below are cancelled, or asked to stop, in batches afterwards. Whoever dies in between
leaves the flag, and the next batch goes on from there. The run itself ends by the ordinary count:
FAILED after its deadline, else CANCELLED.
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
    """Call off at most so many runs whose deadline is over, each with all that it holds; return how
    many.

    A run whose tasks have all ended is left alone: it made it, and only wants to be counted.
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
    """Cancel at most so many open tasks of runs that were called off, ask running ones to stop;
    return how many.

    The oldest come first, mostly upstreams: what might start next is stopped first. Call until it
    returns 0.
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
    asked = Q(status=Status.RUNNING, cancel_requested_at__isnull=False)
    batch = list(_open_in([key]).exclude(asked).order_by("pk").values_list("pk", flat=True)[:limit])
    if not batch:
        return 0
    these = tables.tasks().filter(pk__in=batch)
    with tables.atomic():
        return transitions.cancel(these, reason) + transitions.request_cancel(these, reason)
