"""Reads the usage of limits: the weight of QUEUED and RUNNING tasks by scope, and the tokens of
rate limits.

Also provides the lock that serializes limited claims. Called by ``admission``, ``release`` and
``operator_limits``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import connections
from django.db.models import Count, Sum

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.clock import aware, database_now
from django_durable_tasks.engine.db.connections import bound_transaction
from django_durable_tasks.engine.db.statements import statement
from django_durable_tasks.engine.limits.backpressure import paused_queues
from django_durable_tasks.models import LimitBucket
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.limit_bucket import LOCK
from django_durable_tasks.rules.limits import options as rules
from django_durable_tasks.rules.limits.admission import Capacity
from django_durable_tasks.rules.limits.options import Allowance, Bucket, Rate
from django_durable_tasks.rules.states import Status


def lock_limits() -> datetime:
    """Lock the single row that serializes limited claims, until the end of the transaction. Return
    the database's time under the lock.

    Inserts the row if it is missing. Waiters time out after ``lock_timeout``. PostgreSQL and
    MariaDB abort an idle transaction that still has the lock.
    """
    bound_transaction()
    sql = statement("lock_limits")
    locked = tables.read(sql, {}) if sql is not None else []
    if locked:
        return aware(locked[0][0])
    lock = LimitBucket.objects.using(tables.database())
    if not lock.filter(pk=LOCK).update(refilled_at=DatabaseNow()):
        write([LimitBucket(scope=LOCK, refilled_at=database_now())])
    return database_now()


def write(rows: Sequence[LimitBucket]) -> None:
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

    def add(
        self, name: str, queue: str, tenant_id: int, limit_key: str | None, weight: int
    ) -> None:
        """Add a QUEUED task to the counts."""
        self.queued[queue][tenant_id] += 1
        self.of_tenants[queue][tenant_id] += 1
        self.add_weight(scopes_of(name, queue, tenant_id, limit_key), weight)

    def add_weight(self, scopes: Iterable[str], weight: int) -> None:
        """Add this weight, which may be negative, to the usage of scopes."""
        under_way = self.under_way
        for scope in scopes:
            under_way[scope] = under_way.get(scope, 0) + weight

    def leave_out(
        self, name: str, queue: str, tenant_id: int, limit_key: str | None, weight: int
    ) -> None:
        """Subtract a QUEUED task from the counts."""
        self.queued[queue][tenant_id] -= 1
        self.of_tenants[queue][tenant_id] -= 1
        self.add_weight(scopes_of(name, queue, tenant_id, limit_key), -weight)


def scopes_of(name: str, queue: str, tenant_id: int, limit_key: str | None) -> list[str]:
    """Return every scope, limited or not, in which a task is counted."""
    keyed = [rules.of_key(limit_key)] if limit_key is not None else []
    return [
        rules.GLOBAL,
        rules.of_queue(queue),
        rules.of_tenant(tenant_id),
        rules.of_task(name),
        *keyed,
    ]


def count(*, running: bool = True) -> Usage:
    """Count the usage of QUEUED and, if ``running``, of RUNNING tasks, by the partial indexes of
    their statuses.
    """
    found = Usage()
    for status, name, queue, tenant_id, key, number, weight in _groups(running=running):
        if not status:
            found.paused.add(queue)
            continue
        if status == Status.QUEUED:
            found.queued[queue][tenant_id] += number
        found.of_tenants[queue][tenant_id] += number
        found.add_weight(scopes_of(name, queue, tenant_id, key), int(weight))
    return found


def _groups(*, running: bool) -> Iterable[tuple[str, str, str, int, str | None, int, int]]:
    """Return status, name, queue, tenant, key, number and weight of each group of tasks, and a row
    without a status for each paused queue.
    """
    sql = statement("usage")
    if sql is not None:
        yield from tables.read(sql, {"running": running})
        return
    by_status = [(Status.QUEUED, tables.tasks().queued())]
    by_status += [(Status.RUNNING, tables.tasks().running())] if running else []
    for status, tasks in by_status:
        groups = tasks.order_by().values_list("name", "queue", "tenant_id", "limit_key")
        for group in groups.annotate(rows=Count("pk"), weights=Sum("weight")):
            yield (status, *group)
    yield from (("", "", queue, 0, None, 0, 0) for queue in paused_queues())


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
        if rules.accumulated(bucket, rates[scope], now).at < bucket.at
    ]
    if ahead:
        _reset_clock(ahead)
        stored = _stored(rates)
    return _refilled(stored, rates, now)


def add_scopes(
    capacity: Capacity,
    allowed: Mapping[str, Allowance],
    found: Usage,
    now: datetime | None,
    mark: str = "",
) -> dict[str, Bucket]:
    """Add the free capacity of these scopes: what they allow less the usage ``found``.

    They are added under their names followed by ``mark``. Without ``now`` rates are left out.
    Return the token buckets.
    """
    rates = {scope: one.rate for scope, one in allowed.items() if one.rate is not None}
    fresh = {} if now is None else buckets(rates, now)
    for scope, bucket in fresh.items():
        capacity.rates[scope + mark], capacity.tokens[scope + mark] = rates[scope], bucket.tokens
    for scope, one in allowed.items():
        capacity.known.add(scope + mark)
        if one.places is not None:
            capacity.places[scope + mark] = one.places - found.under_way[scope]
        if one.heaviest is not None:
            capacity.heaviest[scope + mark] = one.heaviest
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
    return {scope: rules.accumulated(stored.get(scope), rate, now) for scope, rate in rates.items()}


def _reset_clock(scopes: Collection[str]) -> None:
    with tables.atomic():
        lock_limits()
        now = database_now()
        these = LimitBucket.objects.using(tables.database()).filter(pk__in=sorted(scopes))
        these.filter(refilled_at__gt=now + timedelta(seconds=rules.A_NEW_CLOCK)).update(
            refilled_at=now
        )
