"""Kombu's record of the messages that a worker has read from Redis. Only workers of Redis load
it.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import virtual
from kombu.transport.redis import QoS as RedisQoS

from django_durable_tasks.celery.prepared_messages import HEADER, parse


class RowQoS(RedisQoS):
    """Kombu's record of unacknowledged messages, with those of durable tasks in memory only."""

    only_here: set[str]
    """The delivery tags of the messages that have no copy in Redis."""

    def append(self, message: Any, delivery_tag: str) -> None:
        """Record a message that was read."""
        if not belongs_to_row(message.headers):
            super().append(message, delivery_tag)
            return
        self.only_here.add(delivery_tag)
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Forget a message. May be called by other threads."""
        if delivery_tag in self.only_here:
            self.only_here.discard(delivery_tag)
            virtual.QoS.ack(self, delivery_tag)
        else:
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Forget a message, or put it back into its queue."""
        if delivery_tag not in self.only_here:
            super().reject(delivery_tag, requeue)
            return
        if requeue:
            self._put_back([delivery_tag], leftmost=True)
        self.ack(delivery_tag)

    def restore_unacked(self, client: Any = None) -> Any:
        """Put all messages back that were read and not started; called when the worker stops."""
        tags = [tag for tag in self._delivered if tag in self.only_here]
        self._put_back(tags)
        for tag in tags:
            self.only_here.discard(tag)
            self._delivered.pop(tag, None)
        return super().restore_unacked(client)

    def _put_back(self, tags: list[str], *, leftmost: bool = False) -> None:
        """Put messages back as the next ones of their queues, or ``leftmost`` as the last ones."""
        with self.channel.conn_or_acquire() as client, client.pipeline() as pipe:
            for tag in tags:
                message = self._delivered[tag]
                at = message.delivery_info
                exchange, key = at["exchange"], at["routing_key"]
                self.channel._do_restore_message(message._raw, exchange, key, pipe, leftmost)
            pipe.execute()


def belongs_to_row(headers: Any) -> bool:
    """Return whether these are the headers of the message of a durable task."""
    if not isinstance(headers, dict) or headers.get(HEADER) is None:
        return False
    return headers[HEADER] == headers.get("id") and parse(headers["id"]) is not None


def keep_in_memory(qos: Any) -> None:
    """Change the record of a channel that has read no message yet."""
    if type(qos) is RedisQoS:
        qos.only_here = set()
        qos.__class__ = RowQoS
