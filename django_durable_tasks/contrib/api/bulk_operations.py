"""Operations on all tasks of a tenant that match a filter, in steps of one transaction each.

A step moves the position of the operation in the transaction of its changes. If a worker is
killed, no step is repeated or left out.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import OuterRef, QuerySet, Subquery

from django_durable_tasks import conf, registry
from django_durable_tasks.audit import acting, current_actor, recorded
from django_durable_tasks.choices import OPEN, REPLAYABLE, Status
from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.contrib.api import idempotent_requests, quotas
from django_durable_tasks.contrib.api.models import BulkKind, BulkOperation, IdempotentRequest
from django_durable_tasks.decorators import durable_task
from django_durable_tasks.exceptions import QuotaExceeded, TransitionRefused
from django_durable_tasks.limits.waitlist import URGENT
from django_durable_tasks.models import DEFAULT_TENANT_ID, Tenant
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.store.connections import bound_transaction, dedicated_connection
from django_durable_tasks.store.errors import retry_on_deadlock
from django_durable_tasks.task_values import first_uuid7_of
from django_durable_tasks.tasks import enqueue, operator_actions
from django_durable_tasks.tasks.enqueue import Call
from django_durable_tasks.tasks.options import CallOptions, call_options

# The filters of lists of tasks and of bulk operations. Pure.


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks: in this status, queue and of this name, created from ``since`` until before
    ``before``. None matches all.
    """

    status: Status | None = None
    queue: str | None = None
    name: str | None = None
    since: datetime | None = None
    before: datetime | None = None

    @property
    def first_id(self) -> uuid.UUID | None:
        """The least id of the period; ids sort by creation time in milliseconds."""
        return None if self.since is None else _id_at(self.since)

    @property
    def end_id(self) -> uuid.UUID | None:
        """The least id after the period."""
        return None if self.before is None else _id_at(self.before)

    def matches(self, status: str, queue: str, name: str) -> bool:
        """Return whether a task with an id of the period matches."""
        return (
            self.status in (None, status)
            and self.queue in (None, queue)
            and self.name in (None, name)
        )

    def stored(self) -> dict[str, Any]:
        """Return the filters that are given as JSON values."""
        return {
            name: value.isoformat() if isinstance(value, datetime) else str(value)
            for name, value in asdict(self).items()
            if value is not None
        }


def task_filter(stored: Mapping[str, Any]) -> TaskFilter:
    """Return the filter of ``TaskFilter.stored``."""
    values = dict(stored)
    for name in ("since", "before"):
        if name in values:
            values[name] = datetime.fromisoformat(values[name])
    if "status" in values:
        values["status"] = Status(values["status"])
    return TaskFilter(**values)


def _id_at(at: datetime) -> uuid.UUID:
    return first_uuid7_of(max(0, int(at.timestamp() * 1_000)))


BULK_OPERATION_TASK = "django_durable_tasks.bulk_operation"
EXAMINED = 1_000
"""Tasks that one step reads."""
_ERRORS = 100
"""Errors that an operation stores; all are counted."""
_KEPT = timedelta(days=30)
# Operations of a tenant that have not ended. Cancellations are not bounded by its quota of tasks.
_STARTED_MAX = 10
_STATUSES = {BulkKind.CANCEL: OPEN, BulkKind.REPLAY: REPLAYABLE}


def start(tenant: Tenant, kind: BulkKind, which: TaskFilter) -> BulkOperation:
    """Create an operation and the task that performs it.

    Raises TransitionRefused if the tenant has 10 operations that have not ended. One whose task
    has ended or was pruned has ended too, however far it came.
    """
    until = which.end_id or uuid.UUID(int=2**128 - 1)
    with recorded(f"tasks.bulk_{kind.lower()}") as entry:
        tables.locked_for_change(Tenant.objects.using(tables.database()).filter(pk=tenant.pk)).get()
        started = tables.unguarded(BulkOperation).filter(
            tenant_id=tenant.pk, completed_at__isnull=True, task__status__in=sorted(OPEN)
        )
        if started.count() >= _STARTED_MAX:
            raise TransitionRefused(
                f"The tenant has {_STARTED_MAX} operations that have not ended: wait for one of"
                " them."
            )
        row = BulkOperation(
            tenant_id=tenant.pk,
            kind=kind,
            filters=which.stored(),
            created_by=current_actor().by[:200],
            reason=current_actor().reason[:500],
        )
        call = Call(
            registry.get(BULK_OPERATION_TASK),
            (str(row.pk),),
            {},
            # It starts before the tasks that it is to cancel, also if these occupy the share or the
            # limit of the tenant: it needs one of the places of the tenant, the next one.
            call_options(CallOptions(), {"tenant": tenant.pk, "priority": URGENT}),
        )
        row.task_id = enqueue.submit(call)
        row.until_id = min(until, row.task_id)
        tables.unguarded(BulkOperation).bulk_create([row])
        entry.subject("operation", row.pk, tenant.pk)
        entry.detail(filters=row.filters)
    result: BulkOperation = with_task_status(tables.unguarded(BulkOperation)).get(pk=row.pk)
    return result


