"""Kombu's transport ``durable-database://<alias>``: a broker in a database of Django.

Publishing is an INSERT on the connection of the caller's thread, and so part of its transaction.
Consuming uses a connection of its own (``consumers.py``): a message that is delivered stays in its
table, leased to this connection, until it is acknowledged.

Priorities are those of RabbitMQ: 0 to 9, and 9 is delivered first.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from amqp.basic_message import Message as AMQPMessage
from amqp.protocol import queue_declare_ok_t
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps, loads
from kombu.utils.uuid import uuid

from django_durable_tasks.contrib.database_transport import consumers, due_tasks, routing
from django_durable_tasks.contrib.database_transport.consumers import LOST, Claimed, Demand, Session
from django_durable_tasks.contrib.database_transport.due_tasks import RUN_TAG, DueTasks, takes_tasks
from django_durable_tasks.contrib.database_transport.models import Queue
from django_durable_tasks.store.clock import after
from django_durable_tasks.store.errors import is_unmigrated

# kombu is untyped, and its own base classes disagree about the names of parameters.
# mypy: disable-error-code="no-untyped-call, override"

logger = logging.getLogger("django_durable_tasks.transport")

# Messages that a channel without a prefetch limit receives with one poll.
BATCH = 50
# Seconds between two polls: the first one after a message, and the longest.
_SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
_SLOWER = 1.5
# Seconds between two looks for a free process outside of Celery's event loop.
_FULL_PAUSE = 0.02
# Seconds until the next attempt while the database is unavailable.
_OUTAGE_PAUSE = 2.0
# Bytes. Below the smallest max_allowed_packet in use, the 16 MiB of MariaDB.
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
# The properties of AMQP, and the one of Kombu by which a message is routed.
_PROPERTIES = {name for name, _ in AMQPMessage.PROPERTIES} | {"delivery_info"}
_declarations: dict[str, routing.Declarations] = {}


class MessageTooLarge(ValueError):
    """A message is larger than the option ``max_message_bytes``."""


@dataclass(slots=True)
class Consumption:
    """A consumer of a channel."""

    queue: str
    queue_id: int
    callback: Any
    no_ack: bool


class QoS(virtual.QoS):
    """The delivered messages of a channel. Other threads may acknowledge them."""

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        # Not of the base class: it would return messages when an inherited copy of this object is
        # collected in a forked child.
        self.channel = channel
        self.prefetch_count = prefetch_count or 0
        self._held: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def can_consume(self) -> bool:
        """Return whether the prefetch limit allows another message."""
        return not self.prefetch_count or len(self._held) < self.prefetch_count

    def can_consume_max_estimate(self) -> int:
        """Return how many further messages the prefetch limit allows."""
        if not self.prefetch_count:
            return BATCH
        return max(self.prefetch_count - len(self._held), 0)

    def append(self, message: Any, delivery_tag: str) -> None:
        """Record a delivered message."""
        with self._lock:
            self._held[delivery_tag] = message, int(delivery_tag.partition("-")[0])

    def get(self, delivery_tag: str) -> Any:
        """Return a delivered message."""
        return self._held[delivery_tag][0]

    def _pop(self, delivery_tag: str, *, multiple: bool = False) -> list[int]:
        with self._lock:
            if not multiple:
                held = self._held.pop(delivery_tag, None)
                return [] if held is None else [held[1]]
            ids = []
            while delivery_tag in self._held:
                ids.append(self._held.popitem(last=False)[1][1])
            return ids

    def ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge a message, or all up to this one."""
        session = self.channel.session
        for message in self._pop(delivery_tag, multiple=multiple):
            session.acknowledge(message)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Delete a message, or return it to its place in the queue."""
        ids = self._pop(delivery_tag)
        if requeue:
            self.channel.give_back(ids)
        else:
            for message in ids:
                self.channel.session.acknowledge(message)

    def restore_unacked(self) -> list[Any]:
        """Return all messages that are held to their queues."""
        with self._lock:
            ids = [message for _, message in self._held.values()]
            self._held.clear()
        self.channel.give_back(ids)
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Return all messages that are held. If the database is away, the lease ends instead."""
        try:
            self.restore_unacked()
        except LOST as error:
            logger.warning("Messages return to their queues at the end of the lease: %s", error)


