"""The durable tasks ``django_durable_tasks.deliver_notification``, which sends one message of a
notification setting, and ``django_durable_tasks.watchdog``; and the jobs of notifications.
"""

from __future__ import annotations

import logging
import random
import smtplib
import time
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.core import mail
from django.core.mail import EmailMessage
from django.db import Error

from django_durable_tasks import conf, exceptions, registry
from django_durable_tasks.celery.live_runs import LiveRun, process_runs
from django_durable_tasks.choices import DeliveryType
from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.conf import settings
from django_durable_tasks.contrib.callbacks import endpoints, http, tasks
from django_durable_tasks.contrib.notifications import deliveries, messages
from django_durable_tasks.contrib.notifications.models import NotificationSetting
from django_durable_tasks.decorators import durable_task
from django_durable_tasks.masking import shortened
from django_durable_tasks.registry import NOTIFICATION_TASK, WATCHDOG_TASK, TaskTarget
from django_durable_tasks.scheduler.jobs import PAUSE_FACTOR, SLICE, Job, register_job
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.targets.answers import BACKOFF, delay
from django_durable_tasks.targets.http_request import http_request
from django_durable_tasks.tasks import enqueue
from django_durable_tasks.tasks.enqueue import Call
from django_durable_tasks.tasks.options import CallOptions

# Sends a notification by Django's e-mail backend.


logger = logging.getLogger("django_durable_tasks.contrib.notifications")
_ALLOW = "NOTIFICATION_EMAIL_ALLOW"
_TEMPORARY = frozenset(range(400, 500))
_REASON_MAX, _LOGGED_MAX = 150, 500
# Seconds for one answer of the mail server, if its backend has no timeout. Django waits for ever.
_ANSWER_TIMEOUT = 15.0


def send_email(
    live: LiveRun, config: Mapping[str, Any], content: messages.NotificationContent, key: str
) -> dict[str, Any]:
    """Send the message once. Raises DeliveryRetry, or DeliveryFailed if another attempt is useless.

    The Message-ID is the same for each attempt, so that a mail program shows a message once that
    was accepted although the answer was lost.
    """
    allowed = conf.allowed(_ALLOW, tasks.slug_of(live, _ALLOW))
    to = [address for address in config.get("to", ()) if messages.is_allowed(address, allowed)]
    if not to:
        raise exceptions.DeliveryFailed(
            "None of the addresses is allowed (DURABLE_TASKS['NOTIFICATION_EMAIL_ALLOW'])."
        )
    message = EmailMessage(
        subject=messages.subject_of(content),
        body=messages.email_text(content),
        from_email=conf.settings().NOTIFICATION_EMAIL_FROM,
        to=to,
        headers={
            "Message-ID": f"<{live.run.task_id}@django-durable-tasks>",
            "Auto-Submitted": "auto-generated",
        },
    )
    try:
        # A backend without a timeout gets one.
        mailers = getattr(mail, "mailers", None)  # since Django 6.1
        connection: Any = mail.get_connection() if mailers is None else mailers.default
        if getattr(connection, "timeout", 0) is None:
            connection.timeout = _ANSWER_TIMEOUT
        connection.send_messages([message])
    except (OSError, smtplib.SMTPException) as error:
        failed = error
    else:
        _record_health(live, key, "")
        return {"sent": True, "type": content.type, "events": content.total, "to": len(to)}
    run = live.run
    # Whether the mail server refused the message or all recipients for good, and what the tenant
    # may know: the answer of the mail server, but not how it is reached.
    refused, reason = False, "the mail server does not answer, or refuses the connection"
    if isinstance(failed, smtplib.SMTPRecipientsRefused):
        answers = dict(failed.recipients.values())
        refused = bool(answers) and _TEMPORARY.isdisjoint(answers)
        reason = "; ".join(_answer(code, reply) for code, reply in sorted(answers.items()))
    # A refused login is an error in the settings, which is corrected while attempts are left.
    elif isinstance(failed, smtplib.SMTPResponseException) and not isinstance(
        failed, smtplib.SMTPAuthenticationError | smtplib.SMTPConnectError
    ):
        refused, reason = failed.smtp_code >= 500, _answer(failed.smtp_code, failed.smtp_error)
    text = f"E-mail was not accepted: {reason}"
    logger.warning(
        "Attempt %d of task %s: the mail server did not accept the message: %s",
        run.attempt,
        run.task_id,
        shortened(f"{type(failed).__name__}: {str(failed)!a}", _LOGGED_MAX),
        extra={"task_id": str(run.task_id), "attempt": run.attempt, "tenant": run.tenant_id},
    )
    if refused:
        raise exceptions.DeliveryFailed(text)
    _record_health(live, key, text)
    raise tasks.DeliveryRetry(delay(BACKOFF, run.failures + 1, None, random.random()), text)


