"""Notifications through a Redis channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django_durable_tasks.due_index import redis_client
from django_durable_tasks.due_index.redis import scope
from django_durable_tasks.notifier.message import Notification, wake_channel
from django_durable_tasks.notifier.notify_on_commit import send_by_redis

_MOST = 500


class RedisTransport:
    """Subscribes with a separate Redis client."""

    name = "Redis"
    failure_cause = "a message to itself did not come"

    def __init__(self) -> None:
        self._client: Any = None
        self._subscription: Any = None

    def open(self) -> None:
        """Connect and subscribe; raises RedisError."""
        self._client = redis_client.listening_client(redis_client.url() or "")
        self._subscription = self._client.pubsub(ignore_subscribe_messages=True)
        self._subscription.subscribe(wake_channel(scope()))

    def wait(self, seconds: float) -> Sequence[str]:
        """Return the messages that arrived, at most ``_MOST``."""
        found: list[str] = []
        message = self._subscription.get_message(timeout=seconds)
        while message and len(found) < _MOST:
            found.append(message["data"])
            message = self._subscription.get_message()
        return found

    def send(self, notification: Notification) -> bool:
        """Publish with the shared client, as every process does."""
        return send_by_redis(notification)

    def doubtful(self) -> bool:
        """Return whether requests to Redis are suspended after a failure."""
        shared = redis_client.connection()
        return shared is None or not shared.open()

    def close(self) -> None:
        """Close the connection."""
        subscription, self._subscription = self._subscription, None
        client, self._client = self._client, None
        if subscription is not None:
            subscription.close()
        if client is not None:
            client.close()
