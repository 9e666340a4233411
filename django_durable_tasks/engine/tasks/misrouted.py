"""Counts messages that were consumed from a queue other than that of their task."""

from __future__ import annotations

from django.db.models import F

from django_durable_tasks.engine.db.tables import database
from django_durable_tasks.models import QueueControl
from django_durable_tasks.models.clock import DatabaseNow


def count_misrouted(name: str, consumed_from: str) -> None:
    """Count a message of a task in queue ``name`` that was consumed from ``consumed_from``."""
    QueueControl.objects.using(database()).bulk_create(
        [QueueControl(name=name)], ignore_conflicts=True
    )
    QueueControl.objects.using(database()).filter(name=name).update(
        misrouted=F("misrouted") + 1, misrouted_at=DatabaseNow(), misrouted_from=consumed_from[:200]
    )
