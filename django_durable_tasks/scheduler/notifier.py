"""After a commit, notifies the schedulers of tasks that are due soon, and wakes the schedulers that
listen, through Redis or PostgreSQL.

This is an optimization: polls find every task that was not announced. Without Redis and
PostgreSQL it does nothing. A process sends at most one notification per ``INTERVAL`` seconds.
A scheduler that receives one polls a second time after that interval.
"""

from __future__ import annotations

import copy
import functools
import logging
import math
import select
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from django.db import Error, connections
from django.db.utils import load_backend

from django_durable_tasks import conf, ports
from django_durable_tasks.choices import Status
from django_durable_tasks.process_state import CircuitBreaker
from django_durable_tasks.store.clock import estimated_now, host_now
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.store.dialects import POSTGRESQL, sql, verb
from django_durable_tasks.store.tables import CommitHook, hook_of_transaction, in_atomic_block
from django_durable_tasks.task_values import NewTask
from django_durable_tasks.tasks.explanations import ago

# The Redis client of a process, for notifications and for the due index: short timeouts and a pause
# after a failure, so that callers do not wait for Redis.


_redis_logger = logging.getLogger("django_durable_tasks.due_index")
T = TypeVar("T")

# Seconds that a request waits at most: a web request may wait that long once in an outage.
REDIS_WAIT = 0.5
# Seconds after a failure in which requests return their default at once.
REDIS_PAUSE = 5.0
_url: str | None = None


def use_redis(url: str | None) -> None:
    """Use the Redis at ``url`` in this process instead of REDIS_URL; None restores the setting."""
    global _url
    _url = url


def redis_url() -> str | None:
    """Return the address of Redis; None if none is configured."""
    return _url or conf.settings().REDIS_URL


def redis_scope() -> str:
    """Return the prefix of this installation's keys in Redis: database and region."""
    settings = conf.settings()
    name = connections.settings[settings.DATABASE].get("NAME") or settings.DATABASE
    return f"durable:{{{name}:{settings.REGION}}}"


class RedisConnection:
    """A Redis client with a circuit breaker. Each change of its state is logged once."""

    def __init__(self, address: str) -> None:
        self.client, self._errors = _redis_client(address, REDIS_WAIT)
        self.why = ""
        self._breaker = CircuitBreaker(lambda: REDIS_PAUSE, lambda: 4 * REDIS_WAIT)

    def open(self) -> bool:
        """Return whether the last request succeeded."""
        return self._breaker.closed()

    def call(self, act: Callable[[Any], T], otherwise: T, *, probe: bool = True) -> T:
        """Return the result of ``act`` for the client, or ``otherwise`` while Redis is unavailable.
        Never raises RedisError.

        With ``probe=False`` no request is made after a failure until another caller succeeds. This
        is for callers that must not wait.
        """
        if not (self._breaker.allows() if probe else self.open()):
            return otherwise
        try:
            result = act(self.client)
        except self._errors as error:
            self.why = f"Redis does not serve ({type(error).__name__})"
            if self._breaker.failed():
                # The text of the error is not logged: it may contain the address with its password.
                _redis_logger.error(
                    "%s; due tasks are found by polling every %g s.", self.why, conf.settings().POLL
                )
            return otherwise
        if self._breaker.succeeded():
            self.why = ""
            _redis_logger.warning(
                "The connection to Redis is restored; the due index and notifications use it again."
            )
        return result


