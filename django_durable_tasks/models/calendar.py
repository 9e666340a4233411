"""Calendar: working days and exceptions; schedules use one or several calendars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import ports
from django_durable_tasks.models.clock import StatementTime
from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.models.instants import InstantField
from django_durable_tasks.models.tenant import DEFAULT_TENANT_ID
from django_durable_tasks.rules.recurring.calendars import SpecialDay


def _monday_to_friday() -> list[int]:
    return [1, 2, 3, 4, 5]


class CalendarManager(models.Manager.from_queryset(GuardedQuerySet["Calendar"])):  # type: ignore[misc]
    """Calendar.objects: a calendar is written as a whole, and the schedules that use it are
    recomputed.
    """

    def upsert(
        self,
        name: str,
        *,
        working_days: Sequence[int] | None = None,
        days: Iterable[SpecialDay] | None = None,
        description: str | None = None,
        tenant: Any = None,
        by: str = "",
        reason: str = "",
    ) -> Calendar:
        """Create or change the calendar with this name; None leaves a value unchanged.

        ``working_days``: ISO weekdays, 1 is Monday. ``days`` replaces all special days. The next
        fire times of schedules that use the calendar are recomputed in the same transaction. Raises
        InvalidCalendar.
        """
        calendar: Calendar = ports.calendars.upsert(
            name,
            working_days=working_days,
            days=days,
            description=description,
            tenant=tenant,
            by=by,
            reason=reason,
        )
        return calendar

    def remove(self, name: str, *, tenant: Any = None, by: str = "", reason: str = "") -> bool:
        """Delete the calendar with this name; return whether it existed.

        Raises TransitionRefused while schedules that may fire use it.
        """
        return ports.calendars.remove(name, tenant=tenant, by=by, reason=reason)


class Calendar(GuardedModel):
    """The weekly working days, and the dates that are exceptions (CalendarDay)."""

    instead: ClassVar[str] = "Use Calendar.objects.upsert(...) and Calendar.objects.remove(name)."

    id = models.BigAutoField(primary_key=True)
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant",
        models.PROTECT,
        db_default=DEFAULT_TENANT_ID,
        db_index=False,
        db_constraint=False,
        related_name="+",
    )
    name = ExactCharField(_("name"), max_length=200)
    description = ExactCharField(_("description"), max_length=500, blank=True, default="")
    working_days = models.JSONField(
        _("working days"),
        default=_monday_to_friday,
        help_text=_("ISO weekdays, 1 Monday to 7 Sunday."),
    )
    origin = ExactCharField(_("origin"), max_length=200, blank=True, default="")
    revision = models.BigIntegerField(_("revision"), default=0)
    updated_at = InstantField(_("updated at"), db_default=StatementTime())
    updated_by = ExactCharField(_("updated by"), max_length=200, blank=True, db_default="")
    reason = ExactCharField(_("reason"), max_length=500, blank=True, db_default="")

    objects = CalendarManager()

    class Meta:
        db_table = "durable_tasks_calendar"
        verbose_name = _("calendar")
        verbose_name_plural = _("calendars")
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=("tenant", "name"), name="durable_calendar_name")
        ]

    def __str__(self) -> str:
        return self.name
