"""TenantRequests: the request rate of a tenant."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet


class TenantRequestsQuerySet(GuardedQuerySet["TenantRequests"]):
    """The queryset of request rates."""


class TenantRequests(GuardedModel):
    """When the whole window of requests of a tenant will be free again, in microseconds since 1970.

    It is not a column of the quota, whose row stays locked until a request has committed.
    """

    instead: ClassVar[str] = "request_rates.admit(...) writes these rows for the HTTP API."

    tenant = models.OneToOneField(
        "django_durable_tasks.Tenant", models.CASCADE, primary_key=True, related_name="+"
    )
    free_at = models.BigIntegerField(db_default=0)

    objects = TenantRequestsQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_tenant_requests"

    def __str__(self) -> str:
        return str(self.tenant_id)
