"""Reads the usage of limits, and the tasks that wait for them."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import Count, Q, Sum

from django_durable_tasks.choices import Status
from django_durable_tasks.limits import scopes as limits_scopes
from django_durable_tasks.limits.backpressure import AT_ONCE, paused_queues
from django_durable_tasks.limits.scopes import AdmissionRequest, Allowance, Bucket, Capacity, Rate
from django_durable_tasks.models import LimitBucket
from django_durable_tasks.models.cluster import LOCK
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import aware, database_now
from django_durable_tasks.store.connections import bound_transaction
from django_durable_tasks.store.dialects import MYSQL, POSTGRESQL, SQLITE, sql, verb

# Reads the usage of limits: the weight of QUEUED and RUNNING tasks by scope, and the tokens of
# rate limits.
#
# Also provides the lock that serializes limited claims. Called by ``admission``, ``release`` and
# ``operator_limits``.


def lock_limits() -> datetime:
    """Lock the single row that serializes limited claims, until the end of the transaction. Return
    the database's time under the lock.

    Inserts the row if it is missing. Waiters time out after ``lock_timeout``. PostgreSQL and
    MariaDB abort an idle transaction that still has the lock.
    """
    bound_transaction()
    return _lock_row()


@verb
def _lock_row() -> datetime:
    lock = LimitBucket.objects.using(tables.database())
    if not lock.filter(pk=LOCK).update(refilled_at=DatabaseNow()):
        write_buckets([LimitBucket(scope=LOCK, refilled_at=database_now())])
    return database_now()


@_lock_row.on(POSTGRESQL)
def _lock_row_in_one_statement() -> datetime:
    locked = tables.read(sql("lock_limits"), {})
    return aware(locked[0][0]) if locked else _lock_row.orm()


def write_buckets(rows: Sequence[LimitBucket]) -> None:
    """Insert or update these rows with one statement, which locks them in both cases."""
    supports_target = connections[tables.database()].features.supports_update_conflicts_with_target
    LimitBucket.objects.using(tables.database()).bulk_create(
        rows,
        update_conflicts=True,
        update_fields=["tokens", "refilled_at"],
        unique_fields=["scope"] if supports_target else None,
    )


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of limits at one moment.

    ``under_way`` is the weight of QUEUED and RUNNING tasks by scope. ``queued`` counts the QUEUED
    tasks, and ``of_tenants`` the QUEUED and RUNNING tasks, by queue and tenant. ``paused`` are the
    paused queues.
    """

    under_way: Counter[str] = field(default_factory=Counter)
    queued: defaultdict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    of_tenants: defaultdict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    paused: set[str] = field(default_factory=set)

    def window(self, queue: str) -> int:
        """Return the number of QUEUED tasks of a queue."""
        return self.queued[queue].total()

    def tenants(self, queue: str) -> set[int]:
        """Return the tenants with QUEUED or RUNNING tasks in a queue."""
        return {tenant for tenant, number in self.of_tenants[queue].items() if number > 0}

    def add(self, task: Any, sign: int = 1) -> None:
        """Add a QUEUED task to the counts; with the ``sign`` -1, subtract it."""
        self.queued[task.queue][task.tenant_id] += sign
        self.of_tenants[task.queue][task.tenant_id] += sign
        scopes = scopes_of(task.name, task.queue, task.tenant_id, task.limit_key)
        self.add_weight(scopes, sign * task.weight)

    def add_weight(self, scopes: Iterable[str], weight: int) -> None:
        """Add this weight, which may be negative, to the usage of scopes."""
        under_way = self.under_way
        for scope in scopes:
            under_way[scope] = under_way.get(scope, 0) + weight


def scopes_of(name: str, queue: str, tenant_id: int, limit_key: str | None) -> list[str]:
    """Return every scope, limited or not, in which a task is counted."""
    keyed = [limits_scopes.scope_of_key(limit_key)] if limit_key is not None else []
    return [
        limits_scopes.GLOBAL,
        limits_scopes.scope_of_queue(queue),
        limits_scopes.scope_of_tenant(tenant_id),
        limits_scopes.scope_of_task(name),
        *keyed,
    ]


