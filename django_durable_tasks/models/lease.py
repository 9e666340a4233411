"""SchedulerLease: the leader of a region. ``migrate`` creates the row, so acquiring the lease is an
UPDATE.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.instants import InstantField

_LEADER = "leader"
LONG_EXPIRED = datetime(2000, 1, 1, tzinfo=UTC)
"""``expires_at`` of a lease that no scheduler has owned yet."""


def lease_name(region: str | None = None) -> str:
    """Return the name of the lease of a region, by default of this process's region."""
    found = conf.settings().REGION if region is None else region
    return f"{_LEADER}@{found}" if found else _LEADER


def region_of(name: str) -> str:
    """Return the region of the lease with this name."""
    return name.partition("@")[2]


class SchedulerLease(models.Model):
    """A lease, its owner and its term. The term only grows; it fences the leader's writes."""

    name = ExactCharField(_("name"), primary_key=True, max_length=100)
    holder = models.UUIDField(_("holder"), null=True)
    term = models.BigIntegerField(_("term"), default=0)
    acquired_at = InstantField(_("acquired at"), null=True)
    expires_at = InstantField(_("expires at"))

    class Meta:
        db_table = "durable_tasks_scheduler_lease"
        verbose_name = _("scheduler lease")
        verbose_name_plural = _("scheduler leases")
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return f"{self.name}, term {self.term}"