def _record_health(live: LiveRun, key: str, failure: str) -> None:
    """Record the health of the mail server for the breaker of the setting. An error must not cause
    another message, so it is logged only.
    """
    try:
        with tasks.database_of(live):
            if failure:
                endpoints.failed(key, live.run.tenant_id, failure)
            else:
                endpoints.succeeded(key)
    except Error:
        logger.exception(
            "The health of %s was not recorded.", key, extra={"task_id": str(live.run.task_id)}
        )


def _answer(code: int, text: bytes | str) -> str:
    shown = text.decode("ascii", "backslashreplace") if isinstance(text, bytes) else ascii(text)
    return shortened(f"{code} {' '.join(shown.split())}", _REASON_MAX)


# It succeeds when the receiver has accepted the message. Its own failures are retried, recorded
# and replayable like those of other tasks, and cause no notifications.


_REFUSED_BY_SLACK = [400, 403, 404, 410]
"""Slack answers these for a webhook that was removed or that may not write to its channel."""
_SOFT_TIMEOUT, _TIMEOUT = 90, 120


@durable_task(
    name=NOTIFICATION_TASK,
    bind=True,
    max_attempts=len(BACKOFF) + 1,
    backoff=BACKOFF,
    jitter=False,
    give_up_on=(exceptions.DeliveryFailed, exceptions.InvalidTarget),
    soft_timeout=_SOFT_TIMEOUT,
    timeout=_TIMEOUT,
)
def deliver_notification(self: Any, *, setting: int, delivery: str) -> dict[str, Any]:
    """Send the events of a delivery as one message. Raises DeliveryRetry or DeliveryFailed."""
    live = process_runs.current()
    if live is None:
        raise exceptions.InvalidOption(
            "deliver_notification sends messages from a worker only: schedule it."
        )
    with tasks.database_of(live):
        rows = tables.unguarded(NotificationSetting).filter(tenant_id=live.run.tenant_id)
        row = rows.filter(pk=setting).first()
        content = None if row is None else deliveries.content_of(row, uuid.UUID(delivery))
    if row is None:
        return {"sent": False, "reason": "The notification setting was deleted."}
    if content is None:
        return {"sent": False, "reason": "The events were deleted after their retention."}
    status, error = deliveries.SENT, ""
    try:
        return _send(live, row, content)
    except tasks.DeliveryRetry as failed:
        last = live.run.failures + 1 >= live.run.max_attempts
        status = deliveries.FAILED if last else deliveries.RETRYING
        error = str(failed)
        raise
    except exceptions.EncryptionError:
        # The run is postponed. The names of keys concern operators only.
        status, error = deliveries.RETRYING, "The destination cannot be decrypted."
        raise
    except Exception as failed:
        status, error = deliveries.FAILED, str(failed)
        if isinstance(failed, exceptions.DeliveryStopped):
            with tasks.database_of(live):
                deliveries.disable_setting(row.pk, error)
        raise
    finally:
        # An error must not cause another message, so it is logged only.
        try:
            with tasks.database_of(live):
                deliveries.record_result(row.pk, status, error)
        except Error:
            logger.exception(
                "The result %s of notification setting %d was not recorded.",
                status,
                row.pk,
                extra={"task_id": str(live.run.task_id), "attempt": live.run.attempt},
            )


def _send(
    live: LiveRun, row: NotificationSetting, content: messages.NotificationContent
) -> dict[str, Any]:
    key = _endpoint(live.run.tenant_id, live.kwargs)
    if row.delivery_type == DeliveryType.EMAIL:
        return send_email(live, row.delivery_config, content, key)
    is_slack = row.delivery_type == DeliveryType.SLACK_WEBHOOK
    request = http_request(
        {
            "url": row.delivery_config.get("url"),
            "body": messages.slack_body(content) if is_slack else messages.http_body(content),
            "no_retry_on": _REFUSED_BY_SLACK if is_slack else None,
            "endpoint": messages.endpoint_of_setting(row.pk),
        },
        http.limits(),
        is_setting=True,
    )
    shown = messages.shown_url(row.delivery_type, request.url.origin + request.url.path)
    result = tasks.send_request(live, request, key, shown)
    return {"sent": True, "type": content.type, "events": content.total, "status": result["status"]}