class Channel(virtual.Channel):
    """A channel; the public interface is Kombu's."""

    QoS = QoS
    supports_fanout = True
    body_encoding = None

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        self.closed: bool
        super().__init__(connection, **kwargs)
        self._process_id = os.getpid()
        self.session: Session = connection.session
        self.alias: str = connection.alias
        self.declarations: routing.Declarations = connection.declarations
        self.consumptions: dict[str, Consumption] = {}

    # Declarations.

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        """Return the arguments of RabbitMQ for the options of ``kombu.Queue``."""
        return to_rabbitmq_queue_arguments(arguments or {}, **kwargs)

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str = "direct",
        passive: bool = False,
        **kwargs: Any,
    ) -> None:
        """Declare an exchange."""
        kind = type or "direct"
        name = exchange or f"amq.{kind}"
        with self._statements():
            if not passive:
                self.declarations.declare_exchange(name, kind)
            elif not self.declarations.has_exchange(name):
                raise routing.not_found("exchange", name)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete an exchange with its bindings. Its queues stay."""
        with self._statements():
            self.declarations.delete_exchange(exchange)

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        auto_delete: bool = False,
        exclusive: bool = False,
        arguments: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Declare a queue. Passive: raise ChannelError 404 if it does not exist.

        The number of messages in the result is counted up to 10,000.
        """
        name = queue or f"amq.gen-{uuid()}"
        arguments = arguments or {}
        options = {
            "auto_delete": bool(auto_delete or exclusive),
            "message_ttl": _milliseconds(arguments.get("x-message-ttl")),
            "expires": _milliseconds(arguments.get("x-expires")),
        }
        with self._statements():
            if passive:
                queue_id = self._queue_id(name)
            else:
                queue_id = self.declarations.declare_queue(name, options)
            return queue_declare_ok_t(name, routing.length(self.alias, queue_id), 0)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        """Bind a queue to an exchange."""
        name = exchange or "amq.direct"
        with self._statements():
            if name.startswith("amq."):
                self.declarations.declare_exchange(name, name.removeprefix("amq."))
            self.declarations.bind(queue, name, routing_key or "", arguments)

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        """Delete a binding."""
        with self._statements():
            self.declarations.unbind(queue, exchange or "amq.direct", routing_key or "", arguments)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        """Delete a queue with its messages."""
        with self._statements():
            if if_empty and self._size(queue):
                return
            self.declarations.delete_queue(queue)

    def is_routed(self, exchange: str, routing_key: str, headers: Any = None) -> bool:
        """Return whether an exchange routes such a message to a queue."""
        with self._statements():
            return bool(self.declarations.routed_to(exchange, routing_key, headers or {}))

    def list_bindings(self) -> Any:
        """Return the stored bindings as queue, exchange and routing key."""
        with self._statements():
            return iter(self.declarations.all_bindings())

    def get_exchanges(self) -> list[str]:
        """Return the exchanges that this process declared."""
        return list(self.declarations.exchanges)

    def _size(self, queue: str) -> int:
        with self._statements():
            queue_id = self.declarations.queue_id(queue)
            return 0 if queue_id is None else routing.length(self.alias, queue_id)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        with self._statements():
            return self.declarations.queue_id(queue) is not None

    def _purge(self, queue: str) -> int:
        with self._statements():
            messages = routing.ready_messages(self.alias, self._queue_id(queue))
            return routing.delete_in_parts(messages)

    def _queue_id(self, queue: str) -> int:
        """Return the id of a queue; raises ChannelError 404 if it is not stored."""
        with self._statements():
            queue_id = self.declarations.queue_id(queue)
            if queue_id is None:
                raise routing.not_found("queue", queue)
            return queue_id

    # Publishing.

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any
    ) -> None:
        """Insert the message on the connection of this thread, in its transaction if there is one.

        Raises MessageTooLarge, ValueError for a name that is too long, and the errors of Django.
        """
        routing_key = routing.checked_name("routing key", routing_key or "")
        # As AMQP does: Kombu passes on every keyword argument that it does not know.
        all_properties = message["properties"]
        message["properties"] = properties = {
            name: value for name, value in all_properties.items() if name in _PROPERTIES
        }
        message["body"], encoding = self.encode_body(
            message["body"], None if isinstance(message["body"], str) else "base64"
        )
        properties.update(body_encoding=encoding, delivery_tag=self._next_delivery_tag())
        properties["delivery_info"].update(exchange=exchange or "", routing_key=routing_key)
        body = dumps(message)
        limit = self.connection.max_message_bytes if self.connection else MAX_MESSAGE_BYTES
        if len(body) > limit:
            raise MessageTooLarge(
                f"The message for {routing_key or exchange!r} has {len(body):,} bytes;"
                f" durable-database:// stores at most {limit:,}. Pass the id of a stored object"
                " instead, or raise broker_transport_options['max_message_bytes']."
            )
        stored = routing.StoredMessage(
            rank=self._get_message_priority(message, reverse=True),
            body=body,
            ttl=_milliseconds(properties.get("expiration")),
        )
        with self._statements():
            number = self.declarations.publish(
                exchange or "", routing_key, message["headers"] or {}, stored
            )
            if number:
                notify = self.connection.notify if self.connection else True
                consumers.after_commit(self.alias, notify=notify)

    @contextmanager
    def _statements(self) -> Iterator[None]:
        """Close the connection of the thread after an error that may have broken it. Kombu then
        tries again with another one. In a transaction only its owner can go on.
        """
        try:
            yield
        except LOST:
            connection = connections[self.alias]
            if not connection.in_atomic_block:
                with suppress(DatabaseError):
                    connection.close()
            raise

    # Consuming.

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        """Consume from a queue; raises ChannelError 404 if it does not exist."""
        queue_id = self._queue_id(queue)
        self.session.open()
        with self.session.connected():
            Queue.objects.using(self.alias).filter(pk=queue_id).exclude(
                unused_until__isnull=True, auto_delete=False
            ).update(consumer=self.session.consumer)
        self.consumptions[consumer_tag] = Consumption(queue, queue_id, callback, bool(no_ack))
        self._consumers.add(consumer_tag)
        self.connection.started_consuming()

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop a consumer. What it has not acknowledged stays with the channel.

        A queue that can expire begins to, and an automatically deleted one is deleted.
        """
        self._consumers.discard(consumer_tag)
        consumption = self.consumptions.pop(consumer_tag, None)
        if consumption is None or os.getpid() != self._process_id:
            return
        queue = consumption.queue
        options = self.declarations.queues.get(queue, {})
        transport = self.connection
        if transport is not None and queue in transport.queues_in_use():
            return
        try:
            with self.session.connected():
                if options.get("auto_delete"):
                    self.declarations.delete_queue(queue)
                elif options.get("expires") is not None:
                    Queue.objects.using(self.alias).filter(pk=consumption.queue_id).update(
                        consumer=None, unused_until=after(options["expires"] / 1000)
                    )
        except LOST as error:
            logger.debug("Queue %r was not given up: %s", queue, error)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return the next message; None if there is none."""
        queue_id = self._queue_id(queue)
        while rows := self.session.claim([Demand(queue_id, 0, 1)]):
            message = self.message_of(rows[0], no_ack=no_ack)
            if message is not None:
                return message
        return None

    def message_of(self, row: Claimed, *, no_ack: bool) -> Any:
        """Return a claimed message and record it; None, and put it aside, if it cannot be read."""
        try:
            payload = loads(row.body)
            properties = payload["properties"]
            properties["delivery_tag"] = f"{row.id}-{row.deliveries}"
            properties["delivery_info"]["redelivered"] = row.deliveries > 1
            message = self.Message(payload, channel=self)
            mappings = message.headers, message.properties, message.delivery_info
            if not all(isinstance(mapping, dict) for mapping in mappings):
                raise TypeError("headers, properties and delivery_info must be objects")
        except Exception as error:  # noqa: BLE001 - one message must not stop the others
            self.session.put_aside(row.id)
            logger.error(
                "Message %d of durable_tasks_transport_message cannot be read (%r). It stays there"
                " with consumer = 0; repair it and set consumer to NULL, or delete it.",
                row.id,
                error,
            )
            return None
        if no_ack:
            self.session.acknowledge(row.id)
        else:
            self.qos.append(message, message.delivery_tag)
        return message

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge a message: it is deleted within 20 ms."""
        if self.connection is not None and delivery_tag.startswith(RUN_TAG):
            self.connection.due_tasks.accepted(delivery_tag)
            return
        self.qos.ack(delivery_tag, multiple)
        if self.connection is not None:
            self.connection.wake()

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Reject a message: it is deleted, or returned to its place in the queue."""
        if self.connection is not None and delivery_tag.startswith(RUN_TAG):
            self.connection.due_tasks.rejected(delivery_tag)
            return
        self.qos.reject(delivery_tag, requeue=requeue)
        if self.connection is not None:
            self.connection.wake()

    def basic_recover(self, requeue: bool = False) -> Any:
        """Return all unacknowledged messages of this channel to their queues."""
        return self.qos.restore_unacked()

    def give_back(self, messages: list[int]) -> None:
        """Return held messages to their queues. In a forked child it does nothing."""
        if messages and os.getpid() == self._process_id:
            self.session.give_back(messages)
            consumers.wake(self.alias)

    def demand(self) -> tuple[int, bool]:
        """Return how many further messages the prefetch limit allows, and whether there are
        consumers without acknowledgement, which it does not limit.
        """
        unlimited = any(consumption.no_ack for consumption in self.consumptions.values())
        return self.qos.can_consume_max_estimate(), unlimited

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        """Deliver what is ready for this connection."""
        self.connection.drain_events(self.connection, timeout=timeout)

    def close(self) -> None:
        """Cancel the consumers, and return what was not acknowledged."""
        if self.closed:
            return
        self.closed = True
        for consumer_tag in list(self._consumers):
            self.basic_cancel(consumer_tag)
        if self._qos is not None:
            self._qos.restore_unacked_once()
        if self.connection is not None:
            self.connection.close_channel(self)


