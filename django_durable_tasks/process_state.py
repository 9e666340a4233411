"""The state of this process: what it keeps between two calls, and its connections to servers.

There is one ``ProcessState``. A class of state declares no global of its own: ``of(Class)`` returns
the object of this process. A forked child starts with a new state, because threads, locks and
positions of the parent mean nothing there. A test starts with a new one by ``renew``.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_AT_EXIT, _PATIENCE = 1.0, 10.0


class ProcessState:
    """One object of each class that was requested, created without arguments on first use."""

    def __init__(self) -> None:
        self._values: dict[type[Any], Any] = {}
        self._lock = threading.RLock()
        self._is_stopped = False

    def of(self, kind: type[T]) -> T:
        """Return the object of this class; thread-safe."""
        found = self._values.get(kind)
        if found is None:
            with self._lock:
                found = self._values.get(kind)
                if found is None:
                    found = self._values[kind] = kind()
                    if self._is_stopped and hasattr(found, "stop"):
                        found.stop(0)  # or a thread of it would outlive the state
        value: T = found
        return value

    def stop(self, patience: float) -> None:
        """Call ``stop(patience)`` (seconds) of each object that has such a method."""
        with self._lock:
            self._is_stopped = True
            values = list(self._values.values())
        for value in values:
            if hasattr(value, "stop"):
                value.stop(patience)


_current = ProcessState()


def of(kind: type[T]) -> T:
    """Return the object of this class in this process."""
    return _current.of(kind)


def renew() -> None:
    """Stop the threads of the current state and start with a new one."""
    _current.stop(_PATIENCE)
    _start_empty()


def _start_empty() -> None:
    global _current
    _current = ProcessState()


def _stop() -> None:
    _current.stop(_AT_EXIT)


os.register_at_fork(after_in_child=_start_empty)
atexit.register(_stop)


# State that a daemon thread reads again periodically while it is used.
#
# A caller never waits for the thread. The thread starts with the first ``ask`` and ends when
# ``ask`` was not called for ``KEPT_FOR`` seconds, or with the process. After a fork the child must
# create new objects, because the parent's thread does not exist there.


logger = logging.getLogger("django_durable_tasks.limits")
KEPT_FOR = 60.0


class Refresher:
    """Calls ``refresh`` every ``every`` seconds while ``ask`` is called within ``KEPT_FOR`` s."""

    def __init__(self, name: str, refresh: Callable[[], None], every: float) -> None:
        self._name, self._refresh, self._every = name, refresh, every
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._last_use = float("-inf")

    @property
    def runs(self) -> bool:
        """Return whether the thread runs."""
        return self._thread is not None

    def ask(self) -> None:
        """Keep the thread running, or start it. Costs one assignment while the thread runs."""
        self._last_use = time.monotonic()
        if self._thread is None:
            self._start()

    def stop(self, patience: float) -> None:
        """Stop the thread and wait at most ``patience`` seconds for its end.

        The object cannot be used afterwards.
        """
        self._stopping.set()
        thread = self._thread
        if thread is not None:
            thread.join(patience)

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None or self._stopping.is_set():
                return
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The interpreter is shutting down, or the system cannot create more threads.
                # Callers continue without the thread.
                logger.debug("Could not start a thread for %s.", self._name)
                return
            self._thread = thread

    def _run(self) -> None:
        try:
            while time.monotonic() - self._last_use < KEPT_FOR:
                self._refresh()
                if self._stopping.wait(self._every):
                    return
        except Exception:
            logger.exception("Thread %s failed; the next call restarts it.", self._name)
        finally:
            with self._lock:
                self._thread = None


# A child process that ends with the process that started it.
#
# The parent keeps the write end of a pipe, and the child waits for the end of the file at the read
# end. The system closes the pipe when the parent dies, even by SIGKILL. No process id is compared.


# The file descriptor of the read end, for a child that a parent supervises.
PARENT_PIPE = "DURABLE_TASKS_PARENT_PIPE"


def end_with_parent() -> None:
    """Send SIGTERM to this process when its parent has ended. Without a supervising parent nothing
    happens.
    """
    descriptor = os.environ.pop(PARENT_PIPE, "")
    if descriptor.isdecimal():
        os.set_inheritable(int(descriptor), False)

        def wait_for_end() -> None:
            os.read(int(descriptor), 1)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait_for_end, name="durable-parent", daemon=True).start()


# What connections of a process to its servers need: a pool of idle ones, and a circuit breaker.


Key = TypeVar("Key", bound=Hashable)
Connection = TypeVar("Connection", bound=Hashable)
IDLE_FOR = 60.0
"""Seconds. Of several idle connections with the same key, those idle for longer are closed."""


class _Contents(Generic[Key, Connection]):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: defaultdict[Key, list[tuple[Connection, float]]] = defaultdict(list)
        self.open: set[Connection] = set()


class IdlePool(Generic[Key, Connection]):
    """Connections by key. Thread-safe. ``close`` closes one connection.

    The connection that was returned last is borrowed first, so that those at the front of the list
    become idle after a peak. A forked child starts with an empty pool. It neither uses nor closes
    the connections of its parent, because both share the sockets.
    """

    def __init__(self, close: Callable[[Connection], None]) -> None:
        self._close = close
        self._contents = _Contents[Key, Connection]()
        self._of_parents: list[_Contents[Key, Connection]] = []
        os.register_at_fork(after_in_child=self._start_empty)

    def _start_empty(self) -> None:
        # A reference is kept, because the destructor of a connection would close it.
        self._of_parents.append(self._contents)
        self._contents = _Contents()

    def borrow(self, key: Key, connect: Callable[[], Connection]) -> Connection:
        """Return an idle connection, or a new one of ``connect``."""
        with self._contents.lock:
            idle = self._contents.idle[key]
            if idle:
                return idle.pop()[0]
        connection = connect()
        with self._contents.lock:
            self._contents.open.add(connection)
        return connection

    def give_back(self, key: Key, connection: Connection) -> None:
        """Return a connection to the pool. Close the one that has been idle longest, if it has been
        idle for IDLE_FOR.
        """
        now, oldest = time.monotonic(), None
        with self._contents.lock:
            idle = self._contents.idle[key]
            idle.append((connection, now))
            if len(idle) > 1 and now - idle[0][1] > IDLE_FOR:
                oldest = idle.pop(0)[0]
        if oldest is not None:
            self.drop(oldest)

    def drop(self, connection: Connection) -> None:
        """Close a borrowed connection instead of returning it."""
        with self._contents.lock:
            self._contents.open.discard(connection)
        self._close(connection)

    def drop_idle(self, among: Callable[[Connection], bool] = lambda connection: True) -> None:
        """Close the idle connections for which ``among`` is true."""
        found = []
        with self._contents.lock:
            for idle in self._contents.idle.values():
                found += [connection for connection, _ in idle if among(connection)]
                idle[:] = [one for one in idle if not among(one[0])]
        for connection in found:
            self.drop(connection)

    def idle(self, key: Key) -> list[Connection]:
        """Return the idle connections with this key."""
        with self._contents.lock:
            return [connection for connection, _ in self._contents.idle[key]]

    def count(self) -> int:
        """Return how many connections are open in this process, idle or borrowed."""
        with self._contents.lock:
            return len(self._contents.open)


_all: weakref.WeakSet[CircuitBreaker] = weakref.WeakSet()


class CircuitBreaker:
    """Opens after a failed request. After a pause one request at a time is allowed as a probe.

    Thread-safe. ``pause`` and ``probe_timeout`` return seconds: how long the breaker stays open,
    and after which time without a result of the probe another caller may probe.
    """

    def __init__(self, pause: Callable[[], float], probe_timeout: Callable[[], float]) -> None:
        self._pause, self._probe_timeout = pause, probe_timeout
        self._lock = threading.Lock()
        self._open_until: float | None = None
        self._probing_until = 0.0
        self.outages = 0
        """How often the breaker has opened in this process."""
        _all.add(self)

    def allows(self) -> bool:
        """Return whether to send a request now. After the pause one caller at a time gets True."""
        with self._lock:
            if self._open_until is None:
                return True
            now = time.monotonic()
            if now < self._open_until or now < self._probing_until:
                return False
            self._probing_until = now + self._probe_timeout()
            return True

    def may_probe(self) -> bool:
        """Return whether the breaker is open, the pause is over and no other caller is probing."""
        until = self._open_until
        return until is not None and time.monotonic() >= max(until, self._probing_until)

    def closed(self) -> bool:
        """Return whether the last request succeeded."""
        return self._open_until is None

    def ended_outages(self) -> int:
        """Return how often the breaker has opened and closed again in this process."""
        with self._lock:
            return self.outages - (self._open_until is not None)

    def succeeded(self) -> bool:
        """Record a successful request; return whether this closed the breaker."""
        if self._open_until is None:
            return False
        with self._lock:
            was_open, self._open_until = self._open_until, None
        return was_open is not None

    def failed(self) -> bool:
        """Record a failed request; return whether this opened the breaker."""
        with self._lock:
            was_closed = self._open_until is None
            self._open_until, self._probing_until = time.monotonic() + self._pause(), 0.0
            self.outages += was_closed
        return was_closed

    def replace_lock(self) -> None:
        """Create a new lock after a fork, because the thread that held the old one no longer
        exists.
        """
        self._lock = threading.Lock()


def _replace_locks() -> None:
    for breaker in _all:
        breaker.replace_lock()


os.register_at_fork(after_in_child=_replace_locks)
