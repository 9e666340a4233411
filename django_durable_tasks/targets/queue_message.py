"""``django_durable_tasks.queue_message`` publishes a message for another program.

It succeeds when the broker has taken the message. Only queues and exchanges of QUEUE_ALLOW are
possible. The worker checks them for the tenant of the task, whatever created the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django_durable_tasks import conf, registry
from django_durable_tasks.celery.execution.live_runs import process_runs
from django_durable_tasks.celery.publishing import queue_messages
from django_durable_tasks.celery.publishing.routing import refuse_task_queues
from django_durable_tasks.choices import TargetType
from django_durable_tasks.decorators import durable_task
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.registry import TaskTarget
from django_durable_tasks.rules.targets import queue_message as rules
from django_durable_tasks.task_names import QUEUE_MESSAGE_TASK

_ATTEMPTS, _BACKOFF_MAX = 12, 3_600


@durable_task(name=QUEUE_MESSAGE_TASK, bind=True, max_attempts=_ATTEMPTS, backoff_max=_BACKOFF_MAX)
def queue_message(
    self: Any,
    *,
    queue: str | None = None,
    exchange: str | None = None,
    routing_key: str | None = None,
    body: Any = None,
    headers: Mapping[str, Any] | None = None,
    content_type: str | None = None,
) -> dict[str, Any]:
    """Publish the message once. Raises MessageRejected, BrokerUnavailable or InvalidTarget."""
    live = process_runs.current()
    if live is None:
        raise InvalidOption("queue_message publishes from a worker only: schedule it.")
    # The kwargs of the run, with references replaced by results.
    allowed = conf.settings().QUEUE_ALLOW
    entries = (*allowed, *conf.settings().API_QUEUES)
    named = any(rules.TENANT in entry for entry in entries)
    tenant = self.durable.tenant.slug if named else None
    message = rules.queue_message(live.kwargs, allowed, tenant)
    confirmed = queue_messages.publish(message, live.run.task_id, tenant)
    return {
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "confirmed": confirmed,
    }


def _prepared(arguments: Mapping[str, Any]) -> dict[str, Any]:
    message = rules.queue_message(arguments, conf.settings().QUEUE_ALLOW)
    refuse_task_queues(message.exchange, message.routing_key)
    return rules.stored_message(arguments)


registry.declare_target(QUEUE_MESSAGE_TASK, TaskTarget(TargetType.QUEUE_MESSAGE, _prepared))
