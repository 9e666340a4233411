"""The admin of schedules: list, page, outcomes and operations."""

from __future__ import annotations

import functools
import operator
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import actions, display, filters, recurring_form
from django_durable_tasks.admin.actions import OperationForm, action_of, form_class
from django_durable_tasks.admin.fields import InstantField, in_zone, refuse
from django_durable_tasks.admin.filters import ScheduleConditionFilter, SourceFilter
from django_durable_tasks.admin.readonly import ScreenAdmin
from django_durable_tasks.admin.recurring_form import editing_for
from django_durable_tasks.choices import FireOutcome, Overlap, RecurringStatus
from django_durable_tasks.cluster.status import LATE
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import OccurrenceOverride, OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.operations.operation import Operation, OperationResult
from django_durable_tasks.schedules import lifecycle, manual_runs
from django_durable_tasks.schedules.explain import upcoming
from django_durable_tasks.schedules.misfires import QUARANTINED
from django_durable_tasks.schedules.timetables.builder import words
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks.explanations import Level, Sentence

# The outcomes of the last fire times of the schedules on one page of a list.
#
# At most LOOKED_AT entries of each schedule are read, with a fixed number of statements per page.


LOOKED_AT = 100
MARKS = 7
_DAY = timedelta(days=1)
MISSED = frozenset({FireOutcome.MISSED, FireOutcome.EXPIRED, FireOutcome.FAILED_TO_CREATE})
SKIPPED = frozenset(
    {FireOutcome.SKIPPED_OVERLAP, FireOutcome.SKIPPED_CALENDAR, FireOutcome.SKIPPED_QUOTA}
)
_COLUMNS = ("recurring_task_id", "id", "fire_time", "last_fire_time", "outcome", "count", "task_id")


@dataclass(frozen=True, slots=True)
class OutcomeMark:
    """One of the last fire times: the status of its task, or the outcome in the ledger."""

    word: str
    fire_time: datetime
    count: int


@dataclass(frozen=True, slots=True)
class RecentOutcomes:
    """The last outcomes, the newest last, and how many fire times of the last day did not run;
    unless ``exact`` a lower bound.
    """

    marks: tuple[OutcomeMark, ...] = ()
    missed: int = 0
    skipped: int = 0
    exact: bool = True


def recent(rows: Sequence[RecurringTask], now: datetime) -> dict[uuid.UUID, RecentOutcomes]:
    """Return the outcomes of the last fire times of each of these schedules; three statements."""
    if not rows:
        return {}
    entries: dict[uuid.UUID, list[Any]] = defaultdict(list)
    for entry in _newest_entries([row.pk for row in rows]).values_list(*_COLUMNS, named=True):
        entries[entry.recurring_task_id].append(entry)
    newest = {
        pk: sorted(found, key=lambda entry: (entry.fire_time, entry.id))
        for pk, found in entries.items()
    }
    statuses = _statuses(entry.task_id for found in newest.values() for entry in found[-MARKS:])
    return {pk: _recent(found, statuses, now - _DAY) for pk, found in newest.items()}


def _newest_entries(keys: Sequence[uuid.UUID]) -> QuerySet[OccurrenceRecord]:
    """Return the newest entries of each schedule: of single fire times, and of ranges and manual
    runs.
    """
    database = conf.settings().DATABASE
    ledger = OccurrenceRecord.objects.filter(recurring_task=OuterRef("pk"))
    single = ledger.single().order_by("-unique_fire_time").values("unique_fire_time")
    other = ledger.filter(unique_fire_time__isnull=True).order_by("-fire_time").values("fire_time")
    lower_bounds = (
        RecurringTask.objects.using(database)
        .filter(pk__in=keys)
        .annotate(
            single_from=Subquery(single[LOOKED_AT - 1 : LOOKED_AT]),
            other_from=Subquery(other[LOOKED_AT - 1 : LOOKED_AT]),
        )
    )
    bounds = list(lower_bounds.order_by().values_list("pk", "single_from", "other_from"))
    conditions = [
        *_from(
            {pk: single for pk, single, _other in bounds},
            "unique_fire_time__gte",
            unique_fire_time__isnull=False,
        ),
        *_from(
            {pk: other for pk, _single, other in bounds},
            "fire_time__gte",
            unique_fire_time__isnull=True,
        ),
    ]
    return (
        OccurrenceRecord.objects.using(database)
        .filter(functools.reduce(operator.or_, conditions))
        .order_by()
    )


