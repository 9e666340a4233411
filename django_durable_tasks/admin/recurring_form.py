"""The form of a schedule, and the page that adds or edits one with a preview of its next fires."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.admin import actions, display, staff_tenants
from django_durable_tasks.admin.display import pretty
from django_durable_tasks.admin.fields import EditForm, InstantField, JsonField, in_zone, refuse
from django_durable_tasks.admin.staff_tenants import is_default_only
from django_durable_tasks.celery import inspect
from django_durable_tasks.choices import CatchUp, CatchUpOrder, Overlap, RecurringStatus
from django_durable_tasks.exceptions import DurableTasksError, InvalidArguments
from django_durable_tasks.models import (
    DEFAULT_TENANT_ID,
    Calendar,
    OccurrenceRecord,
    RecurringTask,
    Tenant,
)
from django_durable_tasks.schedules.business_days import Roll
from django_durable_tasks.schedules.explain import Preview, preview
from django_durable_tasks.schedules.explanations import FireTime
from django_durable_tasks.schedules.lifecycle import upsert
from django_durable_tasks.schedules.options import CODE, SETTINGS
from django_durable_tasks.schedules.timetables.builder import checked
from django_durable_tasks.schedules.timetables.types import DstGap, DstOverlap
from django_durable_tasks.schedules.timetables.zones import zone, zone_names

# The form of a schedule: converts a row to its fields, and its fields to keyword arguments of
# ``upsert``.


SECRETS = ("args", "kwargs", "options")
_OFFERED = 500
_WHEN = ("cron", "interval", "rrule", "parts")
_COLUMNS = {"timezone": "time_zone", "calendar": "calendars"}
"""Columns whose keyword argument of ``upsert`` has another name."""
_SEEN = (
    "description",
    "task",
    "queue",
    "priority",
    "timezone",
    "dst_gap",
    "dst_overlap",
    "calendar",
    "roll",
    "max_runs",
    "expires_in",
    "catch_up_mode",
    "misfire_grace",
    "catchup_window",
    "max_catchup_runs",
    "catchup_order",
    "catchup_pace",
    "overlap",
    "overlap_key",
)

FIELDSETS = (
    (_("What"), ("name", "tenant", "task", "args", "kwargs", "queue", "priority", "description")),
    (_("Fire times: any combination of these"), ("cron", "interval", "rrule", "parts")),
    (
        _("Time zone and calendars"),
        ("timezone", "dst_gap", "dst_overlap", "calendar", "roll"),
    ),
    (_("Bounds"), ("start_time", "end_time", "max_runs", "jitter", "expires_in")),
    (
        _("When a fire time is late"),
        (
            "catch_up_mode",
            "misfire_grace",
            "catchup_window",
            "max_catchup_runs",
            "catchup_order",
            "catchup_pace",
        ),
    ),
    (_("When an earlier run is still open"), ("overlap", "overlap_key")),
    (_("More"), ("options", "paused")),
)


def _words(words: type[StrEnum], label: Any = None) -> forms.ChoiceField:
    return forms.ChoiceField(choices=[(word.value, word.value) for word in words], label=label)


def _lines(help_text: Any, label: Any = None) -> forms.CharField:
    widget = forms.Textarea(attrs={"rows": 2, "cols": 60, "spellcheck": "false"})
    return forms.CharField(
        required=False, max_length=30_000, widget=widget, help_text=help_text, label=label
    )


def _seconds(help_text: Any, *, label: Any = None, required: bool = False) -> forms.FloatField:
    return forms.FloatField(required=required, min_value=0, help_text=help_text, label=label)


class RecurringForm(EditForm):
    """A schedule; fields have the names of the keywords of ``upsert``."""

    name = forms.CharField(
        max_length=200, help_text=_("It identifies the schedule and cannot be changed later.")
    )
    tenant = forms.ModelChoiceField(Tenant.objects.none(), to_field_name="slug")
    task = forms.ChoiceField()
    args = JsonField(list, rows=2, label=_("Arguments"), help_text=_("A JSON list, by position."))
    kwargs = JsonField(
        dict, rows=2, label=_("Keyword arguments"), help_text=_("A JSON object, by name.")
    )
    queue = forms.CharField(required=False, max_length=200, help_text=_("Empty: the task's own."))
    priority = forms.IntegerField(
        required=False, min_value=0, max_value=9, help_text=_("0 to 9; empty: the task's.")
    )
    description = forms.CharField(required=False, max_length=500)

    cron = _lines(_("Five fields or @daily; one expression per line."))
    interval = forms.FloatField(
        required=False,
        help_text=_("Seconds of elapsed time, counted from the start time without drift."),
    )
    rrule = _lines(_("RFC 5545: FREQ=MONTHLY;BYDAY=-1FR"), _("RRULE"))
    parts = JsonField(
        list,
        rows=3,
        label=_("Other parts"),
        help_text=_(
            'A JSON list: [{"every": "month", "day": "last working", "time": "09:00"}], [{"solar":'
            ' "sunset", "latitude": 51.5, "longitude": -0.1}], [{"at": ["2026-03-08T07:00:00Z"]}]'
        ),
    )

    timezone = forms.ChoiceField(label=_("Time zone"))
    dst_gap = _words(DstGap, _("When clocks are set forward"))
    dst_overlap = _words(DstOverlap, _("When clocks are set back"))
    calendar = forms.MultipleChoiceField(
        required=False,
        label=_("Calendars"),
        widget=forms.CheckboxSelectMultiple,
        help_text=_("A day is closed if any of these calendars closes it."),
    )
    roll = _words(Roll, _("On a closed day"))

    start_time = InstantField(
        required=False, help_text=_("Empty: from now on. In the schedule's zone.")
    )
    end_time = InstantField(required=False, help_text=_("Included. In the schedule's zone."))
    max_runs = forms.IntegerField(required=False, min_value=1)
    jitter = forms.CharField(
        required=False, max_length=30, help_text=_("Seconds, or 10% of the way to the next fire.")
    )
    expires_in = _seconds(_("Seconds after its fire time at which a run is too late."))

    catch_up_mode = _words(CatchUp, _("Catch-up mode"))
    misfire_grace = _seconds(_("Seconds after which a fire time counts as missed."), required=True)
    catchup_window = _seconds(
        _("Seconds. Older fire times are not caught up. Empty: no limit."),
        label=_("Catch-up window"),
    )
    max_catchup_runs = forms.IntegerField(
        min_value=1, max_value=1_000, label=_("Max. runs caught up")
    )
    catchup_order = _words(CatchUpOrder, _("Catch-up order"))
    catchup_pace = _seconds(
        _("Seconds between two runs that are caught up."), label=_("Catch-up pace"), required=True
    )

    overlap = _words(Overlap)
    overlap_key = forms.CharField(
        required=False,
        max_length=200,
        help_text=_(
            "A template over the arguments, {0} or {name}. Runs with the same key do not overlap."
        ),
    )
    options = JsonField(dict, rows=2, help_text=_("As for .using() of the task."))
    paused = forms.BooleanField(
        required=False, help_text=_("Create the schedule paused. It fires after it is resumed.")
    )

    def __init__(
        self,
        data: Any = None,
        *,
        tenants: QuerySet[Tenant],
        row: RecurringTask | None = None,
        secrets: bool = False,
    ) -> None:
        self.row = row
        super().__init__(data, initial=_initial_of(row))
        self._choose("task", _task_names(row))
        self._choose("timezone", sorted(zone_names() | ({row.time_zone} if row else set())))
        self._choose("calendar", _calendar_names(row, tenants))
        if row is not None or is_default_only(tenants):
            del self.fields["tenant"]
        else:
            self.fields["tenant"].queryset = tenants  # type: ignore[attr-defined]
        gone = [*(("name", "paused") if row else ()), *(() if secrets else SECRETS)]
        for name in gone:
            del self.fields[name]
        chosen = str(self.data.get("timezone") or "")
        in_zone(self, chosen if chosen in zone_names() else row.time_zone if row else None)
        self.compare_with(row, row.revision if row else "")

    def _choose(self, name: str, values: Iterable[str]) -> None:
        self.fields[name].choices = [(value, value) for value in values]  # type: ignore[attr-defined]

    def fieldsets(self) -> list[tuple[Any, list[forms.BoundField]]]:
        """Return the fields of this form, in their groups."""
        groups = (
            (title, [self[name] for name in names if name in self.fields])
            for title, names in FIELDSETS
        )
        return [(title, fields) for title, fields in groups if fields]

    def clean(self) -> dict[str, Any]:
        """Check each kind of part, so that errors are shown at its field."""
        given: dict[str, Any] = super().clean() or {}
        for name in _WHEN:
            try:
                parts = _parts_of(name, given.get(name))
                if parts:
                    checked(parts, seed=self.name_of(given), allow_never=self.is_paused(given))
            except DurableTasksError as refused:
                self.add_error(name, str(refused))
        return given

    def name_of(self, given: dict[str, Any]) -> str:
        """Return the name of the schedule."""
        return self.row.name if self.row else str(given.get("name", ""))

    def is_paused(self, given: dict[str, Any]) -> bool:
        """Return whether the schedule is paused, so that it may be one that never fires."""
        return self.row.status == RecurringStatus.PAUSED if self.row else bool(given.get("paused"))

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments of ``upsert``: for a new row all that are filled in, for an
        existing one those that differ.
        """
        given, row = self.cleaned_data, self.row
        changed = (
            set(self.changed_data)
            if row
            else {name for name in given if given[name] not in (None, "", [], {})}
        )
        found: dict[str, Any] = {
            name: given[name] for name in changed - {*_WHEN, "name", "tenant", "jitter"}
        }
        if changed.intersection(_WHEN):
            found["parts"] = [part for name in _WHEN for part in _parts_of(name, given.get(name))]
        if "jitter" in changed:
            found["jitter"] = _jitter_of(given["jitter"])
        if not given.get("start_time"):
            found.pop("start_time", None)  # a start cannot be removed, only changed
        tenant = row.tenant_id if row else getattr(given.get("tenant"), "pk", DEFAULT_TENANT_ID)
        found |= {"name": self.name_of(given), "task": given["task"], "tenant": tenant}
        return found | {"paused": self.is_paused(given)}


