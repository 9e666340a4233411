"""Delivers a message to its task in this process, as a worker does: gate, body, ending.

``deliver`` calls the task only. ``trace`` runs Celery's tracer too, with its hooks and signals.
"""

from __future__ import annotations

import uuid
from typing import Any

from celery import current_app, signals
from celery.app.trace import build_tracer

from django_durable_tasks.celery.batch_runs import run_batch
from django_durable_tasks.celery.live_runs import process_runs
from django_durable_tasks.celery.prepared_messages import HEADER
from django_durable_tasks.choices import Status
from django_durable_tasks.models import Task
from tests.factories import QUEUE, a_task


def deliver(row: Task, *, epoch: int | None = None, number: int | None = None) -> Any:
    """Deliver the message of this task and epoch. Returns or raises what the worker gets."""
    task = current_app.tasks[row.name]
    message = f"{row.pk}.{row.epoch if epoch is None else epoch}.{row.publish_count if number is None else number}"
    headers = {HEADER: message}
    task.push_request(
        id=message,
        called_directly=False,
        is_eager=False,
        args=[],
        kwargs={},
        headers=headers,
        **headers,
    )
    try:
        return task()
    finally:
        task.pop_request()
        process_runs.forget(message)


def trace(row: Task, *, name: str = "") -> Any:
    """Run the message of this task as the process of a pool does, under another ``name`` if given.
    Returns what the process sends to its parent.
    """
    message = f"{row.pk}.{row.epoch}.{row.publish_count}"
    return _trace(name or row.name, message, {}, **{HEADER: message})


def run_task(task: Any, *args: Any, **fields: Any) -> Task:
    """Run a new task of this function, alone or in a batch as its options say, and return it."""
    in_batch = task.durable_options.batch is not None
    status = Status.PENDING if in_batch else Status.QUEUED
    row = a_task(status, name=task.name, args=list(args), in_batch=in_batch, **fields)
    if in_batch:
        trace_batches(task.name, QUEUE)
    else:
        trace(row)
    row.refresh_from_db()
    return row


def trace_batches(name: str, queue: str) -> None:
    """Run batch messages until each task of this name was started."""
    for _ in range(20):
        if not Task.objects.filter(name=name, attempts=0).exists():
            return
        trace_batch(name, queue)


def trace_batch(name: str, queue: str) -> None:
    """Run one batch message."""
    token = f"batch.{uuid.uuid4().hex[:12]}"
    _trace(run_batch.name, token, {"queue": queue, "name": name, "number": 0})


def _trace(name: str, message: str, kwargs: dict[str, Any], **headers: Any) -> Any:
    task = current_app.tasks[name]
    request = {"id": message, "delivery_info": {}, "hostname": "here", "retries": 0, **headers}
    try:
        return build_tracer(task.name, task, app=current_app)(message, [], kwargs, request)
    except BaseException as error:  # noqa: BLE001 - a pool reports what leaves the tracer
        signals.task_failure.send(sender=task, task_id=message, exception=error)
        return None
