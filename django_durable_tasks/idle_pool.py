"""A pool of idle connections of a process, used for databases and for the broker."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

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