def _endpoint(tenant_id: int, arguments: Mapping[str, Any]) -> str:
    return f"{tenant_id}:{messages.endpoint_of_setting(arguments.get('setting'))}"


registry.declare_target(
    NOTIFICATION_TASK, TaskTarget(endpoint=_endpoint, postpone=endpoints.postpone)
)


# The maintenance jobs of notifications, alerts and the watchdog.


_PRUNED = 100
# Seconds. A probe that starts later would report that tasks start although they start late.
_USEFUL_FOR = 120.0


def register() -> None:
    """Let the leader run the jobs."""
    register_job(
        "deliver_notifications",
        lambda: Job(
            "deliver_notifications", DeliverNotifications(), every=min(0.5, settings().POLL)
        ),
    )
    register_job("watch_alerts", lambda: Job("watch_alerts", watch_alerts, every=10.0))
    register_job("probe_workers", lambda: Job("probe_workers", ProbeWorkers(), every=5.0))
    register_job(
        "prune_notifications",
        lambda: Job(
            "prune_notifications",
            prune_notifications,
            every=10.0,
            pause_factor=PAUSE_FACTOR,
            dispatches=False,
        ),
    )


class DeliverNotifications:
    """Process batches of due events for one slice."""

    def __init__(self) -> None:
        self._started = deliveries.StartedDeliveries()

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        end, changed, limit = time.monotonic() + SLICE, 0, settings().BATCH_SIZE
        with dedicated_connection():
            while number := deliveries.create_due_deliveries(now, limit, self._started):
                changed += number
                if time.monotonic() >= end:
                    break
        return changed


def watch_alerts(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Check the conditions once."""
    with dedicated_connection():
        deliveries.watch_alerts(now)
    return 0


class ProbeWorkers:
    """Create one task per minute of the database's clock; does nothing without WATCHDOG_URL."""

    def __init__(self) -> None:
        self._minute: datetime | None = None

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        minute = now.replace(second=0, microsecond=0)
        if settings().WATCHDOG_URL is None or minute == self._minute:
            return 0
        # Once, also if two schedulers do it.
        key = f"durable-watchdog-{int(minute.timestamp()) // 60}"
        options = CallOptions(idempotency_key=key, expires_in=_USEFUL_FOR)
        with dedicated_connection():
            enqueue.submit(Call(registry.get(WATCHDOG_TASK), (), {}, options))
        self._minute = minute
        return 1


def prune_notifications(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Delete one batch of events after their retention."""
    with dedicated_connection():
        return deliveries.prune_events(now, min(_PRUNED, settings().BATCH_SIZE))


# ``django_durable_tasks.watchdog`` sends a request to WATCHDOG_URL.
#
# A scheduler creates it each minute. If no scheduler or no worker runs, the requests stop, and the
# external monitor behind the URL alarms.


# Attempts, and seconds between them.
_ATTEMPTS, _PAUSE = 3, 5


@durable_task(
    name=WATCHDOG_TASK,
    bind=True,
    max_attempts=_ATTEMPTS,
    backoff="FIXED",
    backoff_base=_PAUSE,
    priority=9,
    give_up_on=(exceptions.DeliveryFailed, exceptions.InvalidTarget),
)
def watchdog(self: Any) -> dict[str, Any]:
    """Send the request, and return how many seconds the task waited for its start."""
    live, url = process_runs.current(), settings().WATCHDOG_URL
    if live is None:
        raise exceptions.InvalidOption("watchdog sends requests from a worker only: schedule it.")
    if url is None:
        return {"sent": False, "reason": "DURABLE_TASKS['WATCHDOG_URL'] is None."}
    waited = (estimated_now() - live.run.scheduled_for).total_seconds()
    request = http_request({"url": url, "method": "GET"}, http.limits())
    result = tasks.send_request(live, request, None)
    return {"sent": True, "status": result["status"], "waited": round(waited, 3)}
