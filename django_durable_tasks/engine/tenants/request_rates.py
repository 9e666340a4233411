"""The request rate of tenants in the database."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import connections
from django.db.models import F, Q
from django.db.models.functions import Greatest

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.statements import statement
from django_durable_tasks.models import TenantRequests
from django_durable_tasks.models.tenant_requests import TenantRequestsQuerySet
from django_durable_tasks.rules.tenants.quotas import RateDecision, RequestRate

_SKEW = 60_000_000
"""The largest difference between the times of concurrent requests, in microseconds."""


def _rows(tenant_id: int) -> TenantRequestsQuerySet:
    found: TenantRequestsQuerySet = TenantRequests.objects.using(tables.database())
    return found.unguarded().filter(pk=tenant_id)


def admit(tenant_id: int, rate: RequestRate, now: datetime, requests: int = 1) -> RateDecision:
    """Count a request, or several together, and return whether the rate admits it.

    One conditional UPDATE decides, so that concurrent requests cannot exceed the rate together. A
    ``free_at`` that is more than a minute beyond the window, which is left from a slower rate or
    another clock, counts as ``now``. Within this minute it may be from a request that read its
    ``now`` later and was counted earlier.
    """
    at = _microseconds(now)
    free_at = _moved(tenant_id, rate, at, requests)
    if free_at is None:
        TenantRequests.objects.using(tables.database()).unguarded().bulk_create(
            [TenantRequests(tenant_id=tenant_id)], ignore_conflicts=True
        )
        _rows(tenant_id).filter(free_at__gt=at + rate.window + _SKEW).update(free_at=at)
        free_at = _moved(tenant_id, rate, at, requests)
    if free_at is not None:
        return rate.decision(True, free_at - at, requests)
    refused_until = _rows(tenant_id).values_list("free_at", flat=True).first()
    ahead = 0 if refused_until is None else refused_until - at
    return rate.decision(False, ahead, requests)


def parameters(rate: RequestRate, now: datetime) -> dict[str, Any]:
    """Return the parameters of a statement that counts a request.

    ``at`` is ``now`` in microseconds, as ``free_at`` is stored.
    """
    return _parameters(rate, _microseconds(now), 1)


def _parameters(rate: RequestRate, at: int, requests: int) -> dict[str, Any]:
    alone = not connections[tables.database()].in_atomic_block
    interval = rate.taken_by(requests)
    return {"at": at, "alone": alone, "interval": interval, "window": rate.window}


def _microseconds(now: datetime) -> int:
    return int(now.timestamp() * 1_000_000)


def _moved(tenant_id: int, rate: RequestRate, at: int, requests: int) -> int | None:
    """Count the requests and return the new ``free_at``; None if the rate does not admit it."""
    sql = statement("request_rate")
    if sql is not None:
        rows = tables.read(sql, {"tenant_id": tenant_id, **_parameters(rate, at, requests)})
        return int(rows[0][0]) if rows else None
    interval = rate.taken_by(requests)
    free = Q(free_at__lte=at + rate.window - interval)
    if not _rows(tenant_id).filter(free).update(free_at=Greatest(F("free_at"), at) + interval):
        return None
    return int(_rows(tenant_id).values_list("free_at", flat=True).get())
