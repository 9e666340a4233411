"""The notification settings of a run, the secrets of their receiver, and what must be delivered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django_durable_tasks.contrib.callbacks import http
from django_durable_tasks.contrib.notifications import deliveries
from django_durable_tasks.contrib.notifications.models import NotificationEvent, NotificationSetting
from django_durable_tasks.models import DEFAULT_TENANT_ID, Task
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.registry import HTTP_CALLBACK_TASK, NOTIFICATION_TASK
from tests.chaos import bodies
from tests.chaos.receiver import REQUESTS, SECRETS
from tests.chaos.records import Request, Selection
from tests.chaos.watching import lines

SELECTIONS = (
    Selection("successes", bodies.stumble.name, "SUCCESS", "task.succeeded"),
    Selection("effects", bodies.take_effect.name, "SUCCESS", "task.succeeded", digest=True),
    Selection("batches", bodies.work_in_batches.name, "SUCCESS", "task.succeeded", digest=True),
    Selection("failures", bodies.give_up.name, "FAILED", "task.failed"),
    Selection("digests", bodies.give_up.name, "FAILED", "task.failed", digest=True),
)
_FLAGS = {"SUCCESS": "on_success", "FAILED": "on_failure"}
_PERIODS = (60.0, 61.0)
"""Seconds of a digest. Changing one for the other makes its waiting events due."""


def create_settings(origin: str, folder: Path) -> str:
    """Create the settings, and write the secrets for the receiver; return the URL of callbacks."""
    secrets = dict[str, list[str]]()
    for one in SELECTIONS:
        path = f"/settings/{one.setting}"
        values: dict[str, Any] = {
            "delivery_type": "HTTP_WEBHOOK",
            "delivery_config": {"url": f"{origin}{path}"},
            "task_name": one.name,
            "digest": _PERIODS[0] if one.digest else None,
            _FLAGS[one.status]: True,
        }
        row: NotificationSetting = deliveries.create_setting(name=one.setting, **values)
        secrets[path] = deliveries.secrets_of_setting(row, by="chaos").secrets
    url = f"{origin}/callbacks"
    found = http.secrets_of_callbacks(DEFAULT_TENANT_ID, url, None, by="chaos")
    secrets["/callbacks"] = found.secrets
    (folder / SECRETS).write_text(json.dumps(secrets))
    return url


def finish_deliveries(retried: set[str]) -> bool:
    """Make requests that wait for their next attempt due, and replay failed ones; return whether
    nothing is left to send. The former tasks are added to ``retried``.
    """
    senders = Task.objects.filter(name__in=(HTTP_CALLBACK_TASK, NOTIFICATION_TASK))
    waiting = senders.filter(status="PENDING", failures__gt=0, due_at__gt=DatabaseNow())
    if ids := list(waiting.values_list("pk", flat=True)):
        retried.update(map(str, ids))
        Task.objects.filter(pk__in=ids).retry(by="chaos")
    if (failed := senders.filter(status="FAILED")).exists():
        failed.replay(by="chaos")
    if Task.objects.open().exists():
        return False
    if undelivered():
        _end_periods()
        return False
    return True


def _end_periods() -> None:
    """Make events that wait for the end of a digest's period due."""
    waiting = NotificationEvent.objects.filter(delivery=None, due_at__gt=DatabaseNow())
    ids = waiting.order_by().values_list("setting_id", flat=True).distinct()
    for row in NotificationSetting.objects.filter(pk__in=list(ids)):
        digest = next(one for one in _PERIODS if one != row.digest)
        deliveries.change_setting(row, digest=digest, by="chaos")


def undelivered() -> int:
    """Return how many events are in no delivery."""
    return NotificationEvent.objects.filter(delivery=None).count()


def requests(folder: Path) -> tuple[Request, ...]:
    """Read what the receiver has recorded."""
    return tuple(_request(line) for line in lines(folder / REQUESTS))


def _request(line: dict[str, Any]) -> Request:
    content = line.pop("content") or {}
    data = content.get("data", {})
    return Request(
        **line,
        events=((content["type"], data.get("task_id", "")),) if content else (),
        total=data.get("count", 0),
    )
