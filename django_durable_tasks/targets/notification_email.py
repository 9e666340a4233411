"""Sends a notification by Django's e-mail backend."""

from __future__ import annotations

import logging
import random
import smtplib
from collections.abc import Mapping
from typing import Any

from django.core import mail
from django.core.mail import EmailMessage
from django.db import Error

from django_durable_tasks import conf
from django_durable_tasks.celery.execution.live_runs import LiveRun
from django_durable_tasks.engine.tasks import endpoints
from django_durable_tasks.exceptions import DeliveryFailed
from django_durable_tasks.rules.notifications.destinations import is_allowed
from django_durable_tasks.rules.notifications.messages import (
    NotificationContent,
    email_text,
    subject_of,
)
from django_durable_tasks.rules.targets.answers import BACKOFF, delay
from django_durable_tasks.rules.tasks.masking import shortened
from django_durable_tasks.targets.http_callback import DeliveryRetry, database_of, slug_of

logger = logging.getLogger("django_durable_tasks.notifications")
_ALLOW = "NOTIFICATION_EMAIL_ALLOW"
_TEMPORARY = range(400, 500)
_REASON_MAX, _LOGGED_MAX = 150, 500
# Seconds for one answer of the mail server, if its backend has no timeout. Django waits for ever.
_ANSWER_TIMEOUT = 15.0


def send(
    live: LiveRun, config: Mapping[str, Any], content: NotificationContent, key: str
) -> dict[str, Any]:
    """Send the message once. Raises DeliveryRetry, or DeliveryFailed if another attempt is useless.

    The Message-ID is the same for each attempt, so that a mail program shows a message once that
    was accepted although the answer was lost.
    """
    allowed = conf.allowed(_ALLOW, slug_of(live, _ALLOW))
    to = [address for address in config.get("to", ()) if is_allowed(address, allowed)]
    if not to:
        raise DeliveryFailed(
            "None of the addresses is allowed (DURABLE_TASKS['NOTIFICATION_EMAIL_ALLOW'])."
        )
    message = EmailMessage(
        subject=subject_of(content),
        body=email_text(content),
        from_email=conf.settings().NOTIFICATION_EMAIL_FROM,
        to=to,
        headers={
            "Message-ID": f"<{live.run.task_id}@django-durable-tasks>",
            "Auto-Submitted": "auto-generated",
        },
    )
    try:
        _mailer().send_messages([message])
    except (OSError, smtplib.SMTPException) as error:
        failed = error
    else:
        _record_health(live, key, "")
        return {"sent": True, "type": content.type, "events": content.total, "to": len(to)}
    raise _failure(live, failed, key)


def _mailer() -> Any:
    """Return a connection of the default mail backend. A backend without a timeout gets one."""
    mailers = getattr(mail, "mailers", None)  # since Django 6.1
    connection: Any = mail.get_connection() if mailers is None else mailers.default
    if getattr(connection, "timeout", 0) is None:
        connection.timeout = _ANSWER_TIMEOUT
    return connection


def _failure(live: LiveRun, error: Exception, key: str) -> DeliveryRetry | DeliveryFailed:
    run, refused = live.run, _is_refused(error)
    text = f"E-mail was not accepted: {_reason(error)}"
    logger.warning(
        "Attempt %d of task %s: the mail server did not accept the message: %s",
        run.attempt,
        run.task_id,
        shortened(f"{type(error).__name__}: {str(error)!a}", _LOGGED_MAX),
        extra={"task_id": str(run.task_id), "attempt": run.attempt, "tenant": run.tenant_id},
    )
    if refused:
        return DeliveryFailed(text)
    _record_health(live, key, text)
    return DeliveryRetry(delay(BACKOFF, run.failures + 1, None, random.random()), text)


def _record_health(live: LiveRun, key: str, failure: str) -> None:
    """Record the health of the mail server for the breaker of the setting. An error must not cause
    another message, so it is logged only.
    """
    try:
        with database_of(live):
            if failure:
                endpoints.failed(key, live.run.tenant_id, failure)
            else:
                endpoints.succeeded(key)
    except Error:
        logger.exception(
            "The health of %s was not recorded.", key, extra={"task_id": str(live.run.task_id)}
        )


def _is_refused(error: Exception) -> bool:
    """Return whether the mail server refused the message or all recipients for good."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        codes = [code for code, _ in error.recipients.values()]
        return bool(codes) and not any(code in _TEMPORARY for code in codes)
    # A refused login is a mistake in the settings, which is corrected while attempts are left.
    if isinstance(error, smtplib.SMTPAuthenticationError | smtplib.SMTPConnectError):
        return False
    if isinstance(error, smtplib.SMTPResponseException):
        return error.smtp_code >= 500
    return False


def _reason(error: Exception) -> str:
    """Return what the tenant may know: the answer of the mail server, but not how it is reached."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        answers = dict(error.recipients.values())
        return "; ".join(_answer(code, text) for code, text in sorted(answers.items()))
    if isinstance(error, smtplib.SMTPResponseException) and not isinstance(
        error, smtplib.SMTPAuthenticationError | smtplib.SMTPConnectError
    ):
        return _answer(error.smtp_code, error.smtp_error)
    return "the mail server does not answer, or refuses the connection"


def _answer(code: int, text: bytes | str) -> str:
    shown = text.decode("ascii", "backslashreplace") if isinstance(text, bytes) else ascii(text)
    return shortened(f"{code} {' '.join(shown.split())}", _REASON_MAX)
