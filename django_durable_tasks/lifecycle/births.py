"""From a recurring row and a fire time to the values of a Task, and to its line in the ledger."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django_durable_tasks import registry
from django_durable_tasks.lifecycle import scheduling
from django_durable_tasks.lifecycle.agendas import readable
from django_durable_tasks.lifecycle.ledger import Entry
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.models.task import NEVER, new_task_id
from django_durable_tasks.rules.agenda import Planned
from django_durable_tasks.rules.key_templates import formatted
from django_durable_tasks.rules.options import CallOptions, call_options
from django_durable_tasks.rules.overlaps import Verdict
from django_durable_tasks.rules.recurring import Fate, Overlap
from django_durable_tasks.rules.shards import shard_of
from django_durable_tasks.rules.states import Status

_MOST = 200_000
_kept: OrderedDict[tuple[uuid.UUID, int], dict[str, Any]] = OrderedDict()


def template(row: RecurringTask) -> dict[str, Any]:
    """Return the values that all tasks of this row share; raises UnknownTask, InvalidArguments, InvalidOption."""
    key = (row.pk, row.revision)
    found = _kept.get(key)
    if found is None:
        found = _kept[key] = unkept_template(row)
        if len(_kept) > _MOST:
            _kept.popitem(last=False)
    return found


@readable
def unkept_template(row: RecurringTask) -> dict[str, Any]:
    """Return the template of a row in the middle of a change, which must not be kept under its revision."""
    options = call_options(
        CallOptions(), {**row.options, "tenant": row.tenant_id, "queue": row.queue or None, "priority": row.priority}
    )
    call = scheduling.Call(registry.get(row.task), tuple(row.args), row.kwargs, options)
    values = scheduling.values_of(call)
    return values | {
        "recurring_task_id": row.pk, "time_zone": row.time_zone, "overlap_key": overlap_key_of(row),
        "status": Status.PENDING, "epoch": 0, "publish_count": 0, "wait": 0.0, "named": False,
    }  # fmt: skip


def overlap_key_of(row: RecurringTask) -> str | None:
    """Return the overlap key of the schedule's runs; None if they may overlap. Raises InvalidOption."""
    if row.overlap == Overlap.ALLOW:
        return None
    if not row.overlap_key:
        return f"recurring:{row.pk}"
    key = formatted("overlap_key", row.overlap_key, row.args, {**row.kwargs, "task": row.task})
    return f"{row.tenant_id}:{key}"[:200]


@readable
def task_values(
    row: RecurringTask, planned: Planned, effective: datetime, verdict: Verdict, key: str | None = None
) -> dict[str, Any]:
    """Return the values of the Task of this fire; it waits until ``effective``, or until its overlap key is free."""
    shared, task_id = template(row), new_task_id()
    expires_in = row.expires_in if row.expires_in is not None else shared["expires_in"]
    return shared | {
        "id": task_id,
        "shard_key": shard_of(task_id),
        "run_at": effective,
        "due_at": NEVER if verdict.held else effective,
        "expires_at": None if expires_in is None else effective + timedelta(seconds=expires_in),
        "fire_time": planned.nominal,
        "idempotency_key": key or idempotency_key(row.pk, planned.nominal),
    }


def idempotency_key(recurring_task_id: uuid.UUID, fire_time: datetime) -> str:
    """Return the key of a fire: the schedule's id and the fire time."""
    return f"{recurring_task_id}/{fire_time.astimezone(UTC).isoformat().replace('+00:00', 'Z')}"


def request_key(recurring_task_id: uuid.UUID, request_id: str) -> str:
    """Return the key of a run by hand: the schedule's id and the request's."""
    return f"{recurring_task_id}/request/{request_id}"


def line(
    row: RecurringTask, planned: Planned, outcome: Fate, *, term: int | None, values: Mapping[str, Any] | None = None,
    **told: Any,
) -> Entry:  # fmt: skip
    """Return the ledger's line of one fire."""
    return Entry(
        recurring_task_id=row.pk, tenant_id=row.tenant_id, fire_time=planned.nominal, outcome=outcome, term=term,
        task_id=values["id"] if values else None, effective_at=values["run_at"] if values else planned.at, **told,
    )  # fmt: skip
