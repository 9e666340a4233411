"""The rows that the statements of claims, starts and releases return, one type per column list.

The fields of a type are the columns in the order of the statements in ``db/sql``; the ORM forms
read ``_fields``.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, NamedTuple

from django_durable_tasks.models.task_queries import TaskQuerySet


class ClaimedTask(NamedTuple):
    """A task to publish; ``waiting_for_limit`` is its value before the claim.

    ``options`` is JSON text or the decoded value, depending on the driver.
    """

    id: uuid.UUID
    epoch: int
    publish_count: int
    name: str
    queue: str
    priority: int
    options: Any
    idempotency_key: str | None
    run_at: datetime
    expires_at: datetime | None
    overlap_key: str | None
    waiting_for_limit: str | None
    tenant_id: int
    limit_key: str | None
    weight: int

    @property
    def order(self) -> tuple[int, datetime, int]:
        """Return the key by which tasks are published: priority, due time, id.

        The id is compared as a number, because UUID compares in Python, which is slow.
        """
        return -self.priority, self.run_at, self.id.int


class StartedRun(NamedTuple):
    """A task whose run has started.

    JSON columns are text or decoded values, depending on the driver. Times of MariaDB and SQLite
    may be naive; they are in UTC.
    """

    id: uuid.UUID
    name: str
    queue: str
    tenant_id: int
    epoch: int
    run_id: uuid.UUID
    attempts: int
    failures: int
    crashes: int
    max_attempts: int
    args: Any
    kwargs: Any
    options: Any
    idempotency_key: str | None
    started_at: datetime
    run_at: datetime
    workflow_id: uuid.UUID | None
    has_dependents: bool
    ready_at: datetime | None
    queued_at: datetime | None
    created_at: datetime
    fire_time: datetime | None
    recurring_task_id: uuid.UUID | None
    limit_key: str | None


class BlockedDependent(NamedTuple):
    """A dependent of an ended task, with the unresolved ending events of the ended task."""

    unresolved: int
    queue: str
    is_due: bool
    ending_events: list[int]
    name: str
    tenant_id: int


def claimed_tasks(queryset: TaskQuerySet) -> list[ClaimedTask]:
    """Read these tasks for publishing, in the order of the queryset."""
    return [ClaimedTask._make(row) for row in queryset.values_list(*ClaimedTask._fields)]


def started_runs(queryset: TaskQuerySet) -> list[StartedRun]:
    """Read the runs of these tasks, in the order of the queryset."""
    return [StartedRun._make(row) for row in queryset.values_list(*StartedRun._fields)]
