"""Runs of workflows are called off: when their deadline is over, or when a newer one takes their place.

Calling off is one flag on the run and on all that it holds, so that none of them grows any more; the open tasks below
are cancelled, or asked to stop, in batches afterwards. Whoever dies in between leaves the flag, and the next batch goes
on from there. The run itself ends by the ordinary count: FAILED after its deadline, else CANCELLED.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime

from django.db.models import Q

from django_durable_tasks.lifecycle import transitions
from django_durable_tasks.lifecycle.edges import runs
from django_durable_tasks.lifecycle.isolation import Isolation
from django_durable_tasks.lifecycle.workflow_runs import parts_of_all
from django_durable_tasks.models import WorkflowRun
from django_durable_tasks.models.task import TaskQuerySet
from django_durable_tasks.models.workflow_run import WorkflowRunQuerySet
from django_durable_tasks.rules.states import OPEN, Status
from django_durable_tasks.rules.workflows import DEADLINE, WorkflowStatus

_isolation = Isolation[uuid.UUID]("workflow")


def cancel_late(now: datetime, limit: int) -> int:
    """Call off at most so many runs whose deadline is over, each with all that it holds; return how many.

    A run whose tasks have all ended is left alone: it made it, and only wants to be counted.
    """
    found = list(runs().late(now).exclude(pk__in=_isolation.postponed()).order_by("deadline_at")[:limit])
    parts = parts_of_all(found) if found else {}
    late = [run.pk for run in found if _open_in([run.pk, *(part.pk for part in parts[run.pk])]).exists()]
    return sum(
        _isolation.batch(
            lambda: call_off(runs().filter(pk__in=late), DEADLINE),
            lambda: late,
            lambda key: call_off(runs().filter(pk=key), DEADLINE),
        )
    )


def call_off(question: WorkflowRunQuerySet, reason: str) -> int:
    """Flag open runs and all that they hold; return how many runs that were. Their tasks: ``cancel_called_off``."""
    called = list(question.open().filter(cancel_requested_at__isnull=True))
    if not called:
        return 0
    flags: dict[uuid.UUID, str] = {}
    parts = parts_of_all(called)
    for run in called:
        flags |= dict.fromkeys((part.pk for part in parts[run.pk]), f"{reason} of {run.name}"[:200])
    flags |= {run.pk: reason[:200] for run in called}
    with transitions.atomic():
        return _flag(flags, {run.pk for run in called})


def _flag(flags: Mapping[uuid.UUID, str], called: set[uuid.UUID]) -> int:
    these = runs().filter(pk__in=list(flags)).open().filter(cancel_requested_at__isnull=True)
    found = list(these.order_by("pk").select_for_update().values_list("pk", flat=True))
    for reason in sorted({flags[key] for key in found}):
        WorkflowRun.objects.using(transitions.database()).unguarded().filter(
            pk__in=[key for key in found if flags[key] == reason]
        ).update(cancel_requested_at=transitions.NOW, reason=reason, updated_at=transitions.NOW)
    return len(called & set(found))


def _open_in(parts: Iterable[uuid.UUID]) -> TaskQuerySet:
    return transitions.tasks().filter(workflow__in=list(parts), status__in=OPEN)


def cancel_called_off(limit: int) -> int:
    """Cancel at most so many open tasks of runs that were called off, ask running ones to stop; return how many.

    The oldest come first, mostly upstreams: what might start next is stopped first. Call until it returns 0.
    """
    flagged = runs().filter(status=WorkflowStatus.RUNNING, completed_at__isnull=True, cancel_requested_at__isnull=False)
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
    these = transitions.tasks().filter(pk__in=batch)
    with transitions.atomic():
        return transitions.cancel(these, reason) + transitions.request_cancel(these, reason)
