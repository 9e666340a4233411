"""``Delivery``: one HTTP request of a task with its answer or failure, as it is stored."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The columns of a DeliveryAttempt. Texts and headers are masked already; durations in
    seconds.
    """

    task_id: uuid.UUID
    tenant_id: int
    attempt_number: int
    run_id: uuid.UUID
    outcome: str
    started_at: datetime
    method: str
    url: str
    endpoint: str
    request_headers: list[list[str]]
    request_bytes: int
    status: int | None
    failure: str
    reason: str
    retry_delay: float | None
    response_headers: list[list[str]]
    response_body: str
    response_truncated: bool
    dns_seconds: float | None
    connect_seconds: float | None
    tls_seconds: float | None
    first_byte_seconds: float | None
    total_seconds: float
