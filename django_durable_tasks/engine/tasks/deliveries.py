"""Reads and writes what a task that sends an HTTP request needs besides its run."""

from __future__ import annotations

import dataclasses
import uuid

from django_durable_tasks.encryption import current_key_id
from django_durable_tasks.engine.db import tables
from django_durable_tasks.models import DeliveryAttempt
from django_durable_tasks.rules.targets.deliveries import Delivery, TaskOrigin


def record(delivery: Delivery) -> None:
    """Insert the record of one request. Raises the errors of the database."""
    row = DeliveryAttempt(
        encryption_key=current_key_id(),
        **{spec.name: getattr(delivery, spec.name) for spec in dataclasses.fields(delivery)},
    )
    DeliveryAttempt.objects.using(tables.database()).unguarded().bulk_create([row])


def origin_of(task_id: uuid.UUID) -> TaskOrigin | None:
    """Return the nominal start of a task and its schedule; None if the task was deleted."""
    columns = ("fire_time", "run_at", "recurring_task_id")
    found = tables.tasks().filter(pk=task_id).values_list(*columns).first()
    if found is None:
        return None
    fire_time, run_at, schedule = found
    return TaskOrigin(scheduled_for=fire_time or run_at, schedule_id=schedule)
