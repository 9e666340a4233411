"""Records how many tasks ended without an attempt, for the metrics. Attempts have a log entry."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.db.models import Count

from django_durable_tasks import conf
from django_durable_tasks.engine.db.tables import database, tasks
from django_durable_tasks.models import UncountedEnding
from django_durable_tasks.rules.states import Status

LOGGED = frozenset({"force_complete"})
"""Transitions without a run whose callers insert a log entry, by which they are counted."""


def record_uncounted(ids: Sequence[uuid.UUID], status: Status) -> None:
    """Insert one row for each queue, name and tenant of these tasks; nothing unless METRICS is set.

    Must be called in the transaction of the transition. Tasks whose status is not ``status`` are
    left out, because the transition did not change them.
    """
    if not conf.settings().METRICS:
        return
    ended = tasks().filter(pk__in=list(ids), status=status).order_by()
    groups = ended.values_list("tenant_id", "queue", "name").annotate(number=Count("pk"))
    UncountedEnding.objects.using(database()).unguarded().bulk_create(
        [
            UncountedEnding(
                tenant_id=tenant_id, queue=queue, name=name, status=status, number=number
            )
            for tenant_id, queue, name, number in groups
        ]
    )
