"""Connections to the broker for publishing, with short time limits, and the pool of idle ones.

One thread uses a connection at a time. A forked child does not use or close the connections
of its parent, because both share the sockets. Of a list of brokers the one that answered last
is tried first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from amqp.exceptions import AMQPNotImplementedError, InternalError, InvalidCommand, NotAllowed
from celery import Celery, current_app
from kombu import Connection
from kombu.exceptions import KombuError
from kombu.transport.virtual.base import AbstractChannel

from django_durable_tasks import conf
from django_durable_tasks.celery.prepared_messages import RedisTexts
from django_durable_tasks.exceptions import UnknownQueue
from django_durable_tasks.process_state import IdlePool

_SHORTEST_CONNECT = 1.0
"""Seconds. PUBLISH_TIMEOUT is divided among several brokers, but each has at least this long."""
_NOT_PRIMARY = ("ReadOnlyError", "MasterDownError", "ClusterDownError")
"""Errors of Redis for a write to a replica. The connection is made again; the queue is not
rejected.
"""
_NOT_FOUND = "404"
"""The code of the reply if a queue does not exist. In Redis and in a folder it is then empty."""
_CLOSED_FOR = (InvalidCommand, NotAllowed, AMQPNotImplementedError, InternalError)
"""Errors after which RabbitMQ closes the connection, for example an unknown type of exchange."""


class QueueRejected(Exception):
    """The broker responds, but rejects messages for this queue."""


def _limits(driver: str, timeout: float) -> dict[str, Any]:
    # The publisher repeats a failed publish itself. Retries by Kombu would double the time limit.
    limits: dict[str, Any] = {
        "max_retries": 0,
        "interval_start": 0,
        "interval_step": 0.1,
        "interval_max": 0.2,
    }
    if driver == "redis":
        limits |= {"socket_timeout": timeout, "socket_connect_timeout": min(timeout, 1.0)}
    elif driver == "amqp":
        limits |= {"read_timeout": timeout, "write_timeout": timeout}
    return limits


class BrokerConnection:
    """One connection with channels for single messages, batches and declarations.

    ``declared`` contains the queues declared on it. A connection with ``unusable`` is not returned
    to the pool, because the broker closed it or a response is still missing.
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
        self.unusable = False
        _connect(self.connection, self.failures)
        self.channel: Any = (
            self.connection.default_channel if self.driver != "amqp" else self.connection.channel()
        )
        self.declared: dict[str, Any] = {}
        self._batch_channel: Any = None
        self._batch_tag = 0
        self._declaring_channel: Any = None
        self._redis: Any = None
        self.redis_texts = RedisTexts()

    @property
    def batch_channel(self) -> Any:
        """The channel for batches. On RabbitMQ it requests publisher confirms."""
        if self._batch_channel is None:
            self._batch_channel = self.connection.channel()
            self._batch_channel.confirm_select()
            self._batch_tag = 0
        return self._batch_channel

    def drop_batch_channel(self) -> None:
        """Open a new channel for the next batch, because RabbitMQ closed this one."""
        self._batch_channel = None

    def queue(self, name: str) -> Any:
        """Return Kombu's queue of this name, declared once on this connection.

        Raises UnknownQueue or QueueRejected. Raises an error of the connection only if the broker
        does not respond.
        """
        if name in self.declared:
            return self.declared[name]
        try:
            queue = self.app.amqp.queues[name]
        except KeyError:  # Kombu lists KeyError among the connection errors of Redis
            raise UnknownQueue(
                f"The queue {name!r} is not in CELERY_TASK_QUEUES, and Celery must not create it."
            ) from None
        try:
            queue(self._declaring()).declare()
        except Exception as error:
            # RabbitMQ closes a channel on which a declaration failed.
            self._declaring_channel = None
            if self.is_lost(error):
                raise
            raise QueueRejected(f"{type(error).__name__}: {error}") from error
        self.declared[name] = queue
        return queue

    def count(self, name: str) -> int | None:
        """Return how many messages wait in this queue; None if the broker cannot count them.

        Messages that a worker has received are not included. Raises an error of the connection only
        if the broker does not respond.
        """
        channel, conf_ = self._declaring(), self.app.conf
        if getattr(type(channel), "_size", None) is AbstractChannel._size:
            return None  # Kombu's default, which returns 0 for every queue
        if not is_same_broker(conf_.broker_read_url, conf_.broker_write_url):
            return None  # the messages are moved to another broker
        try:
            queue = self.app.amqp.queues[name].name
            return int(channel.queue_declare(queue=queue, passive=True).message_count)
        except Exception as error:
            self._declaring_channel = None
            if self.is_lost(error):
                raise
            return 0 if str(getattr(error, "reply_code", "")) == _NOT_FOUND else None

    def _declaring(self) -> Any:
        if self.driver != "amqp":
            return self.channel
        if self._declaring_channel is None:
            self._declaring_channel = self.connection.channel()
        return self._declaring_channel

    def is_lost(self, error: BaseException) -> bool:
        """Return whether this error means that the broker is unavailable, not that it refused."""
        if isinstance(error, _CLOSED_FOR):
            self.unusable = True
            return False
        if type(error).__name__ in _NOT_PRIMARY:
            return True
        if isinstance(error, self.connection.channel_errors) or not isinstance(
            error, self.failures
        ):
            return False
        if isinstance(error, TimeoutError):
            # The response may still arrive, and would be read as that of the next command.
            self.unusable = True
            return not self.answers()
        return self.driver in ("amqp", "redis") or not self.answers()

    def answers(self) -> bool:
        """Return whether the broker responds to a command that concerns no queue."""
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
        """Kombu's Redis client. Creating one per message would cost more than the message."""
        if self._redis is None:
            self._redis = self.channel._create_client()
        return self._redis

    def close(self) -> None:
        """Close the connection without waiting for the broker."""
        self.connection.collect()


