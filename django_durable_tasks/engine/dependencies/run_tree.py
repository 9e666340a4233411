"""The tree of a workflow run and its sub-workflows, and the request to cancel the whole tree."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.dependencies.edges import runs
from django_durable_tasks.models import WorkflowRun
from django_durable_tasks.models.workflow_run import WorkflowRunQuerySet


def sub_workflows_of(rows: Sequence[WorkflowRun]) -> dict[uuid.UUID, list[WorkflowRun]]:
    """Return the runs of all sub-workflows, at any depth, for each of these runs; one statement."""
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


def request_cancel_runs(queryset: WorkflowRunQuerySet, reason: str) -> int:
    """Request the cancellation of open runs and their sub-workflows; return how many of the runs
    were open.

    The sub-workflows are not counted. ``cancel_called_off`` cancels the tasks.
    """
    requested = list(queryset.open().filter(cancel_requested_at__isnull=True))
    if not requested:
        return 0
    flags: dict[uuid.UUID, str] = {}
    parts = sub_workflows_of(requested)
    for run in requested:
        flags |= dict.fromkeys((part.pk for part in parts[run.pk]), f"{reason} of {run.name}"[:200])
    flags |= {run.pk: reason[:200] for run in requested}
    with tables.atomic():
        return _flag(flags, {run.pk for run in requested})


def _flag(flags: Mapping[uuid.UUID, str], requested: set[uuid.UUID]) -> int:
    these = runs().filter(pk__in=list(flags)).open().filter(cancel_requested_at__isnull=True)
    found = list(these.order_by("pk").select_for_update().values_list("pk", flat=True))
    for reason in sorted({flags[key] for key in found}):
        WorkflowRun.objects.using(tables.database()).unguarded().filter(
            pk__in=[key for key in found if flags[key] == reason]
        ).update(cancel_requested_at=tables.NOW, reason=reason, updated_at=tables.NOW)
    return len(requested & set(found))
