"""Publishes messages to the broker within time limits. A rejected queue does not delay the others.

Nothing here is needed for correctness: a task whose message is lost is republished. What happens
while the broker is unavailable is described in ``broker_outage.py``.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from celery import current_app

from django_durable_tasks.celery.publishing import broker_outage
from django_durable_tasks.celery.publishing.broker_connection import (
    borrowed,
    close_idle,
    failures_of,
)
from django_durable_tasks.celery.publishing.broker_outage import NotAccepted
from django_durable_tasks.celery.publishing.confirms import Rejection, send
from django_durable_tasks.celery.publishing.message_id import celery_id_of, headers_of
from django_durable_tasks.exceptions import BrokerUnavailable
from django_durable_tasks.ports import TaskMessage

logger = logging.getLogger("django_durable_tasks.broker")
_Answer = TypeVar("_Answer")


@functools.lru_cache(maxsize=4)
def _failures(app: Any) -> tuple[type[BaseException], ...]:
    return (*failures_of(app.connection_for_write()), BrokerUnavailable)


def publish(messages: Sequence[TaskMessage]) -> list[NotAccepted]:
    """Publish messages, with one retry; return those that the broker rejected for their queue.

    Raises BrokerUnavailable within the time limits if the broker does not respond.
    """
    delays, waiting, attempted = broker_outage.backoff.delays(), list[NotAccepted](), messages
    if delays:
        waiting = [NotAccepted(one, delays[one.queue]) for one in messages if one.queue in delays]
        attempted = [one for one in messages if one.queue not in delays]
    if not attempted:
        return waiting
    if not broker_outage.breaker.allows():
        raise BrokerUnavailable
    rejections = _answered(functools.partial(_publish_once, attempted), f"{len(messages)} messages")
    return waiting + _judged(attempted, rejections)


def count(queue: str) -> int | None:
    """Return how many messages wait in this queue in the broker; None if that is unknown.

    Raises BrokerUnavailable within the time limits if the broker does not respond.
    """
    if not broker_outage.breaker.allows():
        raise BrokerUnavailable
    return _answered(functools.partial(_count_once, queue), f"the count of queue {queue!r}")


def _count_once(queue: str) -> int | None:
    with borrowed() as broker:
        return broker.count(queue)


def _answered(ask: Callable[[], _Answer], subject: str) -> _Answer:
    """Ask the broker, with one retry on a new connection, and record whether it responded."""
    failures = _failures(current_app._get_current_object())
    try:
        try:
            answer = ask()
        except failures:
            close_idle()  # idle connections lead to the same broker
            answer = ask()
    except failures as error:
        broker_outage.breaker.failed_with(error)
        raise BrokerUnavailable(
            f"The broker did not respond to {subject}: {type(error).__name__}."
        ) from error
    broker_outage.breaker.succeeded()
    return answer


def _publish_once(messages: Sequence[TaskMessage]) -> list[Rejection]:
    """Send each message once. If the broker closes the connection because of a queue, that queue is
    rejected and the loop continues with the others.
    """
    rejections: list[Rejection] = []
    # Only a confirm shows whether a rejected queue is accepted again, and whether a queue that was
    # lost exists.
    confirm = len(messages) > 1 or any(
        message.number > 1 or broker_outage.backoff.is_rejected(message.queue)
        for message in messages
    )
    while messages:
        with borrowed() as broker:
            found, messages = send(broker, messages, confirm=confirm)
        rejections += found
    return rejections


def _judged(messages: Sequence[TaskMessage], rejections: Sequence[Rejection]) -> list[NotAccepted]:
    """Back off from the queues of these rejections, and end the back-off of the other queues."""
    if not rejections and not broker_outage.backoff.has_rejected():
        return []
    refused = {found.message.queue: found.error for found in rejections}
    for queue, error in refused.items():
        broker_outage.backoff.rejected(queue, error)
    for queue in {message.queue for message in messages} - set(refused):
        broker_outage.backoff.accepted(queue)
    delays = {queue: broker_outage.backoff.remaining(queue) for queue in refused}
    return [NotAccepted(found.message, delays[found.message.queue]) for found in rejections]


def eager() -> bool:
    """Return whether Celery runs tasks in the process of the caller."""
    return bool(current_app.conf.task_always_eager)


def run_here(message: TaskMessage) -> None:
    """Run the task in this process, as Celery's eager mode does."""
    task = current_app.tasks[message.name]
    task.apply(
        task_id=celery_id_of(message),
        headers=headers_of(message),
        throw=current_app.conf.task_eager_propagates,
    )
