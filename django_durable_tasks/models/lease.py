"""SchedulerLease: who leads. The rows are made by the migration, so that taking the lease is only an UPDATE."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _


class SchedulerLease(models.Model):
    """One office, its holder and the term of that reign; the term only grows and fences the leader's writes."""

    name = models.CharField(_("name"), primary_key=True, max_length=100)
    holder = models.UUIDField(_("holder"), null=True)
    term = models.BigIntegerField(_("term"), default=0)
    acquired_at = models.DateTimeField(_("acquired at"), null=True)
    expires_at = models.DateTimeField(_("expires at"))

    class Meta:
        db_table = "durable_tasks_scheduler_lease"
        verbose_name = _("scheduler lease")
        verbose_name_plural = _("scheduler leases")
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return f"{self.name}, term {self.term}"
