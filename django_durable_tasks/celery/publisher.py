"""Publishes messages, with connections to the broker that have short time limits.

What happens to tasks while the broker is unavailable:

1. A publish fails (``publish``). It is tried again on a new connection, because an idle
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

import functools
import logging
import os
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from amqp.exceptions import (
    AMQPNotImplementedError,
    FrameSyntaxError,
    InternalError,
    InvalidCommand,
    NotAllowed,
)
from celery import Celery, current_app
from django.core.exceptions import ImproperlyConfigured
from django.db import Error
from django.db.models import Count
from django.utils.translation import gettext_lazy as _
from kombu import Connection
from kombu.exceptions import KombuError
from kombu.transport.virtual.base import AbstractChannel
from kombu.utils.json import dumps

from django_durable_tasks import conf
from django_durable_tasks.audit import record_start
from django_durable_tasks.celery.prepared_messages import (
    DEFAULT_EXCHANGE,
    RedisTexts,
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
from django_durable_tasks.process_state import CircuitBreaker, IdlePool
from django_durable_tasks.states.demand import QueueDemand
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.store.errors import reason_of
from django_durable_tasks.tasks import batches, claim
from django_durable_tasks.texts import counted

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
# Nothing here is needed for correctness: a task whose message is lost is republished.


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
    delays, waiting, attempted = backoff.delays(), list[NotAccepted](), messages
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
    if not rejections and not backoff.has_rejected():
        return waiting
    # Back off from the rejected queues, and end the back-off of the others.
    refused = {rejection.message.queue: rejection.error for rejection in rejections}
    for queue, error in refused.items():
        backoff.rejected(queue, error)
    for queue in {message.queue for message in attempted} - set(refused):
        backoff.accepted(queue)
    remaining = {queue: backoff.remaining(queue) for queue in refused}
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
    if not breaker.allows():
        raise BrokerUnavailable
    failures = _failures(current_app._get_current_object())
    try:
        try:
            reply = ask()
        except failures:
            close_idle()  # idle connections lead to the same broker
            reply = ask()
    except failures as error:
        breaker.failed_with(error)
        raise BrokerUnavailable(
            f"The broker did not respond to {subject}: {type(error).__name__}."
        ) from error
    breaker.succeeded()
    return reply


def _publish_once(messages: Sequence[TaskMessage]) -> list[Rejection]:
    """Send each message once. If the broker closes the connection because of a queue, that queue is
    rejected and the loop continues with the others.
    """
    rejections: list[Rejection] = []
    # Only a confirm shows whether a rejected queue is accepted again, and whether a queue that was
    # lost exists.
    confirm = len(messages) > 1 or any(
        message.number > 1 or backoff.is_rejected(message.queue) for message in messages
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
        if (number := capacity_of(demand.queue)) > 0 and demand.limit > 0
    ]
    with dedicated_connection():
        groups = claim.parted(open_now)
    total = sum(demand.limit for demand in open_now)
    for group in groups:
        group_limit = sum(demand.limit for demand in group)
        share = -(-limit * group_limit // total)  # rounded up
        total -= group_limit
        allowed = share if breaker.closed() else min(share, capacity())
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
    if not breaker.closed():
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
            return_to_pending(refused)
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
            undo_publish(refused)


def republish(messages: Sequence[TaskMessage]) -> Counter[str]:
    """Publish tasks again for an operator; return how many the broker rejected, by queue.

    Raises BrokerUnavailable if the broker does not respond.
    """
    try:
        refused = publish(messages)
    except BrokerUnavailable:
        undo_publish([NotAccepted(message, 0.0) for message in messages])
        raise
    undo_publish(refused)
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
        undo_publish(refused)
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
    pairs = [pair for pair in priorities if capacity_of(pair[0]) > 0]
    pairs = pairs[: capacity()]
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
