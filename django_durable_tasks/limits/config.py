"""Reads the limits in force from code, settings and operators. Operators take precedence.

An endpoint whose circuit breaker is open is a limit too: it admits no task until the pause is
over, and then one, which probes it. Tasks of other endpoints therefore wait for no message of
its tasks.

A task name that no live worker of a queue has registered is a limit of 0 for the tasks of
this name in this queue. They take no place of the window of published tasks, and wait until a
worker of the queue registers the name.

A process reads the operators' limits, the open endpoints and the names of the workers at most
once a second. Code and settings are read with them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeVar

from django_durable_tasks import conf, process_state, registry
from django_durable_tasks.conf import InvalidSetting
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.limits import scopes as limits_scopes
from django_durable_tasks.limits.scopes import Allowance, Rate
from django_durable_tasks.models import DEFAULT_TENANT_ID, Limit, Node, Tenant
from django_durable_tasks.states.claims import ClaimedTask
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.store.tables import database

logger = logging.getLogger("django_durable_tasks.limits")
FRESH = 1.0
ENDPOINT_SOURCES: dict[str, Callable[[], dict[str, int]]] = {}
"""What returns how many tasks may run at once of each endpoint whose breaker is open, by scope."""
KEY_LIMIT_SOURCES: dict[str, Callable[[], dict[str, Allowance]]] = {}
"""What returns the limits per key of the tasks of an optional app, by name."""
_QUEUES = limits_scopes.scope_of_queue("")
_DEFAULT_TENANT = limits_scopes.scope_of_tenant(DEFAULT_TENANT_ID)
_UNLIMITED, _CLOSED = Allowance(), Allowance(0)
_K = TypeVar("_K")


@dataclass(frozen=True, slots=True)
class LimitConfig:
    """The limits in force: by scope, by task for limits per key, and whether there are several
    tenants. ``endpoints``: the scopes of open endpoints, whose limits ``scopes`` contains.
    ``names``: the task names that the live workers of a queue have registered, for the queues all
    of whose workers report them.
    """

    scopes: Mapping[str, Allowance] = field(default_factory=dict)
    per_key: Mapping[str, Allowance] = field(default_factory=dict)
    tenants: bool = False
    endpoints: Collection[str] = ()
    names: Mapping[str, frozenset[str]] = field(default_factory=dict)
    of_keys: Allowance | None = field(init=False, default=None)
    """The limits per key if all tasks that have some have the same; None otherwise."""

    def __post_init__(self) -> None:
        values = set(self.per_key.values())
        object.__setattr__(
            self, "of_keys", limits_scopes.strictest(values) if len(values) == 1 else None
        )

    @property
    def empty(self) -> bool:
        """Whether there are no limits and only one tenant."""
        return not (self.scopes or self.per_key or self.tenants)

    @property
    def has_wide(self) -> bool:
        """Whether any whole queue, or all of them together, has a limit."""
        return any(
            scope == limits_scopes.GLOBAL or scope.startswith(_QUEUES) for scope in self.scopes
        )

    @property
    def is_shared(self) -> bool:
        """Whether tasks of several queues may use places of one limit."""
        return bool(self.per_key) or any(not scope.startswith(_QUEUES) for scope in self.scopes)

    def shared_by(self, name: str, tenant_id: int, limit_key: str | None) -> bool:
        """Return whether a limit that several queues share applies to this task."""
        return limits_scopes.GLOBAL in self.scopes or bool(self.narrow(name, tenant_id, limit_key))

    def of(self, scope: str) -> Allowance:
        """Return the limits of a scope; an empty Allowance if there are none."""
        worker = limits_scopes.worker_of(scope)
        if worker is not None:
            return _CLOSED if self.lacks_worker(*worker) else _UNLIMITED
        allowance = self.scopes.get(scope, _UNLIMITED)
        if self.is_of_each_tenant(scope):
            return _filled(allowance, self.scopes[limits_scopes.EACH_TENANT])
        return allowance

    def is_of_each_tenant(self, scope: str) -> bool:
        """Return whether ``tenant:*`` applies to this scope: it is that of a tenant other than the
        default one.
        """
        return (
            limits_scopes.EACH_TENANT in self.scopes
            and scope.startswith("tenant:")
            and scope != _DEFAULT_TENANT
        )

    def lacks_worker(self, name: str, queue: str) -> bool:
        """Return whether the queue has live workers and none of them has registered this name."""
        names = self.names.get(queue)
        return names is not None and name not in names

    def without_worker(self, rows: Iterable[tuple[_K, str, str]]) -> dict[_K, str]:
        """Return the scope for which each of these tasks waits because no worker of its queue has
        registered its name. ``rows``: keys, names and queues.
        """
        return {
            key: limits_scopes.scope_of_worker(name, queue)
            for key, name, queue in rows
            if self.lacks_worker(name, queue)
        }

    def wide(self, queue: str) -> list[str]:
        """Return the limited scopes that apply to every task of a queue."""
        return [
            scope
            for scope in (limits_scopes.GLOBAL, limits_scopes.scope_of_queue(queue))
            if scope in self.scopes
        ]

    def narrow(self, name: str, tenant_id: int, limit_key: str | None) -> list[str]:
        """Return the limited scopes that apply to this task in addition to those of its queue."""
        both = (limits_scopes.scope_of_tenant(tenant_id), limits_scopes.scope_of_task(name))
        scopes = [s for s in both if s in self.scopes or self.is_of_each_tenant(s)]
        if limit_key is not None:
            keyed = limits_scopes.scope_of_key(limit_key)
            if name in self.per_key or keyed in self.scopes:
                scopes.append(keyed)
        return scopes

    def shares_processes(self, queue: str, tenant_id: int) -> bool:
        """Return whether this tenant may occupy a part of the processes of a queue only, because it
        is one of several.

        The default tenant may have all, and a tenant with a concurrency limit of its own. In a
        queue with a concurrency limit the shares are parts of that limit.
        """
        return (
            self.tenants
            and tenant_id != DEFAULT_TENANT_ID
            and all(self.of(scope).places is None for scope in self.wide(queue))
            and self.of(limits_scopes.scope_of_tenant(tenant_id)).places is None
        )

    def freed(self, name: str, queue: str, tenant_id: int, limit_key: str | None) -> list[str]:
        """Return the scopes in which the end of such a task frees capacity for tasks that wait.

        None if the whole queue has a limit, because its due tasks need the capacity too, and none
        that have a rate limit, because only time refills it.
        """
        if self.wide(queue):
            return []
        scopes = [
            scope
            for scope in self.narrow(name, tenant_id, limit_key)
            if (allowance := self.among(scope, [name])).places is not None
            and allowance.rate is None
        ]
        if self.shares_processes(queue, tenant_id):
            scopes.append(limits_scopes.scope_of_share(queue, tenant_id))
        return scopes

    def takes_turns(self, queue: str) -> bool:
        """Whether tenants are served round-robin in this queue: it has a rate, or all queues have
        one together.
        """
        return self.tenants and any(self.of(scope).rate is not None for scope in self.wide(queue))

    def among(self, scope: str, names: Iterable[str]) -> Allowance:
        """Return the limits of a scope for these tasks. For a key without an operator's limit the
        strictest of the tasks' limits applies.
        """
        allowance = self.of(scope)
        if not scope.startswith("key:") or not self.per_key:
            return allowance
        coded = limits_scopes.strictest(
            self.per_key[name] for name in names if name in self.per_key
        )
        if allowance is _UNLIMITED:
            return coded
        return _filled(allowance, coded)

    def common_limits(self, scope: str) -> Allowance | None:
        """Return the limits of a scope that do not depend on a task; None if tasks have different
        limits for a key.
        """
        if not scope.startswith("key:") or not self.per_key:
            return self.of(scope)
        if self.of_keys is None:
            return None
        return self.of_keys if scope not in self.scopes else self.among(scope, self.per_key)

    def may_bind(self, rows: Iterable[tuple[str, str]]) -> bool:
        """Return whether a limit can apply to any task of these names and queues, whatever its
        tenant and key.
        """
        if self.tenants or any(scope.startswith(("tenant:", "key:")) for scope in self.scopes):
            return True
        return any(
            self.wide(queue)
            or name in self.per_key
            or limits_scopes.scope_of_task(name) in self.scopes
            for name, queue in rows
        )

    def has_only_shares(self, rows: Sequence[ClaimedTask]) -> bool:
        """Return whether the only limits that can apply to these tasks are shares of tenants."""
        kinds = {(row.name, row.tenant_id, row.limit_key) for row in rows}
        return (
            self.tenants
            and not any(self.narrow(*kind) for kind in kinds)
            and not any(self.wide(queue) for queue in {row.queue for row in rows})
        )

    def binds(self, name: str, queue: str, tenant_id: int) -> bool:
        """Return whether a limit can apply to a task of this name, queue and tenant."""
        return (
            name in self.per_key
            or self.lacks_worker(name, queue)
            or bool(self.wide(queue) or self.narrow(name, tenant_id, None))
        )


def coded() -> dict[str, Allowance]:
    """Return the limits of code and settings by scope. Settings take precedence. Raises
    InvalidSetting.
    """
    allowances = {}
    for name in registry.names():
        options = registry.get(name).options
        places = options.max_concurrency if isinstance(options.max_concurrency, int) else None
        rate = options.rate_limit if isinstance(options.rate_limit, Rate) else None
        if places is not None or rate is not None:
            allowances[limits_scopes.scope_of_task(name)] = Allowance(places, rate)
    try:
        return allowances | {
            scope: limits_scopes.allowance_of(scope, limit)
            for scope, limit in (conf.settings().LIMITS or {}).items()
        }
    except InvalidOption as refused:
        raise InvalidSetting(f"DURABLE_TASKS['LIMITS']: {refused}") from None


def operators() -> dict[str, Allowance]:
    """Return the operators' limits by scope. An invalid one is logged and ignored."""
    allowances = {}
    for row in Limit.objects.using(database()):
        try:
            allowances[row.scope] = row.allowance
        except InvalidOption as refused:
            logger.error("The limit of %s is ignored: %s", row.scope, refused)
    return allowances


