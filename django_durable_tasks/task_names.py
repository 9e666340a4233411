"""The registered names of tasks of this package that several packages know."""

from __future__ import annotations

HTTP_CALLBACK_TASK = "django_durable_tasks.http_callback"
QUEUE_MESSAGE_TASK = "django_durable_tasks.queue_message"


NOTIFICATION_TASK = "django_durable_tasks.deliver_notification"
WATCHDOG_TASK = "django_durable_tasks.watchdog"
OWN_TASKS = frozenset({NOTIFICATION_TASK, WATCHDOG_TASK})
"""Tasks whose endings are no events. Otherwise a failed delivery would cause another one."""


PLAIN_CELERY_TASK = "django_durable_tasks.plain_celery_task"
"""The durable task that sends a message to a Celery task that is not durable."""
