"""Sends a message to a Celery task that is not durable, from inside a run."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from celery import current_app


def celery_id_of(idempotency_key: str) -> str:
    """Return the Celery id of a message that a run sends: the same for every attempt and replay of
    the run.
    """
    return str(uuid.uuid5(uuid.NAMESPACE_OID, idempotency_key))


def send(
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    idempotency_key: str,
) -> str:
    """Publish the message as beat does, and return its Celery id. Raises the errors of the
    broker.
    """
    celery_id = celery_id_of(idempotency_key)
    current_app.send_task(
        name, list(args), dict(kwargs), task_id=celery_id, retry=False, **dict(options)
    )
    return celery_id