def _redis_client(address: str, read: float) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return a client and its errors.

    ``redis`` is imported here. Otherwise every command of a project loads it, also without
    REDIS_URL.
    """
    import redis  # noqa: PLC0415
    from redis.backoff import NoBackoff  # noqa: PLC0415
    from redis.retry import Retry  # noqa: PLC0415

    patience = {
        "socket_connect_timeout": REDIS_WAIT,
        "socket_timeout": read,
        "retry": Retry(NoBackoff(), 0),
        # Bytes that are not UTF-8 are decoded to surrogates, which encode to the same bytes, so
        # that such entries can be removed.
        "decode_responses": True,
        "encoding_errors": "surrogateescape",
    }
    return redis.Redis.from_url(address, **patience), (redis.RedisError, OSError)


def listening_client(address: str) -> Any:
    """Return a client for a listener. Its timeout is longer, because a channel without messages is
    not a failure.
    """
    return _redis_client(address, 10 * REDIS_WAIT)[0]


@functools.cache
def redis_at(address: str) -> RedisConnection:
    """Return the connection of this process to this address."""
    return RedisConnection(address)


def redis_connection() -> RedisConnection | None:
    """Return the shared Redis connection of this process; None if no Redis is configured."""
    address = redis_url()
    return None if address is None else redis_at(address)


# Instants in Redis and in notifications.


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant_ms(at: datetime) -> int:
    """Return an instant in milliseconds since 1970, rounded up."""
    return math.ceil((at - _EPOCH) / timedelta(milliseconds=1))


def from_ms(value: int) -> datetime:
    """Return the instant (UTC) of a number of milliseconds since 1970."""
    return _EPOCH + timedelta(milliseconds=value)


# The notification that wakes schedulers, and its channel. The format is the same in PostgreSQL and
# Redis.


CHANNEL = "durable_tasks_wake"
"""The channel in PostgreSQL. Channels are local to a database there; the notification contains the
region.
"""


def wake_channel(scope: str) -> str:
    """Return the channel in Redis, where all databases share the channels."""
    return f"{scope}:wake"


class NotificationKind(StrEnum):
    """The subject of a notification."""

    ROWS = "rows"
    LEADER_WORK = "leader_work"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification of due tasks, of work for the leader, or of a listener's self-test.

    ``at`` is the first due time (UTC). ``word`` is the token of the self-test.
    """

    kind: NotificationKind
    at: datetime
    word: str = ""

    def spelled(self) -> str:
        """Return the notification as text."""
        return f"{conf.settings().REGION}|{self.kind}|{instant_ms(self.at)}|{self.word}"


def read(text: str) -> Notification | None:
    """Parse a notification; None if it is of another region or cannot be parsed."""
    region, _, tail = text.partition("|")
    kind, _, tail = tail.partition("|")
    stamp, _, word = tail.partition("|")
    if (
        region != conf.settings().REGION
        or kind not in set(NotificationKind)
        or not stamp.isdecimal()
        or len(stamp) > 14
    ):
        return None
    return Notification(NotificationKind(kind), from_ms(int(stamp)), word)


logger = logging.getLogger("django_durable_tasks.notifier")
INTERVAL = 0.05
"""Seconds between two notifications of a process."""
_SKEW = timedelta(seconds=600)
"""How far the clock of a host may be behind the database's, which decides after the commit."""


def lookahead() -> float:
    """Return how soon (seconds) a new task must be due to cause a notification. Polls find later
    ones in time.
    """
    settings = conf.settings()
    return max(settings.LOOKAHEAD, 2 * settings.POLL)


class Limiter:
    """Limits calls to one per ``seconds``. Several threads may pass at the same instant, which is
    harmless.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._next = seconds, 0.0

    def allows(self) -> bool:
        """Return whether this call may proceed; never waits."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


class _Batch(CommitHook):
    """When tasks and work for the leader of a transaction, savepoint or single statement are due;
    None: now.
    """

    def __init__(self, owner: OnCommitNotifier) -> None:
        super().__init__()
        self.owner = owner
        self.rows: list[datetime | None] = []
        self.leader_work: list[datetime | None] = []

    def act(self) -> None:
        self.owner.announce(self)


