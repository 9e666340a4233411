"""The consumers of this process: their own connections and leases, and what wakes them.

A consumer holds the messages that it claimed until it acknowledges or returns them. Its lease is
one row, which a thread renews while the process lives, however long its tasks run. If the process
dies, another consumer finds the expired lease, returns the messages and deletes the row.

The connection is not one of Django's: a claim must be committed at once, not with a transaction of
the thread. A forked child never uses it.
"""

from __future__ import annotations

import functools
import logging
import os
import random
import select
import socket
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from django.core.exceptions import ImproperlyConfigured
from django.db import (
    DatabaseError,
    Error,
    InterfaceError,
    OperationalError,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.transaction import TransactionManagementError

from django_durable_tasks import conf
from django_durable_tasks.celery import worker_node
from django_durable_tasks.contrib.database_transport import routing
from django_durable_tasks.contrib.database_transport.models import Consumer, Message, Queue
from django_durable_tasks.models import Node
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.scheduler import notifier
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import after
from django_durable_tasks.store.connections import WORK, open_dedicated
from django_durable_tasks.store.dialects import POSTGRESQL, sql
from django_durable_tasks.texts import counted

logger = logging.getLogger("django_durable_tasks.transport")

LOST = (OperationalError, InterfaceError)
"""Errors of a server that is away, a broken connection, a deadlock or a lock timeout."""
UNREADABLE = 0
"""The consumer of messages that cannot be read. They stay in the table until an operator acts."""
# Seconds. Long enough for a restart of the server, short enough for a dead worker.
LEASE = 30.0
# A lease survives two failed renewals.
_RENEWALS = 3
# Seconds for which an acknowledgement waits for the next claim, which deletes it without a
# transaction of its own.
_ACKNOWLEDGE_WITHIN = 0.02
# Seconds until the keeper tries again after an error.
_RETRY = 1.0
# Bits of a consumer's random id. BigIntegerField has 63.
_ID_BITS = 62
# Expired messages that one round deletes.
_EXPIRED_AT_ONCE = 1000
# Dead nodes that the job looks at: the latest ones.
_NODES = 1000
# Seconds that a fork waits for a statement of another thread.
_FORK_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Demand:
    """How many messages of a queue a channel can take now."""

    queue: int
    channel: int
    limit: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claimed message."""

    id: int
    queue: int
    rank: int
    deliveries: int
    body: str
    channel: int


class Session:
    """The connection and the lease of one consuming connection of Kombu.

    ``in_use()`` returns the names and ids of the queues that it consumes. ``missing(names)`` is
    called for those that another process deleted.
    """

    def __init__(
        self,
        alias: str,
        lease: float,
        in_use: Callable[[], dict[str, int]],
        missing: Callable[[list[str]], None],
    ) -> None:
        self.alias = alias
        self.consumer = random.SystemRandom().getrandbits(_ID_BITS) + 1
        self._lease, self._in_use, self._missing = lease, in_use, missing
        self._lock = threading.RLock()
        self._connection: BaseDatabaseWrapper | None = None
        self._process_id = os.getpid()
        self._acknowledged: deque[int] = deque()
        self._attention = threading.Event()
        self._keeper: threading.Thread | None = None
        self._closed = False
        self._lost_lease = False
        self._busy = False
        self._dropped: list[int] = []
        _sessions.add(self)

    # The connection.

    @contextmanager
    def connected(self) -> Iterator[BaseDatabaseWrapper]:
        """Let the ORM of this thread use the own connection while the block runs.

        After an error the connection is closed. The next block opens another one.
        """
        if os.getpid() != self._process_id:
            raise OperationalError(
                "The connection of a consumer was inherited by a forked process."
            )
        before = connections[self.alias]
        if getattr(before, "is_in_memory_db", bool)():
            raise ImproperlyConfigured(
                "durable-database:// cannot consume from an in-memory SQLite database, which other"
                " connections do not see. Use a file, or memory:// in tests."
            )
        with self._lock:
            if self._connection is None:
                self._connection = open_dedicated(self.alias, WORK)
            connections[self.alias] = self._connection
            try:
                yield self._connection
            except BaseException:
                self._drop_connection()
                raise
            finally:
                connections[self.alias] = before

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Error):
                connection.close()

    # The lease.

    def open(self) -> None:
        """Store the lease, and start the thread that renews it."""
        if self._keeper is not None:
            return
        with self.connected():
            self._renew()
        self._keeper = threading.Thread(
            target=self._keep, name=f"durable-transport-{self.alias}", daemon=True
        )
        self._keeper.start()

    def close(self) -> None:
        """Delete what was acknowledged and the lease; returns every message that is still held."""
        if os.getpid() != self._process_id:
            return
        self._closed = True
        self._attention.set()
        if self._keeper is None and not self._acknowledged:
            with self._lock:
                self._drop_connection()
            return
        try:
            with self.connected():
                self.flush()
                if self._keeper is not None:
                    with transaction.atomic(using=self.alias):
                        _release_of(self.alias, [self.consumer])
        except LOST as error:
            logger.warning(
                "The messages of this consumer return at the end of its lease (%s): %s",
                type(error).__name__,
                error,
            )
        finally:
            with self._lock:
                self._drop_connection()

    def _renew(self) -> None:
        consumer = Consumer.objects.using(self.alias).filter(pk=self.consumer)
        if consumer.update(expires_at=after(self._lease)):
            return
        if self._keeper is not None:
            self._lost_lease = True
            logger.warning(
                "The lease of this consumer had expired, and its messages were returned to their"
                " queues. The process was stopped, or could not reach the database, for %g s.",
                self._lease,
            )
        Consumer.objects.using(self.alias).create(
            pk=self.consumer,
            expires_at=after(self._lease),
            hostname=socket.gethostname()[:255],
            process_id=os.getpid(),
            node=worker_node.node_of_worker(),
        )

    def _keep(self) -> None:
        """Renew the lease, delete acknowledged messages and reap until the session is closed."""
        interval = self._lease / _RENEWALS
        next_round = time.monotonic()
        while not self._closed:
            self._attention.wait(max(0.0, next_round - time.monotonic()))
            self._attention.clear()
            try:
                if self._acknowledged:
                    threading.Event().wait(_ACKNOWLEDGE_WITHIN)
                    if self._acknowledged:
                        with self.connected():
                            self.flush()
                if time.monotonic() >= next_round and not self._closed:
                    with self.connected():
                        self._round()
                    next_round = time.monotonic() + interval * random.uniform(0.9, 1.0)
            except LOST as error:
                logger.debug("The lease could not be renewed: %s", error)
                next_round = time.monotonic() + _RETRY
            except Exception:
                logger.exception("The lease could not be renewed.")
                next_round = time.monotonic() + _RETRY
        with self._lock:  # this thread may have opened one after ``close`` had closed its own
            self._drop_connection()

    def _round(self) -> None:
        if self._closed:
            return
        self._renew()
        used = self._in_use()
        if used:
            expiring = Queue.objects.using(self.alias).filter(
                Q(unused_until__isnull=False) | Q(auto_delete=True), pk__in=used.values()
            )
            expiring.exclude(consumer=self.consumer).update(consumer=self.consumer)
            queues = Queue.objects.using(self.alias).filter(pk__in=used.values())
            stored = set(queues.values_list("pk", flat=True))
            if lost := [name for name, pk in used.items() if pk not in stored]:
                self._missing(lost)
        self._reap()

    # Reaping: any consumer does it for all.

    def _reap(self) -> None:
        release(self.alias, Consumer.objects.filter(expires_at__lt=DatabaseNow()))
        expired_messages = Message.objects.using(self.alias).filter(
            expires_at__lt=DatabaseNow(), consumer__isnull=True
        )
        ids = list(expired_messages.values_list("pk", flat=True)[:_EXPIRED_AT_ONCE])
        if ids:
            expired_messages.filter(pk__in=ids).delete()
        # A message may have been inserted while its queue was deleted; the next round finds it.
        again, self._dropped = self._dropped, routing.expired_queues(self.alias)
        routing.drop_queues(self.alias, self._dropped)
        if again:
            Message.objects.using(self.alias).filter(queue__in=again).delete()

    # Messages.

    def acknowledge(self, message: int) -> None:
        """Delete a message with the next claim, or within 20 ms.

        After the session was closed, its messages have returned to their queues; one that no
        other consumer has claimed yet is deleted at once.
        """
        self._acknowledged.append(message)
        if not self._closed:
            self._attention.set()
            return
        try:
            with self.connected():
                self.flush()
        except LOST as error:
            logger.warning("Message %d is delivered again: %s", message, error)
        finally:
            with self._lock:
                self._drop_connection()

    def _take_acknowledged(self) -> list[int]:
        taken = []
        with suppress(IndexError):
            while True:
                taken.append(self._acknowledged.popleft())
        return taken

    def flush(self) -> None:
        """Delete what was acknowledged. One that was returned meanwhile is deleted as well, unless
        another consumer has it.
        """
        taken = self._take_acknowledged()
        if not taken:
            return
        try:
            held = Q(consumer=self.consumer) | Q(consumer__isnull=True)
            Message.objects.using(self.alias).filter(held, pk__in=taken).delete()
        except BaseException:
            self._acknowledged.extendleft(reversed(taken))
            raise

    def give_back(self, messages: Sequence[int]) -> None:
        """Return held messages to their queues, at their old places."""
        if messages:
            with self.connected():
                Message.objects.using(self.alias).filter(
                    pk__in=messages, consumer=self.consumer
                ).update(consumer=None)

    def put_aside(self, message: int) -> None:
        """Keep a message that cannot be read, and deliver it to no one."""
        with self.connected():
            Message.objects.using(self.alias).filter(pk=message, consumer=self.consumer).update(
                consumer=UNREADABLE
            )

    def claim(self, demands: Sequence[Demand]) -> list[Claimed]:
        """Claim ready messages, the highest priority and then the oldest first.

        An idle poll is one statement for all queues, which writes nothing.
        """
        self.open()
        with self.connected() as connection:
            if self._lost_lease:
                self._lost_lease = False
                self.flush()
            taken = self._take_acknowledged()
            try:
                if connection.vendor == POSTGRESQL:
                    rows = self._claim_on_postgresql(connection, demands, taken)
                else:
                    rows = self._claim(connection, demands, taken)
            except BaseException:
                self._acknowledged.extendleft(reversed(taken))
                raise
        self._busy = bool(rows)
        return sorted(rows, key=lambda row: (row.rank, row.id))

    def _claim_on_postgresql(
        self, connection: BaseDatabaseWrapper, demands: Sequence[Demand], acknowledged: list[int]
    ) -> list[Claimed]:
        with connection.cursor() as cursor:
            cursor.execute(
                sql("transport_claim", POSTGRESQL),
                {
                    "acknowledged": acknowledged,
                    "consumer": self.consumer,
                    "queues": [demand.queue for demand in demands],
                    "channels": [demand.channel for demand in demands],
                    "limits": [demand.limit for demand in demands],
                },
            )
            return [Claimed(*row) for row in cursor.fetchall()]

    def _claim(
        self, connection: BaseDatabaseWrapper, demands: Sequence[Demand], acknowledged: list[int]
    ) -> list[Claimed]:
        ready = {demand.queue for demand in demands}
        if not self._busy and not acknowledged:
            available = Message.objects.using(self.alias).filter(
                Q(expires_at__isnull=True) | Q(expires_at__gt=DatabaseNow()),
                queue=OuterRef("pk"),
                consumer__isnull=True,
            )
            queues = Queue.objects.using(self.alias).filter(Exists(available), pk__in=ready)
            ready = set(queues.values_list("pk", flat=True))
            if not ready:
                return []
        with transaction.atomic(using=self.alias):
            # A write first: SQLite in its deferred mode could not begin to write after a read. It
            # also excludes that this consumer is declared dead meanwhile.
            consumer = Consumer.objects.using(self.alias).filter(
                pk=self.consumer, expires_at__gt=DatabaseNow()
            )
            alive = consumer.update(expires_at=after(self._lease))
            if acknowledged:
                Message.objects.using(self.alias).filter(
                    pk__in=acknowledged, consumer=self.consumer
                ).delete()
            rows = self._lock_ready(connection, demands, ready) if alive else []
            Message.objects.using(self.alias).filter(pk__in=[row.id for row in rows]).update(
                consumer=self.consumer, deliveries=F("deliveries") + 1
            )
        return rows

    def _lock_ready(
        self, connection: BaseDatabaseWrapper, demands: Sequence[Demand], ready: set[int]
    ) -> list[Claimed]:
        skip = connection.features.has_select_for_update_skip_locked
        candidates: dict[int, list[Claimed]] = {}
        limits: dict[int, int] = {}
        seen = set[int]()
        for demand in demands:
            if demand.queue not in ready:
                continue
            limits[demand.channel] = max(demand.limit, limits.get(demand.channel, 0))
            messages = routing.ready_messages(self.alias, demand.queue).order_by("rank", "pk")
            free = messages.select_for_update(skip_locked=skip)
            rows = free.values_list("pk", "queue", "rank", "deliveries", "body")[: demand.limit]
            claimed = [
                Claimed(pk, queue, rank, deliveries + 1, body, demand.channel)
                for pk, queue, rank, deliveries, body in rows
                if pk not in seen
            ]
            seen.update(row.id for row in claimed)
            candidates.setdefault(demand.channel, []).extend(claimed)
        return [
            row
            for channel, rows in candidates.items()
            for row in sorted(rows, key=lambda row: (row.rank, row.id))[: limits[channel]]
        ]


def release(alias: str, consumers: QuerySet[Consumer]) -> int:
    """Delete these consumers, except those that another transaction has locked, and return their
    messages to the queues; return the number of messages.
    """
    skip = connections[alias].features.has_select_for_update_skip_locked
    with transaction.atomic(using=alias):
        locked = consumers.using(alias).select_for_update(skip_locked=skip)
        dead = list(locked.values_list("pk", flat=True))
        number = _release_of(alias, dead) if dead else 0
    if dead:
        # Consumers of commands such as `celery inspect` end without messages.
        logger.log(
            logging.WARNING if number else logging.DEBUG,
            "%s gone: %s returned to the queues",
            counted(len(dead), "consumer has", "consumers have"),
            counted(number, "message"),
        )
    return number


def _release_of(alias: str, consumers: Sequence[int]) -> int:
    # First without locks: on MySQL and MariaDB an UPDATE by an unindexed column would wait for the
    # uncommitted messages of every caller.
    messages = Message.objects.using(alias).filter(consumer__in=consumers)
    ids = list(messages.values_list("pk", flat=True))
    number = messages.filter(pk__in=ids).update(consumer=None) if ids else 0
    Consumer.objects.using(alias).filter(pk__in=consumers).delete()
    return number


def release_of_dead_nodes(alias: str) -> int:
    """Return the messages that workers hold which were declared dead; a job of the leader."""
    dead = Node.objects.using(tables.database()).filter(declared_dead=True)
    nodes = list(dead.order_by("-last_seen_at").values_list("pk", flat=True)[:_NODES])
    consumers = Consumer.objects.filter(node__in=nodes)
    # The lock is needed for those that exist only, which are few and seldom.
    return release(alias, consumers) if consumers.using(alias).exists() else 0


# Wakes consumers when a message was committed: in this process, and by PostgreSQL's NOTIFY.
#
# Polls find every message that was not announced. PostgreSQL takes a lock of the whole server for a
# commit that notifies, so NOTIFY is never part of the transaction of a caller: it follows the
# commit as a statement of its own, at most once per 50 ms and process. A consumer that was woken
# polls again after 60 ms, for what was committed meanwhile.


CHANNEL = "durable_tasks_transport"
# Seconds between two notifications of a process.
INTERVAL = 0.05
# Seconds after which a woken consumer polls again: longer than INTERVAL.
ECHO = 0.06
# Seconds of one wait for notifications; bounds how long a stopped listener lives on.
_WAIT = 1.0
# Seconds within which a notification of the listener to itself has to come.
_TEST_WITHIN = 3.0
# Seconds until the next attempt: after a lost connection, and after a failed self-test.
_RECONNECT, _TEST_AGAIN = 2.0, 60.0


class Sleeper(Protocol):
    """A consuming connection that can be woken."""

    def wake(self, echo: float = 0.0) -> None:
        """Poll now, and again after ``echo`` seconds; called from any thread."""


_sleepers: dict[str, weakref.WeakSet[Any]] = {}
_listeners: dict[str, Listener] = {}
_guard = threading.Lock()
_next_notification: dict[str, float] = {}


def register(alias: str, sleeper: Sleeper, *, listen: bool) -> None:
    """Wake this connection from now on, and listen on PostgreSQL if ``listen``."""
    with _guard:
        _sleepers.setdefault(alias, weakref.WeakSet()).add(sleeper)
        if not listen or connections[alias].vendor != POSTGRESQL:
            return
        listener = _listeners.get(alias)
        if listener is None or not listener.is_alive():
            _listeners[alias] = listener = Listener(alias)
            listener.start()


def forget(alias: str, sleeper: Sleeper) -> None:
    """Do not wake this connection any more. The last one of a database stops the listener."""
    with _guard:
        sleepers = _sleepers.get(alias)
        if sleepers is None:
            return
        sleepers.discard(sleeper)
        if not sleepers and (listener := _listeners.pop(alias, None)) is not None:
            listener.stopped = True


def wake(alias: str, echo: float = 0.0) -> None:
    """Wake the consumers of this process."""
    for sleeper in list(_sleepers.get(alias, ())):
        sleeper.wake(echo)


def longest_pause(alias: str, pause: float) -> float:
    """Return the longest pause (seconds) between two polls of an idle consumer.

    It is twice ``pause`` while notifications arrive: one statement a second for messages and tasks.
    """
    listener = _listeners.get(alias)
    return 2 * pause if listener is not None and listener.listening else pause


def after_commit(alias: str, *, notify: bool) -> None:
    """Wake consumers when the transaction of this thread commits; at once if there is none."""
    with suppress(TransactionManagementError):  # autocommit is off: a poll finds the message
        connections[alias].on_commit(functools.partial(_committed, alias, notify), robust=True)


def _committed(alias: str, notify: bool) -> None:
    wake(alias)
    connection = connections[alias]
    if not notify or connection.vendor != POSTGRESQL or connection.in_atomic_block:
        return
    now = time.monotonic()
    if now < _next_notification.get(alias, 0.0):
        return
    _next_notification[alias] = now + INTERVAL
    try:
        _send(connection, "")
    except DatabaseError as error:
        logger.debug("Consumers were not notified: %s", error)


def _send(connection: Any, payload: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql("notify", POSTGRESQL), {"channel": CHANNEL, "payload": payload})


class Listener(threading.Thread):
    """Receives notifications on a direct connection, one for all consumers of this process."""

    def __init__(self, alias: str) -> None:
        super().__init__(name=f"durable-transport-listener-{alias}", daemon=True)
        self.alias = alias
        self.stopped = False
        self.listening = False
        settings = conf.settings()
        is_task_database = alias == settings.DATABASE
        self._listen_alias = (settings.LISTEN_DATABASE if is_task_database else None) or alias
        self.connection: Any = None
        self._warned = False

    def run(self) -> None:
        """Listen until the last consumer has gone; never raises."""
        while not self.stopped:
            pause = _RECONNECT
            try:
                if not self._listen():
                    pause = _TEST_AGAIN
                    if not self._warned:
                        self._warned = True
                        logger.warning(
                            "No notification arrives from database %r, as behind a transaction"
                            " pooler; messages are found by polling. Name an alias with a direct"
                            " connection in DURABLE_TASKS['LISTEN_DATABASE'].",
                            self._listen_alias,
                        )
            except (Error, OSError) as error:
                logger.debug("The connection that listens was lost: %s", error)
            finally:
                self.listening = False
                connection, self.connection = self.connection, None
                with suppress(Error, OSError):
                    if connection is not None:
                        connection.close()
            deadline = time.monotonic() + pause
            while time.monotonic() < deadline and not self._has_no_consumer():
                threading.Event().wait(_WAIT)

    def _has_no_consumer(self) -> bool:
        return self.stopped  # another thread sets it

    def _listen(self) -> bool:
        """Return False if the self-test fails."""
        self.connection = open_dedicated(self._listen_alias, WORK)
        with self.connection.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")
            if self.alias == conf.settings().DATABASE:  # due tasks of the same database
                cursor.execute(f"LISTEN {notifier.CHANNEL}")
        token = uuid.uuid4().hex
        sender = open_dedicated(self.alias, WORK)
        try:
            _send(sender, token)
        finally:
            sender.close()
        test_ends = time.monotonic() + _TEST_WITHIN
        while not self.stopped:
            payloads = self._wait()
            if token in payloads:
                self.listening = True
                wake(self.alias, ECHO)
            elif not self.listening and time.monotonic() > test_ends:
                return False
            elif payloads:
                wake(self.alias, ECHO)
        return True

    def _wait(self) -> list[str]:
        driver = self.connection.connection
        if callable(driver.notifies):
            received = list(driver.notifies(timeout=_WAIT, stop_after=1))
        else:  # of psycopg 2: a list, which poll() fills
            select.select([driver], [], [], _WAIT)
            driver.poll()
            received, driver.notifies[:] = list(driver.notifies), []
        return [notification.payload for notification in received]


# Forks.


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
_held_for_fork: list[Session] = []
_inherited: list[Any] = []
"""Connections of the parent process. They are kept, because a driver that closes one in a child
may end the session of the parent.
"""


def _before_fork() -> None:
    """Wait until no thread is within a statement. SQLite's connections are also closed: a child
    that inherits one may corrupt its locks (SQLite: How To Corrupt, 2.6).
    """
    for session in list(_sessions):
        if session._lock.acquire(timeout=_FORK_PATIENCE):
            _held_for_fork.append(session)
            if session._connection is not None and session._connection.vendor == "sqlite":
                session._drop_connection()


def _after_fork_in_parent() -> None:
    while _held_for_fork:
        _held_for_fork.pop()._lock.release()


def _after_fork_in_child() -> None:
    global _guard
    for session in list(_sessions):
        session._lock = threading.RLock()
        if session._connection is not None:
            _inherited.append(session._connection)
            session._connection = None
    _sessions.clear()
    _held_for_fork.clear()
    _guard = threading.Lock()
    _inherited.extend(listener.connection for listener in _listeners.values())
    _listeners.clear()
    _sleepers.clear()
    _next_notification.clear()
    notifier.takers_of_process.clear()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
