"""Dispatch: claim due tasks, publish them, and return those to PENDING that were not accepted.

The claim is committed before anything is published.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db import Error

from django_durable_tasks import conf
from django_durable_tasks.celery.publishing import broker_outage, publisher
from django_durable_tasks.celery.publishing.broker_outage import NotAccepted
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.tasks import claim
from django_durable_tasks.exceptions import BrokerUnavailable
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.rules.tasks.demands import QueueDemand

logger = logging.getLogger("django_durable_tasks.broker")


def dispatch(
    queue: str,
    now: datetime,
    limit: int,
    node: uuid.UUID,
    shards: Collection[int] | None = None,
    least: int = 0,
) -> int:
    """Publish at most ``limit`` due tasks of a queue, of these shards and of priority ``least`` or
    higher; return how many the broker accepted. See ``dispatch_of``.
    """
    done = Dispatched()
    dispatch_of(done, [QueueDemand(queue, limit, least)], now, limit, node, shards)
    return done.sent.total()


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Counts per queue: due tasks that were claimed or have to wait for a limit, messages to
    publish, and accepted messages.

    ``cut`` contains the queues that may have more due tasks, because the joint limit was reached.
    ``ids`` are the claimed tasks.
    """

    taken: Counter[str] = field(default_factory=Counter)
    claimed: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    cut: set[str] = field(default_factory=set)
    ids: list[uuid.UUID] = field(default_factory=list)


def dispatch_of(
    done: Dispatched,
    demands: Sequence[QueueDemand],
    now: datetime,
    limit: int,
    node: uuid.UUID,
    shards: Collection[int] | None = None,
) -> None:
    """Publish at most ``limit`` due tasks of these queues together, and count them in ``done``.

    Claims and messages are batched over many queues. Claims that cannot be batched share the limit
    in proportion to their demand. While the breaker is open, or a queue is backed off, nothing is
    claimed except a single task as a probe.
    """
    open_now = [
        one.at_most(number)
        for one in demands
        if (number := broker_outage.capacity_of(one.queue)) > 0 and one.limit > 0
    ]
    with dedicated_connection():
        parts = claim.parted(open_now)
    wanted = sum(one.limit for one in open_now)
    for part in parts:
        want = sum(one.limit for one in part)
        share = -(-limit * want // wanted)  # rounded up
        wanted -= want
        allowed = share if broker_outage.breaker.closed() else min(share, broker_outage.capacity())
        taken = 0
        if allowed > 0:
            with dedicated_connection():
                messages, of_queues = claim.claim_of(part, now, allowed, node, shards)
            taken = of_queues.total()
            done.taken.update(of_queues)
            done.claimed.update(Counter(message.queue for message in messages))
            done.ids.extend(message.task_id for message in messages)
            done.sent.update(_send(messages))
        limit = max(0, limit - taken)
        if taken >= share:
            done.cut.update(one.queue for one in part)


def dispatch_these(ids: Sequence[uuid.UUID], now: datetime, node: uuid.UUID) -> int:
    """Publish those of these tasks that are due; return how many the broker accepted.

    Publishes none while the breaker is open.
    """
    if not broker_outage.breaker.closed():
        return 0
    with dedicated_connection():
        messages = claim.claim_these(ids, now, node)
    return send(messages)


def send(messages: Sequence[TaskMessage]) -> int:
    """Publish claimed tasks, return refused ones to PENDING, and return how many were accepted."""
    return _send(messages).total()


def _send(messages: Sequence[TaskMessage]) -> Counter[str]:
    """Do the same as ``send``; return how many were accepted of each queue."""
    if not messages:
        return Counter()
    refused = publish_or_refuse(messages)
    if refused:
        with dedicated_connection():
            broker_outage.return_to_pending(refused)
    return Counter(message.queue for message in messages) - Counter(
        one.message.queue for one in refused
    )


def publish_or_refuse(messages: Sequence[TaskMessage]) -> Sequence[NotAccepted]:
    """Publish and return what was not accepted, whatever the reason."""
    try:
        return publisher.publish(messages)
    except BrokerUnavailable as error:
        logger.debug("%d messages were not published: %s", len(messages), error)
        return [NotAccepted(message, 0.0) for message in messages]
    except Exception:
        if len(messages) > 1:  # one that cannot be published must not prevent the others
            return [refused for message in messages for refused in publish_or_refuse([message])]
        (message,), again = messages, conf.settings().REPUBLISH_AFTER
        logger.exception(
            "Publishing task %s (%s) to queue %r failed unexpectedly; it is tried again in %g s.",
            message.task_id,
            message.name,
            message.queue,
            again,
            extra={"task_id": str(message.task_id), "queue": message.queue},
        )
        return [NotAccepted(message, again)]


def publish(messages: Sequence[TaskMessage]) -> None:
    """Publish tasks that are already QUEUED; called by schedulers, outside of any transaction."""
    refused = publish_or_refuse(messages)
    if refused:
        with dedicated_connection():
            broker_outage.undo_publish(refused)


def republish(messages: Sequence[TaskMessage]) -> Counter[str]:
    """Publish tasks again for an operator; return how many the broker rejected, by queue.

    Raises BrokerUnavailable if the broker does not respond.
    """
    try:
        refused = publisher.publish(messages)
    except BrokerUnavailable:
        broker_outage.undo_publish([NotAccepted(message, 0.0) for message in messages])
        raise
    broker_outage.undo_publish(refused)
    return Counter(one.message.queue for one in refused)


def publish_after_commit(messages: Sequence[TaskMessage]) -> None:
    """Publish tasks that were inserted as QUEUED, after COMMIT. Raises no error of the broker or
    the database.

    Uses the caller's connection. Tasks that the broker did not accept return to PENDING, and
    schedulers publish them as soon as possible.
    """
    if publisher.eager():
        for one in messages:
            publisher.run_here(one)
        return
    refused = publish_or_refuse(messages)
    if not refused:
        return
    try:
        broker_outage.undo_publish(refused)
    except Error as error:
        logger.warning(
            "The broker did not accept %d messages, and their tasks could not be returned to"
            " PENDING (%s). They are republished after %g s.",
            len(refused),
            type(error).__name__,
            conf.settings().REPUBLISH_AFTER,
        )
