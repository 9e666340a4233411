"""``/quota``: the quotas of the tenant and their usage."""

from __future__ import annotations

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.api.endpoint import ApiEndpoint
from django_durable_tasks.api.fields import AnyJson, Body, Integer, Text
from django_durable_tasks.api.objects import shown_by
from django_durable_tasks.api.openapi import list_of
from django_durable_tasks.engine.tenants.quotas import QuotaUsage, usage
from django_durable_tasks.rules.tenants.api_keys import ApiScope


class QuotaAnswer(Body):
    """A quota. ``limit`` is null without a limit, and ``used`` if it is not counted."""

    name = Text()
    limit = AnyJson()
    used = Integer(allow_null=True)


class QuotaEndpoint(ApiEndpoint):
    """The quotas of the tenant. Ended tasks do not count."""

    reads = ("tenantquota",)
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": list_of(QuotaAnswer)}

    def get(self, request: Request) -> Response:
        """Return each quota with its limit and what is used of it."""
        rows = usage(self.caller.tenant)
        if self.rate is not None:
            spent = self.rate.rate.number - self.rate.left
            rows.append(QuotaUsage("requests", str(self.rate.rate), spent))
        data = [shown_by(QuotaAnswer, row) for row in rows]
        return Response({"data": data, "next_cursor": None, "prev_cursor": None, "has_more": False})
