"""Plain Celery messages: those for durable tasks, and those that durable tasks send."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

from celery import current_app, states
from celery.exceptions import Ignore
from django.db import Error

from django_durable_tasks import conf
from django_durable_tasks.celery import calls
from django_durable_tasks.celery.gate import text_of
from django_durable_tasks.exceptions import DurableTasksError, PlainMessageRefused
from django_durable_tasks.store.connections import dedicated_connection

# Handles plain Celery messages for a durable task: creates a task if ACCEPT_PLAIN_MESSAGES is set,
# refuses them otherwise.
#
# Such messages were published before the task was durable, or by a process that does not load
# Django.


logger = logging.getLogger("django_durable_tasks.runs")
_FOREIGN_IDS = uuid.UUID("6f3c9a52-6a5e-5c0e-9d0b-1d7a1a0c7f11")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
_idle = threading.Event()


def has_canvas(request: Any) -> bool:
    """Return whether callbacks, further steps of a chain or a chord depend on this message."""
    return any(getattr(request, name, None) for name in ("callbacks", "errbacks", "chain", "chord"))


def adopt(task: Any, args: Any, kwargs: Any) -> NoReturn:
    """Create the task of this message, once per message id, and raise Ignore.

    Raises PlainMessageRefused if the task cannot be created. Celery has acknowledged the message
    already, so database errors are retried for RESULT_WRITE_TIMEOUT.
    """
    request, task_id = task.request, task_id_of(task.request.id)
    hard, soft = getattr(request, "timelimit", None) or (None, None)
    expires = _instant(getattr(request, "expires", None))
    options = {"time_limit": hard, "soft_time_limit": soft, "expires": expires}
    call_options = {name: value for name, value in options.items() if value is not None}
    deadline, pause = time.monotonic() + conf.settings().RESULT_WRITE_TIMEOUT, _FIRST_PAUSE
    try:
        while True:
            try:
                with dedicated_connection():
                    calls.of(task.name).apply_async(args, kwargs, task_id=task_id, **call_options)
                break
            except Error as error:
                if time.monotonic() + pause > deadline:
                    raise PlainMessageRefused(
                        f"the database did not answer in time: {text_of(error)}"
                    ) from None
            _idle.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
    except DurableTasksError as error:
        refuse(task, f"Message {request.id} for {task.name} cannot become a task: {error}")
    logger.info("Created task %s from the plain message %s for %s.", task_id, request.id, task.name)
    raise Ignore(f"Created task {task_id}.")


def refuse(task: Any, reason: str) -> NoReturn:
    """Fail this message and report the failure to its result, errbacks and chord; raises
    PlainMessageRefused.
    """
    logger.error("%s", reason)
    refused = PlainMessageRefused(reason)
    # Celery itself stores nothing here: durable tasks have ignore_result set.
    task.backend.store_result(task.request.id, refused, states.FAILURE, request=task.request)
    raise refused


def task_id_of(message_id: str) -> uuid.UUID:
    """Return the id of the task that a message becomes: the message's own, if it is a UUID."""
    try:
        return uuid.UUID(message_id)
    except ValueError:
        return uuid.uuid5(_FOREIGN_IDS, message_id)


def _instant(text: Any) -> datetime | None:
    """Return the value of the header ``expires``. Celery writes UTC without an offset."""
    if not isinstance(text, str):
        return None
    instant = datetime.fromisoformat(text)
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


# Sends a message to a Celery task that is not durable, from inside a run.


def celery_id_of(idempotency_key: str) -> str:
    """Return the Celery id of a message that a run sends: the same for every attempt and replay of
    the run.
    """
    return str(uuid.uuid5(uuid.NAMESPACE_OID, idempotency_key))


def send_plain_task(
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
