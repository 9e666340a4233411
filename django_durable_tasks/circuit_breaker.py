"""A circuit breaker for the connection of a process to one server."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable

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
