"""Enforces the quotas of tenants, in the transaction of what they count.

Open tasks are not counted for each new task. A count grants a number of creations, each of which
is used up by one conditional UPDATE. When none is left, the open tasks are counted again. Both lock
the row of the tenant's quota until the transaction ends, so that concurrent requests cannot exceed
the quota together. Tasks that the project itself creates are counted with the next count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import F, QuerySet

from django_durable_tasks import conf
from django_durable_tasks.engine.audit.recorder import recorded
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.limits.config import limits_in_force
from django_durable_tasks.exceptions import InvalidOption, PayloadTooLarge, QuotaExceeded
from django_durable_tasks.models import DEFAULT_TENANT_ID, RecurringTask, Task, Tenant, TenantQuota
from django_durable_tasks.models.tenant_quota import TenantQuotaQuerySet
from django_durable_tasks.rules.limits.options import of_tenant
from django_durable_tasks.rules.recurring.policies import RecurringStatus
from django_durable_tasks.rules.states import OPEN, Status
from django_durable_tasks.rules.tenants.quotas import (
    NUMBERS,
    REQUESTS,
    Quotas,
    number_of,
    quotas_of,
    request_rate_of,
)

_GRANTED = 1_000
"""Open tasks are counted again after at most this number of creations."""
_COUNTED = 10_000
"""Usage without a quota is counted up to this number."""


def quota_rows() -> TenantQuotaQuerySet:
    """Return a queryset of all quotas, without the guard against writes."""
    found: TenantQuotaQuerySet = TenantQuota.objects.using(tables.database())
    return found.unguarded()


def quotas(tenant: Tenant) -> Quotas:
    """Return the quotas of a tenant: its own values, otherwise those of QUOTAS."""
    row = getattr(tenant, "quota", None)
    given = conf.quotas()
    for name in (*NUMBERS, REQUESTS):
        own = getattr(row, name, None)
        if own not in (None, ""):
            given[name] = own
    if tenant.pk == DEFAULT_TENANT_ID:
        # No index finds the open tasks of the default tenant, which are the project's own.
        given = {REQUESTS: given.get(REQUESTS)}
    return quotas_of(given)


def set_quotas(
    tenant: Tenant, values: Mapping[str, Any], *, now: datetime, by: str = "", reason: str = ""
) -> None:
    """Set the quotas in ``values``; None restores the value of QUOTAS. Raises InvalidOption."""
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name == REQUESTS:
            request_rate_of(value)
            checked[name] = value or ""
        elif name in NUMBERS:
            checked[name] = number_of(name, value)
        else:
            quotas_of({name: value})
    if tenant.pk == DEFAULT_TENANT_ID and set(checked) - {REQUESTS}:
        raise InvalidOption(
            f"tenant={tenant.slug!r}: the default tenant has only the quota {REQUESTS!r}. Give each"
            " customer a tenant of its own."
        )
    with recorded("tenant.set_quotas", by=by, reason=reason) as entry:
        row = _locked(tenant)
        before = {name: getattr(row, name) for name in checked}
        quota_rows().filter(pk=tenant.pk).update(
            **checked, creations_left=0, set_by=by[:200], reason=reason[:500], set_at=now
        )
        entry.changed("tenant", tenant.pk, before, checked, tenant.pk)


def _locked(tenant: Tenant) -> TenantQuota:
    """Return the locked row of a tenant's quota; inserts it if it is missing."""
    rows = tables.locked_for_change(quota_rows().filter(pk=tenant.pk))
    row = rows.first()
    if row is None:
        quota_rows().bulk_create([TenantQuota(tenant_id=tenant.pk)], ignore_conflicts=True)
        row = rows.get()
    return row


def charge_open_tasks(tenant: Tenant, created: int) -> None:
    """Charge tasks that this transaction has created or opened again; raises QuotaExceeded.

    The caller's transaction contains the tasks, so that it writes both or neither.
    """
    most = quotas(tenant).open_tasks
    if most is None or created < 1:
        return
    row = quota_rows().filter(pk=tenant.pk)
    if row.filter(creations_left__gte=created).update(creations_left=F("creations_left") - created):
        return
    _locked(tenant)
    used = _counted(open_tasks(tenant.pk), most)
    if used > most:
        raise QuotaExceeded(
            f"open_tasks: the tenant may have {most:,} open tasks and has {used - created:,}.",
            quota="open_tasks",
            limit=most,
            used=used - created,
        )
    row.update(creations_left=min(most - used, _GRANTED))


def open_tasks(tenant_id: int) -> QuerySet[Task]:
    """Return the open tasks of a tenant, which an index finds unless it is the default tenant."""
    return tables.tasks().filter(
        tenant_id=tenant_id, status__in=sorted(OPEN), completed_at__isnull=True
    )


def _counted(rows: QuerySet[Any], most: int) -> int:
    return int(rows.order_by().values("pk")[: most + _GRANTED].count())


def charge_recurring_task(tenant: Tenant) -> None:
    """Check the number of recurring tasks after one was created; raises QuotaExceeded."""
    most = quotas(tenant).recurring_tasks
    if most is None:
        return
    _locked(tenant)
    used = _counted(_recurring_tasks(tenant.pk), most)
    if used > most:
        raise QuotaExceeded(
            f"recurring_tasks: the tenant may have {most:,} recurring tasks and has {used - 1:,}.",
            quota="recurring_tasks",
            limit=most,
            used=used - 1,
        )


def _recurring_tasks(tenant_id: int) -> QuerySet[RecurringTask]:
    rows: QuerySet[RecurringTask] = RecurringTask.objects.using(tables.database())
    return rows.filter(tenant_id=tenant_id).exclude(status=RecurringStatus.CANCELLED)


def check_payload(tenant: Tenant, arguments: Any) -> None:
    """Raise PayloadTooLarge if the arguments as JSON are larger than the tenant's quota."""
    most = quotas(tenant).payload_bytes
    if most is None:
        return
    size = len(json.dumps(arguments, separators=(",", ":"), ensure_ascii=False).encode())
    if size > most:
        raise PayloadTooLarge(
            f"payload_bytes: the arguments have {size:,} bytes as JSON; the tenant may send"
            f" {most:,}.",
            quota="payload_bytes",
        )


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """A quota and its usage. ``limit`` is None without a limit; ``used`` is None if it is not
    counted.
    """

    name: str
    limit: Any
    used: int | None


def usage(tenant: Tenant) -> list[QuotaUsage]:
    """Return the quotas of a tenant with their usage, counted up to the limit or 10,000.

    ``concurrency`` and ``runs`` are the limits of the scope ``tenant:<id>``, which the claim
    enforces: tasks above them wait and are not refused.
    """
    given, limit = quotas(tenant), limits_in_force().of(of_tenant(tenant.pk))
    opened = open_tasks(tenant.pk)
    running = opened.filter(status__in=[Status.QUEUED, Status.RUNNING])
    return [
        QuotaUsage("open_tasks", given.open_tasks, _used(opened, given.open_tasks)),
        QuotaUsage(
            "recurring_tasks",
            given.recurring_tasks,
            _used(_recurring_tasks(tenant.pk), given.recurring_tasks),
        ),
        QuotaUsage("payload_bytes", given.payload_bytes, None),
        QuotaUsage("concurrency", limit.places, _used(running, limit.places)),
        QuotaUsage("runs", None if limit.rate is None else str(limit.rate), None),
    ]


def _used(rows: QuerySet[Any], limit: int | None) -> int:
    return int(rows.order_by().values("pk")[: max(_COUNTED, (limit or 0) + 1)].count())