def _from(lower_bounds: dict[uuid.UUID, datetime | None], above: str, **kind: Any) -> Iterator[Q]:
    """Yield one query per lower bound by the index of this kind of entries, and one for all
    schedules without a bound.
    """
    yield Q(
        recurring_task__in=[
            key for key, lower_bound in lower_bounds.items() if lower_bound is None
        ],
        **kind,
    )
    for key, lower_bound in lower_bounds.items():
        if lower_bound is not None:
            yield Q(recurring_task=key, **{above: lower_bound}, **kind)


def _statuses(keys: Iterable[uuid.UUID | None]) -> dict[uuid.UUID, str]:
    tasks = Task.objects.using(conf.settings().DATABASE).filter(
        pk__in={key for key in keys if key is not None}
    )
    return dict(tasks.values_list("pk", "status"))


def _recent(entries: list[Any], statuses: dict[uuid.UUID, str], since: datetime) -> RecentOutcomes:
    today = [entry for entry in entries if (entry.last_fire_time or entry.fire_time) >= since]
    return RecentOutcomes(
        tuple(
            OutcomeMark(statuses.get(entry.task_id, entry.outcome), entry.fire_time, entry.count)
            for entry in entries[-MARKS:]
        ),
        sum(entry.count for entry in today if entry.outcome in MISSED),
        sum(entry.count for entry in today if entry.outcome in SKIPPED),
        len(today) < LOOKED_AT,
    )


OPERATIONS = (
    lifecycle.pause,
    lifecycle.resume,
    lifecycle.snooze,
    manual_runs.trigger_now,
    lifecycle.override,
    manual_runs.backfill,
    lifecycle.withdraw_override,
    lifecycle.cancel,
)
_BY_NAME = {operation.name: operation for operation in OPERATIONS}


def operation_buttons(
    screen: Any, request: HttpRequest, row: RecurringTask
) -> list[dict[str, Any]]:
    """Return the buttons of the permitted operations that can change this row."""
    return [
        {"url": operation_address(row, operation), "title": f"{operation.title}…"}
        for operation in OPERATIONS
        if operation is not lifecycle.withdraw_override  # it is offered beside each override
        and operation.fits(row.status)
        and _is_permitted(screen, request, operation)
    ]


def operation_address(row: RecurringTask, operation: Operation) -> str:
    """Return the address of the page of an operation."""
    return reverse("admin:django_durable_tasks_recurringtask_do", args=[row.pk, operation.name])


def _is_permitted(screen: Any, request: HttpRequest, operation: Operation) -> bool:
    return operation.is_permitted(request.user) and bool(screen.has_view_permission(request))


def _found(
    screen: Any, request: HttpRequest, object_id: uuid.UUID, operation: Operation
) -> RecurringTask:
    rows = screen.get_queryset(request).filter(pk=object_id, status__in=operation.statuses)
    row: RecurringTask | None = rows.first()
    if row is None:
        raise Http404(gettext("No schedule has this id, or its status does not allow this."))
    return row


def _perform(
    request: HttpRequest, row: RecurringTask, form: OperationForm, **how: Any
) -> OperationResult | None:
    """Perform the operation; None if it was refused, which the form shows."""
    values = form.values() | how
    try:
        outcome = form.operation.perform(row, by=actions.who(request), reason=form.reason, **values)
        if form.operation is manual_runs.backfill and not how.get("dry_run"):
            manual_runs.refuse_nothing(outcome)
    except DurableTasksError as refused:
        refuse(form, refused)
        return None
    return outcome


def _done(
    screen: Any,
    request: HttpRequest,
    row: RecurringTask,
    form: OperationForm,
    outcome: OperationResult,
) -> HttpResponse:
    title = form.operation.title
    entry = f"{title}. {outcome.message} {form.reason}".strip()
    actions.remember(screen, request, [row.pk], entry)
    message: Any = outcome.message
    if isinstance(outcome.value, Task):
        task = outcome.value.pk
        link = display.link(display.page_of("task", task), task)
        message = format_html(gettext("Created task {}."), link)
    # The name does not come first: the templates of the admin capitalize the first letter.
    text = format_html(gettext("Schedule {name}: {message}"), name=row.name, message=message)
    screen.message_user(request, text)
    return HttpResponseRedirect(display.page_of("recurringtask", row.pk))


def _report(row: RecurringTask, outcome: OperationResult) -> dict[str, Any]:
    """Return the context of what a backfill would do."""
    steps = [
        {
            "at": recurring_form.local_of(step.fire_time, row.time_zone),
            "action": display.badge(f"action-{step.action}", step.action),
            "why": step.why,
        }
        for step in outcome.value.steps
    ]
    return {"steps": steps, "remark": outcome.value.remark}


