"""Makes the remote control commands ``revoke``, ``terminate`` and ``query_task`` of a worker accept
the id of a durable task.

``celery control``, ``celery inspect`` and Flower send the id that the user entered. Each message
has its own id, so the worker translates the id of the task to those of its messages.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection
from typing import Any

from celery.worker import state as worker_state
from celery.worker.control import Panel, control_command, inspect_command
from django.db import Error
from kombu.utils.functional import maybe_list

from django_durable_tasks.celery import operations_by_id
from django_durable_tasks.celery.operations_by_id import known
from django_durable_tasks.celery.publishing.message_id import parse
from django_durable_tasks.conf import settings
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.tasks import operator_actions
from django_durable_tasks.models import Task

logger = logging.getLogger("django_durable_tasks.runs")


def _messages(ids: Collection[str]) -> dict[str, str]:
    """Return the ids of the messages that this worker has received for these tasks, with the ids of
    the tasks.
    """
    wanted = {uuid.UUID(value): value for value in ids if _is_uuid(value)}
    envelopes = (parse(request_id) for request_id in list(worker_state.requests))
    return {
        found.celery_id: wanted[found.task_id]
        for found in envelopes
        if found and found.task_id in wanted
    }


def _is_uuid(value: str) -> bool:
    try:
        uuid.UUID(value)
    except ValueError:
        return False
    return True


def _cancel(ids: Collection[str]) -> set[str]:
    """Cancel the durable tasks among these ids; return them. Every worker does so. Repetition has
    no effect.
    """
    try:
        with dedicated_connection():
            durable = known(ids)
            if durable:
                rows = Task.objects.using(settings().DATABASE).filter(pk__in=durable)
                operator_actions.cancel(rows, by="revoke")
            return durable
    except Error as error:
        logger.error(
            "The tasks %s were not cancelled: %s", ", ".join(sorted(ids)), type(error).__name__
        )
        return set()


def connect() -> None:
    """Make Celery's clients and workers accept the ids of durable tasks; called once per
    process.
    """
    operations_by_id.connect()
    if getattr(Panel.data["revoke"], "of_durable_tasks", False):
        return
    celerys_revoke, celerys_query = Panel.data["revoke"], Panel.data["query_task"]

    @control_command(variadic="task_id", signature="[id1 [id2 [... [idN]]]]")
    def revoke(
        state: Any, task_id: Any, terminate: bool = False, signal: Any = None, **kwargs: Any
    ) -> Any:
        """Revoke task by task id (or list of ids)."""
        ids = {str(value) for value in maybe_list(task_id) or []}
        durable = _cancel(ids)
        celerys = (ids - durable) | (set(_messages(durable)) if terminate else set())
        if durable and not celerys:
            return {"ok": f"tasks {durable} cancelled"}
        return celerys_revoke(state, celerys, terminate, signal, **kwargs)

    @control_command(
        variadic="task_id", args=[("signal", str)], signature="<signal> [id1 [id2 [... [idN]]]]"
    )
    def terminate(state: Any, signal: Any, task_id: Any, **_: Any) -> Any:
        """Terminate task by task id (or list of ids)."""
        return revoke(state, task_id, terminate=True, signal=signal)

    @inspect_command(variadic="ids", signature="[id1 [id2 [... [idN]]]]")
    def query_task(state: Any, ids: Any, **kwargs: Any) -> Any:
        """Query for task information by id."""
        given = [str(value) for value in maybe_list(ids) or []]
        messages = _messages(given)
        found = celerys_query(state, [*given, *messages], **kwargs)
        return {
            messages.get(request_id, request_id): answer for request_id, answer in found.items()
        }

    revoke.of_durable_tasks = True
