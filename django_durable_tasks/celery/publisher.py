"""Publishes messages: single ones, batches, and all that are due (dispatch)."""

from __future__ import annotations

import functools
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from amqp.exceptions import FrameSyntaxError
from celery import current_app
from django.core.exceptions import ImproperlyConfigured
from django.db import Error
from django.db.models import Count
from django.utils.translation import gettext_lazy as _
from kombu.utils.json import dumps

from django_durable_tasks import conf
from django_durable_tasks.audit import record_start
from django_durable_tasks.celery import broker_connection
from django_durable_tasks.celery.broker_connection import (
    BrokerConnection,
    NotAccepted,
    QueueRejected,
    borrowed,
    close_idle,
    failures_of,
)
from django_durable_tasks.celery.prepared_messages import (
    DEFAULT_EXCHANGE,
    celery_id_of,
    headers_of,
    prepare,
    redis_priority,
)
from django_durable_tasks.exceptions import BrokerUnavailable, UnknownQueue
from django_durable_tasks.limits import backpressure
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.operations import OF_ALL_TENANTS, Progress, Target, no_progress, operation
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.states.demand import QueueDemand
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.store.errors import reason_of
from django_durable_tasks.tasks import batches, claim
from django_durable_tasks.texts import counted

# Builds messages and sends a batch in one round trip. Returns the messages that were rejected.
#
# A message is published to the default exchange with the name of the queue as routing key, as
# Celery does for direct exchanges. The exchange of the queue would deliver it to every queue
# with the same binding. Two queues that are configured without exchange and routing key have
# the same binding.


@dataclass(frozen=True, slots=True)
class Rejection:
    """A message that the broker rejected for its queue."""

    message: TaskMessage
    error: BaseException


class _Prepared(NamedTuple):
    """``prepared``: the message as Kombu's channel sends it, or its JSON text for Redis."""

    message: TaskMessage
    prepared: Any
    queue: str


def send_batch(
    broker: BrokerConnection, messages: Sequence[TaskMessage], *, confirm: bool
) -> tuple[list[Rejection], Sequence[TaskMessage]]:
    """Send these messages. Return the rejected ones, and those not sent because the broker closed
    the connection.

    With ``confirm``, wait on RabbitMQ until each message is confirmed. Raises an error of the
    connection if the broker does not respond. Some messages may have been sent then, and may be
    sent again.
    """
    rejections, prepared = _prepare(broker, messages)
    if broker.unusable:
        rejected = {more.message for more in rejections}
        return rejections, [message for message in messages if message not in rejected]
    if broker.driver == "redis":
        more = _send_by_pipeline(broker, prepared)
    elif broker.driver == "amqp" and confirm:
        more = _send_with_confirms(broker, prepared)
    elif broker.driver == "amqp":
        # A lost message is republished, so a single message is not confirmed.
        for entry in prepared:
            _put(broker.channel, entry, mandatory=False)
        more = []
    else:
        more = _send_one_by_one(broker, prepared)
    return rejections + more, ()


def _prepare(
    broker: BrokerConnection, messages: Sequence[TaskMessage]
) -> tuple[list[Rejection], list[_Prepared]]:
    """Declare the queues and build all messages before one is sent."""
    rejections, prepared = [], []
    refused: dict[str, Exception] = {}
    for message in messages:
        if message.queue not in refused:
            try:
                queue = broker.queue(message.queue)
            except (UnknownQueue, QueueRejected) as error:
                refused[message.queue] = error
                if broker.unusable:
                    rejections += [
                        Rejection(unsent, error)
                        for unsent in messages
                        if unsent.queue == message.queue
                    ]
                    break
        if message.queue in refused:
            rejections.append(Rejection(message, refused[message.queue]))
            continue
        if broker.driver == "redis" and broker.redis_texts.apply(message):
            built = broker.redis_texts.text(broker.channel, message, queue)
        else:
            built = prepare(broker.channel, broker.driver, message, queue)
        prepared.append(_Prepared(message, built, queue.name))
    return rejections, prepared


def _put(channel: Any, entry: _Prepared, *, mandatory: bool) -> None:
    try:
        channel._basic_publish(
            entry.prepared, exchange=DEFAULT_EXCHANGE, routing_key=entry.queue, mandatory=mandatory
        )
    except FrameSyntaxError as error:  # listed as a connection error, but caused by the message
        raise ValueError(
            f"The message of task {entry.message.task_id} cannot be encoded: {error}"
        ) from error


