"""Records the events of notification settings, and sends ``tasks_transitioned``. No error of either
undoes the transition.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import Any

from django.db import DatabaseError, OperationalError, connections, transaction

from django_durable_tasks import conf
from django_durable_tasks.engine.notification_events.capture import (
    capture_successes,
    capture_transition,
)
from django_durable_tasks.engine.transitions.change_tracking import in_preview
from django_durable_tasks.models import Task
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tasks.runs import Run
from django_durable_tasks.signals import tasks_transitioned

logger = logging.getLogger("django_durable_tasks.signals")


def announce(
    transition: str, status: Status, task_ids: Sequence[uuid.UUID], succeeded: Sequence[Run] = ()
) -> None:
    """Record events, and send the signal in a savepoint. ``succeeded``: the runs whose successes
    they are.

    If a receiver fails, the writes of the receivers are rolled back, but not the transition.
    Nothing is sent during a preview.
    """
    if not task_ids or in_preview():
        return
    if succeeded:
        capture_successes(succeeded)
    else:
        capture_transition(transition, status, task_ids)
    if not has_receivers():
        return
    database = conf.settings().DATABASE
    connection = connections[database]
    in_transaction, hooks = connection.in_atomic_block, len(connection.run_on_commit)
    try:
        with transaction.atomic(using=database):
            responses = tasks_transitioned.send_robust(
                Task, transition=transition, status=status, task_ids=list(task_ids), using=database
            )
            # The hooks of receivers become robust: their exceptions must not look like a failure of
            # the transition, which is committed when they run.
            registered: list[Any] = connection.run_on_commit
            registered[hooks:] = [
                (savepoints, hook, True) for savepoints, hook, *_ in registered[hooks:]
            ]
            if any(isinstance(response, Exception) for _, response in responses):
                transaction.set_rollback(True, using=database)
    except DatabaseError as error:
        # Either a receiver caught the error of a statement, after which PostgreSQL requires a
        # rollback to the savepoint, or its writes violate a deferred constraint.
        if connection.needs_rollback or (
            isinstance(error, OperationalError) and not in_transaction
        ):
            raise
        logger.exception(
            "A receiver of tasks_transitioned failed for %s; its writes were rolled back.",
            transition,
        )


def has_receivers() -> bool:
    """Return whether ``tasks_transitioned`` has receivers."""
    return bool(tasks_transitioned.has_listeners(Task))
