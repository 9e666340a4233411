"""The rows that the statements of claims, starts and releases return, one type per column list.

The fields of a type are the columns in the order of the statements in ``db/sql``; the ORM forms
read ``_fields``.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connections

from django_durable_tasks import conf
from django_durable_tasks.models import Task
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
    ready_at: datetime | None

    @property
    def order(self) -> tuple[int, datetime, int]:
        """Return the key by which tasks are published: priority, since when it is due, id.

        The id is compared as a number, because UUID compares in Python, which is slow.
        """
        return -self.priority, self.ready_at or self.run_at, self.id.int


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


class Unstarted(NamedTuple):
    """What the row of a task that was not started shows."""

    status: str
    epoch: int
    queue: str
    has_expired: bool
    is_paused: bool


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


@functools.cache
def returning_row() -> str:
    """Return the clause that makes a statement return the whole row of a task, for ``row_of``."""
    return f"RETURNING {', '.join(str(field.column) for field in Task._meta.concrete_fields)}"


def row_of(values: Sequence[Any]) -> Task:
    """Return the task of the columns of ``returning_row``, as a query of the ORM would."""
    alias = conf.settings().DATABASE
    converted = list(values)
    for index, convert in _converters():
        converted[index] = convert(converted[index], None, connections[alias])
    return Task.from_db(alias, _names(), converted)


@functools.cache
def _names() -> list[str]:
    return [field.attname for field in Task._meta.concrete_fields]


@functools.cache
def _converters() -> list[tuple[int, Any]]:
    """Return the indexes of the columns whose fields convert the value of the driver."""
    found = [getattr(field, "from_db_value", None) for field in Task._meta.concrete_fields]
    return [(index, convert) for index, convert in enumerate(found) if convert is not None]
