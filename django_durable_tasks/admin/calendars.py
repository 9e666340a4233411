"""The admin of calendars: working days, a year at a glance, dates, and the schedules that use
them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Count, IntegerField, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.dates import WEEKDAYS_ABBR
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.admin import actions, display, filters
from django_durable_tasks.admin.calendar_dates import months_of, year_of
from django_durable_tasks.admin.calendar_editing import editing_for
from django_durable_tasks.admin.readonly import ScreenAdmin
from django_durable_tasks.engine.recurring import calendars
from django_durable_tasks.engine.recurring.schedule_cache import business_days
from django_durable_tasks.exceptions import InvalidCalendar
from django_durable_tasks.models import Calendar, CalendarDay, RecurringTask
from django_durable_tasks.operations.calendars import DELETE, SAVE

_UPDATED = display.instant_of("updated_at", _("updated at"))
_SHOWN = 100


def _delete(screen: Any, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
    """Delete calendars, and redirect from the page of a deleted one to the list."""
    answer = actions.run(screen, request, rows, DELETE)
    gone = actions.CONFIRMED in request.POST and not rows.exists()
    return HttpResponseRedirect(display.list_of("calendar")) if gone else answer


@admin.register(Calendar)
class CalendarAdmin(ScreenAdmin):
    """Calendars."""

    named_by = ("name",)
    list_display = ("name", "description", "week", "dates", "origin", _UPDATED)
    list_filter = (filters.TenantFilter,)
    sortable_by = ()
    ordering = ("tenant_id", "name")
    search_fields = ("name", "description")
    actions = (actions.labelled(_delete, DELETE),)
    operations = (SAVE,)
    change_form_template = "admin/django_durable_tasks/calendar/change_form.html"
    fieldsets: ClassVar = (
        (
            None,
            {
                "fields": (
                    ("week", "dates"),
                    "description",
                    ("origin", _UPDATED),
                    ("updated_by", "reason"),
                    "tenant",
                )
            },
        ),
    )
    readonly_fields = ("week", "dates", _UPDATED)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        days = CalendarDay.objects.filter(calendar=OuterRef("pk")).order_by().values("calendar")
        number = Subquery(
            days.annotate(number=Count("pk")).values("number"), output_field=IntegerField()
        )
        rows: QuerySet[Any] = super().get_queryset(request).annotate(number=Coalesce(number, 0))
        return rows.select_related("tenant")

    def get_urls(self) -> list[URLPattern]:
        edit = self.admin_site.admin_view(editing_for(self))
        return [
            path("add/", edit, name="django_durable_tasks_calendar_add"),
            path("<int:object_id>/edit/", edit, name="django_durable_tasks_calendar_edit"),
            *super().get_urls(),
        ]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add a year at a glance, its dates, the schedules that use the calendar, and buttons."""
        row = context["original"]
        year = year_of(request.GET.get("year", ""), timezone.localdate().year)
        context |= {
            **_context_of(row, year),
            **_followers(row),
            "year": year,
            "before": year - 1,
            "after": year + 1,
            "buttons": self._buttons(request, row),
        }
        return super().render_change_form(request, context, *args, **kwargs)

    def _buttons(self, request: HttpRequest, row: Calendar) -> list[dict[str, str]]:
        edit = reverse("admin:django_durable_tasks_calendar_edit", args=[row.pk])
        found = (
            [{"url": edit, "title": _t("Edit or import dates…")}]
            if self.has_edit_permission(request)
            else []
        )
        if DELETE.is_permitted(request.user):
            found.append({"action": DELETE.name, "title": f"{DELETE.title}…"})
        return found

    # Permissions ----------------------------------------------------------------------------------

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse the stock form: a calendar is changed by ``upsert``, on a separate page."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse Django's deletion: a calendar that a schedule uses must not be deleted."""
        return False

    def has_edit_permission(self, request: HttpRequest) -> bool:
        return SAVE.is_permitted(request.user)

    # Columns and fields ---------------------------------------------------------------------------

    @admin.display(description=_("working days"))
    def week(self, row: Calendar) -> str:
        """Show the working days."""
        return ", ".join(str(WEEKDAYS_ABBR[day - 1]) for day in row.working_days) or display.NOTHING

    @admin.display(description=_("dates"))
    def dates(self, row: Any) -> str:
        """Show the number of dates that differ from their weekday."""
        return f"{row.number:,}"


def _context_of(row: Calendar, year: int) -> dict[str, Any]:
    try:
        days = business_days(row)
    except InvalidCalendar as broken:
        return {"months": [], "special": [], "problem": str(broken)}
    return {
        "months": months_of(days, year),
        "special": [one for one in days.special if one.day.year == year],
    }


def _followers(row: Calendar) -> dict[str, Any]:
    keys = calendars.naming(row.name, row.tenant_id)
    found = (
        RecurringTask.objects.using(row._state.db)
        .filter(pk__in=keys[:_SHOWN])
        .order_by("name")
        .only("name", "status")
    )
    shown = [
        {
            "name": one.name,
            "status": display.badge(f"schedule-{one.status}", one.status),
            "url": display.page_of("recurringtask", one.pk),
        }
        for one in found
    ]
    return {"followers": shown, "number": len(keys), "unshown": max(0, len(keys) - _SHOWN)}