def count_usage(*, running: bool = True) -> Usage:
    """Count the usage of QUEUED and, if ``running``, of RUNNING tasks, by the partial indexes of
    their statuses.
    """
    usage = Usage()
    for status, name, queue, tenant_id, key, number, weight in _groups(running=running):
        if not status:
            usage.paused.add(queue)
            continue
        if status == Status.QUEUED:
            usage.queued[queue][tenant_id] += number
        usage.of_tenants[queue][tenant_id] += number
        usage.add_weight(scopes_of(name, queue, tenant_id, key), int(weight))
    return usage


@verb
def _groups(*, running: bool) -> Iterable[tuple[str, str, str, int, str | None, int, int]]:
    """Return status, name, queue, tenant, key, number and weight of each group of tasks, and a row
    without a status for each paused queue.
    """
    by_status = [(Status.QUEUED, tables.tasks().queued())]
    by_status += [(Status.RUNNING, tables.tasks().running())] if running else []
    for status, tasks in by_status:
        groups = tasks.order_by().values_list("name", "queue", "tenant_id", "limit_key")
        for group in groups.annotate(rows=Count("pk"), weights=Sum("weight")):
            yield (status, *group)
    yield from (("", "", queue, 0, None, 0, 0) for queue in paused_queues())


@_groups.on(POSTGRESQL)
def _groups_in_one_statement(
    *, running: bool
) -> Iterable[tuple[str, str, str, int, str | None, int, int]]:
    return tables.read(sql("usage"), {"running": running})


def buckets(rates: Mapping[str, Rate], now: datetime) -> dict[str, Bucket]:
    """Return the token buckets of these scopes, refilled up to ``now`` and not yet capped at the
    burst size.

    If the time of a stored bucket is ahead of the database clock, the bucket is first reset to the
    clock, under the lock of limits. The clock is read again for this, because ``now`` may be old.
    """
    if not rates:
        return {}
    stored = _stored(rates)
    ahead = [
        scope
        for scope, bucket in stored.items()
        if limits_scopes.accumulated(bucket, rates[scope], now).at < bucket.at
    ]
    if ahead:
        with tables.atomic():
            lock_limits()
            clock = database_now()
            reset_before = clock + timedelta(seconds=limits_scopes.A_NEW_CLOCK)
            LimitBucket.objects.using(tables.database()).filter(
                pk__in=sorted(ahead), refilled_at__gt=reset_before
            ).update(refilled_at=clock)
        stored = _stored(rates)
    return _refilled(stored, rates, now)


def add_scopes(
    capacity: Capacity,
    allowed: Mapping[str, Allowance],
    usage: Usage,
    now: datetime | None,
    mark: str = "",
) -> dict[str, Bucket]:
    """Add the free capacity of these scopes: what they allow less ``usage``.

    They are added under their names followed by ``mark``. Without ``now`` rates are left out.
    Return the token buckets.
    """
    rates = {
        scope: allowance.rate for scope, allowance in allowed.items() if allowance.rate is not None
    }
    fresh = {} if now is None else buckets(rates, now)
    for scope, bucket in fresh.items():
        capacity.rates[scope + mark], capacity.tokens[scope + mark] = rates[scope], bucket.tokens
    for scope, allowance in allowed.items():
        capacity.known.add(scope + mark)
        if allowance.places is not None:
            capacity.places[scope + mark] = allowance.places - usage.under_way[scope]
        if allowance.heaviest is not None:
            capacity.heaviest[scope + mark] = allowance.heaviest
    return fresh


def seen_buckets(rates: Mapping[str, Rate], now: datetime) -> dict[str, Bucket]:
    """Return the same as ``buckets`` for display; writes nothing."""
    return _refilled(_stored(rates), rates, now)


def _stored(rates: Mapping[str, Rate]) -> dict[str, Bucket]:
    rows = LimitBucket.objects.using(tables.database()).filter(
        pk__in=list(rates), refilled_at__isnull=False
    )
    return {
        row.scope: Bucket(row.tokens, row.refilled_at)
        for row in rows
        if row.refilled_at is not None
    }


def _refilled(
    stored: Mapping[str, Bucket], rates: Mapping[str, Rate], now: datetime
) -> dict[str, Bucket]:
    return {
        scope: limits_scopes.accumulated(stored.get(scope), rate, now)
        for scope, rate in rates.items()
    }


# Reads the waitlists of limits: the scopes with waiting tasks, and the first tasks of each scope.
#
# One statement reads many scopes. Called by ``admission``, ``release`` and the
# dispatch loop.