def _send_one_by_one(broker: BrokerConnection, prepared: Sequence[_Prepared]) -> list[Rejection]:
    rejections: dict[str, QueueRejected] = {}
    for entry in prepared:
        if entry.queue in rejections:
            continue
        try:
            broker.channel.basic_publish(
                entry.prepared, exchange=DEFAULT_EXCHANGE, routing_key=entry.queue
            )
        except broker.failures as error:
            if broker.is_lost(error):
                raise
            rejections[entry.queue] = QueueRejected(f"{type(error).__name__}: {error}")
    return [
        Rejection(entry.message, rejections[entry.queue])
        for entry in prepared
        if entry.queue in rejections
    ]


def _send_by_pipeline(broker: BrokerConnection, prepared: Sequence[_Prepared]) -> list[Rejection]:
    """Push all messages as Kombu's Redis channel does, but with one command per list and one round
    trip.
    """
    channel, lists = broker.channel, dict[Any, list[_Prepared]]()
    for entry in prepared:
        priority = redis_priority(entry.message)
        if not isinstance(entry.prepared, str):
            channel._inplace_augment_message(entry.prepared, DEFAULT_EXCHANGE, entry.queue)
            priority = channel._get_message_priority(entry.prepared, reverse=False)
        lists.setdefault((entry.queue, priority), []).append(entry)
    pushes = []
    for (queue, priority), entries in lists.items():
        built = (entry.prepared for entry in entries)
        texts = [entry if isinstance(entry, str) else dumps(entry) for entry in built]
        pushes.append((channel._q_for_pri(queue, priority), *texts))
    replies: Sequence[Any]
    if len(pushes) == 1:  # a pipeline would cost more than the command
        try:
            replies = [broker.redis.lpush(*pushes[0])]
        except broker.failures as error:
            replies = [error]
    else:
        with broker.redis.pipeline(transaction=False) as pipe:
            for push in pushes:
                pipe.lpush(*push)
            replies = pipe.execute(raise_on_error=False)
    rejections = []
    for entries, reply in zip(lists.values(), replies, strict=True):
        if isinstance(reply, Exception):
            if broker.is_lost(reply):
                raise reply
            rejections += [Rejection(entry.message, reply) for entry in entries]
    return rejections


