"""Converts the row of a started task into the run that the worker executes."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any

from django_durable_tasks.engine.transitions import StartedRun
from django_durable_tasks.rules.tasks.runs import Run


def run_of(started: StartedRun, node: uuid.UUID, celery_id: str) -> Run:
    """Return the run of a task that has started on this node."""
    return Run(
        task_id=started.id,
        name=started.name,
        queue=started.queue,
        tenant_id=started.tenant_id,
        epoch=started.epoch,
        run_id=started.run_id,
        attempt=started.attempts,
        failures=started.failures,
        crashes=started.crashes,
        max_attempts=started.max_attempts,
        args=_json(started.args),
        kwargs=_json(started.kwargs),
        options=_json(started.options) or {},
        idempotency_key=started.idempotency_key or str(started.id),
        node=node,
        started_at=_aware(started.started_at),
        run_at=_aware(started.run_at),
        celery_id=celery_id,
        workflow_id=started.workflow_id,
        has_dependents=bool(started.has_dependents),
        ready_at=started.ready_at and _aware(started.ready_at),
        queued_at=_aware(started.queued_at or started.created_at),
        fire_time=started.fire_time and _aware(started.fire_time),
        recurring_task_id=started.recurring_task_id,
        limit_key=started.limit_key,
    )


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _aware(value: datetime) -> datetime:
    return value if value.tzinfo else value.replace(tzinfo=UTC)
