"""Counts the attempt log: how attempts ended, how long they ran, and how long they waited.

The ending of an attempt writes nothing for the metrics. The log is read by its primary key, a few
seconds later, and its rows are joined to their tasks by theirs.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import OuterRef, QuerySet, Subquery

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.metrics.new_rows import is_counted, new_rows
from django_durable_tasks.engine.metrics.totals import (
    Increments,
    read_position,
    record,
    tenant_of,
)
from django_durable_tasks.models import Task, TaskExecutionLog
from django_durable_tasks.rules.metrics.counts import (
    CountedDurations,
    Duration,
    MetricKind,
    SeriesKey,
)
from django_durable_tasks.rules.metrics.minutes import minute_of
from django_durable_tasks.rules.states import LogStatus

MEASURED = frozenset({LogStatus.SUCCESS, LogStatus.FAILED, LogStatus.RETRY, LogStatus.CANCELLED})
"""Attempts whose end is known. That of a LOST one is when it was noticed."""


class LoggedAttempt(NamedTuple):
    """A log entry with the queue and the name of its task, which are empty if it was deleted."""

    id: int
    tenant_id: int
    status: str
    run_id: uuid.UUID | None
    ready_at: datetime | None
    queued_at: datetime | None
    started_at: datetime | None
    completed_at: datetime
    task_queue: str | None
    task_name: str | None

    @property
    def key(self) -> SeriesKey:
        """The series in which the attempt is counted."""
        return SeriesKey(
            MetricKind.ATTEMPT,
            tenant_of(self.tenant_id),
            self.task_queue or "",
            self.task_name or "",
            self.status,
        )

    def count_in(self, counted: CountedDurations) -> None:
        """Count this attempt."""
        counted.number += 1
        if self.run_id is None or self.started_at is None or self.status not in MEASURED:
            return  # an operator's success has no run
        counted.observe(Duration.RUN, (self.completed_at - self.started_at).total_seconds())
        if self.queued_at is None:
            return  # the attempt ended before the upgrade that added the column
        ready_at = self.ready_at or self.queued_at
        counted.observe(Duration.SCHEDULER_WAIT, (self.queued_at - ready_at).total_seconds())
        counted.observe(Duration.BROKER_WAIT, (self.started_at - self.queued_at).total_seconds())


def log() -> QuerySet[TaskExecutionLog]:
    """Return a queryset of all log entries, with the queue and the name of their tasks.

    Subqueries, because a join of a few rows to a large table may be planned as one of both tables.
    """
    task = Task.objects.filter(pk=OuterRef("task_id"))
    entries: QuerySet[Any] = TaskExecutionLog.objects.using(tables.database())
    found: QuerySet[TaskExecutionLog] = entries.annotate(
        task_queue=Subquery(task.values("queue")[:1]), task_name=Subquery(task.values("name")[:1])
    )
    return found


def count_attempts(now: datetime, limit: int) -> int:
    """Count at most ``limit`` new log entries; return how many, 0 if another process counts."""
    position = read_position(MetricKind.ATTEMPT)
    rows, after = new_rows(log(), LoggedAttempt._fields, position, now, limit)
    if after == position:
        return 0
    increments = Increments()
    for row in map(LoggedAttempt._make, rows):
        row.count_in(increments.of(row.key, minute_of(row.completed_at), row.id))
    return len(rows) if record(position, after, increments) else 0


def with_uncounted_attempts(task_ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Return those of these tasks whose attempts must not be deleted yet, because they are not
    counted.
    """
    position = read_position(MetricKind.ATTEMPT)
    entries = TaskExecutionLog.objects.using(tables.database()).filter(task_id__in=list(task_ids))
    ids = entries.order_by().values_list("task_id", "pk")
    return {task_id for task_id, row_id in ids if not is_counted(position, row_id)}