def operation_view_for(screen: Any) -> Callable[[HttpRequest, uuid.UUID, str], HttpResponse]:
    """Return the view for this ModelAdmin."""

    def view(request: HttpRequest, object_id: uuid.UUID, name: str) -> HttpResponse:
        operation = _BY_NAME.get(name)
        if operation is None:
            raise Http404(gettext("There is no such operation."))
        if not _is_permitted(screen, request, operation):
            raise PermissionDenied
        row = _found(screen, request, object_id, operation)
        posted = request.method == "POST"
        form = form_class(operation)(request.POST if posted else None, initial=_initial(request))
        in_zone(form, row.time_zone)
        report = None
        if posted and form.is_valid():
            looks = operation.dry_run and "_look" in request.POST
            outcome = _perform(request, row, form, **({"dry_run": True} if looks else {}))
            if outcome is not None and not looks:
                return _done(screen, request, row, form, outcome)
            report = None if outcome is None else _report(row, outcome)
        return _page(screen, request, row, form, report)

    return view


def _page(
    screen: Any,
    request: HttpRequest,
    row: RecurringTask,
    form: OperationForm,
    report: dict[str, Any] | None,
) -> HttpResponse:
    operation = form.operation
    context = {
        **screen.admin_site.each_context(request),
        "opts": screen.opts,
        "media": screen.media,
        "form": form,
        "row": row,
        "operation": operation,
        "report": report,
        "title": gettext("%(operation)s: %(name)s")
        % {"operation": operation.title, "name": row.name},
        "back": display.page_of("recurringtask", row.pk),
    }
    template = "admin/django_durable_tasks/recurringtask/operation.html"
    return TemplateResponse(request, template, context)


def _initial(request: HttpRequest) -> dict[str, Any]:
    """Return the initial values from the query string, which links of a fire table set."""
    return {
        "request_id": uuid.uuid4(),
        **{
            name: request.GET[name]
            for name in ("fire_time", "action", "start", "end")
            if name in request.GET
        },
    }


# The context of the page of a schedule: its status, next fires, ledger and operations.


FIRES = 10
LINES = 50
_OVERRIDES = 50


class WhyForm(forms.Form):
    """The instant to explain."""

    at = InstantField(
        label=_("Why did it not run at"),
        help_text=_("A wall time of the schedule's zone, or a time with its offset."),
    )


def of_page(screen: Any, request: HttpRequest, row: RecurringTask) -> dict[str, Any]:
    """Return the context of the page of a schedule, except its columns."""
    now = database_now()
    form = WhyForm(request.GET if "at" in request.GET else None)
    in_zone(form, row.time_zone)
    planned, problem = _planned(row, now)
    return {
        "sentences": _sentences(row, now, problem),
        "buttons": _buttons(screen, request, row),
        "fires": planned,
        "lines": _ledger_entries(request, row),
        "ledger": display.list_of("occurrencerecord", schedule=row.pk),
        "overrides": _overrides(row, now),
        "why": form,
        "answer": _answer(form, row),
        "may_override": lifecycle.override.is_permitted(request.user)
        and row.status != RecurringStatus.CANCELLED,
        "override": operation_address(row, lifecycle.override),
        "remove_override": operation_address(row, lifecycle.withdraw_override),
        "one_at_a_time": row.overlap != Overlap.ALLOW,
    }


def _planned(row: RecurringTask, now: datetime) -> tuple[list[dict[str, Any]], str]:
    try:
        return recurring_form.shown_fires(upcoming(row, FIRES, now), row, now), ""
    except (DurableTasksError, ValueError, TypeError, LookupError) as broken:
        # The row may have been written by another release or by SQL. Its page must open, to show
        # the problem.
        return [], f"{type(broken).__name__}: {broken}"


def _answer(form: WhyForm, row: RecurringTask) -> str:
    if not form.is_bound or not form.is_valid():
        return ""
    try:
        return row.explain(form.cleaned_data["at"])
    except DurableTasksError as refused:
        form.add_error("at", str(refused))
        return ""


