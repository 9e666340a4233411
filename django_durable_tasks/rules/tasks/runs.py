"""A run in its worker process: its task, its tokens and its options."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, NamedTuple


class Run(NamedTuple):
    """One accepted start. ``epoch`` and ``run_id`` are its tokens: writing its result requires
    both.

    ``queued_at`` is when the task was claimed, or created if it was published without a claim.
    ``ready_at`` is since when it was due then; None without a claim.
    """

    task_id: uuid.UUID
    name: str
    queue: str
    tenant_id: int
    epoch: int
    run_id: uuid.UUID
    attempt: int
    failures: int
    crashes: int
    max_attempts: int
    args: list[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    idempotency_key: str
    node: uuid.UUID
    started_at: datetime
    run_at: datetime
    celery_id: str = ""
    workflow_id: uuid.UUID | None = None
    has_dependents: bool = False
    ready_at: datetime | None = None
    queued_at: datetime | None = None
    fire_time: datetime | None = None
    recurring_task_id: uuid.UUID | None = None
    limit_key: str | None = None

    @property
    def scheduled_for(self) -> datetime:
        """The nominal time of the start."""
        return self.fire_time or self.run_at
