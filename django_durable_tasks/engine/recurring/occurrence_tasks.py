"""Builds the Task values and the ledger entry of one fire time of a schedule.

Called by the tick, manual runs and backfills. Writes nothing.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from typing import Any

from django_durable_tasks import registry
from django_durable_tasks.engine.recurring.ledger import LedgerEntry
from django_durable_tasks.engine.recurring.schedule_cache import readable
from django_durable_tasks.engine.tasks.new_task import Call, planned_task
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.models.task_queries import NEVER, new_task_id
from django_durable_tasks.rules.recurring.effective import PlannedRun
from django_durable_tasks.rules.recurring.overlaps import OverlapDecision
from django_durable_tasks.rules.recurring.policies import FireOutcome, Overlap
from django_durable_tasks.rules.tasks.key_templates import formatted
from django_durable_tasks.rules.tasks.new_task import NewTask
from django_durable_tasks.rules.tasks.options import CallOptions, call_options
from django_durable_tasks.rules.tasks.shards import shard_of

_CACHE_SIZE = 200_000
_cache: OrderedDict[tuple[uuid.UUID, int], NewTask] = OrderedDict()


def template(row: RecurringTask) -> NewTask:
    """Return the values that all tasks of this schedule share, cached by revision.

    Raises UnknownTask, InvalidArguments or InvalidOption.
    """
    key = (row.pk, row.revision)
    found = _cache.get(key)
    if found is None:
        found = _cache[key] = unkept_template(row)
        if len(_cache) > _CACHE_SIZE:
            _cache.popitem(last=False)
    return found


@readable
def unkept_template(row: RecurringTask) -> NewTask:
    """Return the template without the cache, for a row whose changes are not saved yet."""
    options = call_options(
        CallOptions(),
        {
            **row.options,
            "tenant": row.tenant_id,
            "queue": row.queue or None,
            "priority": row.priority,
        },
    )
    call = Call(registry.get(row.task), tuple(row.args), row.kwargs, options)
    return planned_task(call)._replace(
        recurring_task_id=row.pk, time_zone=row.time_zone, overlap_key=overlap_key_of(row)
    )


def overlap_key_of(row: RecurringTask) -> str | None:
    """Return the overlap key of the schedule's runs; None if they may overlap. Raises
    InvalidOption.
    """
    if row.overlap == Overlap.ALLOW:
        return None
    if not row.overlap_key:
        return f"recurring:{row.pk}"
    key = formatted("overlap_key", row.overlap_key, row.args, {**row.kwargs, "task": row.task})
    return f"{row.tenant_id}:{key}"[:200]


@readable
def occurrence_task(
    row: RecurringTask,
    planned: PlannedRun,
    effective: datetime,
    verdict: OverlapDecision,
    key: str | None = None,
) -> NewTask:
    """Return the task of this fire time; it starts at ``effective``, or waits for its overlap key
    if ``verdict.held`` is set.
    """
    shared, task_id = template(row), new_task_id()
    expires_in = row.expires_in if row.expires_in is not None else shared.expires_in
    return shared._replace(
        id=task_id,
        shard_key=shard_of(task_id),
        run_at=effective,
        due_at=NEVER if verdict.held else effective,
        expires_at=None if expires_in is None else effective + timedelta(seconds=expires_in),
        fire_time=planned.nominal,
        idempotency_key=key or idempotency_key(row.pk, planned.nominal),
    )


def idempotency_key(recurring_task_id: uuid.UUID, fire_time: datetime) -> str:
    """Return the idempotency key of a fire time: the schedule's id and the fire time in UTC."""
    return f"{recurring_task_id}/{fire_time.astimezone(UTC).isoformat().replace('+00:00', 'Z')}"


def request_key(recurring_task_id: uuid.UUID, request_id: str) -> str:
    """Return the idempotency key of a manual run: the schedule's id and the request id."""
    return f"{recurring_task_id}/request/{request_id}"


def entry(
    row: RecurringTask,
    planned: PlannedRun,
    outcome: FireOutcome,
    *,
    term: int | None,
    task: NewTask | None = None,
    **columns: Any,
) -> LedgerEntry:
    """Return the ledger entry of one fire time."""
    return LedgerEntry(
        recurring_task_id=row.pk,
        tenant_id=row.tenant_id,
        fire_time=planned.nominal,
        outcome=outcome,
        term=term,
        task_id=task.id if task else None,
        effective_at=task.run_at if task else planned.at,
        **columns,
    )