def _sentences(row: RecurringTask, now: datetime, problem: str) -> list[Sentence]:
    found = (
        [Sentence(Level.TROUBLE, gettext("Its fire times cannot be computed. %s") % problem)]
        if problem
        else []
    )
    if row.status == RecurringStatus.CANCELLED:
        return [
            *found,
            Sentence(
                Level.WAIT,
                gettext("It has ended (%s) and never fires again.") % (row.status_reason or "-"),
            ),
        ]
    if row.status == RecurringStatus.PAUSED:
        return [*found, _paused(row, now)]
    if row.undeclared_at is not None:
        found.append(
            Sentence(
                Level.WAIT,
                gettext("It is no longer declared in code. It fires until an operator ends it."),
            )
        )
    if row.next_run_at is None:
        return [
            *found,
            Sentence(Level.TROUBLE, gettext("It is active and has no next fire.")),
        ]
    late = (now - row.next_run_at).total_seconds()
    if late > LATE.total_seconds():
        text = gettext(
            "Its fire time of %(at)s has not been processed for %(late)s. Check that a"
            " scheduler is the leader."
        )
        values = {"at": display.instant(row.next_run_at), "late": display.duration(late)}
        return [*found, Sentence(Level.TROUBLE, text % values)]
    return [
        *found,
        Sentence(Level.FINE, gettext("It fires next %s.") % display.since(row.next_run_at, now)),
    ]


def _paused(row: RecurringTask, now: datetime) -> Sentence:
    if row.status_reason == QUARANTINED:
        text = gettext(
            "It is QUARANTINED: it could not be triggered (%s). Correct it, then resume it."
        )
        return Sentence(Level.TROUBLE, text % display.clean(row.error or "-"))
    by = gettext(" by %s") % row.status_by if row.status_by else ""
    why = f" ({row.status_reason})" if row.status_reason else ""
    since = gettext(" since %s") % display.instant(row.paused_at) if row.paused_at else ""
    until = (
        gettext("It resumes at %s.") % display.instant(row.paused_until)
        if row.paused_until
        else gettext("It does not fire until it is resumed.")
    )
    return Sentence(
        Level.WAIT,
        gettext("It is paused%(since)s%(by)s%(why)s. %(until)s")
        % {"since": since, "by": by, "why": why, "until": until},
    )


def _buttons(screen: Any, request: HttpRequest, row: RecurringTask) -> list[dict[str, Any]]:
    found = operation_buttons(screen, request, row)
    if screen.has_edit_permission(request) and row.status != RecurringStatus.CANCELLED:
        edit = reverse("admin:django_durable_tasks_recurringtask_edit", args=[row.pk])
        found.insert(0, {"url": edit, "title": gettext("Edit…")})
    return found


def _overrides(row: RecurringTask, now: datetime) -> list[dict[str, Any]]:
    found = (
        OccurrenceOverride.objects.using(row._state.db)
        .filter(recurring_task=row.pk)
        .order_by("-fire_time")
    )
    return [
        {
            "override": one,
            "at": recurring_form.local_of(one.fire_time, row.time_zone),
            "open": one.fire_time > now,
            "to": recurring_form.local_of(one.move_to, row.time_zone) if one.move_to else "",
            "fire_time": one.fire_time.isoformat(),
        }
        for one in found[:_OVERRIDES]
    ]


# The ledger ---------------------------------------------------------------------------------------


def _ledger_entries(request: HttpRequest, row: RecurringTask) -> list[dict[str, Any]]:
    """Return the last entries by fire time: single ones by their index, ranges and manual runs by
    theirs.
    """
    if not request.user.has_perm("django_durable_tasks.view_occurrencerecord"):
        return []
    entries = OccurrenceRecord.objects.using(row._state.db).filter(recurring_task=row.pk)
    single = entries.single().order_by("-unique_fire_time")[:LINES]
    other = entries.filter(unique_fire_time__isnull=True).order_by("-fire_time")[:LINES]
    newest = sorted([*single, *other], key=lambda entry: (entry.fire_time, entry.pk), reverse=True)[
        :LINES
    ]
    tasks = Task.objects.using(row._state.db).filter(
        pk__in=[entry.task_id for entry in newest if entry.task_id]
    )
    statuses = dict(tasks.values_list("pk", "status"))
    return [_shown(entry, row.time_zone, statuses.get(entry.task_id)) for entry in newest]


def _shown(entry: OccurrenceRecord, zone_name: str, status: str | None) -> dict[str, Any]:
    return {
        "line": entry,
        "outcome": display.badge(entry.outcome, entry.outcome),
        "at": recurring_form.local_of(entry.fire_time, zone_name),
        "to": recurring_form.local_of(entry.last_fire_time, zone_name)
        if entry.last_fire_time
        else "",
        "count": f"{'' if entry.count_is_exact else '≥ '}{entry.count:,}"
        if entry.count != 1
        else "",
        "started": display.instant(entry.effective_at),
        "task": recurring_form.task_link(entry, status),
        "why": display.clean(entry.reason),
    }


# The admin of schedules: next fires, last outcomes and actions.


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
        action_of(lifecycle.pause),
        action_of(lifecycle.resume),
        action_of(lifecycle.cancel),
    )
    operations = OPERATIONS
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
                site(operation_view_for(self)),
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
