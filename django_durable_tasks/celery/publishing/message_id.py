"""The id and the headers of a message: the task, its epoch and the number of the message.

Arguments are not in the message; the worker reads them from the task's row. The Celery id is
``<task id>.<epoch>.<number>``, so each message has its own id, and every Celery signal identifies
the run.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Any

from django_durable_tasks.ports import TaskMessage

HEADER = "durable_message"
IDEMPOTENCY_HEADER = "durable_idempotency_key"
BATCH_HEADER = "durable_batch"
_BATCH_ID = re.compile(r"batch\.([0-9a-f]{12})", re.ASCII)
# Other publishers may send any id. Only ids of this form are logged and stored.
_SPELLING = re.compile(
    r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.([0-9]{1,18})\.[0-9]{1,10}", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Envelope:
    """The task and epoch that a message refers to."""

    task_id: uuid.UUID
    epoch: int
    celery_id: str


def celery_id_of(message: TaskMessage) -> str:
    """Return the Celery id of this message."""
    if message.batch_of is not None:
        return f"batch.{message.task_id.hex[-12:]}"
    return f"{message.task_id}.{message.epoch}.{message.number}"


def headers_of(message: TaskMessage) -> dict[str, str]:
    """Return the headers of this package. The idempotency key is informative only."""
    if message.batch_of is not None:
        return {BATCH_HEADER: message.batch_of}
    return {
        HEADER: celery_id_of(message),
        IDEMPOTENCY_HEADER: message.idempotency_key or str(message.task_id),
    }


def parse(celery_id: object) -> Envelope | None:
    """Return the envelope of a Celery id; None if it is not the id of a durable task's message."""
    found = _SPELLING.fullmatch(celery_id) if isinstance(celery_id, str) else None
    return None if found is None else Envelope(uuid.UUID(found[1]), int(found[2]), found[0])


def batch_token(celery_id: object) -> bytes | None:
    """Return the token of a batch message, with which the ids of its runs begin; None for any other
    id.
    """
    found = _BATCH_ID.fullmatch(celery_id) if isinstance(celery_id, str) else None
    return None if found is None else bytes.fromhex(found[1])


def of_request(request: Any) -> Envelope | None:
    """Return the envelope of the current request; None if it is not a message of this package.

    Celery sets a header as an attribute of the request, in eager mode as an entry of ``headers``.
    """
    spelled = getattr(request, HEADER, None) or (getattr(request, "headers", None) or {}).get(
        HEADER
    )
    return parse(spelled)