def read() -> LimitConfig:
    """Read the limits in force with four statements, and one more if a worker reports new names."""
    per_key: dict[str, Allowance] = {}
    for name in registry.names():
        options = registry.get(name).options
        allowance = limits_scopes.per_key_of(options.rate_limit, options.max_concurrency)
        if allowance is not None:
            per_key[name] = allowance
    scopes = {**coded(), **operators()}
    endpoints: dict[str, int] = {}
    for read in ENDPOINT_SOURCES.values():
        endpoints |= read()
    for scope, admitted in endpoints.items():
        allowance = scopes.get(scope, _UNLIMITED)
        scopes[scope] = replace(
            allowance,
            places=admitted if allowance.places is None else min(admitted, allowance.places),
        )
    # The limit of each endpoint for the tasks that have one. An empty limit, if only keys of
    # settings or operators are limited, makes these tasks be checked.
    places = conf.settings().HTTP_ENDPOINT_CONCURRENCY
    if places or any(scope.startswith("key:") for scope in scopes):
        for name in registry.names():
            if registry.get(name).target.endpoint is not None:
                per_key[name] = Allowance(places or None)
    for limits in KEY_LIMIT_SOURCES.values():
        per_key |= limits()
    tenants = Tenant.objects.using(database()).order_by().values_list("pk")[:2]
    names = process_state.of(WorkerNames).read()
    return LimitConfig(scopes, per_key, len(tenants) > 1, endpoints.keys(), names)


