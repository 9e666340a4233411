"""Querysets of tasks, for schedulers, workers and operators."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from django.db import models
from django.db.models import Q

from django_durable_tasks import ports
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.instants import InstantField
from django_durable_tasks.models.task_actions import TaskActions
from django_durable_tasks.rules.states import OPEN, WITH_DUE_AT, Status
from django_durable_tasks.rules.tasks.identifiers import uuid7

if TYPE_CHECKING:
    from django_durable_tasks.models.task import Task  # noqa: F401 - the row type of TaskQuerySet

NEVER = datetime(9000, 1, 1, tzinfo=UTC)
"""``due_at`` of a PENDING task that waits for its overlap key or for a limit.

A sentinel and not NULL: a CHECK constraint requires a ``due_at`` of every PENDING task, and a range
of the index on ``due_at`` leaves out the tasks that wait.
"""


STATUSES_WITH_DUE_AT = sorted(status.value for status in WITH_DUE_AT)


def new_task_id() -> uuid.UUID:
    """Return a new UUIDv7."""
    return uuid7(time.time_ns() // 1_000_000, os.urandom(10))


def new_task_ids(number: int) -> list[uuid.UUID]:
    """Return new UUIDv7s of one millisecond."""
    unix_ms, randomness = time.time_ns() // 1_000_000, os.urandom(10 * number)
    return [uuid7(unix_ms, randomness[at : at + 10]) for at in range(0, 10 * number, 10)]


class TaskQuerySet(TaskActions["Task"]):
    """The queryset of tasks; it can be filtered further and passed to operations."""

    def for_tenant(self, tenant: Any) -> Self:
        """Tasks of this tenant (a Tenant or its id)."""
        return self.filter(tenant_id=getattr(tenant, "pk", tenant))

    def open(self) -> Self:
        """Tasks that have not ended."""
        return self.filter(status__in=OPEN)

    def blocked(self) -> Self:
        """Tasks that wait for other tasks, or for a person."""
        return self.filter(status=Status.BLOCKED)

    def of_workflow(self, run: Any) -> Self:
        """Tasks of this workflow run (a WorkflowRun or its id)."""
        return self.filter(workflow_id=getattr(run, "pk", run))

    def pending(self) -> Self:
        """Tasks that wait for their due time."""
        return self.filter(status=Status.PENDING)

    def queued(self) -> Self:
        """Tasks that were published and have not started."""
        return self.filter(status=Status.QUEUED)

    def running(self) -> Self:
        """Tasks that are running."""
        return self.filter(status=Status.RUNNING)

    def published_alone(self) -> Self:
        """PENDING tasks that have messages of their own."""
        return self.pending().filter(in_batch=False)

    def waiting_for_batch(self) -> Self:
        """PENDING tasks that workers start in batches."""
        return self.pending().filter(in_batch=True)

    def due(self, now: datetime) -> Self:
        """PENDING tasks that are due, the most urgent first.

        Both values of ``in_batch`` are listed so that the partial indexes are usable.
        """
        either = Q(in_batch=False) | Q(in_batch=True)
        return self.pending().filter(either, due_at__lte=now).order_by("-priority", "due_at", "id")

    def due_alone(self, now: datetime) -> Self:
        """PENDING tasks with messages of their own that are due."""
        return self.published_alone().filter(due_at__lte=now)

    def coming(
        self,
        now: datetime,
        until: datetime,
        past: uuid.UUID | None = None,
        priorities: Iterable[int] = range(10),
    ) -> Self:
        """PENDING tasks with messages of their own that are due after ``now`` and up to ``until``,
        the earliest first.

        Priorities are listed so that an index is usable. With ``past``, the id of the last task
        of a page, tasks that are due at ``now`` with greater ids are included.
        """
        soon = (
            self.published_alone()
            .filter(priority__in=list(priorities), due_at__lte=until)
            .order_by("due_at", "id")
        )
        if past is None:
            return soon.filter(due_at__gt=now)
        return soon.filter(Q(due_at__gt=now) | Q(id__gt=past), due_at__gte=now)

    def with_overlap_keys(self, keys: Iterable[str]) -> Self:
        """Open tasks with these overlap keys, in the order in which they will run."""
        return self.filter(overlap_key__in=list(keys), completed_at__isnull=True).order_by(
            "run_at", "fire_time", "id"
        )

    def waiting_for_overlap(self) -> Self:
        """PENDING tasks that wait until no other task with their overlap key is open."""
        waiting = self.pending().filter(
            overlap_key__isnull=False, completed_at__isnull=True, due_at__gte=NEVER
        )
        return waiting.filter(waiting_for_limit__isnull=True)

    def waiting_for_limit(self) -> Self:
        """PENDING tasks that wait for capacity of a limit."""
        return self.pending().filter(waiting_for_limit__isnull=False, due_at__gte=NEVER)

    def waiting_for_scope(self, scope: str) -> Self:
        """Tasks that are waiting for this scope, the most urgent first, then the one that has been
        due for longest.
        """
        return (
            self.pending()
            .filter(waiting_for_limit=scope, due_at__gte=NEVER)
            .order_by("-priority", "ready_at", "id")
        )

    def reserved_for_scope(self, scope: str) -> Self:
        """Tasks that are waiting for this scope, or were released by it and not claimed yet, the
        most urgent first.
        """
        waiting = Q(due_at__lte=DatabaseNow()) | Q(due_at__gte=NEVER)
        return (
            self.pending()
            .filter(waiting, waiting_for_limit=scope)
            .order_by("-priority", "ready_at", "id")
        )

    def republish_due(self, now: datetime) -> Self:
        """QUEUED tasks that were not started in time."""
        return self.queued().filter(due_at__lte=now).order_by("due_at")

    def lease_over(self, now: datetime) -> Self:
        """RUNNING tasks whose lease has expired."""
        return self.running().filter(lease_until__lt=now)

    def owned_by(self, nodes: list[uuid.UUID]) -> Self:
        """Tasks that these nodes claimed or run."""
        return self.filter(node__in=nodes)

    def retrying(self) -> Self:
        """PENDING tasks with a failed attempt."""
        return self.pending().filter(failures__gt=0)

    def overdue(self, now: datetime) -> Self:
        """RUNNING tasks that exceed their expected duration (seconds)."""
        return self.running().with_over().filter(expected_duration__isnull=False, over__lt=now)

    def with_over(self) -> Self:
        """The same tasks; queries may name as ``over`` when their expected duration has passed."""
        over = models.ExpressionWrapper(
            models.F("started_at") + models.F("expected_duration"),
            output_field=InstantField(),
        )
        return self.alias(over=over)

    def ended_before(
        self, status: str, cutoff: datetime, past: tuple[datetime, uuid.UUID] | None = None
    ) -> Self:
        """Tasks outside of workflows that ended with this status before ``cutoff``, the oldest end
        first, by an index.

        With ``past``, the end and id of the last task of a page, only those after it.
        """
        found = self.filter(
            status=status,
            completed_at__lt=cutoff,
            completed_at__isnull=False,
            workflow__isnull=True,
        )
        if past is not None:
            found = found.filter(
                Q(completed_at__gt=past[0]) | Q(id__gt=past[1]), completed_at__gte=past[0]
            )
        return found.order_by("completed_at", "id")


class TaskManager(models.Manager.from_queryset(TaskQuerySet)):  # type: ignore[misc]
    """Task.objects: the queryset, but ``cancel`` and ``reschedule`` take the key of one task."""

    def cancel(self, key: str, *, by: str = "", reason: str = "", tenant: Any = None) -> int:
        """Cancel the open task with this key, or request it to stop if it is RUNNING; return the
        number of tasks.
        """
        return ports.tasks.cancel_key(key, tenant=tenant, by=by, reason=reason)

    def reschedule(
        self, key: str, run_at: datetime, *, by: str = "", reason: str = "", tenant: Any = None
    ) -> int:
        """Move the open task with this key to another time (aware); return the number of tasks."""
        return ports.tasks.reschedule_key(key, run_at, tenant=tenant, by=by, reason=reason)
