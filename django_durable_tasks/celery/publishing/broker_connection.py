"""A connection to the broker of our own, with tight time limits: no caller ever waits long for a
ring.

One doorbell serves one thread at a time; idle ones are kept. After a fork the child forgets the
parent's doorbells and never closes them: the sockets are the parent's. Of a list of brokers the one
that answered last is tried first.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from amqp.exceptions import AMQPNotImplementedError, InternalError, InvalidCommand, NotAllowed
from celery import Celery, current_app
from kombu import Connection
from kombu.exceptions import KombuError

from django_durable_tasks import conf
from django_durable_tasks.exceptions import UnknownQueue

_SHORTEST_CONNECT = 1.0
"""Seconds that one of several brokers has to answer; PUBLISH_TIMEOUT is divided among them down to
this.
"""
_NOT_PRIMARY = ("ReadOnlyError", "MasterDownError", "ClusterDownError")
"""What Redis answers to a write when another server is the primary: connect again instead of
blaming the queue.
"""


_CLOSED_FOR = (InvalidCommand, NotAllowed, AMQPNotImplementedError, InternalError)
"""RabbitMQ closes the whole connection because of what was asked for, such as an unknown type of
exchange.
"""


class QueueRejected(Exception):
    """The broker answers, but does not take messages for this queue."""


def _limits(driver: str, timeout: float) -> dict[str, Any]:
    # No second try by Kombu: the publisher has its own, and two times two would keep a caller
    # waiting.
    patience: dict[str, Any] = {
        "max_retries": 0,
        "interval_start": 0,
        "interval_step": 0.1,
        "interval_max": 0.2,
    }
    if driver == "redis":
        patience |= {"socket_timeout": timeout, "socket_connect_timeout": min(timeout, 1.0)}
    elif driver == "amqp":
        patience |= {"read_timeout": timeout, "write_timeout": timeout}
    return patience


class Doorbell:
    """One connection, channels for single rings, for batches and for declarations, and the queues
    declared on it.

    ``spoilt``: it is not to be used again, because the broker closed it or an answer is still
    missing.
    """

    def __init__(self, app: Celery) -> None:
        timeout = conf.settings().PUBLISH_TIMEOUT
        self.app = app
        probe = app.connection_for_write()
        self.driver: str = probe.transport.driver_type
        self.connection: Connection = app.connection_for_write(
            connect_timeout=max(timeout / max(1, len(probe.alt)), min(timeout, _SHORTEST_CONNECT)),
            transport_options=_limits(self.driver, timeout),
        )
        self.failures = failures_of(self.connection)
        self.spoilt = False
        self.idle_since = time.monotonic()
        _connect(self.connection, self.failures)
        self.channel: Any = (
            self.connection.default_channel if self.driver != "amqp" else self.connection.channel()
        )
        self.declared: dict[str, Any] = {}
        self._batch_channel: Any = None
        self._batch_tag = 0
        self._declaring_channel: Any = None
        self._redis: Any = None

    @property
    def batch_channel(self) -> Any:
        """The channel for batches; on RabbitMQ it asks for confirms, which are collected at the end
        of a batch.
        """
        if self._batch_channel is None:
            self._batch_channel = self.connection.channel()
            self._batch_channel.confirm_select()
            self._batch_tag = 0
        return self._batch_channel

    def drop_batch_channel(self) -> None:
        """Open another channel for the next batch: RabbitMQ closed this one."""
        self._batch_channel = None

    def queue(self, name: str) -> Any:
        """Return Kombu's queue of this name, declared once on this doorbell; raises UnknownQueue or
        QueueRejected.

        Raises an error of the connection only if the broker does not answer at all.
        """
        if name in self.declared:
            return self.declared[name]
        try:
            queue = self.app.amqp.queues[name]
        except KeyError:  # which Kombu counts among the errors of a lost connection to Redis
            raise UnknownQueue(
                f"Celery does not know the queue {name!r}, and may not make it."
            ) from None
        try:
            queue(self._declaring()).declare()
        except Exception as error:
            self._declaring_channel = (
                None  # RabbitMQ closes a channel on which a declaration failed
            )
            if self.is_lost(error):
                raise
            raise QueueRejected(f"{type(error).__name__}: {error}") from error
        self.declared[name] = queue
        return queue

    def _declaring(self) -> Any:
        if self.driver != "amqp":
            return self.channel
        if self._declaring_channel is None:
            self._declaring_channel = self.connection.channel()
        return self._declaring_channel

    def is_lost(self, error: BaseException) -> bool:
        """Return whether this error of one operation means that the broker is away, and not that it
        refused it.
        """
        if isinstance(error, _CLOSED_FOR):
            self.spoilt = True
            return False
        if type(error).__name__ in _NOT_PRIMARY:
            return True
        if isinstance(error, self.connection.channel_errors) or not isinstance(
            error, self.failures
        ):
            return False
        if isinstance(error, TimeoutError):
            self.spoilt = (
                True  # the answer may still come, and would be taken for that of another question
            )
            return not self.answers()
        return self.driver in ("amqp", "redis") or not self.answers()

    def answers(self) -> bool:
        """Ask the broker for something that concerns no queue, within the time limits."""
        try:
            if self.driver == "amqp":
                self.connection.channel()
            elif self.driver == "redis":
                self.redis.ping()
            else:
                self.connection.transport.establish_connection()
        except self.failures:
            return False
        return True

    def next_tags(self, number: int) -> range:
        """Return the delivery tags that the next messages of the batch channel will have."""
        first, self._batch_tag = self._batch_tag + 1, self._batch_tag + number
        return range(first, self._batch_tag + 1)

    @property
    def redis(self) -> Any:
        """Kombu's Redis client, kept: making one for each ring would cost more than the ring."""
        if self._redis is None:
            self._redis = self.channel._create_client()
        return self._redis

    def close(self) -> None:
        """Hang up without waiting for the broker's farewell."""
        self.connection.collect()


