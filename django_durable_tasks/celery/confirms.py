"""Builds messages and sends a batch in one round trip. Returns the messages that were rejected.

A message is published to the default exchange with the name of the queue as routing key, as
Celery does for direct exchanges. The exchange of the queue would deliver it to every queue
with the same binding. Two queues that are configured without exchange and routing key have
the same binding.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
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
        rejected = {found.message for found in rejections}
        return rejections, [message for message in messages if message not in rejected]
    if broker.driver == "redis":
        found = _send_by_pipeline(broker, prepared)
    elif broker.driver == "amqp" and confirm:
        found = _send_with_confirms(broker, prepared)
    elif broker.driver == "amqp":
        # A lost message is republished, so a single message is not confirmed.
        for one in prepared:
            _put(broker.channel, one, mandatory=False)
        found = []
    else:
        found = _send_one_by_one(broker, prepared)
    return rejections + found, ()


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
                        Rejection(one, error) for one in messages if one.queue == message.queue
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


def _put(channel: Any, one: _Prepared, *, mandatory: bool) -> None:
    try:
        channel._basic_publish(
            one.prepared, exchange=DEFAULT_EXCHANGE, routing_key=one.queue, mandatory=mandatory
        )
    except FrameSyntaxError as error:  # listed as a connection error, but caused by the message
        raise ValueError(
            f"The message of task {one.message.task_id} cannot be encoded: {error}"
        ) from error


def _send_one_by_one(broker: BrokerConnection, prepared: Sequence[_Prepared]) -> list[Rejection]:
    rejections: dict[str, QueueRejected] = {}
    for one in prepared:
        if one.queue in rejections:
            continue
        try:
            broker.channel.basic_publish(
                one.prepared, exchange=DEFAULT_EXCHANGE, routing_key=one.queue
            )
        except broker.failures as error:
            if broker.is_lost(error):
                raise
            rejections[one.queue] = QueueRejected(f"{type(error).__name__}: {error}")
    return [
        Rejection(one.message, rejections[one.queue]) for one in prepared if one.queue in rejections
    ]


def _send_by_pipeline(broker: BrokerConnection, prepared: Sequence[_Prepared]) -> list[Rejection]:
    """Push all messages as Kombu's Redis channel does, but with one command per list and one round
    trip.
    """
    channel, lists = broker.channel, dict[Any, list[_Prepared]]()
    for one in prepared:
        priority = redis_priority(one.message)
        if not isinstance(one.prepared, str):
            channel._inplace_augment_message(one.prepared, DEFAULT_EXCHANGE, one.queue)
            priority = channel._get_message_priority(one.prepared, reverse=False)
        lists.setdefault((one.queue, priority), []).append(one)
    pushes = [
        (channel._q_for_pri(*place), *(_text(one.prepared) for one in some))
        for place, some in lists.items()
    ]
    if len(pushes) == 1:
        try:
            broker.redis.lpush(*pushes[0])
        except broker.failures as error:
            return _rejected_by_redis(broker, lists.values(), [error])
        return []
    with broker.redis.pipeline(transaction=False) as pipe:
        for push in pushes:
            pipe.lpush(*push)
        return _rejected_by_redis(broker, lists.values(), pipe.execute(raise_on_error=False))


def _text(prepared: Any) -> Any:
    return prepared if isinstance(prepared, str) else dumps(prepared)


def _rejected_by_redis(
    broker: BrokerConnection, lists: Iterable[Sequence[_Prepared]], answers: Sequence[Any]
) -> list[Rejection]:
    rejections = []
    for some, answer in zip(lists, answers, strict=True):
        if isinstance(answer, Exception):
            if broker.is_lost(answer):
                raise answer
            rejections += [Rejection(one.message, answer) for one in some]
    return rejections


def _send_with_confirms(broker: BrokerConnection, prepared: Sequence[_Prepared]) -> list[Rejection]:
    """Publish all messages, then wait until the broker has confirmed or refused each of them."""
    confirms = _Confirms(broker, prepared)
    channel = broker.batch_channel
    confirms.connect(channel)
    try:
        for one in prepared:
            _put(channel, one, mandatory=True)
        deadline = time.monotonic() + conf.settings().PUBLISH_TIMEOUT
        while confirms.missing:
            # drain_events(timeout=0) waits without limit.
            channel.connection.drain_events(timeout=max(deadline - time.monotonic(), 0.001))
    except broker.failures as error:
        broker.drop_batch_channel()
        if broker.is_lost(error):
            raise
        confirms.reject_missing(error)
    finally:
        confirms.disconnect(channel)
    return confirms.rejections()


class _Confirms:
    """RabbitMQ's response to each message of a batch.

    ``basic.ack``: accepted. ``basic.nack``: refused, for example by a full queue. ``basic.return``:
    the queue does not exist.
    """

    def __init__(self, broker: BrokerConnection, prepared: Sequence[_Prepared]) -> None:
        broker.batch_channel  # noqa: B018 - a new channel restarts the tags at 1
        self._broker = broker
        self.missing = dict(zip(broker.next_tags(len(prepared)), prepared, strict=True))
        self._errors: dict[str, Exception] = {}
        self._rejected: list[_Prepared] = []
        self._of = {celery_id_of(one.message): one for one in prepared}

    def connect(self, channel: Any) -> None:
        for event, receiver in self._receivers():
            channel.events[event].add(receiver)

    def disconnect(self, channel: Any) -> None:
        for event, receiver in self._receivers():
            channel.events[event].discard(receiver)

    def _receivers(self) -> tuple[tuple[str, Any], ...]:
        return (
            ("basic_ack", self._acknowledged),
            ("basic_nack", self._refused),
            ("basic_return", self._returned),
        )

    def _acknowledged(self, tag: int, multiple: bool) -> None:
        self._settled(tag, multiple)

    def _refused(self, tag: int, multiple: bool) -> None:
        for one in self._settled(tag, multiple):
            self._reject(
                one,
                QueueRejected(
                    "The queue refuses messages (basic.nack): it is full or unavailable."
                ),
            )

    def _returned(self, error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        one = self._of.get(message.properties.get("correlation_id"))
        if one is not None:
            # The queue was deleted. The next message declares it again.
            self._broker.declared.pop(one.message.queue, None)
            self._reject(one, QueueRejected("The queue does not exist (basic.return)."))

    def _settled(self, tag: int, multiple: bool) -> list[_Prepared]:
        tags = [known for known in self.missing if known <= tag] if multiple else [tag]
        return [one for known in tags if (one := self.missing.pop(known, None)) is not None]

    def reject_missing(self, error: BaseException) -> None:
        text = (
            "not confirmed within PUBLISH_TIMEOUT"
            if isinstance(error, TimeoutError)
            else str(error)
        )
        for one in self.missing.values():
            self._reject(one, QueueRejected(f"{type(error).__name__}: {text}"))
        self.missing = {}

    def _reject(self, one: _Prepared, error: Exception) -> None:
        self._errors.setdefault(one.queue, error)
        self._rejected.append(one)

    def rejections(self) -> list[Rejection]:
        return [Rejection(one.message, self._errors[one.queue]) for one in self._rejected]
