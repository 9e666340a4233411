"""Calendar: which days are working days; schedules name one or several."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.tenant import DEFAULT_TENANT_ID


def _monday_to_friday() -> list[int]:
    return [1, 2, 3, 4, 5]


class Calendar(models.Model):
    """The working days of a week, and the dates that are exceptions (CalendarDay)."""

    id = models.BigAutoField(primary_key=True)
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant",
        models.PROTECT,
        db_default=DEFAULT_TENANT_ID,
        db_index=False,
        db_constraint=False,
        related_name="+",
    )
    name = models.CharField(_("name"), max_length=200)
    description = models.CharField(_("description"), max_length=500, blank=True, default="")
    working_days = models.JSONField(
        _("working days"), default=_monday_to_friday, help_text=_("ISO weekdays, 1 Monday to 7 Sunday.")
    )
    origin = models.CharField(_("origin"), max_length=200, blank=True, default="")
    revision = models.BigIntegerField(_("revision"), default=0)
    updated_at = models.DateTimeField(_("updated at"), db_default=DatabaseNow())

    class Meta:
        db_table = "durable_tasks_calendar"
        verbose_name = _("calendar")
        verbose_name_plural = _("calendars")
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [models.UniqueConstraint(fields=("tenant", "name"), name="durable_calendar_name")]

    def __str__(self) -> str:
        return self.name