def _parts_of(name: str, value: Any) -> list[dict[str, Any]]:
    if value in (None, "", []):
        return []
    if name == "cron":
        return [{"cron": line.strip()} for line in value.splitlines() if line.strip()]
    if name == "parts":
        return list(value)
    return [{name: value.replace("\r\n", "\n") if isinstance(value, str) else value}]


def _jitter_of(text: str) -> float | str:
    text = text.strip()
    if text.endswith("%"):
        return text
    try:
        return float(text or 0)
    except ValueError:
        return text


def _task_names(row: RecurringTask | None) -> list[str]:
    """Return the tasks of the project, and the callbacks and messages that schedules may create.

    The other tasks of this package are internal: their arguments name rows that the engine writes.
    """
    inspect.load_tasks()
    names = {name for name in registry.names() if not registry.is_internal(name)}
    return sorted(names | ({row.task} if row else set()))


def _calendar_names(row: RecurringTask | None, tenants: QuerySet[Tenant]) -> list[str]:
    calendars = Calendar.objects.using(conf.settings().DATABASE).order_by("name")
    if row is not None:
        calendars = calendars.filter(tenant=row.tenant_id)
    else:
        calendars = calendars.filter(tenant__in=tenants.order_by().values("pk"))
    offered = calendars.values_list("name", flat=True).distinct()[:_OFFERED]
    return sorted({*offered, *(row.calendars if row else ())})