URGENT = 9
"""Tasks of this priority are released even if the window of their queue is full."""
HEADS = 20
"""The number of tasks of a waitlist that ``heads`` returns."""
_SPARE, _PAGE = 10, 1_000
"""``_SPARE`` more tasks of a waitlist are read than requested. If too few of these are eligible,
``_PAGE`` are read.
"""
_LOWEST_ID = uuid.UUID(int=0)
# Before each instant since which a task can be due.
_LONG_AGO = datetime(1, 1, 2, tzinfo=UTC)


class WaitingTask(NamedTuple):
    """A task that waits for a limit."""

    waiting_for_limit: str
    pk: uuid.UUID
    name: str
    queue: str
    tenant_id: int
    limit_key: str | None
    weight: int
    priority: int
    expires_at: datetime | None
    ready_at: datetime | None


class _Part(NamedTuple):
    """The first tasks to read of a waitlist: of priorities from ``least`` to ``most``, behind the
    one that is due since ``past`` and has the id ``past_id``.
    """

    scope: str
    number: int
    least: int = 0
    most: int = URGENT
    past: datetime = _LONG_AGO
    past_id: uuid.UUID = _LOWEST_ID


class Pages:
    """The last task of the page of each waitlist that was read last, for the waitlists whose pages
    had too few eligible tasks.
    """

    def __init__(self) -> None:
        self._last: dict[str, WaitingTask] = {}

    def __bool__(self) -> bool:
        return bool(self._last)

    def next(self, scope: str, least: int) -> list[_Part]:
        """Return the parts of the next page of a waitlist."""
        last = self._last.get(scope)
        if last is None or last.ready_at is None or last.priority < least:
            return [_Part(scope, _PAGE, least)]
        lower = [_Part(scope, _PAGE, least, last.priority - 1)] if last.priority > least else []
        return [_Part(scope, _PAGE, last.priority, last.priority, last.ready_at, last.pk), *lower]

    def were_read(self, scope: str, page: Sequence[WaitingTask], *, suffices: bool) -> None:
        """Record what was read: a page that suffices is read again, the last one is followed by the
        first.
        """
        if len(page) < _PAGE:
            self._last.pop(scope, None)
        elif not suffices:
            self._last[scope] = page[-1]

    def keep(self, scopes: Collection[str]) -> None:
        """Forget the waitlists of other scopes than these."""
        self._last = {scope: row for scope, row in list(self._last.items()) if scope in scopes}


def eligible(
    leasts: Mapping[str, int],
    number: Callable[[str], int],
    takes: Callable[[WaitingTask], bool],
    *,
    released_too: bool,
    seen: Sequence[WaitingTask] = (),
    pages: Pages | None = None,
) -> list[WaitingTask]:
    """Return the first eligible tasks of each waitlist, by scope: ``number(scope)`` or a few more.

    ``leasts``: the scopes, and the lowest priority of a task that is read. ``takes`` decides which
    tasks are eligible. If too few of the first tasks are, a page of 1,000 is read, without
    ``pages`` always the first one. This takes at most two passes, and the work does not grow with
    the length of a waitlist.
    ``released_too``: also tasks that were released and are not claimed yet. ``seen``: the tasks
    that the caller has read by ``heads``; then the first pass is left out.
    """
    numbers = {scope: number(scope) for scope in leasts}
    sizes = {scope: HEADS if seen else numbers[scope] + _SPARE for scope in leasts}

    rows_by_scope = _by_scope(row for row in seen if row.waiting_for_limit in leasts)
    if not seen:
        heads_of = [_Part(scope, sizes[scope], least) for scope, least in leasts.items()]
        rows_by_scope = _by_scope(_read(heads_of, released_too=released_too))
    chosen = {scope: list(filter(takes, rows)) for scope, rows in rows_by_scope.items()}
    short = [
        scope
        for scope, rows in rows_by_scope.items()
        if len(rows) == sizes[scope] and len(chosen[scope]) < numbers[scope]
    ]
    pages = Pages() if pages is None else pages
    further = [part for scope in short for part in pages.next(scope, leasts[scope])]
    read = _by_scope(_read(further, released_too=released_too))
    for scope in short:
        page = read.get(scope, [])[:_PAGE]
        fit = {row.pk: row for row in (*chosen[scope], *filter(takes, page))}
        pages.were_read(scope, page, suffices=len(fit) >= numbers[scope])
        chosen[scope] = list(fit.values())[: numbers[scope] + _SPARE]
    return [row for rows in chosen.values() for row in rows]


