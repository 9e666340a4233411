"""Reads and deletes audit entries."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Q, TextField
from django.db.models.functions import Cast

from django_durable_tasks import conf
from django_durable_tasks.engine.audit.recorder import audit_entries
from django_durable_tasks.engine.db import tables
from django_durable_tasks.models import AuditEntry, DeadLetter, Task

SETS_READ = 1_000
"""How many of the tenant's newest entries of sets are searched for a task."""
SHOWN = 50


def of_task(task: Task, limit: int = SHOWN) -> list[AuditEntry]:
    """Return the newest entries about a task, its dead letters, its workflow run, or a set with it.

    A set is found among the tenant's newest SETS_READ ones, by the ids that its entry contains.
    """
    letters = DeadLetter.objects.using(tables.database()).filter(task_id=task.pk)
    about = Q(object_type="task", object_id=str(task.pk))
    ids = [str(key) for key in letters.values_list("pk", flat=True)]
    if ids:
        about |= Q(object_type="dead letter", object_id__in=ids)
    if task.workflow_id is not None:
        about |= Q(object_type="workflow run", object_id=str(task.workflow_id))
    found = list(audit_entries().filter(about).order_by("-pk")[:limit])
    return sorted([*found, *_sets_with(task, limit)], key=lambda one: -one.pk)[:limit]


def _sets_with(task: Task, limit: int) -> list[AuditEntry]:
    sets = audit_entries().of_object("task", "").for_tenant(task.tenant_id).order_by("-pk")
    newest = list(sets.values_list("pk", flat=True)[:SETS_READ])
    text = Cast("object_ids", TextField())
    these = audit_entries().filter(pk__in=newest).annotate(ids_as_text=text)
    return list(these.filter(ids_as_text__contains=str(task.pk)).order_by("-pk")[:limit])


def prune_audit(now: datetime, limit: int) -> int:
    """Delete entries after their retention, at most ``limit``; return how many.

    Only the oldest ``limit`` entries are read, so that no index on ``at`` is needed.
    """
    cutoff = now - timedelta(seconds=conf.settings().AUDIT_RETENTION)
    oldest = audit_entries().order_by("pk").values_list("pk", "at")[:limit]
    ids = [pk for pk, at in oldest if at < cutoff]
    if ids:
        audit_entries().filter(pk__in=ids).delete()
    return len(ids)