def _send_with_confirms(broker: BrokerConnection, prepared: Sequence[_Prepared]) -> list[Rejection]:
    """Publish all messages, then wait until the broker has confirmed or refused each of them.

    ``basic.ack``: accepted. ``basic.nack``: refused, for example by a full queue. ``basic.return``:
    the queue does not exist.
    """
    channel = broker.batch_channel  # before the tags: a new channel restarts them at 1
    missing = dict(zip(broker.next_tags(len(prepared)), prepared, strict=True))
    of_ids = {celery_id_of(entry.message): entry for entry in prepared}
    rejected, errors = list[_Prepared](), dict[str, Exception]()

    def reject(entry: _Prepared, error: Exception) -> None:
        errors.setdefault(entry.queue, error)  # the first error of a queue shows its cause
        rejected.append(entry)

    def settled(tag: int, multiple: bool) -> list[_Prepared]:
        tags = [unsettled for unsettled in missing if unsettled <= tag] if multiple else [tag]
        return [entry for unsettled in tags if (entry := missing.pop(unsettled, None)) is not None]

    def refused(tag: int, multiple: bool) -> None:
        for entry in settled(tag, multiple):
            text = "The queue refuses messages (basic.nack): it is full or unavailable."
            reject(entry, QueueRejected(text))

    def returned(error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        entry = of_ids.get(message.properties.get("correlation_id"))
        if entry is not None:
            # The queue was deleted. The next message declares it again.
            broker.declared.pop(entry.message.queue, None)
            reject(entry, QueueRejected("The queue does not exist (basic.return)."))

    receivers = {"basic_ack": settled, "basic_nack": refused, "basic_return": returned}
    for event, receiver in receivers.items():
        channel.events[event].add(receiver)
    try:
        for entry in prepared:
            _put(channel, entry, mandatory=True)
        deadline = time.monotonic() + conf.settings().PUBLISH_TIMEOUT
        while missing:
            # drain_events(timeout=0) waits without limit.
            channel.connection.drain_events(timeout=max(deadline - time.monotonic(), 0.001))
    except broker.failures as error:
        broker.drop_batch_channel()
        if broker.is_lost(error):
            raise
        timed_out = isinstance(error, TimeoutError)
        text = "not confirmed within PUBLISH_TIMEOUT" if timed_out else str(error)
        for entry in missing.values():
            reject(entry, QueueRejected(f"{type(error).__name__}: {text}"))
    finally:
        for event, receiver in receivers.items():
            channel.events[event].discard(receiver)
    return [Rejection(entry.message, errors[entry.queue]) for entry in rejected]


# Publishes messages to the broker within time limits. A rejected queue does not delay the others.
#
# Nothing here is needed for correctness: a task whose message is lost is republished. What happens
# while the broker is unavailable is described in ``broker_connection.py``.


logger = logging.getLogger("django_durable_tasks.broker")
_Answer = TypeVar("_Answer")


@functools.lru_cache(maxsize=4)
def _failures(app: Any) -> tuple[type[BaseException], ...]:
    return (*failures_of(app.connection_for_write()), BrokerUnavailable)


def publish(messages: Sequence[TaskMessage]) -> list[NotAccepted]:
    """Publish messages, with one retry; return those that the broker rejected for their queue.

    Raises BrokerUnavailable within the time limits if the broker does not respond.
    """
    if eager():  # for example of `run_scheduler --once` in a test
        for message in messages:
            run_here(message)
        return []
    delays, waiting, attempted = broker_connection.backoff.delays(), list[NotAccepted](), messages
    if delays:
        waiting = [
            NotAccepted(message, delays[message.queue])
            for message in messages
            if message.queue in delays
        ]
        attempted = [message for message in messages if message.queue not in delays]
    if not attempted:
        return waiting
    rejections = _answered(functools.partial(_publish_once, attempted), f"{len(messages)} messages")
    if not rejections and not broker_connection.backoff.has_rejected():
        return waiting
    # Back off from the rejected queues, and end the back-off of the others.
    refused = {rejection.message.queue: rejection.error for rejection in rejections}
    for queue, error in refused.items():
        broker_connection.backoff.rejected(queue, error)
    for queue in {message.queue for message in attempted} - set(refused):
        broker_connection.backoff.accepted(queue)
    remaining = {queue: broker_connection.backoff.remaining(queue) for queue in refused}
    return waiting + [
        NotAccepted(rejection.message, remaining[rejection.message.queue])
        for rejection in rejections
    ]


def count(queue: str) -> int | None:
    """Return how many messages wait in this queue in the broker; None if that is unknown.

    Raises BrokerUnavailable within the time limits if the broker does not respond.
    """

    def ask() -> int | None:
        with borrowed() as broker:
            return broker.count(queue)

    return _answered(ask, f"the count of queue {queue!r}")


def _answered(ask: Callable[[], _Answer], subject: str) -> _Answer:
    """Ask the broker, with one retry on a new connection, and record whether it responded.

    Raises BrokerUnavailable, also while the breaker is open.
    """
    if not broker_connection.breaker.allows():
        raise BrokerUnavailable
    failures = _failures(current_app._get_current_object())
    try:
        try:
            reply = ask()
        except failures:
            close_idle()  # idle connections lead to the same broker
            reply = ask()
    except failures as error:
        broker_connection.breaker.failed_with(error)
        raise BrokerUnavailable(
            f"The broker did not respond to {subject}: {type(error).__name__}."
        ) from error
    broker_connection.breaker.succeeded()
    return reply


def _publish_once(messages: Sequence[TaskMessage]) -> list[Rejection]:
    """Send each message once. If the broker closes the connection because of a queue, that queue is
    rejected and the loop continues with the others.
    """
    rejections: list[Rejection] = []
    # Only a confirm shows whether a rejected queue is accepted again, and whether a queue that was
    # lost exists.
    confirm = len(messages) > 1 or any(
        message.number > 1 or broker_connection.backoff.is_rejected(message.queue)
        for message in messages
    )
    while messages:
        with borrowed() as broker:
            more, messages = send_batch(broker, messages, confirm=confirm)
        rejections += more
    return rejections


def eager() -> bool:
    """Return whether Celery runs tasks in the process of the caller."""
    return bool(current_app.conf.task_always_eager)


def run_here(message: TaskMessage) -> None:
    """Run the task in this process, as Celery's eager mode does."""
    task = current_app.tasks[message.name]
    task.apply(
        task_id=celery_id_of(message),
        headers={**(message.headers or {}), **headers_of(message)},
        throw=current_app.conf.task_eager_propagates,
    )


# Dispatch: claim due tasks, publish them, and return those to PENDING that were not accepted.
#
# The claim is committed before anything is published.


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Counts per queue: due tasks that were claimed or have to wait for a limit, messages to
    publish, and accepted messages.

    ``cut`` contains the queues that may have more due tasks, because the joint limit was reached or
    the claim of a queue has to continue.
    ``of_full_shares``: those in which only a part of the tasks of a tenant without free places was
    made to wait. ``ids`` are the claimed tasks.
    """

    taken: Counter[str] = field(default_factory=Counter)
    claimed: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    cut: set[str] = field(default_factory=set)
    of_full_shares: set[str] = field(default_factory=set)
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
        demand.at_most(number)
        for demand in demands
        if (number := broker_connection.capacity_of(demand.queue)) > 0 and demand.limit > 0
    ]
    with dedicated_connection():
        groups = claim.parted(open_now)
    total = sum(demand.limit for demand in open_now)
    for group in groups:
        group_limit = sum(demand.limit for demand in group)
        share = -(-limit * group_limit // total)  # rounded up
        total -= group_limit
        allowed = (
            share
            if broker_connection.breaker.closed()
            else min(share, broker_connection.capacity())
        )
        taken = 0
        if allowed > 0:
            with dedicated_connection():
                messages, of_queues, cut = claim.claim_of(group, now, allowed, node, shards)
            done.cut.update(cut)
            done.of_full_shares.update(cut)
            taken = of_queues.total()
            done.taken.update(of_queues)
            done.claimed.update(Counter(message.queue for message in messages))
            done.ids.extend(message.task_id for message in messages)
            done.sent.update(_send(messages))
        limit = max(0, limit - taken)
        if taken >= share:
            done.cut.update(demand.queue for demand in group)


def dispatch_these(ids: Sequence[uuid.UUID], now: datetime, node: uuid.UUID) -> int:
    """Publish those of these tasks that are due; return how many the broker accepted.

    Publishes none while the breaker is open.
    """
    if not broker_connection.breaker.closed():
        return 0
    with dedicated_connection():
        messages = claim.claim_these(ids, now, node)
    return _send(messages).total()


def _send(messages: Sequence[TaskMessage]) -> Counter[str]:
    """Publish claimed tasks, return refused ones to PENDING, and return how many were accepted of
    each queue.
    """
    refused = publish_or_refuse(messages) if messages else ()
    if refused:
        with dedicated_connection():
            broker_connection.return_to_pending(refused)
    sent = Counter(message.queue for message in messages)
    return sent - Counter(refusal.message.queue for refusal in refused)


def publish_or_refuse(messages: Sequence[TaskMessage]) -> Sequence[NotAccepted]:
    """Publish and return what was not accepted, whatever the reason."""
    try:
        return publish(messages)
    except BrokerUnavailable as error:
        logger.debug(
            "%s not published: %s", counted(len(messages), "message was", "messages were"), error
        )
        return [NotAccepted(message, 0.0) for message in messages]
    except ImproperlyConfigured as error:  # for example a database broker that was not migrated
        again = conf.settings().REPUBLISH_AFTER
        logger.error(
            "Publishing failed: %s %s published again in %g s.",
            error,
            counted(len(messages), "task is", "tasks are"),
            again,
        )
        return [NotAccepted(message, again) for message in messages]
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


def publish_claimed(messages: Sequence[TaskMessage]) -> None:
    """Publish tasks that are already QUEUED; called by schedulers, outside of any transaction."""
    refused = publish_or_refuse(messages)
    if refused:
        with dedicated_connection():
            broker_connection.undo_publish(refused)


def republish(messages: Sequence[TaskMessage]) -> Counter[str]:
    """Publish tasks again for an operator; return how many the broker rejected, by queue.

    Raises BrokerUnavailable if the broker does not respond.
    """
    try:
        refused = publish(messages)
    except BrokerUnavailable:
        broker_connection.undo_publish([NotAccepted(message, 0.0) for message in messages])
        raise
    broker_connection.undo_publish(refused)
    return Counter(refusal.message.queue for refusal in refused)


@dataclass(slots=True)
class Republished:
    """Messages by queue: those that would be or were published, and those that the broker rejected.

    ``error`` is the reason if publishing stopped early.
    """

    queued: dict[str, int]
    published: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    error: str = ""


@operation(
    Target.INSTALLATION,
    name="republish",
    title=_("Republish queued tasks"),
    help=_(
        "Publishes QUEUED tasks again now, for a broker that was flushed or has lost its messages."
    ),
    permission="",
    confirm=False,
    not_in_api=OF_ALL_TENANTS,
    not_in_admin="it can publish more messages than a web request has time for",
    counted=lambda report: {"republished": report.published.total()},
)
def republish_queued(
    queryset: TaskQuerySet, *, dry_run: bool = False, progress: Progress = no_progress
) -> Republished:
    """Publish the QUEUED tasks of a queryset again.

    Works in several transactions. The audit entry is written before the first one.
    """
    queued = queryset.queued()
    result = Republished(dict(queued.order_by().values_list("queue").annotate(number=Count("*"))))
    if dry_run:
        return result
    record_start("installation.republish")
    batches.publish_messages_again()
    total, size = sum(result.queued.values()), conf.settings().BATCH_SIZE
    try:
        for messages in claim.republish_all(queued, size):
            refused = republish(messages)
            result.published.update(Counter(message.queue for message in messages) - refused)
            result.rejected += refused
            if total > size:
                progress(f"{result.published.total()} of {total}")
    except BrokerUnavailable as error:
        result.error = str(error)
    return result


def publish_claimed_after_commit(messages: Sequence[TaskMessage]) -> None:
    """Publish tasks that were inserted as QUEUED, after COMMIT. Raises no error of the broker or
    the database.

    Uses the caller's connection. Tasks that the broker did not accept return to PENDING, and
    schedulers publish them as soon as possible.
    """
    if eager():
        for message in messages:
            run_here(message)
        return
    refused = publish_or_refuse(messages)
    if not refused:
        return
    try:
        broker_connection.undo_publish(refused)
    except Error as error:
        logger.warning(
            "The broker did not accept %s, and the tasks could not be returned to PENDING (%s)."
            " They are republished after %g s.",
            counted(len(refused), "message"),
            type(error).__name__,
            conf.settings().REPUBLISH_AFTER,
        )


# Publishes batch messages: at most one is outstanding for each queue and task name.
#
# The record of a message is committed before it is published. If the broker does not accept it,
# the record is changed, so that a scheduler publishes the next one when the broker accepts
# messages.


CARRIER = "django_durable_tasks.run_batch"
"""The name of the Celery task that starts batches."""


def publish_batches(priorities: Mapping[tuple[str, str], int]) -> int:
    """Publish a message for each of these queues and task names that has none outstanding, with
    these priorities; return how many the broker accepted.

    Queues that the broker rejects are left out, and nothing is published while the breaker is open,
    except a single message as a probe.
    """
    return _publish(priorities, dedicated_connection)


def publish_batches_after_commit(priorities: Mapping[tuple[str, str], int]) -> None:
    """Publish as ``publish`` does, after COMMIT, on the connection of the caller. Raises no error
    of the broker or the database, because a scheduler finds the tasks.
    """
    try:
        _publish(priorities, nullcontext)
    except Error as error:
        logger.warning(
            "The batch messages of %s were not published (%s); a scheduler publishes them.",
            ", ".join(sorted({name for _, name in priorities})),
            reason_of(error),
        )


def _publish(
    priorities: Mapping[tuple[str, str], int],
    connection: Callable[[], AbstractContextManager[None]],
) -> int:
    pairs = [pair for pair in priorities if broker_connection.capacity_of(pair[0]) > 0]
    pairs = pairs[: broker_connection.capacity()]
    if not pairs:
        return 0
    pairs_by_consumed: dict[bool, list[tuple[str, str]]] = {}
    for pair in pairs:
        pairs_by_consumed.setdefault(not backpressure.is_unserved(pair[0]), []).append(pair)
    with connection():
        reserved = [
            message
            for consumed, unbatched_pairs in pairs_by_consumed.items()
            for message in batches.reserve_messages(unbatched_pairs, consumed=consumed)
        ]
    messages = [
        TaskMessage(
            task_id=uuid.uuid4(),
            epoch=message.number,
            number=message.publish_count,
            name=CARRIER,
            queue=message.queue,
            priority=priorities[message.queue, message.name],
            batch_of=message.name,
        )
        for message in reserved
    ]
    refused = publish_or_refuse(messages) if messages else ()
    for refusal in refused:
        pair = (refusal.message.queue, str(refusal.message.batch_of))
        with connection():
            batches.message_not_published([pair], refusal.delay)
    return len(messages) - len(refused)
