"""The context of the page of a schedule: its status, next fires, ledger and operations."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_durable_tasks.admin import display, fire_table, recurring_actions
from django_durable_tasks.admin.fields import InstantField, in_zone
from django_durable_tasks.engine.cluster.status import LATE
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.recurring.preview import upcoming
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import OccurrenceOverride, OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.operations.schedules import OVERRIDE, REMOVE_OVERRIDE
from django_durable_tasks.rules.recurring.policies import QUARANTINED, Overlap, RecurringStatus
from django_durable_tasks.rules.tasks.explanations import Level, Sentence

FIRES = 10
LINES = 50
_OVERRIDES = 50


class WhyForm(forms.Form):
    """The instant to explain."""

    at = InstantField(
        label=gettext_lazy("Why did it not run at"),
        help_text=gettext_lazy("A wall time of the schedule's zone, or a time with its offset."),
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
        "may_override": OVERRIDE.is_permitted(request.user)
        and row.status != RecurringStatus.CANCELLED,
        "override": recurring_actions.address(row, OVERRIDE),
        "remove_override": recurring_actions.address(row, REMOVE_OVERRIDE),
        "one_at_a_time": row.overlap != Overlap.ALLOW,
    }


def _planned(row: RecurringTask, now: datetime) -> tuple[list[dict[str, Any]], str]:
    try:
        return fire_table.shown(upcoming(row, FIRES, now), row, now), ""
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
        [Sentence(Level.TROUBLE, _("Its fire times cannot be computed. %s") % problem)]
        if problem
        else []
    )
    if row.status == RecurringStatus.CANCELLED:
        return [
            *found,
            Sentence(
                Level.WAIT,
                _("It has ended (%s) and never fires again.") % (row.status_reason or "-"),
            ),
        ]
    if row.status == RecurringStatus.PAUSED:
        return [*found, _paused(row, now)]
    if row.undeclared_at is not None:
        found.append(
            Sentence(
                Level.WAIT,
                _("It is no longer declared in code. It fires until an operator ends it."),
            )
        )
    if row.next_run_at is None:
        return [
            *found,
            Sentence(Level.TROUBLE, _("It is active and has no next fire.")),
        ]
    late = (now - row.next_run_at).total_seconds()
    if late > LATE.total_seconds():
        text = _(
            "Its fire time of %(at)s has not been processed for %(late)s. Check that a"
            " scheduler is the leader."
        )
        values = {"at": display.instant(row.next_run_at), "late": display.duration(late)}
        return [*found, Sentence(Level.TROUBLE, text % values)]
    return [
        *found,
        Sentence(Level.FINE, _("It fires next %s.") % display.since(row.next_run_at, now)),
    ]


def _paused(row: RecurringTask, now: datetime) -> Sentence:
    if row.status_reason == QUARANTINED:
        text = _("It is QUARANTINED: it could not be triggered (%s). Correct it, then resume it.")
        return Sentence(Level.TROUBLE, text % display.clean(row.error or "-"))
    by = _(" by %s") % row.status_by if row.status_by else ""
    why = f" ({row.status_reason})" if row.status_reason else ""
    since = _(" since %s") % display.instant(row.paused_at) if row.paused_at else ""
    until = (
        _("It resumes at %s.") % display.instant(row.paused_until)
        if row.paused_until
        else _("It does not fire until it is resumed.")
    )
    return Sentence(
        Level.WAIT,
        _("It is paused%(since)s%(by)s%(why)s. %(until)s")
        % {"since": since, "by": by, "why": why, "until": until},
    )


def _buttons(screen: Any, request: HttpRequest, row: RecurringTask) -> list[dict[str, Any]]:
    found = recurring_actions.buttons(screen, request, row)
    if screen.has_edit_permission(request) and row.status != RecurringStatus.CANCELLED:
        edit = reverse("admin:django_durable_tasks_recurringtask_edit", args=[row.pk])
        found.insert(0, {"url": edit, "title": _("Edit…")})
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
            "at": fire_table.local_of(one.fire_time, row.time_zone),
            "open": one.fire_time > now,
            "to": fire_table.local_of(one.move_to, row.time_zone) if one.move_to else "",
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
        "at": fire_table.local_of(entry.fire_time, zone_name),
        "to": fire_table.local_of(entry.last_fire_time, zone_name) if entry.last_fire_time else "",
        "count": f"{'' if entry.count_is_exact else '≥ '}{entry.count:,}"
        if entry.count != 1
        else "",
        "started": display.instant(entry.effective_at),
        "task": fire_table.task_link(entry, status),
        "why": display.clean(entry.reason),
    }
