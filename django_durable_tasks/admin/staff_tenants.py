"""The tenants that a staff user sees in the admin."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest

from django_durable_tasks import conf, ports
from django_durable_tasks.models import DEFAULT_TENANT_ID, Tenant

_FOUND = "_durable_tenants"


def tenants_of(request: HttpRequest) -> frozenset[int] | None:
    """Return the ids of the user's tenants, which are read once for a request; None for all."""
    if not hasattr(request, _FOUND):
        limit = ports.tenants_of
        setattr(request, _FOUND, None if limit is None else limit(request.user))
    ids: frozenset[int] | None = getattr(request, _FOUND)
    return ids


def is_limited(request: HttpRequest) -> bool:
    """Return whether the user sees only some tenants."""
    return tenants_of(request) is not None


def visible(request: HttpRequest, rows: QuerySet[Any], path: str = "tenant") -> QuerySet[Any]:
    """Return the rows of the user's tenants. ``path`` is the lookup of the tenant."""
    ids = tenants_of(request)
    return rows if ids is None else rows.filter(**{f"{path}__in": sorted(ids)})


def offered(request: HttpRequest) -> QuerySet[Tenant]:
    """Return the tenants that a form offers, by slug."""
    return visible(request, Tenant.objects.using(conf.settings().DATABASE), "pk").order_by("slug")


def is_default_only(tenants: QuerySet[Tenant]) -> bool:
    """Return whether a form needs no field for the tenant."""
    return [tenant.pk for tenant in tenants[:2]] == [DEFAULT_TENANT_ID]
