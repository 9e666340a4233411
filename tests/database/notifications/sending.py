"""Creates notification settings, and does what the leader and a worker do for their messages."""

from __future__ import annotations

import uuid
from contextlib import suppress
from datetime import datetime
from typing import Any

from celery.exceptions import Ignore, Retry

from django_durable_tasks.contrib.callbacks.tasks import DeliveryRetry
from django_durable_tasks.contrib.notifications import deliveries
from django_durable_tasks.contrib.notifications.deliveries import StartedDeliveries
from django_durable_tasks.contrib.notifications.models import NotificationEvent, NotificationSetting
from django_durable_tasks.exceptions import DeliveryFailed
from django_durable_tasks.models import Task
from django_durable_tasks.registry import NOTIFICATION_TASK
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import claim
from tests.delivery import deliver

SETTINGS: dict[str, Any] = {
    "NOTIFICATION_EMAIL_ALLOW": ["*@example.com"],
    "HTTP_ALLOW": ["127.0.0.0/8"],
    "HTTP_PORTS": [80, 443, *range(32_768, 61_000)],
    "HTTP_SIGNING_KEYS": ["k" * 40],
}
_TO = {"to": ["ops@example.com"]}


def a_setting(name: str = "ops", **values: Any) -> NotificationSetting:
    """Create a setting, by default for e-mail and failures."""
    given = {"delivery_type": "EMAIL", "delivery_config": _TO, "on_failure": True}
    found: NotificationSetting = deliveries.create_setting(name=name, **{**given, **values})
    return found


def a_webhook(url: str, name: str = "hook", **values: Any) -> NotificationSetting:
    """Create a setting for an HTTP webhook."""
    config = {"url": url}
    return a_setting(name, **{"delivery_type": "HTTP_WEBHOOK", "delivery_config": config, **values})


def events() -> list[NotificationEvent]:
    """Return the recorded events, the oldest first."""
    return list(NotificationEvent.objects.order_by("pk"))


def types() -> list[str]:
    """Return the types of the recorded events."""
    return [event.type for event in events()]


def create_deliveries(
    now: datetime | None = None, limit: int = 500, started: StartedDeliveries | None = None
) -> int:
    """Do what the leader's job does; without ``started`` as a new leader."""
    return deliveries.create_due_deliveries(
        now or database_now(), limit, started or StartedDeliveries()
    )


def delivery_tasks() -> list[Task]:
    """Return the tasks that deliver messages."""
    return list(Task.objects.filter(name=NOTIFICATION_TASK).order_by("pk"))


def run(task: Task) -> Task:
    """Run a task as a worker does, successfully or not; return the row afterwards."""
    claim.claim_these([task.pk], database_now(), uuid.uuid4())
    task.refresh_from_db()
    with suppress(Retry, Ignore, DeliveryFailed, DeliveryRetry):
        deliver(task)
    task.refresh_from_db()
    return task


def result(task: Task) -> dict[str, Any]:
    """Return the result of a task that has one."""
    assert task.result is not None
    found: dict[str, Any] = task.result
    return found


def send_all(now: datetime | None = None) -> list[Task]:
    """Create the deliveries of due events and run them; return their tasks."""
    create_deliveries(now)
    return [run(task) for task in delivery_tasks() if task.status == "PENDING"]
