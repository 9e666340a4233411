"""Limits are judged at the claim: what does not fit is parked under the scope that has no room, and let go when it has.

One transaction claims, counts and parks. Where a limit other than a fair share can refuse, it holds the one lock row
first, so that the limited claims of all nodes are serial: each counts what the others committed (READ COMMITTED). Who
holds the lock waits for no task: rows that somebody else holds are left alone. What nothing limits takes no lock.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connections
from django.db.models import Count

from django_durable_tasks.lifecycle import limits, transitions
from django_durable_tasks.lifecycle.allowances import Book, book
from django_durable_tasks.lifecycle.clock import database_now
from django_durable_tasks.lifecycle.statements import statement
from django_durable_tasks.models import LimitBucket
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.limit_bucket import LOCK
from django_durable_tasks.models.task import TaskQuerySet
from django_durable_tasks.rules import limits as rules
from django_durable_tasks.rules.limits import Bucket, Room

_ID, _NAME, _QUEUE = (transitions.RING_COLUMNS.index(name) for name in ("id", "name", "queue"))
_EVERY = 1_000_000_000


def hold_lock() -> None:
    """Wait for the lock of all limits and hold it to the end of the transaction; makes its row where it is gone."""
    lock = LimitBucket.objects.using(transitions.database())
    if not lock.filter(pk=LOCK).update(refilled_at=DatabaseNow()):
        _write([LimitBucket(scope=LOCK, refilled_at=database_now())])


def _write(rows: Sequence[LimitBucket]) -> None:
    """Insert or update these rows by one statement, which holds them either way."""
    named = connections[transitions.database()].features.supports_update_conflicts_with_target
    LimitBucket.objects.using(transitions.database()).bulk_create(
        rows, update_conflicts=True, update_fields=["tokens", "refilled_at"], unique_fields=["scope"] if named else None
    )


# Holders ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Holders:
    """How many rows are QUEUED and RUNNING by scope; and of each queue and tenant, QUEUED ones and both."""

    under_way: Counter[str]
    queued: Counter[tuple[str, int]]
    of_tenants: Counter[tuple[str, int]]

    def window(self, queue: str) -> int:
        """Return how many rows of a queue wait published."""
        return sum(number for (name, _), number in self.queued.items() if name == queue)

    def tenants(self, queue: str) -> set[int]:
        """Return whose rows of a queue are under way."""
        return {tenant for (name, tenant), number in self.of_tenants.items() if name == queue and number > 0}

    def leave_out(self, name: str, queue: str, tenant_id: int, limit_key: str | None) -> None:
        """Take a QUEUED row out of the count."""
        self.queued[queue, tenant_id] -= 1
        self.of_tenants[queue, tenant_id] -= 1
        self.under_way.subtract(scopes_of(name, queue, tenant_id, limit_key))


def scopes_of(name: str, queue: str, tenant_id: int, limit_key: str | None) -> list[str]:
    """Return every scope, limited or not, in which a row counts."""
    keyed = [rules.of_key(limit_key)] if limit_key is not None else []
    return [rules.GLOBAL, rules.of_queue(queue), rules.of_tenant(tenant_id), rules.of_task(name), *keyed]


def holders(*, running: bool = True) -> Holders:
    """Count what is under way: a grouped statement for QUEUED and one for RUNNING rows, each by its partial index."""
    found = Holders(Counter(), Counter(), Counter())
    for name, queue, tenant_id, key, number in _grouped(transitions.tasks().queued()):
        found.queued[queue, tenant_id] += number
        found.of_tenants[queue, tenant_id] += number
        found.under_way.update(dict.fromkeys(scopes_of(name, queue, tenant_id, key), number))
    for name, queue, tenant_id, key, number in _grouped(transitions.tasks().running()) if running else ():
        found.of_tenants[queue, tenant_id] += number
        found.under_way.update(dict.fromkeys(scopes_of(name, queue, tenant_id, key), number))
    return found


def _grouped(question: TaskQuerySet) -> Iterable[tuple[str, str, int, str | None, int]]:
    groups = question.order_by().values_list("name", "queue", "tenant_id", "limit_key").annotate(number=Count("pk"))
    found: Iterable[tuple[str, str, int, str | None, int]] = groups
    return found


def buckets(book: Book, scopes: Iterable[str], now: datetime) -> dict[str, Bucket]:
    """Return the buckets, refilled, of those of the scopes that have a rate."""
    rates = {scope: rate for scope in scopes if (rate := book.of(scope).rate) is not None}
    if not rates:
        return {}
    rows = LimitBucket.objects.using(transitions.database()).filter(pk__in=list(rates), refilled_at__isnull=False)
    known = {row.scope: Bucket(row.tokens, row.refilled_at) for row in rows if row.refilled_at is not None}
    return {scope: rules.refilled(known.get(scope), rate, now) for scope, rate in rates.items()}


# The claim --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Bound:
    """A row before the gate: what it is, and the scopes that may refuse it."""

    task_id: uuid.UUID
    name: str
    queue: str
    tenant_id: int
    limit_key: str | None
    scopes: Sequence[str]


class Gate:
    """One claim, of one queue or of some rows, where limits can apply, inside its transaction."""

    def __init__(self, book: Book, queue: str | None = None) -> None:
        self._book, self._wide = book, [] if queue is None else book.wide(queue)
        self._room, self._buckets = Room(), dict[str, Bucket]()
        self._holders: Holders | None = None
        self._now: datetime | None = None
        self._refused = 0
        if self._wide:
            self._look(())
            self._open(dict.fromkeys(self._wide, ""))

    @property
    def refused(self) -> int:
        """How many rows were refused so far."""
        return self._refused

    def free(self, limit: int) -> int:
        """Return how many of so many rows the limits of the whole queue let in."""
        places = [self._room.places[scope] for scope in self._wide if scope in self._room.places]
        tokens = [rules.whole(self._room.tokens[scope]) for scope in self._wide if scope in self._room.tokens]
        return max(0, min([limit, *places, *tokens]))

    def let_in(self, rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """Return those of the claimed RING_COLUMNS, in their order, that fit; the others are parked."""
        if not self._book.may_bind({(row[_NAME], row[_QUEUE]) for row in rows}):
            return list(rows)
        bound = self._bound([row[_ID] for row in rows])
        told = [bound[row[_ID]] for row in rows]
        if not any(row.scopes for row in told):
            return list(rows)
        self._look(told)
        self._open(self._strictest(told), told)
        refused = rules.admitted([(row.task_id, row.scopes) for row in told], self._room)
        transitions.park_claimed({row.task_id: refused[row.task_id] for row in told if row.task_id in refused})
        self._refused += len(refused)
        return [row for row in rows if row[_ID] not in refused]

    def _strictest(self, told: Sequence[_Bound]) -> dict[str, str]:
        """Return the scopes of these rows, each with the task among them that allows the fewest at once there."""
        found: dict[str, str] = {}
        for scope, name in sorted({(scope, row.name) for row in told for scope in row.scopes}):
            mine, others = self._book.places(scope, name), self._book.places(scope, found.get(scope, name))
            if scope not in found or (mine is not None and (others is None or mine < others)):
                found[scope] = name
        return found

    def clear_head(self, queue: str, now: datetime, limit: int) -> int:
        """Park those of the next due rows that would be refused as well, so that the next claim sees whom they hide."""
        due = transitions.tasks().due(now).filter(queue=queue).order_by()
        ids: list[uuid.UUID] = []
        for priority in range(9, -1, -1):  # one short scan of the index each, where one ORDER BY would sort them all
            if len(ids) < limit:
                level = due.filter(priority=priority).order_by("alarm_at").values_list("pk", flat=True)
                ids += level[: limit - len(ids)]
        full = {
            row.task_id: scope
            for row in self._bound(ids).values()
            for scope in row.scopes
            if scope not in self._wide and self._room.refuses(scope)
        }
        return transitions.park_due(full, now)

    def close(self) -> None:
        """Write the tokens that were spent."""
        rows = [
            LimitBucket(scope=scope, tokens=self._room.tokens[scope], refilled_at=self._buckets[scope].at)
            for scope in sorted(self._room.spent)
        ]
        if rows:
            _write(rows)

    def _bound(self, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, _Bound]:
        rows = transitions.tasks().filter(pk__in=ids).values_list("pk", "name", "queue", "tenant_id", "limit_key")
        found = {}
        for task_id, name, queue, tenant_id, key in rows:
            scopes = [*self._book.wide(queue), *self._book.narrow(name, tenant_id, key)]
            if self._book.tenants:
                scopes.append(rules.of_share(queue, tenant_id))
            found[task_id] = _Bound(task_id, name, queue, tenant_id, key, scopes)
        return found

    def _look(self, own: Sequence[_Bound]) -> None:
        """Count the holders, once, without these rows; where anything but shares can refuse, under the lock."""
        strict = bool(self._wide) or any(rules.shared(scope) is None for row in own for scope in row.scopes)
        if self._holders is not None and (self._now is not None or not strict):
            return
        if strict:
            hold_lock()
            self._now = database_now()
        found = holders(running=strict)
        for row in own:
            found.leave_out(row.name, row.queue, row.tenant_id, row.limit_key)
        self._holders = found

    def _open(self, scopes: Mapping[str, str], own: Sequence[_Bound] = ()) -> None:
        """Find out what is free in these scopes, each with the name of a task that asks, where it is not known yet."""
        new = {scope: name for scope, name in scopes.items() if scope not in self._room.known}
        self._room.known |= new.keys()
        if self._now is not None:
            fresh = buckets(self._book, new, self._now)
            self._buckets |= fresh
            self._room.tokens |= {scope: bucket.tokens for scope, bucket in fresh.items()}
        found = self._holders
        if found is None:
            return
        for scope, name in new.items():
            share = rules.shared(scope)
            if share is not None:
                everybody = found.tenants(share[0]) | {row.tenant_id for row in own if row.queue == share[0]}
                self._room.places[scope] = free_of_share(share, self._book, found, everybody)
            elif (most := self._book.places(scope, name)) is not None:
                self._room.places[scope] = most - found.under_way[scope]


def free_of_share(share: tuple[str, int], current: Book, found: Holders, tenants: set[int]) -> int:
    """Return how many more rows of a queue one of these tenants may have published.

    Where the whole queue has a number of places the share is one of these, and counts what runs too.
    """
    queue, _ = share
    wide = [most for scope in current.wide(queue) if (most := current.of(scope).places) is not None]
    if wide:
        return rules.share_of(min(wide), len(tenants)) - found.of_tenants[share]
    return rules.share_of(max(limits.window_of(queue), found.window(queue)), len(tenants)) - found.queued[share]


# Letting go -------------------------------------------------------------------------------------------------------


def let_go(now: datetime, limit: int) -> int:
    """Let parked rows go on, the most urgent first, as many as their scopes have room for; return how many went.

    To be called on every dispatching round: one probe where nothing is parked. It decides nothing: the claim does.
    """
    scopes = parked_scopes(limit)
    if not scopes:
        return 0
    free, gone = free_of(scopes, now), 0
    for scope in scopes:
        number = min(free[scope], limit - gone)
        if number > 0:
            parked = transitions.tasks().parked_for(scope)
            gone += transitions.expire(parked.filter(expires_at__lte=now), limit)
            gone += transitions.let_go(parked, number)
    return gone


def free_of(scopes: Collection[str], now: datetime) -> dict[str, int]:
    """Return how many parked rows each of these scopes has room for."""
    current, found = book(), holders()
    free = _free_places(scopes, current, found, buckets(current, scopes, now))
    return free | _free_shares(scopes, current, found, now)


def _free_places(scopes: Collection[str], current: Book, found: Holders, fresh: Mapping[str, Bucket]) -> dict[str, int]:
    """Return how many rows each scope lets go: its places, or tokens, that are free; all where nothing limits it."""
    free = {}
    for scope in scopes:
        most, bucket = places(scope, current, found), fresh.get(scope)
        rooms = [] if most is None else [most - found.under_way[scope]]
        tokens = [] if bucket is None else [rules.whole(bucket.tokens)]
        free[scope] = min(rooms + tokens, default=_EVERY)
    return free


def _free_shares(scopes: Collection[str], current: Book, found: Holders, now: datetime) -> dict[str, int]:
    """Return how many rows each share lets go; together no more than their queue has room for.

    While others are due there, half of the room is left to them: these may be tenants of whom nobody has heard yet.
    """
    sharing: dict[str, set[int]] = {}
    for queue, tenant in filter(None, map(rules.shared, scopes)):
        sharing.setdefault(queue, set()).add(tenant)
    rooms = {queue: max(0, limits.window_of(queue) - found.window(queue)) for queue in sharing if current.tenants}
    for queue in rooms:
        if transitions.tasks().due(now).filter(queue=queue).order_by().exists():
            rooms[queue] //= 2
    free = {}
    for scope in scopes:
        share = rules.shared(scope)
        if share is not None and share[0] in rooms:
            tenants = sharing[share[0]]
            fair = free_of_share(share, current, found, found.tenants(share[0]) | tenants)
            free[scope] = min(fair, -(-rooms[share[0]] // len(tenants)))
    return free


def parked_scopes(limit: int) -> list[str]:
    """Return scopes for which rows are parked, at most so many; each call goes on where the last one ended."""
    return _walk.next(limit)


class _Walk:
    """A process's way through the scopes with parked rows, so that with very many of them each has its turn."""

    def __init__(self) -> None:
        self._past = ""

    def next(self, limit: int) -> list[str]:
        found = _scopes_past(self._past, limit)
        if len(found) < limit and self._past:
            found += [scope for scope in _scopes_past("", limit - len(found)) if scope not in found]
        self._past = found[-1] if len(found) == limit else ""
        return found


_walk = _Walk()


def _scopes_past(past: str, limit: int) -> list[str]:
    parked = transitions.tasks().filter(held_for__gt=past).order_by("held_for")
    sql = statement("parked")
    if sql is not None:
        with connections[transitions.database()].cursor() as cursor:
            cursor.execute(sql, {"past": past, "limit": limit})
            return [scope for (scope,) in cursor.fetchall()]
    return [scope for scope in parked.values_list("held_for", flat=True).distinct()[:limit] if scope is not None]


def places(scope: str, current: Book, found: Holders) -> int | None:
    """Return how many may be under way in a scope; of a key its most urgent parked task says it, where it matters."""
    numbers = set(current.per_key.values())
    if not scope.startswith("key:") or current.of(scope).places is not None or not numbers:
        return current.of(scope).places
    if len(numbers) == 1 or max(numbers) <= found.under_way[scope]:
        return max(numbers)
    name = transitions.tasks().parked_for(scope).values_list("name", flat=True).first()
    return current.places(scope, name or "")