def is_same_broker(read: str | Sequence[str] | None, write: str | Sequence[str] | None) -> bool:
    """Return whether workers read from the brokers to which messages are published, whatever the
    users and options in their addresses are.
    """
    return read == write or _places(read) == _places(write)


def _places(urls: str | Sequence[str] | None) -> set[tuple[Any, ...]]:
    if isinstance(urls, str):
        urls = urls.split(";")
    brokers = (Connection(url).info() for url in urls or ())
    return {
        (broker["transport"], broker["hostname"], broker["port"], broker["virtual_host"])
        for broker in brokers
    }


def failures_of(connection: Connection) -> tuple[type[BaseException], ...]:
    """Return the errors of this connection if the broker is unavailable or refuses a command."""
    return (*connection.connection_errors, *connection.channel_errors, KombuError, OSError)


def _connect(connection: Connection, failures: tuple[type[BaseException], ...]) -> None:
    """Connect to the first broker of the list that responds. The last one that did is tried
    first.
    """
    brokers: list[str | None] = list(connection.alt) or [None]
    if connection.transport_cls == "sentinel":
        brokers = [None]  # the list contains Sentinels; Kombu queries them for the primary
    if _LastBroker.address in brokers:
        place = brokers.index(_LastBroker.address)
        brokers = brokers[place:] + brokers[:place]
    for broker in brokers:
        if broker is not None:
            connection.switch(broker)
        try:
            # By default Kombu tries twice with a pause of two seconds.
            connection.ensure_connection(max_retries=0)
        except failures:
            if broker == brokers[-1]:
                raise
            continue
        _LastBroker.address = broker
        return


_pool: IdlePool[Celery, BrokerConnection] = IdlePool(BrokerConnection.close)


class _LastBroker:
    address: str | None = None


@contextmanager
def borrowed() -> Iterator[BrokerConnection]:
    """Borrow a connection from the pool. It is closed if the block raises or it is unusable."""
    app = current_app._get_current_object()
    broker = _pool.borrow(app, lambda: BrokerConnection(app))
    usable = False
    try:
        yield broker
        usable = not broker.unusable
    finally:
        if usable:
            _pool.give_back(app, broker)
        else:
            _pool.drop(broker)


def close_idle() -> None:
    """Close all idle connections. Called when a connection was lost or a process ends."""
    _pool.drop_idle()