def _milliseconds(value: Any) -> int | None:
    return None if value is None else int(float(value))


class Transport(virtual.Transport):
    """A connection to the broker in the database of an alias of DATABASES.

    Options: ``lease`` (seconds), ``polling_interval`` (seconds between two polls of an idle
    consumer at most, twice that while notifications arrive), ``max_message_bytes``, ``notify``
    (False: no LISTEN and NOTIFY).
    """

    Channel = Channel
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=routing.TYPES, heartbeats=False
    )
    driver_type = "database"
    driver_name = "django"
    connection_errors = (*virtual.Transport.connection_errors, *LOST)
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors: tuple[type[Exception], ...] = ()
    polling_interval = LONGEST_PAUSE
    default_connection_params: dict[str, Any] = {}  # Kombu's would warn that no host is named

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        # Kombu writes the host of a URL in lower case.
        host = client.hostname or DEFAULT_DB_ALIAS
        alias = due_tasks.find_alias(host)
        if alias is None:
            raise ImproperlyConfigured(
                f"durable-database://{host}: DATABASES has no alias {host!r} (it has:"
                f" {', '.join(sorted(connections))})."
            )
        self.alias = alias
        options = client.transport_options
        self.max_message_bytes = int(options.get("max_message_bytes", MAX_MESSAGE_BYTES))
        self.notify = bool(options.get("notify", True))
        self._lease = float(options.get("lease", consumers.LEASE))
        self.declarations = _declarations.setdefault(self.alias, routing.Declarations(self.alias))
        self.session = Session(self.alias, self._lease, self.queues_in_use, self._queues_missing)
        self._pause = _SHORTEST_PAUSE
        self._next_poll = 0.0
        self._echo_at = float("inf")
        self._attention = threading.Event()
        self._undelivered: deque[tuple[Claimed, Any, bool]] = deque()
        self._in_outage = False
        self._loop: Any = None
        self._timer: Any = None
        self._bell: tuple[socket.socket, socket.socket] | None = None
        self._process_id = os.getpid()
        self.due_tasks: DueTasks | None = None
        """The durable tasks that this connection takes, if they are in the same database."""

    def establish_connection(self) -> Any:
        """Check that the database can be reached and has the tables of the broker."""
        try:
            Queue.objects.using(self.alias).exists()
        except DatabaseError as error:
            connection = connections[self.alias]
            if not connection.in_atomic_block:
                with suppress(DatabaseError):
                    connection.close()
            if is_unmigrated(error):
                raise ImproperlyConfigured(
                    f"Database {self.alias!r} has no table {Queue._meta.db_table}: run"
                    f" `manage.py migrate durable_tasks_transport --database {self.alias}`."
                ) from error
            raise
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Leave the event loop, and return what was not acknowledged."""
        inherited = os.getpid() != self._process_id
        if not inherited:
            self._leave_loop()
            consumers.forget(self.alias, self)
            waiting, self._undelivered = self._undelivered, deque()
            with suppress(*LOST):
                self.session.give_back([row.id for row, _, _ in waiting])
        super().close_connection(connection)
        self.session.close()
        self.session = Session(self.alias, self._lease, self.queues_in_use, self._queues_missing)

    # Polling.

    def queues_in_use(self) -> dict[str, int]:
        """Return the queues that this connection consumes, with their ids."""
        return {consumption.queue: consumption.queue_id for _, consumption in self._consumptions()}

    def _consumptions(self) -> Iterator[tuple[Any, Consumption]]:
        for channel in list(self.channels):
            for consumption in list(channel.consumptions.values()):
                yield channel, consumption

    def _queues_missing(self, names: list[str]) -> None:
        logger.warning("Queues that are consumed were deleted; declaring them again: %s", names)
        self.declarations.declare_again(names)
        for _, consumption in self._consumptions():
            if consumption.queue in names:
                consumption.queue_id = self.declarations.queue_id(consumption.queue) or 0
        self.wake()

    def started_consuming(self) -> None:
        """Poll now, and whenever a message may have arrived."""
        consumers.register(self.alias, self, listen=self.notify)
        if self.due_tasks is None and takes_tasks():
            self.due_tasks = due_tasks.of_connection()
        self.wake()

    def wake(self, echo: float = 0.0) -> None:
        """Poll now, and again after ``echo`` seconds; called from any thread."""
        self._next_poll = 0.0
        if echo:
            self._echo_at = time.monotonic() + echo
        self._attention.set()
        bell = self._bell
        if bell is not None:
            with suppress(OSError):  # full: the loop has not yet handled earlier wake-ups
                bell[1].send(b"\0")

    def poll(self) -> int:
        """Claim and deliver messages; return how many were delivered.

        Errors of the database are not raised: the lease outlives a restart of the server, so a
        consumer goes on where it was.
        """
        # At the echo of a wake-up too: what was committed meanwhile may be messages or due tasks.
        # An echo that becomes due during this call needs another one, which looks at both again.
        is_echo = time.monotonic() >= self._echo_at
        if is_echo:
            self._echo_at = float("inf")
        woken = self._attention.is_set() or is_echo
        self._attention.clear()
        delivered = self._deliver_claimed() + self._take_due_tasks(woken=woken)
        if not woken and time.monotonic() < self._next_poll:
            return delivered  # only due tasks were looked for
        demands: list[Demand] = []
        takers: list[tuple[Any, bool]] = []
        for channel in list(self.channels):
            free, unlimited = channel.demand()
            for no_ack, most in ((False, free), (True, BATCH if unlimited else 0)):
                queues = {
                    consumption.queue_id
                    for consumption in list(channel.consumptions.values())
                    if consumption.no_ack == no_ack
                }
                if most and queues:
                    demands.extend(Demand(queue, len(takers), most) for queue in sorted(queues))
                    takers.append((channel, no_ack))
        if not demands:
            self._plan(delivered, full=False)
            return delivered
        try:
            rows = self.session.claim(demands)
        except LOST as error:
            if not self._in_outage:
                self._in_outage = True
                logger.warning(
                    "The database %r cannot be reached; trying again every %g s: %s",
                    self.alias,
                    _OUTAGE_PAUSE,
                    error,
                )
            self._next_poll = time.monotonic() + _OUTAGE_PAUSE
            self._echo_at = float("inf")
            return delivered
        if self._in_outage:
            self._in_outage = False
            logger.info("The database %r is available again.", self.alias)
        self._undelivered.extend((row, *takers[row.channel]) for row in rows)
        self._plan(len(rows), full=len(rows) >= min(demand.limit for demand in demands))
        return delivered + self._deliver_claimed()

    def _plan(self, claimed: int, *, full: bool) -> None:
        now = time.monotonic()
        if claimed:
            self._pause = _SHORTEST_PAUSE
        again = (full and claimed) or self._attention.is_set()
        self._next_poll = now if again else now + self._pause
        longest = consumers.longest_pause(self.alias, self.polling_interval)
        self._pause = min(self._pause * _SLOWER, longest)

    def _deliver_claimed(self) -> int:
        delivered = 0
        while self._undelivered:
            row, channel, no_ack = self._undelivered.popleft()
            consumption = next(
                (
                    consumption
                    for consumption in list(channel.consumptions.values())
                    if consumption.queue_id == row.queue and consumption.no_ack == no_ack
                ),
                None,
            )
            if consumption is None or channel.closed:
                channel.give_back([row.id])
                continue
            message = channel.message_of(row, no_ack=no_ack)
            if message is not None:
                delivered += 1
                consumption.callback(message)
        return delivered

    def _take_due_tasks(self, *, woken: bool) -> int:
        """Start due durable tasks, and deliver them; return how many."""
        if self.due_tasks is None or not (woken or time.monotonic() >= self.due_tasks.look_at):
            return 0
        consumed = {
            consumption.queue: (channel, consumption)
            for channel, consumption in self._consumptions()
            if not consumption.no_ack
        }
        channels = {queue: channel for queue, (channel, _) in consumed.items()}
        self.due_tasks.is_full = False
        if woken:
            self.due_tasks.look_again()
        number = 0
        for queue, message in self.due_tasks.take(channels):
            consumed[queue][1].callback(message)
            number += 1
        return number

    def _due(self) -> float:
        """Return after how many seconds the next poll is due."""
        look_at = float("inf") if self.due_tasks is None else self.due_tasks.look_at
        if self._loop is None and self.due_tasks is not None and self.due_tasks.is_full:
            look_at = min(look_at, time.monotonic() + _FULL_PAUSE)
        return min(self._next_poll, self._echo_at, look_at) - time.monotonic()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver what is ready; wait for it at most ``timeout`` seconds, then raise
        socket.timeout.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if (self._attention.is_set() or self._due() <= 0) and self.poll():
                return
            wait = max(0.0, self._due())
            if deadline is not None:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise TimeoutError
                wait = min(wait, remaining)
            self._attention.wait(wait)

    # Celery's event loop.

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver from Celery's event loop; its other loop stops while all children are busy."""
        self._leave_loop()
        self._loop = loop
        self._bell = reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        loop.add_reader(reader, self._rung, reader)
        loop.on_tick.add(self._on_tick)
        self._schedule(0.0)

    def _on_tick(self) -> None:
        """Take due tasks at once when a child has ended its run."""
        due_tasks = self.due_tasks
        if due_tasks is None or not due_tasks.is_full or not due_tasks.has_free_process():
            return
        due_tasks.look_at = 0.0
        if self._timer is not None:
            self._timer.cancel()
        self._turn()
        # The pool writes to its children what was given to it before its own callback. That may
        # have been called already, and the loop is about to wait.
        for callback in list(self._loop.on_tick) if self._loop is not None else ():
            if callback != self._on_tick:
                callback()

    def _leave_loop(self) -> None:
        loop, self._loop = self._loop, None
        bell, self._bell = self._bell, None
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if bell is not None:
            if loop is not None:
                loop.on_tick.discard(self._on_tick)
                with suppress(KeyError, OSError, ValueError):
                    loop.remove(bell[0])
            for end in bell:
                end.close()

    def _rung(self, reader: socket.socket) -> None:
        with suppress(BlockingIOError):
            while reader.recv(4096):
                pass
        self._schedule(0.0)

    def _schedule(self, pause: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, pause), self._turn)

    def _turn(self) -> None:
        self._timer = None
        if self._loop is None:
            return
        try:
            self.poll()
        finally:
            if self._loop is not None:
                self._schedule(self._due())
