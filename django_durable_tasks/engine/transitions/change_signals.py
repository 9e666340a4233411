"""Tells the receivers of ``tasks_transitioned``; whatever they do, the move stands."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import Any

from django.db import DatabaseError, OperationalError, connections, transaction

from django_durable_tasks import conf
from django_durable_tasks.engine.transitions.change_tracking import in_preview
from django_durable_tasks.models import Task
from django_durable_tasks.rules.states import Status
from django_durable_tasks.signals import tasks_transitioned

logger = logging.getLogger("django_durable_tasks.signals")


def announce(transition: str, status: Status, task_ids: Sequence[uuid.UUID]) -> None:
    """Send the signal, in a savepoint: a receiver that fails takes back what receivers wrote, not
    the move.
    """
    if not (task_ids and tasks_transitioned.has_listeners(Task)) or in_preview():
        return
    database = conf.settings().DATABASE
    connection = connections[database]
    within, hooks = connection.in_atomic_block, len(connection.run_on_commit)
    try:
        with transaction.atomic(using=database):
            answers = tasks_transitioned.send_robust(
                Task, transition=transition, status=status, task_ids=list(task_ids), using=database
            )
            # A hook that fails must not look like a failure of the move, which is committed by
            # then.
            registered: list[Any] = connection.run_on_commit
            registered[hooks:] = [
                (savepoints, hook, True) for savepoints, hook, *_ in registered[hooks:]
            ]
            if any(isinstance(answer, Exception) for _, answer in answers):
                transaction.set_rollback(True, using=database)
    except DatabaseError as error:
        # A receiver caught the error of a statement, which leaves PostgreSQL's savepoint to be
        # rolled back, or what it
        # wrote breaks a deferred constraint.
        if connection.needs_rollback or (isinstance(error, OperationalError) and not within):
            raise
        logger.exception(
            "A receiver of tasks_transitioned failed for %s; its writes were rolled back.",
            transition,
        )
