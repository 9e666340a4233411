"""Connections to the broker for publishing, and what happens to tasks while it is unavailable.

1. A publish fails (``publisher.publish``). It is tried again on a new connection, because an idle
   connection may have been closed by the broker. Both attempts have time limits.
2. If both fail, the ``BrokerBreaker`` of this process opens for BROKER_BACKOFF seconds. One error
   is logged. While it is open:

   * New tasks are inserted as PENDING and not published after COMMIT (``is_open_for``). The caller
     does not wait for the broker.
   * Schedulers claim no tasks (``capacity``), so tasks stay PENDING and their messages cannot be
     lost.
3. Tasks whose messages were not accepted return to PENDING (``return_to_pending``). If that fails
   too, because the process dies or the database is unavailable, they stay QUEUED and are
   republished after REPUBLISH_AFTER.
4. After BROKER_BACKOFF a single message is sent as a probe. If it fails, the breaker opens for
   another BROKER_BACKOFF. If it is accepted, the breaker closes and one warning is logged.
5. The broker may have lost its messages, for example a Redis without persistence. The leader then
   compares all QUEUED tasks with the messages at once (``scheduler/republishing.py``).

A broker that responds but rejects one queue (it cannot be declared, is full or does not exist) does
not open the breaker. ``QueueBackoff`` then stops claims for this queue only, for BROKER_BACKOFF
seconds and twice as long after each further rejection, up to a minute. One task probes the queue
after each delay.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from amqp.exceptions import AMQPNotImplementedError, InternalError, InvalidCommand, NotAllowed
from celery import Celery, current_app
from kombu import Connection
from kombu.exceptions import KombuError
from kombu.transport.virtual.base import AbstractChannel

from django_durable_tasks import conf
from django_durable_tasks.celery.prepared_messages import RedisTexts
from django_durable_tasks.exceptions import UnknownQueue
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.process_state import CircuitBreaker, IdlePool
from django_durable_tasks.tasks import claim

# Connections with short time limits, and the pool of idle ones.
#
# One thread uses a connection at a time. A forked child does not use or close the connections of
# its parent, because both share the sockets. Of a list of brokers the one that answered last is
# tried first.


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


# What happens to tasks until the broker accepts messages again.


logger = logging.getLogger("django_durable_tasks.broker")
_LONGEST_DELAY = 60.0
"""Seconds. Short enough that a repaired queue is used again soon."""
_REASON_MAX = 300


@dataclass(frozen=True, slots=True)
class NotAccepted:
    """A message that the broker did not accept, and the seconds until the task is due again."""

    message: TaskMessage
    delay: float


class BrokerBreaker(CircuitBreaker):
    """The circuit breaker of publishing. It stays open for BROKER_BACKOFF and logs its changes."""

    def __init__(self) -> None:
        super().__init__(
            lambda: conf.settings().BROKER_BACKOFF, lambda: 2 * conf.settings().PUBLISH_TIMEOUT
        )

    def succeeded(self) -> bool:
        """Record that the broker accepted a message."""
        closed = super().succeeded()
        if closed:
            logger.warning("The connection to the broker is restored; publishing continues.")
        return closed

    def failed_with(self, error: BaseException) -> None:
        """Record that the broker could not be reached."""
        if self.failed():
            logger.error(
                "The broker does not respond (%s). Tasks stay PENDING and are published when it"
                " does.",
                type(error).__name__,
            )


@dataclass(frozen=True, slots=True)
class _Rejected:
    reason: str
    delay: float
    until: float


class QueueBackoff:
    """The queues that the broker rejects for this process, with a delay for each; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rejected: dict[str, _Rejected] = {}

    def replace_lock(self) -> None:
        """Replace the lock after a fork: a thread that holds it does not exist in the child."""
        self._lock = threading.Lock()

    def remaining(self, queue: str) -> float:
        """Return the seconds until this queue is tried again; 0.0 if it may be tried now."""
        rejected = self._rejected.get(queue)
        return 0.0 if rejected is None else max(0.0, rejected.until - time.monotonic())

    def is_rejected(self, queue: str) -> bool:
        """Return whether the broker rejected the last message of this queue, whatever the delay."""
        return queue in self._rejected

    def has_rejected(self) -> bool:
        """Return whether the broker rejected the last message of any queue."""
        return bool(self._rejected)

    def delays(self) -> dict[str, float]:
        """Return the queues whose delay is not over, with the seconds that remain."""
        if not self._rejected:
            return {}
        now = time.monotonic()
        return {
            queue: rejected.until - now
            for queue, rejected in self._rejected.copy().items()
            if rejected.until > now
        }

    def reasons(self) -> dict[str, str]:
        """Return every rejected queue with the broker's error."""
        return {queue: rejected.reason for queue, rejected in sorted(self._rejected.copy().items())}

    def rejected(self, queue: str, error: BaseException) -> None:
        """Record that the broker rejected messages of this queue; a rejection during the delay
        changes nothing.
        """
        text, kind = " ".join(str(error).split()), type(error).__name__
        reason = f"{kind}: {text}"[:_REASON_MAX] if text else kind
        with self._lock:
            before = self._rejected.get(queue)
            if before is not None and before.until > time.monotonic():
                return
            delay = conf.settings().BROKER_BACKOFF
            if before is not None:
                delay = min(2 * before.delay, _LONGEST_DELAY)
            self._rejected[queue] = _Rejected(reason, delay, time.monotonic() + delay)
        if before is None:
            logger.error(
                "The broker rejects messages for queue %r: %s. Its tasks are retried at least every"
                " %g s. Other queues are not affected.",
                queue,
                reason,
                _LONGEST_DELAY,
                extra={"queue": queue},
            )

    def accepted(self, queue: str) -> None:
        """Record that the broker accepted a message of this queue."""
        if queue not in self._rejected:
            return
        with self._lock:
            before = self._rejected.pop(queue, None)
        if before is not None:
            logger.warning(
                "The broker accepts messages for queue %r again.", queue, extra={"queue": queue}
            )

    def forget(self) -> None:
        """Forget everything; for tests."""
        self._rejected = {}


