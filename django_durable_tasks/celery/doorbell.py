"""A connection to the broker of our own, with tight time limits: no caller ever waits long for a ring.

One doorbell serves one thread at a time; idle ones are kept. After a fork the child forgets the parent's doorbells and
never closes them: the sockets are the parent's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery, current_app
from kombu import Connection

from django_durable_tasks import conf
from django_durable_tasks.exceptions import UnknownQueue


def _limits(driver: str, timeout: float) -> dict[str, Any]:
    # No second try by Kombu: the publisher has its own, and two times two would keep a caller waiting.
    patience: dict[str, Any] = {"max_retries": 0, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.2}
    if driver == "redis":
        patience |= {"socket_timeout": timeout, "socket_connect_timeout": min(timeout, 1.0)}
    elif driver == "amqp":
        patience |= {"read_timeout": timeout, "write_timeout": timeout}
    return patience


class Doorbell:
    """One connection, one channel for single rings, one for batches, and the queues declared on it."""

    def __init__(self, app: Celery) -> None:
        timeout = conf.settings().PUBLISH_TIMEOUT
        self.app = app
        probe = app.connection_for_write()
        self.driver: str = probe.transport.driver_type
        self.connection: Connection = app.connection_for_write(
            connect_timeout=timeout, transport_options=_limits(self.driver, timeout)
        )
        if self.driver == "amqp":
            # Else Kombu would try twice with two seconds between, and so keep a caller waiting.
            self.connection.ensure_connection(max_retries=0)
        self.channel: Any = self.connection.default_channel if self.driver != "amqp" else self.connection.channel()
        self.declared: set[str] = set()
        self._batch_channel: Any = None
        self._batch_tag = 0
        self._destinations: dict[str, list[str]] = {}
        self._redis: Any = None

    @property
    def batch_channel(self) -> Any:
        """The channel for batches; on RabbitMQ it asks for confirms, which are collected at the end of a batch."""
        if self.driver != "amqp":
            return self.channel
        if self._batch_channel is None:
            self._batch_channel = self.connection.channel()
            self._batch_channel.confirm_select()
        return self._batch_channel

    def queue(self, name: str) -> Any:
        """Return Kombu's queue of this name, declared once on this doorbell; raises UnknownQueue."""
        try:
            queue = self.app.amqp.queues[name]
        except KeyError:  # which Kombu counts among the errors of a lost connection to Redis
            raise UnknownQueue(f"Celery does not know the queue {name!r}, and may not make it.") from None
        if name not in self.declared:
            queue(self.channel).declare()
            self.declared.add(name)
        return queue

    def next_tags(self, number: int) -> set[int]:
        """Return the delivery tags that the next messages of the batch channel will have."""
        first, self._batch_tag = self._batch_tag + 1, self._batch_tag + number
        return set(range(first, self._batch_tag + 1))

    def destinations(self, name: str) -> list[str]:
        """Return the queues that Kombu's virtual exchange feeds for this queue's routing key, looked up once."""
        if name not in self._destinations:
            queue = self.queue(name)
            self._destinations[name] = self.channel._lookup(queue.exchange.name, queue.routing_key)
        return self._destinations[name]

    @property
    def redis(self) -> Any:
        """Kombu's Redis client, kept: making one for each ring would cost more than the ring."""
        if self._redis is None:
            self._redis = self.channel._create_client()
        return self._redis

    def close(self) -> None:
        """Hang up without waiting for the broker's farewell."""
        self.connection.collect()


class _Rack:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.free: list[Doorbell] = []


_rack = _Rack()
_forgotten: list[_Rack] = []


def _forget_after_fork() -> None:
    global _rack
    _forgotten.append(_rack)
    _rack = _Rack()


os.register_at_fork(after_in_child=_forget_after_fork)


@contextmanager
def doorbell() -> Iterator[Doorbell]:
    """Lend a doorbell; one on which anything failed is thrown away."""
    with _rack.lock:
        bell = _rack.free.pop() if _rack.free else None
    if bell is None or bell.app is not current_app._get_current_object():
        bell = Doorbell(current_app._get_current_object())
    sound = False
    try:
        yield bell
        sound = True
    finally:
        if sound:
            with _rack.lock:
                _rack.free.append(bell)
        else:
            bell.close()


def hang_up() -> None:
    """Close all idle doorbells; called when a process ends and between tests."""
    with _rack.lock:
        idle, _rack.free = _rack.free, []
    for bell in idle:
        bell.close()
