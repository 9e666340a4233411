"""Wakes the scheduler when a task that is due soon was created or moved: through PostgreSQL or
Redis.
"""

from __future__ import annotations

import copy
import logging
import select
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

from django.db import connections
from django.db.utils import load_backend

from django_durable_tasks import conf
from django_durable_tasks.host_clock import host_now
from django_durable_tasks.scheduler import redis_client
from django_durable_tasks.scheduler.notify_on_commit import (
    CHANNEL,
    INTERVAL,
    Notification,
    NotificationKind,
    database_notifies,
    read,
    send_by_postgresql,
    send_by_redis,
    wake_channel,
)
from django_durable_tasks.scheduler.redis_client import scope
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.tasks.explanations import ago

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
        self._client = redis_client.listening_client(redis_client.url() or "")
        self._subscription = self._client.pubsub(ignore_subscribe_messages=True)
        self._subscription.subscribe(wake_channel(scope()))

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


# The notification arrives through PostgreSQL, through Redis, or not at all. Each listener tests
# its connection: it sends a notification to itself at start and every 30 s. Behind a transaction
# pooler the notification does not arrive. The state of the scheduler then reports it, and its
# polls find the tasks.


logger = logging.getLogger("django_durable_tasks.notifier")
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
        if redis_client.url() is not None:
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
