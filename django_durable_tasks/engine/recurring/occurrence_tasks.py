"""Builds the Task values and the ledger entry of one fire time of a schedule.

Called by the tick, manual runs and backfills. Writes nothing.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from sys import intern
from typing import Any

from django_durable_tasks import conf, process_state, registry
from django_durable_tasks.engine.recurring.ledger import LedgerEntry
from django_durable_tasks.engine.recurring.schedule_cache import readable
from django_durable_tasks.engine.recurring.schedule_rows import AnySchedule, ScheduleRow
from django_durable_tasks.engine.tasks.new_task import TaskTemplate
from django_durable_tasks.engine.tasks.new_task import template as task_template
from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.models.task_queries import NEVER, new_task_id
from django_durable_tasks.registry import Registered
from django_durable_tasks.rules.recurring.effective import PlannedRun
from django_durable_tasks.rules.recurring.overlaps import OverlapDecision
from django_durable_tasks.rules.recurring.policies import FireOutcome, Overlap
from django_durable_tasks.rules.tasks.key_templates import formatted
from django_durable_tasks.rules.tasks.new_task import NO_ID, NewTask
from django_durable_tasks.rules.tasks.options import CallOptions, call_options
from django_durable_tasks.rules.tasks.shards import shard_of

_MAX_TEMPLATES = 1_000
"""If there are this many, all are built again."""


class SharedTemplates:
    """The templates of this process, by what the tasks of several schedules have in common: the
    task function and its options.
    """

    def __init__(self) -> None:
        self._settings: conf.Settings | None = None
        self._templates: dict[tuple[Any, ...], tuple[Registered, TaskTemplate]] = {}

    def __len__(self) -> int:
        return len(self._templates)

    def get(self, row: ScheduleRow) -> TaskTemplate:
        """Return the template of this schedule's tasks; raises what ``_task_template`` raises."""
        settings = conf.settings()
        if self._settings is not settings or len(self._templates) >= _MAX_TEMPLATES:
            self._settings, self._templates = settings, {}
        key = (row.task, row.tenant_id, row.queue, row.priority, row.options_json)
        known = self._templates.get(key)
        if known is None or known[0] is not registry.find(row.task):
            known = self._templates[key] = (registry.get(row.task), _task_template(row))
        return known[1]


def _task_template(row: AnySchedule) -> TaskTemplate:
    """Raise UnknownTask or InvalidOption."""
    options = {
        **row.options,
        "tenant": row.tenant_id,
        "queue": row.queue or None,
        "priority": row.priority,
    }
    return task_template(registry.get(row.task), call_options(CallOptions(), options))


@readable
def template(row: AnySchedule) -> NewTask:
    """Return the values that all tasks of this schedule share, saved or not.

    Raises UnknownTask, InvalidArguments or InvalidOption.
    """
    if isinstance(row, ScheduleRow):
        shared = process_state.of(SharedTemplates).get(row)
        zone = intern(row.time_zone)  # it is kept in memory for each schedule
    else:
        shared, zone = _task_template(row), row.time_zone
    task, overlap_key = shared.called(tuple(row.args), row.kwargs, NO_ID), overlap_key_of(row)
    expires_in = task.expires_in if row.expires_in is None else row.expires_in
    return task._replace(
        recurring_task_id=row.pk,
        time_zone=zone,
        overlap_key=overlap_key,
        expires_in=expires_in,
        # Overlap keys are checked after a claim, before its messages are published.
        in_batch=task.in_batch and overlap_key is None,
    )


def overlap_key_of(row: AnySchedule) -> str | None:
    """Return the overlap key of the schedule's runs; None if they may overlap. Raises
    InvalidOption.
    """
    if row.overlap == Overlap.ALLOW:
        return None
    if not row.overlap_key:
        return f"recurring:{row.pk}"
    key = formatted("overlap_key", row.overlap_key, row.args, {**row.kwargs, "task": row.task})
    return f"{row.tenant_id}:{key}"


def occurrence_task(
    shared: NewTask,
    planned: PlannedRun,
    effective: datetime,
    verdict: OverlapDecision,
    key: str | None = None,
) -> NewTask:
    """Return the task of this fire time, from the schedule's ``template``; it starts at
    ``effective``, or waits for its overlap key if ``verdict.held`` is set.
    """
    task_id, expires_in = new_task_id(), shared.expires_in
    return shared._replace(
        id=task_id,
        shard_key=shard_of(task_id),
        run_at=effective,
        due_at=NEVER if verdict.held else effective,
        expires_at=None if expires_in is None else _expiry(effective, expires_in),
        fire_time=planned.nominal,
        idempotency_key=key or idempotency_key(_schedule_of(shared), planned.nominal),
    )


def _expiry(start: datetime, expires_in: float) -> datetime:
    try:
        return start + timedelta(seconds=expires_in)
    except OverflowError as beyond:
        raise InvalidSchedule(
            f"expires_in={expires_in:g} s after {start.isoformat()} is beyond the year 9999:"
            " declare the schedule again."
        ) from beyond


def _schedule_of(shared: NewTask) -> uuid.UUID:
    if shared.recurring_task_id is None:
        raise ValueError(f"The template of {shared.name} has no schedule.")
    return shared.recurring_task_id


def idempotency_key(recurring_task_id: uuid.UUID, fire_time: datetime) -> str:
    """Return the idempotency key of a fire time: the schedule's id and the fire time in UTC."""
    return f"{recurring_task_id}/{fire_time.astimezone(UTC).isoformat().replace('+00:00', 'Z')}"


def request_key(recurring_task_id: uuid.UUID, request_id: str) -> str:
    """Return the idempotency key of a manual run: the schedule's id and the request id."""
    return f"{recurring_task_id}/request/{request_id}"


def entry(
    shared: NewTask,
    planned: PlannedRun,
    outcome: FireOutcome,
    *,
    term: int | None,
    task: NewTask | None = None,
    **columns: Any,
) -> LedgerEntry:
    """Return the ledger entry of one fire time of the schedule of a template."""
    return LedgerEntry(
        recurring_task_id=_schedule_of(shared),
        tenant_id=shared.tenant_id,
        fire_time=planned.nominal,
        outcome=outcome,
        term=term,
        task_id=task.id if task else None,
        effective_at=task.run_at if task else planned.at,
        **columns,
    )