class WorkerNames:
    """The task names that live workers have registered, each list read once by this process."""

    def __init__(self) -> None:
        self._lists: dict[str, frozenset[str]] = {}

    def read(self) -> dict[str, frozenset[str]]:
        """Return the names by queue. A queue with a worker that does not report is left out, for
        example with one of an older release.
        """
        workers = Node.objects.using(database()).alive().workers()
        rows = list(workers.values_list("pk", "queues", "names_digest"))
        digests = {digest for _, _, digest in rows if digest}
        new = {digest: pk for pk, _, digest in rows if digest and digest not in self._lists}
        if new:
            lists = workers.filter(pk__in=new.values()).values_list("names_digest", "names")
            self._lists |= {digest: frozenset(names or ()) for digest, names in lists}
        self._lists = {digest: self._lists[digest] for digest in digests if digest in self._lists}
        of_queues: dict[str, set[str]] = {}
        for _, queues, digest in rows:
            for queue in queues:
                of_queues.setdefault(queue, set()).add(digest)
        return {
            queue: frozenset[str]().union(*(self._lists[digest] for digest in of_queue))
            for queue, of_queue in of_queues.items()
            if of_queue <= self._lists.keys()
        }


def _filled(allowance: Allowance, fallback: Allowance) -> Allowance:
    """Return the limit that was given, with the parts of the other one that it does not have."""
    return Allowance(
        fallback.places if allowance.places is None else allowance.places,
        fallback.rate if allowance.rate is None else allowance.rate,
    )


class RecentLimits:
    """The limits last read by this process."""

    def __init__(self) -> None:
        self._read_at = float("-inf")
        self.last = LimitConfig()

    @property
    def is_fresh(self) -> bool:
        """Whether ``get`` returns the limits without reading them."""
        return time.monotonic() - self._read_at <= FRESH

    def get(self) -> LimitConfig:
        """Return the limits, at most one second old."""
        return self.last if self.is_fresh else self._read()

    def refresh(self) -> None:
        """Read the limits if ``get`` would have to read them within half a second."""
        if time.monotonic() - self._read_at > FRESH / 2:
            self._read()

    def _read(self) -> LimitConfig:
        self.last = read()
        self._read_at = time.monotonic()
        return self.last

    def expire(self) -> None:
        """Read the limits again at the next call, because this process changed them."""
        self._read_at = float("-inf")


def limits_in_force() -> LimitConfig:
    """Return the limits in force, at most one second old."""
    return process_state.of(RecentLimits).get()


def last_limits() -> LimitConfig:
    """Return the limits that this process has read last; reads nothing."""
    return process_state.of(RecentLimits).last


def refresh_limits() -> None:
    """Read the limits before the next claim would have to, because a task is due at that claim."""
    process_state.of(RecentLimits).refresh()


def limits_without_connection() -> LimitConfig:
    """Return the limits in force, at most one second old. A dedicated connection is used only if
    they have to be read.
    """
    recent = process_state.of(RecentLimits)
    with nullcontext() if recent.is_fresh else dedicated_connection():
        return recent.get()
