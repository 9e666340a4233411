"""The settings of notifications, alerts and the watchdog, which are part of ``Settings``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django_durable_tasks.conf_checks import InvalidSetting, check_allowed, check_name_or_none
from django_durable_tasks.conf_fields import count, duration, value


@dataclass(frozen=True, kw_only=True)
class NotificationOptions:
    """The settings of notifications; durations in seconds."""

    NOTIFICATIONS: bool = value(
        False,
        "Record the events that notification settings select, and send them. Otherwise nothing is"
        " recorded or sent, and the API answers 404 for notification settings.",
    )
    NOTIFICATION_QUEUE: str | None = value(
        None,
        "The queue of the tasks that send notifications. None: that to which Celery routes them.",
    )
    NOTIFICATION_CONCURRENCY: int = count(
        2,
        "The most messages of one notification setting that are sent at the same time, so that a"
        " slow receiver does not delay others. 0: no limit.",
    )
    NOTIFICATION_EMAIL_ALLOW: Sequence[str] | Mapping[str, Sequence[str]] = value(
        (),
        "The addresses to which notifications may be sent by e-mail; addresses or patterns such as"
        " '*@example.com'. Empty: none. A list is for all tenants; a mapping of the slugs of"
        " tenants, '*' for all, to such lists gives each its own: {'acme': ['*@acme.example']}.",
    )
    NOTIFICATION_EMAIL_FROM: str | None = value(
        None, "The sender of notifications by e-mail. None: DEFAULT_FROM_EMAIL."
    )
    NOTIFICATION_RETENTION: float = duration(
        2_592_000, "How long the events of notifications are kept; 30 days."
    )
    WATCHDOG_URL: str | None = value(
        None,
        "A URL of an external monitor. Each minute a scheduler creates a task that a worker runs,"
        " and the task sends a request to this URL. The monitor alarms if the requests stop.",
    )
    WATCHDOG_METHOD: str = value(
        "GET", "The method of the requests to WATCHDOG_URL: GET, HEAD or POST."
    )


_METHODS = ("GET", "HEAD", "POST")


def check_notifications(found: NotificationOptions) -> None:
    """Check the types of these settings; raises InvalidSetting."""
    check_allowed("NOTIFICATION_EMAIL_ALLOW", found.NOTIFICATION_EMAIL_ALLOW)
    for key in (
        "NOTIFICATION_QUEUE",
        "NOTIFICATION_EMAIL_FROM",
        "WATCHDOG_URL",
    ):
        check_name_or_none(key, getattr(found, key))
    if not isinstance(found.NOTIFICATIONS, bool):
        raise InvalidSetting(
            f"DURABLE_TASKS['NOTIFICATIONS'] is {found.NOTIFICATIONS!r}: give True or False."
        )
    if found.WATCHDOG_METHOD not in _METHODS:
        raise InvalidSetting(
            f"DURABLE_TASKS['WATCHDOG_METHOD'] is {found.WATCHDOG_METHOD!r}: give one of"
            f" {', '.join(_METHODS)}."
        )
