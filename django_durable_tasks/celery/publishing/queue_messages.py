"""Publishes one message for another program, with confirmation where the broker has it.

The connections are those of the publisher, but the channel is a new one: RabbitMQ closes a channel
after an error, and a returned message leaves its confirmation unread.
"""

from __future__ import annotations

import uuid
from typing import Any

from kombu.serialization import registry as serializers

from django_durable_tasks import conf
from django_durable_tasks.celery.publishing.broker_connection import BrokerConnection, borrowed
from django_durable_tasks.celery.publishing.routing import refuse_task_queues
from django_durable_tasks.exceptions import BrokerUnavailable, InvalidTarget, MessageRejected
from django_durable_tasks.rules.targets.queue_message import QueueMessage, sent_content_type

_PERSISTENT = 2


def publish(message: QueueMessage, message_id: uuid.UUID, tenant: str | None = None) -> bool:
    """Publish the message once; return whether the broker has confirmed it. ``tenant``: the slug
    of the task's tenant, for which ``{tenant}`` stands in API_QUEUES.

    Raises MessageRejected if the broker refuses it or no queue would receive it, BrokerUnavailable
    if the broker does not respond, and InvalidTarget for a queue of Celery tasks.
    """
    refuse_task_queues(message.exchange, message.routing_key, tenant)
    try:
        with borrowed() as broker:
            return _publish(broker, message, str(message_id))
    except (MessageRejected, InvalidTarget):
        raise
    except Exception as error:
        raise BrokerUnavailable(
            f"The broker did not take a message for {message.place}: {type(error).__name__}."
        ) from error


def _publish(broker: BrokerConnection, message: QueueMessage, message_id: str) -> bool:
    content_type = sent_content_type(message.content_type)
    if content_type in serializers.type_to_name:
        raise InvalidTarget(f"content_type={content_type!r} is one that Celery workers decode.")
    channel = broker.connection.channel() if broker.driver == "amqp" else broker.channel
    prepared = channel.prepare_message(
        message.body,
        0,
        content_type,
        "utf-8",
        {**message.headers, "durable-task-id": message_id},
        {"message_id": message_id, "delivery_mode": _PERSISTENT},
    )
    try:
        if broker.driver == "amqp":
            return _confirmed(channel, prepared, message)
        _check_bound(channel, message)
        channel.basic_publish(prepared, exchange=message.exchange, routing_key=message.routing_key)
    except broker.failures as error:
        if broker.is_lost(error):
            raise
        raise MessageRejected(f"{message.place}: {type(error).__name__}: {error}") from error
    finally:
        if broker.driver == "amqp" and channel.is_open and not broker.unusable:
            _abandon(broker, channel)
    return False


def _confirmed(channel: Any, prepared: Any, message: QueueMessage) -> bool:
    """Publish as mandatory and wait for the confirmation. A message that no queue receives is
    returned first, which raises a channel error.
    """
    timeout = conf.settings().PUBLISH_TIMEOUT
    channel.confirm_select()
    channel.basic_publish_confirm(
        prepared,
        exchange=message.exchange,
        routing_key=message.routing_key,
        mandatory=True,
        confirm_timeout=timeout,
    )
    return True


def _check_bound(channel: Any, message: QueueMessage) -> None:
    """Refuse an exchange without a matching queue, which Kombu's own transports ignore."""
    if not message.exchange:
        return
    try:
        table = channel.get_table(message.exchange)
        if message.exchange not in channel.state.exchanges:
            # These brokers do not store the type of an exchange. Only topics have patterns.
            kind = "topic" if any(pattern for _, pattern, _ in table) else "direct"
            channel.exchange_declare(message.exchange, kind, durable=True)
        found = channel.typeof(message.exchange).lookup(
            table, message.exchange, message.routing_key, None
        )
    except KeyError:
        found = []
    if not found:
        raise MessageRejected(f"{message.place}: no queue is bound to it.")


def _abandon(broker: BrokerConnection, channel: Any) -> None:
    """Close the channel; a failure makes the connection unusable, so that it is not shared."""
    try:
        channel.close()
    except broker.failures:
        broker.unusable = True
