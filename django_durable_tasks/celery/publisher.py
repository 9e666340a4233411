"""Rings are handed to the broker within time limits; a queue that the broker rejects holds up no other.

Nothing here is needed for correctness: a task whose message is lost is republished.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from celery import current_app

from django_durable_tasks.celery.breaker import Breaker
from django_durable_tasks.celery.doorbell import doorbell, failures_of, hang_up
from django_durable_tasks.celery.envelope import celery_id_of, headers_of
from django_durable_tasks.celery.queue_backoff import QueueBackoff
from django_durable_tasks.celery.sending import Rejection, send
from django_durable_tasks.exceptions import BrokerUnavailable
from django_durable_tasks.ports import Ring

logger = logging.getLogger("django_durable_tasks.broker")
breaker = Breaker()
backoff = QueueBackoff()
os.register_at_fork(after_in_child=breaker.forget_callers)
os.register_at_fork(after_in_child=backoff.forget_callers)


@dataclass(frozen=True, slots=True)
class NotAccepted:
    """A ring that the broker did not accept though it answers, and after how many seconds to try it again."""

    ring: Ring
    delay: float


@functools.lru_cache(maxsize=4)
def _failures(app: Any) -> tuple[type[BaseException], ...]:
    return (*failures_of(app.connection_for_write()), BrokerUnavailable)


def publish(rings: Sequence[Ring]) -> list[NotAccepted]:
    """Hand rings to the broker, with one retry; return those that it rejected because of their queue.

    Raises BrokerUnavailable within the time limits if the broker does not answer.
    """
    delays = {queue: backoff.remaining(queue) for queue in {ring.queue for ring in rings}}
    waiting = [NotAccepted(ring, delays[ring.queue]) for ring in rings if delays[ring.queue]]
    attempted = [ring for ring in rings if not delays[ring.queue]]
    if not attempted:
        return waiting
    if not breaker.allows():
        raise BrokerUnavailable
    failures = _failures(current_app._get_current_object())
    try:
        try:
            rejections = _publish_once(attempted)
        except failures:
            hang_up()  # what is idle was connected to the same broker
            rejections = _publish_once(attempted)
    except failures as error:
        breaker.failed(error)
        raise BrokerUnavailable(f"The broker did not take {len(rings)} messages: {type(error).__name__}.") from error
    breaker.succeeded()
    return waiting + _judged(attempted, rejections)


def _publish_once(rings: Sequence[Ring]) -> list[Rejection]:
    """Send each ring once; each turn of the loop rejects a queue for which the broker closed the connection."""
    rejections: list[Rejection] = []
    # Only a confirm tells whether a queue that was rejected is accepted again, and whether a lost one exists.
    confirm = len(rings) > 1 or any(ring.number > 1 or backoff.knows(ring.queue) for ring in rings)
    while rings:
        with doorbell() as bell:
            found, rings = send(bell, rings, confirm=confirm)
        rejections += found
    return rejections


def _judged(rings: Sequence[Ring], rejections: Sequence[Rejection]) -> list[NotAccepted]:
    """Back off from the queues of these rejections, and go back to the others."""
    refused = {found.ring.queue: found.error for found in rejections}
    for queue, error in refused.items():
        backoff.rejected(queue, error)
    for queue in {ring.queue for ring in rings} - set(refused):
        backoff.accepted(queue)
    delays = {queue: backoff.remaining(queue) for queue in refused}
    return [NotAccepted(found.ring, delays[found.ring.queue]) for found in rejections]


def eager() -> bool:
    """Return whether Celery runs tasks in the process of the caller."""
    return bool(current_app.conf.task_always_eager)


def run_here(ring: Ring) -> None:
    """Run the row in this process, as Celery's eager mode does."""
    task = current_app.tasks[ring.name]
    task.apply(task_id=celery_id_of(ring), headers=headers_of(ring), throw=current_app.conf.task_eager_propagates)
