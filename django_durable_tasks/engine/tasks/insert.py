"""Inserts one new task, and publishes it when the transaction commits if that is possible."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db.publish_on_commit import (
    publish_after_commit,
    remember_until_commit,
    start_batch_after_commit,
)
from django_durable_tasks.engine.tasks.fast_path import may_start_batch
from django_durable_tasks.models import Task
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tasks.new_task import NewTask

logger = logging.getLogger("django_durable_tasks.calls")


def insert(task: NewTask) -> bool:
    """Insert a task; return False, without a change, if one of its keys is taken."""
    if not transitions.create(task):
        return False
    publish_new(task)
    return True


def insert_row(task: NewTask) -> Task | None:
    """Insert a task; return its row, or None, without a change, if one of its keys is taken."""
    row = transitions.create_row(task)
    if row is not None:
        publish_new(task)
    return row


def insert_with_answer(task: NewTask, now: datetime, parameters: Mapping[str, Any]) -> bool:
    """Insert a task with the answer to its request; return False, without a change, if the
    Idempotency-Key is taken.

    As after a COMMIT, an error of the broker is logged and not raised: the task exists, and the
    request must not look refused.
    """
    if not transitions.create_with_answer(task, now, parameters):
        return False
    try:
        publish_new(task)
    except Exception:
        logger.exception("Task %s was created but not published; a scheduler will do so.", task.id)
    return True


def publish_new(task: NewTask) -> None:
    """Publish the message of an inserted task at the COMMIT if it is QUEUED, or a batch message."""
    remember_until_commit(task.id)
    if task.status == Status.QUEUED:
        publish_after_commit([message_of(task)])
    elif task.status == Status.PENDING and (task.starts_batch or may_start_batch(task)):
        start_batch_after_commit(task.queue, task.name, task.priority)


def message_of(task: NewTask) -> TaskMessage:
    """Return the message of a task that is inserted as QUEUED."""
    overrides = json.loads(task.options) if task.options else {}
    return TaskMessage(
        task_id=task.id,
        epoch=task.epoch,
        number=task.publish_count,
        name=task.name,
        queue=task.queue,
        priority=task.priority,
        timeout=overrides.get("timeout"),
        soft_timeout=overrides.get("soft_timeout"),
        idempotency_key=task.idempotency_key,
    )
