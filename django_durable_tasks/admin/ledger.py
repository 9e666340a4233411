"""The admin of the ledger: the outcome of each fire time, its reason and its task."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import display, filters, recurring_form, staff_tenants
from django_durable_tasks.admin.readonly import ReadOnlyAdmin
from django_durable_tasks.admin.recurring_tasks import MISSED, SKIPPED
from django_durable_tasks.choices import FireOutcome
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task

_FIRED = display.instant_of("fire_time", _("fire time"))
_LAST = display.instant_of("last_fire_time", _("last fire time"))
_EFFECTIVE = display.instant_of("effective_at", _("effective at"))
_CREATED = display.instant_of("created_at", _("recorded at"))
LOOKED_AT = 200_000
"""The filter by outcome searches this many of the newest entries, because outcomes have no index.
"""
OF_ONE = 1_000
"""The number of entries of one schedule per page."""


class OutcomeFilter(filters.ScreenFilter):
    """Filter by outcome; without a schedule among the newest LOOKED_AT entries."""

    title = _("outcome")
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("unrun", _("missed or skipped")),
            *((one.value, one.value) for one in FireOutcome),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        found = super().queryset(request, queryset)
        if found is None or "schedule" in request.GET:
            return found
        newest = (
            OccurrenceRecord.objects.using(found.db)
            .order_by("-pk")
            .values_list("pk", flat=True)
            .first()
            or 0
        )
        return found.filter(pk__gt=newest - LOOKED_AT)

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the entries with this outcome."""
        return rows.filter(outcome__in=[*MISSED, *SKIPPED] if value == "unrun" else [value])


class ScheduleFilter(filters.ScreenFilter):
    """Filter by recurring task, its newest OF_ONE entries at a time. It is reached by links,
    because there may be a million schedules.

    The value is a schedule's id, optionally with a comma and the fire time from which older entries
    are shown.
    """

    title = _("schedule")
    parameter_name = "schedule"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        self.chosen = _chosen(request, str(self.used_parameters.get("schedule", "")))
        self.keys, oldest = _newest_of(*self.chosen) if self.chosen else ([], None)
        if self.chosen is None:
            return []
        row, until = self.chosen
        older = [
            (f"{row.pk},{one.isoformat()}", f"{row.name}, {display.instant(one)}")
            for one in (until, oldest)
            if one
        ]
        return [(str(row.pk), row.name), *older]

    def has_output(self) -> bool:
        """Show the filter if a schedule is selected: its name is a choice, and "All" removes it."""
        return self.value() is not None

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the entries that were found by the indexes of fire times."""
        return rows.filter(pk__in=self.keys)


def _chosen(request: HttpRequest, value: str) -> tuple[RecurringTask, datetime | None] | None:
    name, comma, until = value.partition(",")
    try:
        key, moment = uuid.UUID(name), datetime.fromisoformat(until) if comma else None
    except ValueError:
        return None
    if moment is not None and moment.tzinfo is None:
        return None
    schedules = staff_tenants.visible(
        request, RecurringTask.objects.using(conf.settings().DATABASE)
    )
    row = schedules.only("name").filter(pk=key).first()
    return None if row is None else (row, moment)


def _newest_of(row: RecurringTask, until: datetime | None) -> tuple[list[int], datetime | None]:
    """Return the newest entries up to this fire time, and the fire time at which the next page
    begins.
    """
    entries = OccurrenceRecord.objects.using(conf.settings().DATABASE).filter(recurring_task=row.pk)
    single, other = (
        entries.single().order_by("-unique_fire_time"),
        entries.filter(unique_fire_time=None).order_by("-fire_time"),
    )
    if until is not None:
        single, other = (
            single.filter(unique_fire_time__lte=until),
            other.filter(fire_time__lte=until),
        )
    found = [
        *single.values_list("fire_time", "pk")[:OF_ONE],
        *other.values_list("fire_time", "pk")[:OF_ONE],
    ]
    newest = sorted(found, reverse=True)[:OF_ONE]
    return [pk for _fire_time, pk in newest], newest[-1][0] if len(newest) == OF_ONE else None


@admin.register(OccurrenceRecord)
class OccurrenceRecordAdmin(ReadOnlyAdmin):
    """The ledger."""

    list_display = ("at", "schedule", "state", "how_many", "task_link", "why", "term", _CREATED)
    list_filter = (OutcomeFilter, ScheduleFilter, filters.TenantFilter)
    sortable_by = ()
    fieldsets: ClassVar = (
        (
            None,
            {
                "fields": (
                    "schedule",
                    ("state", "how_many"),
                    (_FIRED, _LAST),
                    (_EFFECTIVE, _CREATED),
                    "task_link",
                    "why",
                    ("term", "request_id"),
                    "tenant",
                )
            },
        ),
    )
    readonly_fields = (
        "schedule",
        "state",
        "how_many",
        "task_link",
        "why",
        _FIRED,
        _LAST,
        _EFFECTIVE,
        _CREATED,
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).select_related("tenant")

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Order the entries of one schedule by fire time, those of all by creation."""
        return ("-fire_time", "-id") if "schedule" in request.GET else ("-id",)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Read the page, then the schedules and tasks of its entries, if they still exist."""
        page = super().get_changelist_instance(request)
        page.result_list = list(page.result_list)
        _attach(page.result_list)
        return page

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """Read the entry, its schedule and its task."""
        entry = super().get_object(request, object_id, from_field)
        if entry is not None:
            _attach([entry])
        return entry

    @admin.display(description=_("fire time"))
    def at(self, entry: Any) -> SafeString | str:
        """Show the fire time, or the first and the last of a range."""
        return display.beneath(
            display.instant(entry.fire_time),
            f"to {display.instant(entry.last_fire_time)}" if entry.last_fire_time else "",
        )

    @admin.display(description=_("schedule"))
    def schedule(self, entry: Any) -> SafeString | str:
        """Link the schedule; a deleted one is shown by its id."""
        if not entry.schedule_name:
            return display.short(entry.recurring_task_id)
        return display.link(
            display.page_of("recurringtask", entry.recurring_task_id), entry.schedule_name
        )

    @admin.display(description=_("outcome"))
    def state(self, entry: OccurrenceRecord) -> SafeString:
        """Show the outcome."""
        return display.badge(entry.outcome, entry.outcome)

    @admin.display(description=_("how many"))
    def how_many(self, entry: OccurrenceRecord) -> str:
        """Show the number of fire times of the entry."""
        return f"{'' if entry.count_is_exact else '≥ '}{entry.count:,}"

    @admin.display(description=_("task"))
    def task_link(self, entry: Any) -> Any:
        """Link the task, or the one that blocked it."""
        return recurring_form.task_link(entry, entry.task_status)

    @admin.display(description=_("reason"))
    def why(self, entry: OccurrenceRecord) -> str:
        """Show the reason."""
        return display.clean(entry.reason) or display.NOTHING


def _attach(entries: list[Any]) -> None:
    """Read names of schedules and statuses of tasks: two statements for any number of entries."""
    database = conf.settings().DATABASE
    schedules = RecurringTask.objects.using(database).filter(
        pk__in={entry.recurring_task_id for entry in entries}
    )
    tasks = Task.objects.using(database).filter(
        pk__in={entry.task_id for entry in entries if entry.task_id}
    )
    names, statuses = (
        dict(schedules.values_list("pk", "name")),
        dict(tasks.values_list("pk", "status")),
    )
    for entry in entries:
        entry.schedule_name = names.get(entry.recurring_task_id, "")
        entry.task_status = statuses.get(entry.task_id)
