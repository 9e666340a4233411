"""``django_durable_tasks.deliver_notification`` sends one message of a notification setting.

It succeeds when the receiver has accepted the message. Its own failures are retried, recorded and
replayable like those of other tasks, and cause no notifications.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from typing import Any

from django.db import Error

from django_durable_tasks import registry
from django_durable_tasks.celery.execution.live_runs import LiveRun, process_runs
from django_durable_tasks.decorators import durable_task
from django_durable_tasks.engine.notifications import deliveries, setting_changes
from django_durable_tasks.exceptions import (
    DeliveryFailed,
    DeliveryStopped,
    EncryptionError,
    InvalidOption,
    InvalidTarget,
)
from django_durable_tasks.models import NotificationSetting
from django_durable_tasks.registry import TaskTarget
from django_durable_tasks.rules.notifications.destinations import (
    DeliveryType,
    endpoint_of_setting,
    shown_url,
)
from django_durable_tasks.rules.notifications.events import NOTIFICATION_TASK
from django_durable_tasks.rules.notifications.messages import (
    NotificationContent,
    http_body,
    slack_body,
)
from django_durable_tasks.rules.targets.answers import BACKOFF
from django_durable_tasks.rules.targets.http_request import http_request
from django_durable_tasks.targets import notification_email
from django_durable_tasks.targets.http import outgoing
from django_durable_tasks.targets.http_callback import DeliveryRetry, RequestOfRun, database_of

logger = logging.getLogger("django_durable_tasks.notifications")
_REFUSED_BY_SLACK = [400, 403, 404, 410]
"""Slack answers these for a webhook that was removed or that may not write to its channel."""
_SOFT_TIMEOUT, _TIMEOUT = 90, 120


@durable_task(
    name=NOTIFICATION_TASK,
    bind=True,
    max_attempts=len(BACKOFF) + 1,
    backoff=BACKOFF,
    jitter=False,
    give_up_on=(DeliveryFailed, InvalidTarget),
    soft_timeout=_SOFT_TIMEOUT,
    timeout=_TIMEOUT,
)
def deliver_notification(self: Any, *, setting: int, delivery: str) -> dict[str, Any]:
    """Send the events of a delivery as one message. Raises DeliveryRetry or DeliveryFailed."""
    live = process_runs.current()
    if live is None:
        raise InvalidOption("deliver_notification sends messages from a worker only: schedule it.")
    with database_of(live):
        row = deliveries.setting_of(setting, live.run.tenant_id)
        content = None if row is None else deliveries.content_of(row, uuid.UUID(delivery))
    if row is None:
        return {"sent": False, "reason": "The notification setting was deleted."}
    if content is None:
        return {"sent": False, "reason": "The events were deleted after their retention."}
    return _recorded(live, row, content)


def _recorded(
    live: LiveRun, row: NotificationSetting, content: NotificationContent
) -> dict[str, Any]:
    """Send the message, and record the result in the setting."""
    status, error = setting_changes.SENT, ""
    try:
        return _send(live, row, content)
    except DeliveryRetry as failed:
        last = live.run.failures + 1 >= live.run.max_attempts
        status = setting_changes.FAILED if last else setting_changes.RETRYING
        error = str(failed)
        raise
    except EncryptionError:
        # The run is postponed. The names of keys concern operators only.
        status, error = setting_changes.RETRYING, "The destination cannot be decrypted."
        raise
    except Exception as failed:
        status, error = setting_changes.FAILED, str(failed)
        if isinstance(failed, DeliveryStopped):
            with database_of(live):
                setting_changes.disable(row.pk, error)
        raise
    finally:
        _record(live, row.pk, status, error)


def _record(live: LiveRun, setting_id: int, status: str, error: str) -> None:
    """Record the result. An error must not cause another message, so it is logged only."""
    try:
        with database_of(live):
            setting_changes.record_result(setting_id, status, error)
    except Error:
        logger.exception(
            "The result %s of notification setting %d was not recorded.",
            status,
            setting_id,
            extra={"task_id": str(live.run.task_id), "attempt": live.run.attempt},
        )


def _send(live: LiveRun, row: NotificationSetting, content: NotificationContent) -> dict[str, Any]:
    key = _endpoint(live.run.tenant_id, live.kwargs)
    if row.delivery_type == DeliveryType.EMAIL:
        return notification_email.send(live, row.delivery_config, content, key)
    is_slack = row.delivery_type == DeliveryType.SLACK_WEBHOOK
    request = http_request(
        {
            "url": row.delivery_config.get("url"),
            "body": slack_body(content) if is_slack else http_body(content),
            "no_retry_on": _REFUSED_BY_SLACK if is_slack else None,
            "endpoint": endpoint_of_setting(row.pk),
        },
        outgoing.limits(),
        is_setting=True,
    )
    shown = shown_url(row.delivery_type, request.url.origin + request.url.path)
    answer = RequestOfRun(live, request, key, shown).sent()
    return {"sent": True, "type": content.type, "events": content.total, "status": answer["status"]}


def _endpoint(tenant_id: int, arguments: Mapping[str, Any]) -> str:
    return f"{tenant_id}:{endpoint_of_setting(arguments.get('setting'))}"


registry.declare_target(NOTIFICATION_TASK, TaskTarget(endpoint=_endpoint))