breaker = BrokerBreaker()
backoff = QueueBackoff()
os.register_at_fork(after_in_child=backoff.replace_lock)


def capacity() -> int:
    """Return how many tasks may be published at once: BATCH_SIZE; 0 in an outage, 1 as a probe."""
    if breaker.closed():
        return conf.settings().BATCH_SIZE
    return int(breaker.may_probe())


def capacity_of(queue: str) -> int:
    """Return how many tasks of this queue may be published at once; 0 while it is backed off."""
    if not backoff.is_rejected(queue):
        return capacity()
    return 0 if backoff.remaining(queue) else min(capacity(), 1)


def is_open_for(queue: str | None = None) -> bool:
    """Return whether to publish a new task of this queue after COMMIT, instead of inserting it as
    PENDING.
    """
    if queue is not None and backoff.remaining(queue):
        return False
    return breaker.closed() or breaker.may_probe()


def return_to_pending(refused: Iterable[NotAccepted]) -> None:
    """Return claimed tasks to PENDING whose first message was not accepted."""
    for delay, messages in _by_delay(refused).items():
        claim.return_to_pending(messages, delay)


def undo_publish(refused: Sequence[NotAccepted]) -> None:
    """Undo what was written before the publish of these messages failed.

    If it was the first message of its epoch, the task returns to PENDING. Otherwise an earlier copy
    may still be in the broker, so the task stays QUEUED and is republished after the delay.
    """
    return_to_pending(refusal for refusal in refused if refusal.message.number <= 1)
    repeated = _by_delay(refusal for refusal in refused if refusal.message.number > 1)
    for delay, messages in repeated.items():
        claim.not_published(messages, delay)


def _by_delay(refused: Iterable[NotAccepted]) -> dict[float, list[TaskMessage]]:
    by_delay: dict[float, list[TaskMessage]] = defaultdict(list)
    for refusal in refused:
        by_delay[refusal.delay].append(refusal.message)
    return by_delay