def with_task_status(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Annotate operations with ``task_status``; None if the task was pruned, before the operation
    was.
    """
    status = tables.tasks().filter(pk=OuterRef("task_id")).values("status")
    with_status: QuerySet[Any] = rows.annotate(task_status=Subquery(status))
    return with_status


@retry_on_deadlock
def advance(operation_id: uuid.UUID, tenant_id: int, *, now: datetime) -> BulkOperation:
    """Perform the next step of an operation of this tenant; return the operation.

    Raises QuotaExceeded if a replay exceeds the quota of open tasks; the step then has changed
    nothing.
    """
    with tables.atomic():
        bound_transaction()
        row = tables.locked_for_change(
            tables.unguarded(BulkOperation).filter(pk=operation_id, tenant_id=tenant_id)
        ).get()
        if row.completed_at is not None:
            return row
        which, statuses = task_filter(row.filters), _STATUSES[BulkKind(row.kind)]
        # No index of its own finds the rows of the default tenant, so the tasks of all tenants are
        # read. A cancellation reads open tasks only, however many have ended: a task may run until
        # it is read.
        rows = tables.tasks().filter(pk__lt=row.until_id)
        if row.kind == BulkKind.CANCEL:
            rows = rows.filter(status__in=sorted(OPEN), completed_at__isnull=True)
        if row.tenant_id != DEFAULT_TENANT_ID:
            rows = rows.filter(tenant_id=row.tenant_id)
        if row.last_id is not None:
            rows = rows.filter(pk__gt=row.last_id)
        elif which.first_id is not None:
            rows = rows.filter(pk__gte=which.first_id)
        read = list(
            rows.only("pk", "tenant_id", "status", "queue", "name").order_by("pk")[:EXAMINED]
        )
        # The tasks of bulk operations are never changed.
        matching = [
            task.pk
            for task in read
            if task.tenant_id == row.tenant_id
            and task.status in statuses
            and task.name != BULK_OPERATION_TASK
            and which.matches(task.status, task.queue, task.name)
        ]
        changed, errors = _apply(row, matching) if matching else (0, [])
        row.last_id = read[-1].pk if read else row.last_id
        row.matched += len(matching)
        row.changed += changed
        row.failed += len(errors)
        row.errors = [*row.errors, *errors][:_ERRORS]
        row.completed_at = now if len(read) < EXAMINED else None
        columns = ("last_id", "matched", "changed", "failed", "errors", "completed_at")
        tables.unguarded(BulkOperation).bulk_update([row], columns)
    return row


def _apply(row: BulkOperation, ids: list[uuid.UUID]) -> tuple[int, list[dict[str, str]]]:
    """Change these tasks together; one by one if one of them is refused. Return how many were
    changed, and the errors of those that were refused.
    """
    errors: list[dict[str, str]] = []
    if row.kind == BulkKind.CANCEL:
        with acting(by=row.created_by, reason=row.reason):
            return operator_actions.cancel(tables.tasks().filter(pk__in=ids)).total, errors

    def replay(keys: list[uuid.UUID]) -> int:
        with tables.atomic(), acting(by=row.created_by, reason=row.reason):
            return len(operator_actions.replay(tables.tasks().filter(pk__in=keys)))

    try:
        changed = replay(ids)
    except TransitionRefused:
        changed = 0
        for key in ids:
            try:
                changed += replay([key])
            except TransitionRefused as refused:
                errors.append({"task_id": str(key), "error": str(refused)})
    tenant = Tenant.objects.using(tables.database()).select_related("quota").get(pk=row.tenant_id)
    quotas.charge_open_tasks(tenant, changed)
    return changed, errors


_PRUNED = 100
"""Rows that a step deletes, so that it competes little with starting tasks."""


def prune(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Delete answered requests and bulk operations after their retention, one step of each."""
    deleted, limit = 0, min(_PRUNED, conf.settings().BATCH_SIZE)
    models: dict[type[Any], timedelta] = {
        IdempotentRequest: idempotent_requests.KEPT,
        BulkOperation: _KEPT,
    }
    with dedicated_connection():
        for model, kept in models.items():
            rows = tables.unguarded(model)
            old = rows.filter(created_at__lt=now - kept).order_by("created_at")
            ids = list(old.values_list("pk", flat=True)[:limit])
            if ids:
                rows.filter(pk__in=ids).delete()
            deleted += len(ids)
    return deleted


# ``django_durable_tasks.bulk_operation`` performs an operation on many tasks of a tenant, step by
# step.


@durable_task(name=BULK_OPERATION_TASK, bind=True, backoff_max=300)
def bulk_operation(self: Any, operation_id: str) -> dict[str, Any]:
    """Perform the remaining steps; a cancellation takes effect between two steps."""
    # Of the task's tenant only, so that a client cannot name the operation of another one.
    tenant_id = self.durable.tenant.pk
    while True:
        self.durable.check()
        try:
            row = advance(uuid.UUID(operation_id), tenant_id, now=estimated_now())
        except QuotaExceeded as refused:
            quotas.refused(tenant_id, refused.quota, str(refused))
            raise
        self.durable.progress(row.changed, row.matched, "changed tasks of those that match")
        if row.completed_at is not None:
            return {"matched": row.matched, "changed": row.changed, "failed": row.failed}