class OnCommitNotifier:
    """The implementation of ``ports.due``."""

    def __init__(self) -> None:
        self._rows, self._leader_work = Limiter(INTERVAL), Limiter(INTERVAL)

    def created(self, rows: Sequence[NewTask]) -> None:
        """Record the first of new tasks that a scheduler has to publish soon."""
        if not _has_listeners():
            return
        # One that is due now is as early as any other.
        earliest: datetime | None = None
        for task in rows:
            if task.status != Status.PENDING or task.starts_batch:
                continue
            at = task.due_at or task.run_at
            if at is None:
                self._record(None)
                return
            earliest = at if earliest is None else min(earliest, at)
        if earliest is not None:
            self._record(earliest)

    def rescheduled(self, at: Any) -> None:
        """Record that tasks have another due time, a datetime or an expression."""
        if _has_listeners():
            self._record(at if isinstance(at, datetime) else None)

    def leader_work(self, at: datetime | None = None) -> None:
        """Record work for the leader: ending events to process, or a fire time ``at``."""
        if _has_listeners():
            self._record(at, for_leader=True)

    def _record(self, at: datetime | None, *, for_leader: bool = False) -> None:
        # Approximate: the database's clock decides after the commit.
        if at is not None and at > host_now() + timedelta(seconds=lookahead()) + _SKEW:
            return
        if in_atomic_block():
            batch = hook_of_transaction(_Batch, lambda: _Batch(self))
        elif connections[conf.settings().DATABASE].get_autocommit():
            batch = _Batch(self)
        else:
            return  # no hook runs after a commit that the caller executes
        (batch.leader_work if for_leader else batch.rows).append(at)
        if batch.savepoints is None:
            batch()

    def announce(self, batch: _Batch) -> None:
        """Announce the changes of a committed batch; never raises if a server is unavailable."""
        try:
            now = estimated_now()
            soon = now + timedelta(seconds=lookahead())
            for kind, instants, limiter in (
                (NotificationKind.ROWS, batch.rows, self._rows),
                (NotificationKind.LEADER_WORK, batch.leader_work, self._leader_work),
            ):
                first = min((at or now for at in instants), default=None)
                if first is None or first > soon:
                    continue
                if not limiter.allows():
                    continue
                for wake in takers_of_process if kind == NotificationKind.ROWS else ():
                    wake()
                send(Notification(kind, first))
        except Error:
            logger.debug("A notification was not sent; polling finds the tasks.", exc_info=True)


takers_of_process = list[Callable[[], None]]()
"""Called after a commit of this process with tasks that are due soon, at most once per ``INTERVAL``
seconds: its workers that take tasks without messages.
"""


def _has_listeners() -> bool:
    return bool(takers_of_process) or database_notifies() or redis_url() is not None


@verb
def database_notifies() -> bool:
    """Return whether the database has notifications."""
    return False


@database_notifies.on(POSTGRESQL)
def _postgresql_notifies() -> bool:
    return True


def send(notification: Notification) -> bool:
    """Send a notification to all listeners, through Redis if it responds, otherwise through
    PostgreSQL, where workers listen that take tasks without messages. Returns whether it was sent.
    """
    is_for_workers = notification.kind == NotificationKind.ROWS and ports.takes_tasks()
    sent = is_for_workers and send_by_postgresql(notification)
    return send_by_redis(notification) or sent or send_by_postgresql(notification)


def send_by_redis(notification: Notification) -> bool:
    """Publish a notification in Redis. Returns False if Redis is not configured or unavailable, or
    if the channel has no subscriber.
    """
    shared = redis_connection()
    channel, payload = wake_channel(redis_scope()), notification.spelled()
    return shared is not None and shared.call(
        lambda client: client.publish(channel, payload) > 0, False
    )


def send_by_postgresql(notification: Notification) -> bool:
    """Notify through this thread's connection, outside of transactions. Returns False on a database
    without NOTIFY. Raises Error.
    """
    if not database_notifies():
        return False
    with connections[conf.settings().DATABASE].cursor() as cursor:
        cursor.execute(sql("notify"), {"channel": CHANNEL, "payload": notification.spelled()})
    return True


# Notifications through PostgreSQL's LISTEN and NOTIFY, on a dedicated direct connection.


_TIMEOUTS = {
    "connect_timeout": 3,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
}


