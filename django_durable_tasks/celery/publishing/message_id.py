"""What travels on a message: which row rings, in which epoch, for which time. Arguments never
travel.

The Celery id is ``<task id>.<epoch>.<ring>``: readable in every signal, and never shared by two
rings.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Any

from django_durable_tasks.ports import TaskMessage

HEADER = "durable_ring"
IDEMPOTENCY_HEADER = "durable_idempotency_key"
# As strict as we write it: what a stranger sends stands in log lines and must fit the log row's
# column.
_SPELLING = re.compile(
    r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.([0-9]{1,18})\.[0-9]{1,10}", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Envelope:
    """The tokens of one message."""

    task_id: uuid.UUID
    epoch: int
    celery_id: str


def celery_id_of(message: TaskMessage) -> str:
    """Return the Celery id of this ring."""
    return f"{message.task_id}.{message.epoch}.{message.number}"


def headers_of(message: TaskMessage) -> dict[str, str]:
    """Return our headers for this ring; the idempotency key is for readers only, no decision reads
    it.
    """
    return {
        HEADER: celery_id_of(message),
        IDEMPOTENCY_HEADER: message.idempotency_key or str(message.task_id),
    }


def parse(celery_id: object) -> Envelope | None:
    """Return the envelope that a Celery id spells, None where it is not one of ours."""
    found = _SPELLING.fullmatch(celery_id) if isinstance(celery_id, str) else None
    return None if found is None else Envelope(uuid.UUID(found[1]), int(found[2]), found[0])


def of_request(request: Any) -> Envelope | None:
    """Return the envelope of the message in hand: an attribute over the wire, under ``headers`` in
    eager mode.
    """
    spelled = getattr(request, HEADER, None) or (getattr(request, "headers", None) or {}).get(
        HEADER
    )
    return parse(spelled)
