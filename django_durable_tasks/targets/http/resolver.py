"""Resolves host names in threads, because ``getaddrinfo`` cannot be interrupted.

A lookup that exceeds its deadline continues in its thread. Requests for the same name share one
lookup. The number of lookups that exceeded their deadline is limited for each tenant, so that names
whose name server does not answer do not block the requests of other tenants.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any

from django_durable_tasks.rules.targets.addresses import Address, parsed_address

_OVERDUE_MAX, _OVERDUE_PER_TENANT = 32, 8
_REMEMBERED = 30.0
_REMEMBERED_MAX = 1_000
Lookup = Callable[[str], list[str]]


class LookupFailed(Exception):
    """The host name could not be resolved in time."""


def _system_lookup(host: str) -> list[str]:
    found: list[Any] = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [sockaddr[0] for *_, sockaddr in found]


@dataclass(eq=False, slots=True)
class _Running:
    """A lookup in its thread. ``tenant_id`` started it; ``overdue``: a request has given up."""

    tenant_id: int
    overdue: bool = False
    future: Future[list[str]] = field(default_factory=Future)


class Resolver:
    """Looks up host names; one per process.

    A tenant with ``per_tenant`` overdue lookups cannot start another one. If all tenants together
    have ``overdue_max``, a tenant that has one cannot start another one. A name whose lookup
    exceeded the deadline of a tenant fails at once for this tenant for ``remembered`` seconds,
    unless its lookup succeeds meanwhile.
    """

    def __init__(
        self,
        lookup: Lookup = _system_lookup,
        *,
        overdue_max: int = _OVERDUE_MAX,
        per_tenant: int = _OVERDUE_PER_TENANT,
        remembered: float = _REMEMBERED,
    ) -> None:
        self._lookup, self._remembered = lookup, remembered
        self._overdue_max, self._per_tenant = overdue_max, per_tenant
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}
        self._slow: dict[tuple[int, str], float] = {}

    def addresses(self, host: str, deadline: float, tenant_id: int) -> tuple[Address, ...]:
        """Return the addresses of a host; raises LookupFailed.

        ``deadline`` is of ``time.monotonic()``.
        """
        running = self._started(host, tenant_id)
        try:
            texts = running.future.result(timeout=max(0.0, deadline - time.monotonic()))
        except FutureTimeout:
            self._give_up(host, tenant_id, running)
            raise LookupFailed(f"{host} was not resolved in time.") from None
        except (OSError, UnicodeError) as error:
            raise LookupFailed(f"{host} was not resolved: {error}.") from None
        except RuntimeError as error:
            raise LookupFailed(f"{host} was not resolved: no thread ({error}).") from None
        found = dict.fromkeys(parsed_address(text) for text in texts)
        addresses = tuple(address for address in found if address is not None)
        if not addresses or len(addresses) < len(found):
            raise LookupFailed(f"{host} resolved to {texts}, which are not usable addresses.")
        return addresses

    def _started(self, host: str, tenant_id: int) -> _Running:
        with self._lock:
            if self._slow.get((tenant_id, host), 0.0) > time.monotonic():
                raise LookupFailed(f"{host} was not resolved in time by an earlier request.")
            running = self._running.get(host)
            if running is not None:
                return running
            overdue = [one.tenant_id for one in self._running.values() if one.overdue]
            allowed = self._per_tenant if len(overdue) < self._overdue_max else 1
            if overdue.count(tenant_id) >= allowed:
                raise LookupFailed(f"{host} was not resolved: too many lookups are overdue.")
            running = self._running[host] = _Running(tenant_id)
        thread = threading.Thread(
            target=self._run, args=(host, running), name="durable-lookup", daemon=True
        )
        try:
            thread.start()
        except BaseException as error:
            self._finish(host, running)
            running.future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        return running

    def _give_up(self, host: str, tenant_id: int, running: _Running) -> None:
        now = time.monotonic()
        with self._lock:
            if self._running.get(host) is not running:
                return
            running.overdue = True
            if len(self._slow) >= _REMEMBERED_MAX:
                self._slow = {key: until for key, until in self._slow.items() if until > now}
            if len(self._slow) < _REMEMBERED_MAX:
                self._slow[tenant_id, host] = now + self._remembered

    def _finish(self, host: str, running: _Running, *, succeeded: bool = False) -> None:
        with self._lock:
            del self._running[host]
            if succeeded and running.overdue:
                for key in [key for key in self._slow if key[1] == host]:
                    del self._slow[key]

    def _run(self, host: str, running: _Running) -> None:
        found, error = list[str](), None
        try:
            found = self._lookup(host)
        except BaseException as failed:  # noqa: BLE001 - it is raised in the waiting threads
            error = failed
        self._finish(host, running, succeeded=error is None)
        if error is None:
            running.future.set_result(found)
        else:
            running.future.set_exception(error)
