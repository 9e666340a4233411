"""TenantQuota: what an operator allows one tenant. Other tenants have the values of QUOTAS."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.models.instants import InstantField


class TenantQuotaQuerySet(GuardedQuerySet["TenantQuota"]):
    """The queryset of quotas."""


class TenantQuota(GuardedModel):
    """The quotas of a tenant, and how many tasks it may create before its open tasks are counted
    again.

    ``notified_at`` has the time of the last notification about each quota. A quota that is NULL or
    empty has the value of QUOTAS. The row is locked while a task of the
    tenant is created through the API, so that concurrent requests cannot exceed a quota.
    """

    instead: ClassVar[str] = (
        "Use `manage.py durable quota` or the page of the tenant in the admin, which call"
        " quotas.set_quotas(...)."
    )

    tenant = models.OneToOneField(
        "django_durable_tasks.Tenant",
        models.CASCADE,
        primary_key=True,
        related_name="quota",
    )
    open_tasks = models.IntegerField(_("open tasks"), null=True, blank=True)
    recurring_tasks = models.IntegerField(_("recurring tasks"), null=True, blank=True)
    runs_per_day = models.IntegerField(
        _("runs of a recurring task in a day"), null=True, blank=True
    )
    calendars = models.IntegerField(_("calendars"), null=True, blank=True)
    payload_bytes = models.IntegerField(
        _("bytes of the arguments of a task"), null=True, blank=True
    )
    requests = ExactCharField(_("requests"), max_length=20, blank=True, db_default="")
    set_by = ExactCharField(_("set by"), max_length=200, blank=True, db_default="")
    reason = ExactCharField(_("reason"), max_length=500, blank=True, db_default="")
    set_at = InstantField(_("set at"), null=True, blank=True)
    creations_left = models.IntegerField(db_default=0, editable=False)
    notified_at = models.JSONField(default=dict, editable=False)

    objects = TenantQuotaQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_tenant_quota"
        verbose_name = _("quota")
        verbose_name_plural = _("quotas")
        permissions: ClassVar = [("set_tenantquota", "Can set the quotas of a tenant")]

    def __str__(self) -> str:
        return str(self.tenant_id)