def failures_of(connection: Connection) -> tuple[type[BaseException], ...]:
    """Return what this connection raises if the broker is away or refuses something."""
    return (*connection.connection_errors, *connection.channel_errors, KombuError, OSError)


def _connect(connection: Connection, failures: tuple[type[BaseException], ...]) -> None:
    """Connect to the first broker of the list that answers, beginning with the one that answered
    last.
    """
    brokers: list[str | None] = list(connection.alt) or [None]
    if connection.transport_cls == "sentinel":
        brokers = [None]  # the list names Sentinels, all of which Kombu asks for the primary
    if _rack.answered in brokers:
        place = brokers.index(_rack.answered)
        brokers = brokers[place:] + brokers[:place]
    for broker in brokers:
        if broker is not None:
            connection.switch(broker)
        try:
            # Else Kombu would try twice with two seconds between, and so keep a caller waiting.
            connection.ensure_connection(max_retries=0)
        except failures:
            if broker == brokers[-1]:
                raise
            continue
        _rack.answered = broker
        return


class _Rack:
    def __init__(self, answered: str | None = None) -> None:
        self.lock = threading.Lock()
        self.free: list[Doorbell] = []
        self.answered = answered


IDLE_FOR = 60.0
"""Close a connection that was not used for so many seconds, while others are in use."""
_rack = _Rack()
_forgotten: list[_Rack] = []


def _forget_after_fork() -> None:
    global _rack
    _forgotten.append(_rack)
    _rack = _Rack(_rack.answered)


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
        sound = not bell.spoilt
    finally:
        if sound:
            _give_back(bell)
        else:
            bell.close()


def _give_back(bell: Doorbell) -> None:
    """Keep a doorbell for the next borrower, and close the one that nobody has wanted for longest,
    if for long.
    """
    idle = None
    with _rack.lock:
        bell.idle_since = time.monotonic()
        _rack.free.append(bell)
        if len(_rack.free) > 1 and bell.idle_since - _rack.free[0].idle_since > IDLE_FOR:
            idle = _rack.free.pop(0)
    if idle is not None:
        idle.close()


def hang_up() -> None:
    """Close all idle doorbells; called when a connection was lost, when a process ends, and between
    tests.
    """
    with _rack.lock:
        idle, _rack.free = _rack.free, []
    for bell in idle:
        bell.close()