class PostgreSQLTransport:
    """Listens on LISTEN_DATABASE if it is set, otherwise on the database of the tasks. Self-tests
    are sent like any other notification.
    """

    name = "PostgreSQL"
    failure_cause = "a notification to itself did not come, as behind a transaction pooler"

    def __init__(self) -> None:
        self._driver: Any = None

    def open(self) -> None:
        """Connect and execute LISTEN."""
        settings = conf.settings()
        alias = settings.LISTEN_DATABASE or settings.DATABASE
        parameters = copy.deepcopy(connections.settings[alias])
        parameters["OPTIONS"] = {**_TIMEOUTS, **(parameters.get("OPTIONS") or {})}
        parameters["OPTIONS"].pop("pool", None)
        wrapper: Any = load_backend(parameters["ENGINE"]).DatabaseWrapper(parameters, alias)
        self._driver = wrapper.Database.connect(**wrapper.get_connection_params())
        self._driver.autocommit = True
        self._driver.cursor().execute(f"LISTEN {CHANNEL}")

    def wait(self, seconds: float) -> Sequence[str]:
        """Return the notifications that arrived."""
        if callable(self._driver.notifies):
            received = self._driver.notifies(timeout=seconds, stop_after=1)
        else:  # of psycopg 2: a list, which poll() fills
            select.select([self._driver], [], [], seconds)
            self._driver.poll()
            received, self._driver.notifies[:] = self._driver.notifies[:], []
        return [notification.payload for notification in received]

    def send(self, notification: Notification) -> bool:
        """Notify through a dedicated connection to the database of the tasks."""
        with dedicated_connection():
            return send_by_postgresql(notification)

    def doubtful(self) -> bool:
        """Return False: ``wait`` raises if the connection is broken."""
        return False

    def close(self) -> None:
        """Close the connection."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()


# Notifications through a Redis channel.


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
        self._client = listening_client(redis_url() or "")
        self._subscription = self._client.pubsub(ignore_subscribe_messages=True)
        self._subscription.subscribe(wake_channel(redis_scope()))

    def wait(self, seconds: float) -> Sequence[str]:
        """Return the messages that arrived, at most ``_MOST``."""
        texts: list[str] = []
        message = self._subscription.get_message(timeout=seconds)
        while message and len(texts) < _MOST:
            texts.append(message["data"])
            message = self._subscription.get_message()
        return texts

    def send(self, notification: Notification) -> bool:
        """Publish with the shared client, as every process does."""
        return send_by_redis(notification)

    def doubtful(self) -> bool:
        """Return whether requests to Redis are suspended after a failure."""
        shared = redis_connection()
        return shared is None or not shared.open()

    def close(self) -> None:
        """Close the connection."""
        subscription, self._subscription = self._subscription, None
        client, self._client = self._client, None
        if subscription is not None:
            subscription.close()
        if client is not None:
            client.close()


# The notification arrives through PostgreSQL, through Redis, or not at all. Each listener tests
# its connection: it sends a notification to itself at start and every 30 s. Behind a transaction
# pooler the notification does not arrive. The state of the scheduler then reports it, and its
# polls find the tasks.


_UNTESTED = "not tested yet"
_MAX_WAIT = 0.1
_GAP = 0.01
_ECHO = 1.2 * INTERVAL
_TEST_EVERY, _TEST_WITHIN = 30.0, 3.0
_SHORTEST_PAUSE, _LONGEST_PAUSE, _FAILED_TEST_PAUSE = 0.5, 5.0, 60.0


class NotificationTransport(Protocol):
    """One transport of notifications. Every method may raise the errors of its driver."""

    name: str
    failure_cause: str
    """Why a notification that a listener sent to itself may not arrive."""

    def open(self) -> None:
        """Connect and subscribe to the notifications."""

    def wait(self, seconds: float) -> Sequence[str]:
        """Return the notifications that arrived, after at most ``seconds``."""

    def send(self, notification: Notification) -> bool:
        """Send a notification through this transport only; return False if it could not be sent."""

    def doubtful(self) -> bool:
        """Return whether another user of this transport in the process had an error."""

    def close(self) -> None:
        """Close the connection."""


class _Alarm:
    """Calls ``act`` for notifications of one kind, at most once per ``gap`` seconds.

    It is called once more after _ECHO, because the limiter of the notifying process may have
    suppressed notifications of further changes.
    """

    def __init__(self, gap: float, act: Callable[[datetime], None]) -> None:
        self._gap, self._act = gap, act
        self._acted_at, self.next_at = float("-inf"), float("inf")
        self._first, self._repeats = host_now(), False

    def notified(self, now: float, first: datetime) -> None:
        """Record a notification of a change at ``first``, received at ``now``."""
        self._first, self._repeats = first, True
        self.next_at = min(max(now, self._acted_at + self._gap), self.next_at)

    def act_if_due(self, now: float) -> None:
        """Call ``act`` if its time has come."""
        if now < self.next_at:
            return
        self._acted_at, self.next_at = now, now + _ECHO if self._repeats else float("inf")
        self._repeats = False
        self._act(self._first)


class Listener(threading.Thread):
    """Thread that receives notifications through one transport until ``stop``.

    It uses its own connection, and reconnects after an error.
    """

    def __init__(
        self,
        transport: NotificationTransport,
        wake: Callable[[datetime], None],
        leader_work: Callable[[], None],
    ) -> None:
        super().__init__(name=f"durable-listener-{transport.name}", daemon=True)
        self.listening, self.why = False, _UNTESTED
        self._transport = transport
        self._alarms = {
            NotificationKind.ROWS: _Alarm(_GAP, wake),
            NotificationKind.LEADER_WORK: _Alarm(INTERVAL, lambda _: leader_work()),
        }
        self._stop_requested = threading.Event()
        self._pause = _SHORTEST_PAUSE
        self._token, self._token_sent_at, self._test_at = "", 0.0, 0.0
        self._passed_at = 0.0

    def run(self) -> None:
        """Receive notifications; never raises if the server is unavailable."""
        while not self._stop_requested.is_set():
            try:
                self._transport.open()
                self._test_at, self._token = 0.0, ""
                self._listen()
            except (
                Exception
            ) as error:  # drivers raise different exceptions, and this thread must not end
                self._lost(f"{self._transport.name} does not serve ({type(error).__name__})")
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                logger.debug("Listening by %s failed.", self._transport.name, exc_info=True)
            finally:
                self._close()
            self._stop_requested.wait(self._pause)

    def _close(self) -> None:
        try:
            self._transport.close()
        except Exception:  # closing a broken connection may fail, and this thread must not end
            logger.debug(
                "Closing the connection to %s failed.", self._transport.name, exc_info=True
            )

    @property
    def source_state(self) -> str:
        """When the last self-test of this transport passed, or why it receives nothing."""
        name = self._transport.name
        if not self.listening:
            return self.why if name in self.why else f"{name}: {self.why}"
        return f"{name} (self-test passed {ago(time.monotonic() - self._passed_at)} ago)"

    def stop(self, wait: float = 2.0) -> None:
        """Request the thread to end, and wait for it at most ``wait`` seconds."""
        self._stop_requested.set()
        if self.is_alive():
            self.join(timeout=wait)

    def _listen(self) -> None:
        while not self._stop_requested.is_set():
            if not self._self_test():
                self._lost(self._transport.failure_cause)
                self._pause = _LONGEST_PAUSE if self._transport.doubtful() else _FAILED_TEST_PAUSE
                return
            next_at = min(alarm.next_at for alarm in self._alarms.values())
            texts = self._transport.wait(max(0.0, min(_MAX_WAIT, next_at - time.monotonic())))
            self._process([notification for text in texts if (notification := read(text))])

    def _self_test(self) -> bool:
        """Test the transport if a test is due; return False if the last test failed."""
        now = time.monotonic()
        if self._token:
            return now - self._token_sent_at < _TEST_WITHIN
        if now >= self._test_at or self._transport.doubtful():
            self._token, self._token_sent_at = uuid.uuid4().hex, now
            return self._transport.send(
                Notification(NotificationKind.TEST, host_now(), self._token)
            )
        return True

    def _process(self, notifications: Sequence[Notification]) -> None:
        now = time.monotonic()
        for kind, alarm in self._alarms.items():
            instants = [received.at for received in notifications if received.kind == kind]
            if instants:
                alarm.notified(now, min(instants))
            alarm.act_if_due(now)
        tests = [received for received in notifications if received.kind == NotificationKind.TEST]
        if any(test.word == self._token for test in tests):
            self._token, self._test_at, self._passed_at = "", now + _TEST_EVERY, now
            self._pause = _SHORTEST_PAUSE
            if not self.listening:
                self.listening, self.why = True, ""
                logger.info("Notifications are received through %s.", self._transport.name)

    def _lost(self, why: str) -> None:
        if self.listening or self.why != why:
            logger.warning(
                "No notifications through %s: %s. Due tasks are found by polling every %g s.",
                self._transport.name,
                why,
                conf.settings().POLL,
            )
        self.listening, self.why = False, why


class Listeners:
    """The listeners of this process. ``wake(at)`` is called from their threads and must return at
    once.

    ``at`` is when the first of the tasks is due (UTC, may be in the past). Each call is repeated
    after about 60 ms, because a process that has notified suppresses notifications of tasks that it
    commits in the next 50 ms. ``leader_work()`` is called if the leader has ending events to
    process, or a schedule that fires soon.
    """

    def __init__(
        self, wake: Callable[[datetime], None], leader_work: Callable[[], None] | None = None
    ) -> None:
        transports, self._why = list[NotificationTransport](), ""
        settings = conf.settings()
        database: Any = connections[settings.DATABASE]
        if redis_url() is not None:
            transports.append(RedisTransport())
        if not database_notifies():
            self._why = (
                f"{database.display_name} sends no notifications; REDIS_URL would give wake-ups"
            )
        elif settings.LISTEN_DATABASE is None and database.settings_dict.get(
            "DISABLE_SERVER_SIDE_CURSORS"
        ):
            self._why = (
                "the database is behind a pooler (DISABLE_SERVER_SIDE_CURSORS); LISTEN_DATABASE may"
                " name a direct connection"
            )
        else:
            transports.append(PostgreSQLTransport())
        self._listeners = [
            Listener(transport, wake, leader_work or (lambda: None)) for transport in transports
        ]

    @property
    def listening(self) -> bool:
        """Whether notifications are known to arrive through at least one transport."""
        return any(listener.listening for listener in self._listeners)

    @property
    def state(self) -> str:
        """``listening`` with the transports, or ``polling`` with the interval and the reason."""
        by = [listener._transport.name for listener in self._listeners if listener.listening]
        if by:
            return f"listening ({', '.join(by)})"
        why = "; ".join(listener.why for listener in self._listeners) or self._why
        return f"polling every {conf.settings().POLL:g} s ({why})"

    @property
    def source_state(self) -> str:
        """The state of each transport.

        It begins with ``polling`` if notifications arrive through none of them although one is
        configured, and with ``none`` if there is no transport.
        """
        if not self._listeners:
            return f"none, polling every {conf.settings().POLL:g} s: {self._why}"
        states = "; ".join(listener.source_state for listener in self._listeners)
        fine = self.listening or any(listener.why == _UNTESTED for listener in self._listeners)
        return states if fine else f"polling every {conf.settings().POLL:g} s: {states}"

    def start(self) -> None:
        """Start the listeners."""
        for listener in self._listeners:
            listener.start()

    def stop(self, wait: float = 2.0) -> None:
        """Stop the listeners; waits for each of them at most ``wait`` seconds."""
        for listener in self._listeners:
            listener._stop_requested.set()
        for listener in self._listeners:
            listener.stop(wait)
