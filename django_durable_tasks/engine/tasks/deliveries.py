"""Records the HTTP requests that tasks send."""

from __future__ import annotations

import dataclasses

from django_durable_tasks.encryption import current_key_id
from django_durable_tasks.engine.db import tables
from django_durable_tasks.models import DeliveryAttempt
from django_durable_tasks.rules.targets.deliveries import Delivery


def record(delivery: Delivery) -> None:
    """Insert the record of one request. Raises the errors of the database."""
    row = DeliveryAttempt(
        encryption_key=current_key_id(),
        **{spec.name: getattr(delivery, spec.name) for spec in dataclasses.fields(delivery)},
    )
    DeliveryAttempt.objects.using(tables.database()).unguarded().bulk_create([row])
