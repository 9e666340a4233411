"""The admin of schedules: next fires, last outcomes and actions."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.admin import display, filters, recurring_actions
from django_durable_tasks.admin.actions import action_of
from django_durable_tasks.admin.outcome_marks import RecentOutcomes, recent
from django_durable_tasks.admin.readonly import ScreenAdmin
from django_durable_tasks.admin.recurring_editing import editing_for
from django_durable_tasks.admin.recurring_filters import ScheduleConditionFilter, SourceFilter
from django_durable_tasks.admin.recurring_page import of_page
from django_durable_tasks.engine.cluster.status import LATE
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.operations import schedules
from django_durable_tasks.rules.recurring.policies import QUARANTINED, RecurringStatus
from django_durable_tasks.rules.recurring.timetables.describe import words

_HEAVY = ("args", "kwargs", "options")
_CREATED = display.instant_of("created_at", _("created at"))
_UPDATED = display.instant_of("updated_at", _("updated at"))
_START = display.instant_of("start_time", _("start time"))
_END = display.instant_of("end_time", _("end time"))
_WATERMARK = display.instant_of("watermark_at", _("recorded up to"))
_UNDECLARED = display.instant_of("undeclared_at", _("no longer declared since"))


@admin.register(RecurringTask)
class RecurringTaskAdmin(ScreenAdmin):
    """Recurring tasks."""

    named_by = ("name",)
    list_display = ("named", "when", "state", "next_run", "last_outcomes", "not_run")
    list_filter = (
        "status",
        ScheduleConditionFilter,
        "target_type",
        SourceFilter,
        filters.TenantFilter,
    )
    lookups_allowed = frozenset({"status__exact"})
    sortable_by = ()
    ordering = ("tenant_id", "name")
    search_fields = ("name",)
    search_help_text = _("A complete id, or a part of the name of the schedule or of its task.")
    actions = (
        action_of(schedules.PAUSE),
        action_of(schedules.RESUME),
        action_of(schedules.CANCEL),
    )
    operations = schedules.OPERATIONS
    change_form_template = "admin/django_durable_tasks/recurringtask/change_form.html"
    change_list_template = "admin/django_durable_tasks/recurringtask/change_list.html"
    fieldsets: ClassVar = (
        (
            None,
            {
                "fields": (
                    ("state", "tenant"),
                    "when_in_full",
                    ("next_run", "last_run"),
                    ("runs", "description"),
                )
            },
        ),
        (_("Call"), {"fields": ("task", "arguments", ("queue", "priority"), "overridden")}),
        (
            _("When"),
            {
                "classes": ("collapse",),
                "fields": (
                    "timetable_as_kept",
                    ("time_zone", "dst_gap", "dst_overlap"),
                    ("closed_days", "roll"),
                    "spread",
                    (_START, _END),
                    _WATERMARK,
                ),
            },
        ),
        (
            _("Late or busy"),
            {
                "classes": ("collapse",),
                "fields": (
                    ("catch_up_mode", "misfire_grace"),
                    ("catchup_window", "max_catchup_runs"),
                    ("catchup_order", "catchup_pace"),
                    ("overlap", "overlap_key"),
                    "expires_in",
                ),
            },
        ),
        (
            _("Origin"),
            {
                "classes": ("collapse",),
                "fields": (
                    ("source", _UNDECLARED),
                    ("idempotency_key", "revision"),
                    (_CREATED, _UPDATED),
                    "tzdata_version",
                ),
            },
        ),
    )
    readonly_fields = (
        "state",
        "when_in_full",
        "next_run",
        "last_run",
        "runs",
        "arguments",
        "overridden",
        "timetable_as_kept",
        "closed_days",
        "spread",
        _START,
        _END,
        _WATERMARK,
        _UNDECLARED,
        _CREATED,
        _UPDATED,
    )

    # Reading --------------------------------------------------------------------------------------

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).annotate(seen_at=DatabaseNow())
        listed = request.resolver_match is not None and str(
            request.resolver_match.url_name
        ).endswith("_changelist")
        return rows.defer(*_HEAVY) if listed else rows.select_related("tenant")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return (
            queryset.filter(filters.by_id_or(search_term, "name__icontains", "task__icontains")),
            False,
        )

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Read the page, then the outcomes of the last fire times of its schedules."""
        page = super().get_changelist_instance(request)
        rows = list(page.result_list)
        found = recent(rows, database_now()) if rows else {}
        for row in rows:
            row.recent = found.get(row.pk, RecentOutcomes())
        page.result_list = rows
        return page

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """Read the row, and whether this user may see its secrets."""
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            row.read_plain = display.reads_secrets(request)
        return row

    def get_urls(self) -> list[URLPattern]:
        site = self.admin_site.admin_view
        edit = site(editing_for(self))
        return [
            path("add/", edit, name="django_durable_tasks_recurringtask_add"),
            path("<uuid:object_id>/edit/", edit, name="django_durable_tasks_recurringtask_edit"),
            path(
                "<uuid:object_id>/do/<slug:name>/",
                site(recurring_actions.view_for(self)),
                name="django_durable_tasks_recurringtask_do",
            ),
            *super().get_urls(),
        ]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the next fires, the last ledger entries, the explanation of a fire time, and the
        buttons.
        """
        context.update(of_page(self, request, context["original"]))
        return super().render_change_form(request, context, *args, **kwargs)

    # Permissions ----------------------------------------------------------------------------------

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse the stock form: a schedule is changed by ``upsert``, on a separate page."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_edit_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("django_durable_tasks.change_recurringtask"))

    # Columns and fields ---------------------------------------------------------------------------

    @admin.display(description=_("name"))
    def named(self, row: RecurringTask) -> SafeString | str:
        """Show the name and the task."""
        return display.beneath(row.name, row.task)

    @admin.display(description=_("when"))
    def when(self, row: RecurringTask) -> SafeString | str:
        """Show the timetable as text, and its zone."""
        text = words(row.timetable)
        calendars = f" · {', '.join(row.calendars)}" if row.calendars else ""
        return display.beneath(
            text if len(text) < 100 else f"{text[:100]}…", f"{row.time_zone}{calendars}"
        )

    @admin.display(description=_("when"))
    def when_in_full(self, row: RecurringTask) -> SafeString | str:
        """Show the complete timetable as text."""
        return display.beneath(words(row.timetable), row.time_zone)

    @admin.display(description=_("status"))
    def state(self, row: Any) -> SafeString | str:
        """Show the status, further conditions, and the reason."""
        marks = [(f"schedule-{row.status}", row.status)]
        if (
            row.status == RecurringStatus.ACTIVE
            and row.next_run_at
            and row.next_run_at < row.seen_at - LATE
        ):
            marks.append(("overdue", "late"))
        if row.status_reason == QUARANTINED:
            marks.append(("failed", "quarantined"))
        if row.undeclared_at is not None:
            marks.append(("undeclared", "no longer declared"))
        return display.beneath(display.badges(marks), _why(row))

    @admin.display(description=_("next run"))
    def next_run(self, row: Any) -> SafeString | str:
        """Show the next fire time, absolute and relative; for a paused schedule, when it
        resumes.
        """
        if row.next_run_at is None:
            return display.NOTHING
        relative = display.since(row.next_run_at, row.seen_at)
        resumes = row.status == RecurringStatus.PAUSED
        return display.beneath(
            display.instant(row.next_run_at), f"resumes {relative}" if resumes else relative
        )

    @admin.display(description=_("last run"))
    def last_run(self, row: Any) -> SafeString | str:
        """Show the creation time of the newest task."""
        if row.last_run_at is None:
            return display.NOTHING
        return display.beneath(
            display.instant(row.last_run_at), display.since(row.last_run_at, row.seen_at)
        )

    @admin.display(description=_("last fire times"))
    def last_outcomes(self, row: Any) -> SafeString | str:
        """Show a badge for each of the last fire times, the newest last, and the creation time of
        the newest task.
        """
        signs = display.marks((mark.word, mark.fire_time, mark.count) for mark in row.recent.marks)
        ran = f"last run {display.since(row.last_run_at, row.seen_at)}" if row.last_run_at else ""
        return display.beneath(signs, ran)

    @admin.display(description=_("not run, 24 h"))
    def not_run(self, row: Any) -> SafeString | str:
        """Show how many fire times of the last day were missed or skipped."""
        found, least = row.recent, "" if row.recent.exact else "≥ "
        counts = [
            f"{least}{number:,} {word}"
            for number, word in ((found.missed, "missed"), (found.skipped, "skipped"))
            if number
        ]
        if not counts:
            return display.NOTHING
        return display.link(
            display.list_of("occurrencerecord", schedule=row.pk, outcome="unrun"),
            display.lines(counts),
        )

    @admin.display(description=_("runs"))
    def runs(self, row: RecurringTask) -> SafeString | str:
        """Show the number of runs, and its maximum."""
        most = f" of {row.max_runs}" if row.max_runs is not None else ""
        tasks = display.link(
            display.list_of("task", recurring_task__id__exact=row.pk), _("its tasks")
        )
        return display.beneath(tasks, f"{row.runs_count}{most} by the clock")

    @admin.display(description=_("arguments"))
    def arguments(self, row: Any) -> SafeString | str:
        """Show the call."""
        return display.arguments_block(row.task, row, plain=row.read_plain)

    @admin.display(description=_("options"))
    def overridden(self, row: RecurringTask) -> SafeString | str:
        """Show the options of each call."""
        return display.value_block(row.options or None, plain=False)

    @admin.display(description=_("timetable"))
    def timetable_as_kept(self, row: RecurringTask) -> SafeString | str:
        """Show the parts in their stored form."""
        return display.value_block(row.timetable, plain=True)

    @admin.display(description=_("calendars"))
    def closed_days(self, row: RecurringTask) -> str:
        """Show the calendars by name."""
        return ", ".join(row.calendars) or display.NOTHING

    @admin.display(description=_("jitter"))
    def spread(self, row: RecurringTask) -> str:
        """Show the jitter."""
        if row.jitter_percent:
            return f"up to {row.jitter_percent:g}% of the way to the next fire"
        return f"up to {row.jitter:g} s" if row.jitter else display.NOTHING


def _why(row: RecurringTask) -> str:
    """Return who set the status, why, and until when."""
    if row.error:
        return display.first_line(row.error)
    parts = [
        row.status_reason,
        f"by {row.status_by}" if row.status_by and row.status_reason else "",
    ]
    until = f"until {display.instant(row.paused_until)}" if row.paused_until else ""
    return " ".join(part for part in (*parts, until) if part)
