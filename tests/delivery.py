"""Delivers a message to its task in this process, as a worker does: gate, body, ending."""

from __future__ import annotations

from typing import Any

from celery import current_app

from django_durable_tasks.celery.execution.live_runs import process_runs
from django_durable_tasks.celery.publishing.message_id import HEADER
from django_durable_tasks.models import Task


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
