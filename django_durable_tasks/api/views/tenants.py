"""``/tenants``: the tenants for which the caller may act."""

from __future__ import annotations

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks import conf
from django_durable_tasks.api.endpoint import ApiEndpoint
from django_durable_tasks.api.fields import Body, Text
from django_durable_tasks.api.lists import PAGE_PARAMETERS, cursor_of, limit_of, listed, page_of
from django_durable_tasks.api.objects import shown_by
from django_durable_tasks.api.openapi import list_of
from django_durable_tasks.models import Tenant
from django_durable_tasks.rules.tenants.api_keys import ApiScope


class TenantAnswer(Body):
    """A tenant. ``slug`` is the value of the header ``Durable-Tenant``."""

    slug = Text()
    name = Text(allow_blank=True)


class TenantsEndpoint(ApiEndpoint):
    """The tenant of the key, or the tenants that a staff user may choose."""

    scopes: ClassVar = {"GET": ApiScope.READ}
    reads = ("tenant",)
    answers: ClassVar = {"GET": list_of(TenantAnswer)}
    parameters: ClassVar = {"GET": PAGE_PARAMETERS}

    def get(self, request: Request) -> Response:
        """Return the tenants, by slug."""
        caller, rows = self.caller, Tenant.objects.using(conf.settings().DATABASE)
        if caller.user is None:
            rows = rows.filter(pk=caller.tenant.pk)
        elif caller.tenants is not None:
            rows = rows.filter(pk__in=caller.tenants)
        after = cursor_of(request, caller.tenant.pk, Tenant, "slug")
        page = page_of(rows, after, limit_of(request), by="slug")
        return listed(request, caller.tenant.pk, page, lambda row: shown_by(TenantAnswer, row))
