"""The request rate of tenants in the database, for installations without Redis."""

from __future__ import annotations

from datetime import datetime

from django.db.models import F, Q
from django.db.models.functions import Greatest

from django_durable_tasks.engine.db import tables
from django_durable_tasks.models import TenantRequests
from django_durable_tasks.models.tenant_requests import TenantRequestsQuerySet
from django_durable_tasks.rules.tenants.quotas import RateDecision, RequestRate


def _rows(tenant_id: int) -> TenantRequestsQuerySet:
    found: TenantRequestsQuerySet = TenantRequests.objects.using(tables.database())
    return found.unguarded().filter(pk=tenant_id)


def admit(tenant_id: int, rate: RequestRate, now: datetime) -> RateDecision:
    """Count a request and return whether the rate admits it.

    One conditional UPDATE decides, so that concurrent requests cannot exceed the rate together. A
    ``free_at`` beyond the window, which is left from a slower rate or another clock, counts as
    ``now``.
    """
    at = int(now.timestamp() * 1_000_000)
    if _moved(tenant_id, rate, at):
        admitted = True
    else:
        TenantRequests.objects.using(tables.database()).unguarded().bulk_create(
            [TenantRequests(tenant_id=tenant_id)], ignore_conflicts=True
        )
        _rows(tenant_id).filter(free_at__gt=at + rate.window).update(free_at=at)
        admitted = _moved(tenant_id, rate, at)
    free_at = _rows(tenant_id).values_list("free_at", flat=True).first()
    return rate.decision(admitted, (at if free_at is None else free_at) - at)


def _moved(tenant_id: int, rate: RequestRate, at: int) -> bool:
    free = Q(free_at__lte=at + rate.window - rate.interval)
    rows = _rows(tenant_id).filter(free)
    return bool(rows.update(free_at=Greatest(F("free_at"), at) + rate.interval))
