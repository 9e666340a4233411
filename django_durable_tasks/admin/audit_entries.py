"""The admin of audit entries: who changed what. Read-only."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin.templatetags.admin_urls import admin_urlname
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.admin import display, filters
from django_durable_tasks.admin.readonly import ReadOnlyAdmin, section
from django_durable_tasks.audit import SETS_READ, SHOWN, about, in_sets, of_task
from django_durable_tasks.models import (
    AuditEntry,
    Calendar,
    DeadLetter,
    RecurringTask,
    Task,
    Tenant,
    WorkflowRun,
)
from django_durable_tasks.operations import OPERATIONS

PAGES: dict[str, type[Model]] = {
    "task": Task,
    "schedule": RecurringTask,
    "workflow run": WorkflowRun,
    "dead letter": DeadLetter,
    "calendar": Calendar,
    "tenant": Tenant,
}
"""The models whose pages the entries link to, by the type of the object."""
OTHERS = ("task.create", "schedule.create", "schedule.save", "schedule.change", "tenant.save")
"""Operations that are no entries of the registry."""


class AgeFilter(filters.CreatedFilter):
    """Filter by age. The ids of entries are numbers, so this reads their time."""

    def first(self, at: datetime) -> Q:
        """Return the condition for entries from this instant on."""
        return Q(at__gte=at)


class DayFilter(filters.ValueFilter):
    """Filter by a day of the site's time zone; the query string may name any day."""

    title = _("day")
    parameter_name = "day"
    offered = 7
    """The number of days that the list offers, from today backwards."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        days = {str(display.today() - timedelta(days=ago)) for ago in range(self.offered)}
        chosen = self.used_parameters.get("day")
        days |= {chosen} if isinstance(chosen, str) else set()
        return [(day, day) for day in sorted(days, reverse=True)]

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the entries of this day."""
        try:
            day = date.fromisoformat(value)
            days = (day, day + timedelta(days=1))
        except (ValueError, OverflowError):
            return rows.none()
        zone = timezone.get_current_timezone()
        first, end = (datetime.combine(bound, time.min, zone) for bound in days)
        return rows.filter(at__gte=first, at__lt=end)


class OperationFilter(filters.ValueFilter):
    """Filter by operation."""

    title = _("operation")
    parameter_name = "operation"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in sorted({*OPERATIONS, *OTHERS})]

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the entries of this operation."""
        return rows.filter(operation=value)


def object_link(entry: AuditEntry) -> SafeString | str:
    """Return a link to the object, or the number of objects."""
    if not entry.object_id:
        return f"{entry.count} × {entry.object_type}"
    text = f"{entry.object_type} {entry.object_id}"
    model = PAGES.get(entry.object_type)
    if model is None or entry.after == {}:
        return text
    address = reverse(admin_urlname(model._meta, SafeString("change")), args=[entry.object_id])
    return display.link(address, text)


def history_of(task: Task) -> SafeString | str:
    """Return the newest operations on a task, each on its line."""
    entries = of_task(task)
    lines = [
        format_html(
            "{} {} {} {}",
            display.instant(entry.at),
            display.link(display.page_of("auditentry", entry.pk), entry.operation),
            entry.actor or entry.source,
            display.clean(entry.reason),
        )
        for entry in entries
    ]
    if len(entries) == SHOWN:
        lines.append(display.link(display.list_of("auditentry", q=task.pk), _("Older ones too")))
    return display.lines(lines) if lines else display.NOTHING


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    """Audit entries."""

    list_display = ("id", "at", "operation", "about", "actor", "source", "address", "reason")
    list_filter = (
        DayFilter,
        AgeFilter,
        filters.ActorFilter,
        OperationFilter,
        filters.TenantFilter,
    )
    sortable_by = ()
    search_fields = ("actor",)
    search_help_text = format_lazy(
        _(
            "The complete id or name of an object, or a complete user name. An operation on several"
            " objects is found by the id of each if it is among the newest {number} of its kind."
        ),
        number=SETS_READ,
    )
    reads_with_page = ("tenant",)
    fieldsets = (
        section(
            None, ("at", "operation"), ("about", "tenant"), ("actor", "source", "address"), "reason"
        ),
        section(_("Changes"), "before", "after", "ids"),
    )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        key = filters.key_in(term)
        if key is None and not term.isdecimal():
            return queryset.filter(Q(actor=term) | about(term)), False
        term = str(key or term)
        return queryset.filter(Q(actor=term) | about(term) | in_sets(term)), False

    @admin.display(description=_("object"))
    def about(self, row: AuditEntry) -> SafeString | str:
        """Show the object, or how many there are."""
        return object_link(row)

    @admin.display(description=_("ids"))
    def ids(self, row: AuditEntry) -> SafeString | str:
        """Show the ids of a set."""
        return display.folded(_("ids"), "\n".join(row.object_ids))
