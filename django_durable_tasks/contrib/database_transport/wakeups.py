"""Wakes consumers when a message was committed: in this process, and by PostgreSQL's NOTIFY.

Polls find every message that was not announced. PostgreSQL takes a lock of the whole server for a
commit that notifies, so NOTIFY is never part of the transaction of a caller: it follows the commit
as a statement of its own, at most once per 50 ms and process. A consumer that was woken polls again
after 60 ms, for what was committed meanwhile.
"""

from __future__ import annotations

import functools
import logging
import os
import select
import threading
import time
import uuid
import weakref
from contextlib import suppress
from typing import Any, Protocol

from django.db import DatabaseError, Error, connections
from django.db.transaction import TransactionManagementError

from django_durable_tasks import conf
from django_durable_tasks.scheduler import notifier
from django_durable_tasks.store.connections import WORK, open_dedicated
from django_durable_tasks.store.dialects import POSTGRESQL, sql

logger = logging.getLogger("django_durable_tasks.transport")

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
_inherited: list[Any] = []


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


def _after_fork_in_child() -> None:
    global _guard
    _guard = threading.Lock()
    _inherited.extend(listener.connection for listener in _listeners.values())
    _listeners.clear()
    _sleepers.clear()
    _next_notification.clear()
    notifier.takers_of_process.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