def _by_scope(rows: Iterable[WaitingTask]) -> dict[str, list[WaitingTask]]:
    rows_by_scope: dict[str, list[WaitingTask]] = {}
    for row in rows:
        rows_by_scope.setdefault(row.waiting_for_limit, []).append(row)
    return rows_by_scope


@verb
def _read(parts: Sequence[_Part], *, released_too: bool) -> list[WaitingTask]:
    """Return the tasks of these parts of waitlists."""
    tasks = tables.tasks()
    of_scope = tasks.reserved_for_scope if released_too else tasks.waiting_for_scope
    queries = []
    for part in parts:
        queryset = of_scope(part.scope)
        if part.least == part.most:
            queryset = queryset.filter(priority=part.least)
        elif part.least or part.most < URGENT:
            queryset = queryset.filter(priority__range=(part.least, part.most))
        if part.past != _LONG_AGO:
            later = Q(ready_at__gt=part.past) | Q(ready_at=part.past, pk__gt=part.past_id)
            queryset = queryset.filter(later)
        queries.append((queryset, part.number))
    return [WaitingTask._make(row) for row in tables.first_of_each(queries, WaitingTask._fields)]


@_read.on(POSTGRESQL)
def _read_in_one_statement(parts: Sequence[_Part], *, released_too: bool) -> list[WaitingTask]:
    if not parts:
        return []
    columns = (list(column) for column in zip(*parts, strict=True))
    names = ("scopes", "numbers", "leasts", "mosts", "pasts", "past_ids")
    parameters: dict[str, Any] = dict(zip(names, columns, strict=True))
    parameters |= {"never": NEVER, "released": released_too}
    return [WaitingTask._make(row) for row in tables.read(sql("waitlists"), parameters)]


_NOW = datetime.max.replace(tzinfo=UTC)


def admission_request(
    key: Any,
    scopes: Sequence[str],
    weight: int,
    order: tuple[int, datetime | None],
    other_scopes: Sequence[str] = (),
) -> AdmissionRequest:
    """Return the task as the rules of admission expect it. ``order``: its priority, and since when
    it is due; None: since now. In a waitlist the highest priority goes first, then the task that
    has been due for longest.
    """
    priority, due_since = order
    turn = (-priority, due_since or _NOW, key)
    return AdmissionRequest(key, scopes, weight, turn, other_scopes)


def heads(scopes: Sequence[str]) -> list[WaitingTask]:
    """Return the first tasks that wait for each of these scopes, or were released and not claimed
    yet; one statement.
    """
    return _read([_Part(scope, HEADS) for scope in scopes], released_too=True)


class ScopeCursor:
    """A cursor over the scopes with waiting tasks.

    If more scopes have waiting tasks than one call returns, consecutive calls return all of them in
    turn.
    """

    def __init__(self) -> None:
        self._past = ""

    def next(self, limit: int) -> list[str]:
        """Return at most ``limit`` scopes with waiting tasks; each call continues after the last
        one returned.
        """
        scopes = scopes_after(self._past, limit)
        if len(scopes) < limit and self._past:
            scopes += [
                scope for scope in scopes_after("", limit - len(scopes)) if scope not in scopes
            ]
        self._past = scopes[-1] if len(scopes) == limit else ""
        return scopes


@verb
def scopes_after(past: str, limit: int) -> list[str]:
    """Return at most ``limit`` scopes with waiting tasks, in the order of names, after ``past``."""
    waiting = tables.tasks().filter(waiting_for_limit__gt=past).order_by("waiting_for_limit")
    return [
        scope
        for scope in waiting.values_list("waiting_for_limit", flat=True).distinct()[:limit]
        if scope is not None
    ]


@scopes_after.on(POSTGRESQL, MYSQL, SQLITE)
def _scopes_by_pages(past: str, limit: int) -> list[str]:
    scopes, page = list[str](), min(limit, AT_ONCE)
    with connections[tables.database()].cursor() as cursor:
        while page:
            cursor.execute(sql("waiting_scopes"), {"past": past, "limit": page})
            batch = [scope for (scope,) in cursor.fetchall()]
            scopes += batch
            past = batch[-1] if batch else past
            page = min(limit - len(scopes), AT_ONCE) if len(batch) == page else 0
    return scopes
