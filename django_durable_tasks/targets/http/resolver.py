"""Resolves host names in threads, because ``getaddrinfo`` cannot be interrupted.

A lookup that exceeds its deadline continues in its thread. The number of such threads is limited,
and requests for the same name share one lookup, so that a name server that does not answer
occupies one thread per name.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from django_durable_tasks.rules.targets.addresses import Address, parsed_address

_THREADS = 32
Lookup = Callable[[str, int], list[str]]


class LookupFailed(Exception):
    """The host name could not be resolved in time."""


def _system_lookup(host: str, port: int) -> list[str]:
    found: list[Any] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [sockaddr[0] for *_, sockaddr in found]


class Resolver:
    """Looks up host names; one per process."""

    def __init__(self, lookup: Lookup = _system_lookup, threads: int = _THREADS) -> None:
        self._lookup = lookup
        self._free = threading.BoundedSemaphore(threads)
        self._lock = threading.Lock()
        self._running: dict[tuple[str, int], Future[list[str]]] = {}

    def addresses(self, host: str, port: int, deadline: float) -> tuple[Address, ...]:
        """Return the addresses of a host; raises LookupFailed.

        ``deadline`` is of ``time.monotonic()``.
        """
        future = self._started(host, port, deadline)
        try:
            texts = future.result(timeout=max(0.0, deadline - time.monotonic()))
        except FutureTimeout:
            raise LookupFailed(f"{host} was not resolved in time.") from None
        except (OSError, UnicodeError) as error:
            raise LookupFailed(f"{host} was not resolved: {error}.") from None
        found = dict.fromkeys(parsed_address(text) for text in texts)
        addresses = tuple(address for address in found if address is not None)
        if not addresses or len(addresses) < len(found):
            raise LookupFailed(f"{host} resolved to {texts}, which are not usable addresses.")
        return addresses

    def _started(self, host: str, port: int, deadline: float) -> Future[list[str]]:
        key = host, port
        with self._lock:
            running = self._running.get(key)
        if running is not None:
            return running
        if not self._free.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise LookupFailed(f"{host} was not resolved: too many lookups are in progress.")
        future: Future[list[str]] = Future()
        with self._lock:
            running = self._running.setdefault(key, future)
        if running is not future:
            self._free.release()
            return running
        threading.Thread(
            target=self._run, args=(key, future), name="durable-lookup", daemon=True
        ).start()
        return future

    def _run(self, key: tuple[str, int], future: Future[list[str]]) -> None:
        found, error = list[str](), None
        try:
            found = self._lookup(*key)
        except BaseException as failed:  # noqa: BLE001 - it is raised in the waiting threads
            error = failed
        with self._lock:
            del self._running[key]
        self._free.release()
        if error is None:
            future.set_result(found)
        else:
            future.set_exception(error)
