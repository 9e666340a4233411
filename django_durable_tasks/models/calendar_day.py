"""CalendarDay: a date on which a calendar differs from its weekly working days."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.rules.recurring.calendars import DayKind


class CalendarDayQuerySet(GuardedQuerySet["CalendarDay"]):
    """The queryset of special days."""


class CalendarDay(GuardedModel):
    """A date that is CLOSED, OPEN on a day that is not a working day, or HALF: closed from
    ``until`` (wall time) on.
    """

    instead: ClassVar[str] = (
        "Write the days of a calendar with Calendar.objects.upsert(name, days=[...])."
    )

    id = models.BigAutoField(primary_key=True)
    calendar = models.ForeignKey(
        "django_durable_tasks.Calendar", models.CASCADE, related_name="days"
    )
    date = models.DateField(_("date"))
    kind = ExactCharField(
        _("kind"),
        max_length=6,
        choices=[(k.value, k.value) for k in DayKind],
        default=DayKind.CLOSED.value,
    )
    until = models.TimeField(_("open until"), null=True, blank=True)
    name = ExactCharField(_("name"), max_length=200, blank=True, default="")

    objects = CalendarDayQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_calendar_day"
        verbose_name = _("calendar day")
        verbose_name_plural = _("calendar days")
        ordering: ClassVar = ["date"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=("calendar", "date"), name="durable_calendar_date")
        ]

    def __str__(self) -> str:
        return f"{self.date} {self.name}"
