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
from django_durable_tasks.admin.readonly import ReadOnlyAdmin, section
from django_durable_tasks.admin.recurring_tasks import MISSED, SKIPPED
from django_durable_tasks.choices import FireOutcome
from django_durable_tasks.models import OccurrenceRecord, RecurringTask

OF_ONE = 1_000
"""The number of entries of one schedule per page."""


class OutcomeFilter(filters.AmongNewestFilter):
    """Filter by outcome; without a schedule among the newest entries."""

    title = _("outcome")
    parameter_name = "outcome"
    of_one = ("schedule",)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("unrun", _("missed or skipped")),
            *((outcome.value, outcome.value) for outcome in FireOutcome),
        ]

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the entries with this outcome."""
        return rows.filter(outcome__in=[*MISSED, *SKIPPED] if value == "unrun" else [value])


class ScheduleFilter(filters.ValueFilter):
    """Filter by recurring task, its newest OF_ONE entries at a time. It is reached by links,
    because there may be a million schedules.

    The value is a schedule's id, optionally with a comma and the fire time from which older entries
    are shown.
    """

    title = _("schedule")
    parameter_name = "schedule"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        self.chosen = _chosen(request, str(self.used_parameters.get("schedule", "")))
        self.keys = list[int]()
        if self.chosen is None:
            return []
        row, until = self.chosen
        ledger = OccurrenceRecord.objects.using(row._state.db).filter(recurring_task=row.pk)
        entries = recurring_form.newest_entries(ledger.only("fire_time"), OF_ONE, until)
        self.keys = [entry.pk for entry in entries]
        # The next page begins at the oldest entry of this one.
        oldest = entries[-1].fire_time if len(entries) == OF_ONE else None
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


@admin.display(description=_("fire time"))
def _at(entry: OccurrenceRecord) -> SafeString | str:
    """Show the fire time, or the first and the last of a range."""
    last = f"to {display.instant(entry.last_fire_time)}" if entry.last_fire_time else ""
    return display.beneath(display.instant(entry.fire_time), last)


@admin.display(description=_("schedule"))
def _schedule(entry: Any) -> SafeString | str:
    """Link the schedule; a deleted one is shown by its id."""
    if not entry.schedule_name:
        return display.short(entry.recurring_task_id)
    return display.row_link("recurringtask", entry.recurring_task_id, entry.schedule_name)


_OUTCOME = display.column(
    _("outcome"), lambda entry: display.badge(entry.outcome, entry.outcome), "state"
)
_COUNT = display.column(_("how many"), recurring_form.count_of)
_TASK = display.column(_("task"), lambda entry: recurring_form.task_link(entry, entry.task_status))


@admin.register(OccurrenceRecord)
class OccurrenceRecordAdmin(ReadOnlyAdmin):
    """The ledger."""

    labels: ClassVar = {"created_at": _("recorded at")}
    list_display = (_at, *(_schedule, _OUTCOME, _COUNT, _TASK, "reason", "term", "created_at"))
    list_filter = (OutcomeFilter, ScheduleFilter, filters.TenantFilter)
    sortable_by = ()
    reads_with_page = ("tenant",)
    fieldsets = (
        section(
            None,
            _schedule,
            (_OUTCOME, _COUNT),
            ("fire_time", "last_fire_time"),
            ("effective_at", "created_at"),
            _TASK,
            "reason",
            ("term", "request_id"),
            "tenant",
        ),
    )

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Order the entries of one schedule by fire time, those of all by creation."""
        return ("-fire_time", "-id") if "schedule" in request.GET else ("-id",)

    def attach(self, rows: list[Any]) -> None:
        """Read names of schedules and statuses of tasks, if they still exist."""
        database = conf.settings().DATABASE
        schedules = RecurringTask.objects.using(database).filter(
            pk__in={entry.recurring_task_id for entry in rows}
        )
        names = dict(schedules.values_list("pk", "name"))
        statuses = recurring_form.statuses_of_tasks(rows)
        for entry in rows:
            entry.schedule_name = names.get(entry.recurring_task_id, "")
            entry.task_status = statuses.get(entry.task_id)
