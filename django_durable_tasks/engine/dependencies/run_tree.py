"""The tree of a workflow run and its sub-workflows, and the request to cancel all of it."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.dependencies.edges import runs
from django_durable_tasks.models import WorkflowRun
from django_durable_tasks.models.workflow_run import WorkflowRunQuerySet


def sub_workflows_of(rows: Sequence[WorkflowRun]) -> dict[uuid.UUID, list[WorkflowRun]]:
    """Return for each of these runs those of all sub-workflows inside it; one statement."""
    inside: dict[uuid.UUID | None, list[WorkflowRun]] = defaultdict(list)
    for part in (
        runs().filter(root__in={row.root for row in rows}, parent__isnull=False).order_by("pk")
    ):
        inside[part.parent].append(part)
    found = {row.pk: list(inside[row.pk]) for row in rows}
    for parts in found.values():
        for part in parts:
            parts += inside[part.pk]
    return found


def request_cancel_runs(question: WorkflowRunQuerySet, reason: str) -> int:
    """Flag open runs and all that they hold; return how many runs that were. Their tasks:
    ``cancel_called_off``.
    """
    called = list(question.open().filter(cancel_requested_at__isnull=True))
    if not called:
        return 0
    flags: dict[uuid.UUID, str] = {}
    parts = sub_workflows_of(called)
    for run in called:
        flags |= dict.fromkeys((part.pk for part in parts[run.pk]), f"{reason} of {run.name}"[:200])
    flags |= {run.pk: reason[:200] for run in called}
    with tables.atomic():
        return _flag(flags, {run.pk for run in called})


def _flag(flags: Mapping[uuid.UUID, str], called: set[uuid.UUID]) -> int:
    these = runs().filter(pk__in=list(flags)).open().filter(cancel_requested_at__isnull=True)
    found = list(these.order_by("pk").select_for_update().values_list("pk", flat=True))
    for reason in sorted({flags[key] for key in found}):
        WorkflowRun.objects.using(tables.database()).unguarded().filter(
            pk__in=[key for key in found if flags[key] == reason]
        ).update(cancel_requested_at=tables.NOW, reason=reason, updated_at=tables.NOW)
    return len(called & set(found))
