"""Which tasks must not be deleted yet, because they are not counted for the metrics."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import datetime, timedelta

from django_durable_tasks import conf
from django_durable_tasks.engine.metrics.attempts import with_uncounted_attempts
from django_durable_tasks.engine.metrics.creations import first_uncounted_id
from django_durable_tasks.rules.tasks.identifiers import first_uuid7_of

_FUTURE = timedelta(minutes=5)
"""Tasks of a host whose clock is further ahead than this are not waited for."""


def uncounted(task_ids: Collection[uuid.UUID], now: datetime) -> set[uuid.UUID]:
    """Return those of these tasks that are not counted yet; none unless METRICS is set."""
    if not conf.settings().METRICS or not task_ids:
        return set()
    first = first_uncounted_id()
    if first is None:
        return set()  # counting has not begun
    future = first_uuid7_of(int((now + _FUTURE).timestamp() * 1_000))
    created = {task_id for task_id in task_ids if first <= task_id < future}
    return created | with_uncounted_attempts(task_ids)
