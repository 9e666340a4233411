"""Builds messages and sends a batch in one round trip. Returns the messages that were rejected.

A message is published to the default exchange with the name of the queue as routing key, as
Celery does for direct exchanges. The exchange of the queue would deliver it to every queue
with the same binding. Two queues that are configured without exchange and routing key have
the same binding.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from amqp.exceptions import FrameSyntaxError
from kombu.utils.json import dumps

from django_durable_tasks import conf
from django_durable_tasks.celery.broker_connection import BrokerConnection, QueueRejected
from django_durable_tasks.celery.prepared_messages import (
    DEFAULT_EXCHANGE,
    celery_id_of,
    prepare,
    redis_priority,
)
from django_durable_tasks.exceptions import UnknownQueue
from django_durable_tasks.ports import TaskMessage


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
                        Rejection(other, error)
                        for other in messages
                        if other.queue == message.queue
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
    answers: Sequence[Any]
    if len(pushes) == 1:  # a pipeline would cost more than the command
        try:
            answers = [broker.redis.lpush(*pushes[0])]
        except broker.failures as error:
            answers = [error]
    else:
        with broker.redis.pipeline(transaction=False) as pipe:
            for push in pushes:
                pipe.lpush(*push)
            answers = pipe.execute(raise_on_error=False)
    rejections = []
    for entries, answer in zip(lists.values(), answers, strict=True):
        if isinstance(answer, Exception):
            if broker.is_lost(answer):
                raise answer
            rejections += [Rejection(entry.message, answer) for entry in entries]
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
        tags = [other for other in missing if other <= tag] if multiple else [tag]
        return [entry for other in tags if (entry := missing.pop(other, None)) is not None]

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