# From a row ---------------------------------------------------------------------------------------


def _initial_of(row: RecurringTask | None) -> dict[str, Any]:
    if row is None:
        fresh = RecurringTask(time_zone=ports.schedule_zone())
        seen = {name: getattr(fresh, _COLUMNS.get(name, name)) for name in _SEEN}
        return seen | {"args": "[]", "kwargs": "{}", "options": "{}", "parts": "[]", "jitter": "0"}
    seen = {name: getattr(row, _COLUMNS.get(name, name)) for name in _SEEN}
    percent = f"{row.jitter_percent:g}%" if row.jitter_percent else f"{row.jitter:g}"
    times = {name: _local(getattr(row, name), row.time_zone) for name in ("start_time", "end_time")}
    secrets = {name: pretty(getattr(row, name)) for name in SECRETS}
    return {**seen, **secrets, **times, **_when_of(row.timetable), "jitter": percent}


def _when_of(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Distribute the parts over the fields; parts without a simple field keep their stored form."""
    plain = [part for part in parts if len(part) == 1]
    crons = [part["cron"] for part in plain if "cron" in part]
    first = {
        kind: next((part for part in plain if kind in part), None) for kind in ("interval", "rrule")
    }
    shown = {kind: part[kind] for kind, part in first.items() if part is not None}
    rest = [
        part
        for part in parts
        if part not in first.values() and not (len(part) == 1 and "cron" in part)
    ]
    return {"cron": "\n".join(crons), **shown, "parts": pretty(rest)}


def _local(moment: datetime | None, name: str) -> str:
    return moment.astimezone(zone(name)).isoformat() if moment else ""


# Rows of the table of fires: local time, UTC, remarks and tasks.


_MARKS = {
    "DST": "DST",
    "rolled": "calendar",
    "also": "calendar",
    "moved": "by hand",
    "added": "by hand",
}
"""The beginning of a remark, and its badge."""


def shown_fires(
    fires: Sequence[FireTime], row: RecurringTask, now: datetime
) -> list[dict[str, Any]]:
    """Return one row of the table for each fire."""
    clock = zone(row.time_zone)
    offsets = [fire.nominal.astimezone(clock).utcoffset() for fire in fires]
    return [
        {
            "local": local_of(fire.nominal, row.time_zone),
            "utc": utc_of(fire.nominal),
            "starts": ""
            if fire.effective == fire.nominal
            else local_of(fire.effective, row.time_zone),
            "relative": display.since(fire.effective, now),
            "marks": display.badges(
                _badges(fire, shifted=number > 0 and offsets[number] != offsets[number - 1])
            ),
            "remarks": fire.remarks,
            "fire_time": fire.nominal.astimezone(clock).isoformat(),
        }
        for number, fire in enumerate(fires)
    ]


def local_of(moment: datetime, zone_name: str) -> str:
    """Return an instant as wall time of a zone, with weekday and offset."""
    local = moment.astimezone(zone(zone_name))
    fraction = f".{local.microsecond:06}".rstrip("0") if local.microsecond else ""
    return f"{local:%a %Y-%m-%d %H:%M:%S}{fraction} {local:%Z}".strip()


def utc_of(moment: datetime) -> str:
    """Return an instant in UTC, in the format of the ledger and the command line."""
    return moment.astimezone(UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def _badges(fire: FireTime, *, shifted: bool) -> list[tuple[str, str]]:
    words = [
        word
        for remark in fire.remarks
        for start, word in _MARKS.items()
        if remark.startswith(start)
    ]
    words += ["clocks changed"] if shifted and "DST" not in words else []
    return [(f"remark-{word.replace(' ', '-')}", word) for word in dict.fromkeys(words)]


def task_link(line: OccurrenceRecord, status: str | None) -> Any:
    """Link the task of a ledger entry by its status, or the task that blocked it."""
    if line.task_id is not None:
        name = display.badge(status, status) if status else display.short(line.task_id)
        return (
            display.link(display.page_of("task", line.task_id), name)
            if status
            else gettext("no longer kept")
        )
    if line.blocked_by is not None:
        return display.link(
            display.page_of("task", line.blocked_by), gettext("the run that blocked it")
        )
    return display.NOTHING


SHOWN = 10


def _preview(form: RecurringForm) -> Preview | None:
    """Return a preview of the schedule; None if it was refused, which the form shows."""
    try:
        return preview(number=SHOWN, **form.keywords())
    except DurableTasksError as refused:
        _refuse(form, refused)
        return None


def _saved(form: RecurringForm) -> RecurringTask | None:
    """Save the schedule; None if it was refused, which the form shows."""
    try:
        is_new = form.row is None
        revision = None if form.row is None else form.row.revision
        return upsert(**form.keywords(), revision=revision, replaces_ended=is_new)
    except DurableTasksError as refused:
        _refuse(form, refused)
        return None


def _refuse(form: RecurringForm, refused: DurableTasksError) -> None:
    if isinstance(refused, InvalidArguments) and "args" in form.fields:
        form.add_error("args", str(refused))
    else:
        refuse(form, refused)


def _row(screen: Any, request: HttpRequest, object_id: uuid.UUID | None) -> RecurringTask | None:
    if object_id is None:
        if not screen.has_add_permission(request):
            raise PermissionDenied
        return None
    if not (screen.has_edit_permission(request) and screen.has_view_permission(request)):
        raise PermissionDenied
    rows = screen.get_queryset(request).exclude(status=RecurringStatus.CANCELLED)
    row: RecurringTask | None = rows.filter(pk=object_id).first()
    if row is None:
        raise Http404(gettext("No schedule with this id can be edited."))
    return row


def _name_in_use(form: RecurringForm, screen: Any, request: HttpRequest) -> bool:
    """Refuse to add a schedule under the name of an existing one."""
    if form.row is not None:
        return False
    given = form.keywords()
    rows = screen.get_queryset(request).filter(tenant=given["tenant"], name=given["name"])
    found = rows.exclude(~Q(source__in=(CODE, SETTINGS)), status=RecurringStatus.CANCELLED).exists()
    if found:
        form.add_error("name", gettext("A schedule with this name already exists."))
    return bool(found)


def editing_for(screen: Any) -> Callable[..., HttpResponse]:
    """Return the view, inside the site of this screen."""

    def view(request: HttpRequest, object_id: uuid.UUID | None = None) -> HttpResponse:
        row = _row(screen, request, object_id)
        posted = request.method == "POST"
        form = RecurringForm(
            request.POST if posted else None,
            tenants=staff_tenants.offered(request),
            row=row,
            secrets=display.reads_secrets(request),
        )
        looked = None
        if posted and form.is_valid() and not _name_in_use(form, screen, request):
            if "_look" in request.POST:
                looked = _preview(form)
            elif saved := _saved(form):
                return _saved_response(screen, request, saved, form)
        return _page(screen, request, form, looked)

    return view


def _saved_response(
    screen: Any, request: HttpRequest, saved: RecurringTask, form: RecurringForm
) -> HttpResponse:
    actions.remember(screen, request, [saved.pk], form.summary())
    message = gettext("Schedule %s is saved. Past fire times do not fire.") % saved.name
    screen.message_user(request, message)
    may_view = screen.has_view_permission(request)
    return HttpResponseRedirect(
        display.page_of("recurringtask", saved.pk) if may_view else request.path
    )


def _page(
    screen: Any, request: HttpRequest, form: RecurringForm, looked: Preview | None
) -> HttpResponse:
    row = form.row
    shown = None if looked is None else shown_fires(looked.fires, looked.row, looked.now)
    context = {
        **screen.admin_site.each_context(request),
        "opts": screen.opts,
        "media": screen.media,
        "form": form,
        "row": row,
        "looked": looked,
        "fires": shown,
        "source": row.source if row else "",
        "resting": looked is not None and form.is_paused(form.cleaned_data),
        "title": gettext("Edit schedule %s") % row.name if row else gettext("Add a schedule"),
        "back": display.page_of("recurringtask", row.pk)
        if row
        else display.list_of("recurringtask"),
    }
    return TemplateResponse(request, "admin/django_durable_tasks/recurringtask/edit.html", context)
