"""The form of a schedule, and the page that adds or edits one with a preview of its next fires."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.db.models import QuerySet
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.admin import display
from django_durable_tasks.admin.display import pretty
from django_durable_tasks.admin.fields import InstantField, JsonField, NamedRowForm, in_zone
from django_durable_tasks.celery import inspect
from django_durable_tasks.choices import RecurringStatus
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import Calendar, OccurrenceRecord, RecurringTask, Task, Tenant
from django_durable_tasks.models.schedules import OccurrenceQuerySet
from django_durable_tasks.schedules import options as readers
from django_durable_tasks.schedules.explain import FireTime
from django_durable_tasks.schedules.timetables.builder import checked
from django_durable_tasks.schedules.timetables.zones import zone, zone_names

# The form of a schedule: converts a row to its fields, and its fields to keyword arguments of
# ``upsert``.


SECRETS = ("args", "kwargs", "options")
_OFFERED = 500
_WHEN = ("cron", "interval", "rrule", "parts")
FIELDSETS = (
    (_("What"), ("name", "tenant", "task", "args", "kwargs", "queue", "priority", "description")),
    (_("Fire times: any combination of these"), ("cron", "interval", "rrule", "parts")),
    (_("Time zone and calendars"), ("timezone", "dst_gap", "dst_overlap", "calendar", "roll")),
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


# Labels and help texts of a form, where those of the columns do not fit.
_LABELS = {
    "dst_gap": _("When clocks are set forward"),
    "dst_overlap": _("When clocks are set back"),
    "roll": _("On a closed day"),
}
_HELP = {
    "misfire_grace": _("Seconds after which a fire time counts as missed."),
    "catchup_window": _("Seconds. Older fire times are not caught up. Empty: no limit."),
    "overlap_key": _(
        "A template over the arguments, {0} or {name}. Runs with the same key do not overlap."
    ),
}
# Options that are fields of their own in RecurringForm, and one that requests have only.
_OTHERS = {*("args", "kwargs", "options", "timezone", "calendar", "start_time", "end_time")} | {
    *("jitter", "idempotency_key")
}


def _option_field(option: str) -> forms.Field:
    """Return the field of an option, by its column and the limits that its reader checks."""
    column: Any = RecurringTask._meta.get_field(option)
    texts: dict[str, Any] = {
        "label": _LABELS.get(option, capfirst(column.verbose_name)),
        "help_text": _HELP.get(option, column.help_text),
        "required": not column.blank,
    }
    if option in readers.CHOICES:
        words = [(str(word), str(word)) for word in readers.CHOICES[option]]
        return forms.ChoiceField(choices=words, **texts)
    if option in readers.COUNTS:
        least, most = readers.COUNTS[option]
        return forms.IntegerField(min_value=least, max_value=most, **texts)
    if option in readers.SECONDS:
        return forms.FloatField(min_value=0, **texts)
    return forms.CharField(max_length=column.max_length, **texts)


_COLUMNS = {column.name for column in RecurringTask._meta.concrete_fields}
_OPTIONS = tuple(
    option
    for option in readers.ScheduleOptions.__annotations__
    if option in _COLUMNS and option not in _OTHERS
)
_OptionFields = type(
    "OptionFields", (forms.Form,), {option: _option_field(option) for option in _OPTIONS}
)


def _lines(help_text: Any, label: Any = None) -> forms.CharField:
    widget = forms.Textarea(attrs={"rows": 2, "cols": 60, "spellcheck": "false"})
    return forms.CharField(
        required=False, max_length=30_000, widget=widget, help_text=help_text, label=label
    )


class RecurringForm(_OptionFields, NamedRowForm):  # type: ignore[misc,valid-type]
    """A schedule; fields have the names of the keywords of ``upsert``.

    Options that are a column and have no field here have one by their column.
    """

    name = forms.CharField(
        max_length=200, help_text=_("It identifies the schedule and cannot be changed later.")
    )
    task = forms.ChoiceField()
    args = JsonField(list, rows=2, label=_("Arguments"), help_text=_("A JSON list, by position."))
    kwargs = JsonField(
        dict, rows=2, label=_("Keyword arguments"), help_text=_("A JSON object, by name.")
    )

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
    calendar = forms.MultipleChoiceField(
        required=False,
        label=_("Calendars"),
        widget=forms.CheckboxSelectMultiple,
        help_text=_("A day is closed if any of these calendars closes it."),
    )
    start_time = InstantField(
        required=False, help_text=_("Empty: from now on. In the schedule's zone.")
    )
    end_time = InstantField(required=False, help_text=_("Included. In the schedule's zone."))
    jitter = forms.CharField(
        required=False, max_length=30, help_text=_("Seconds, or 10% of the way to the next fire.")
    )
    options = JsonField(dict, rows=2, help_text=_("As for .using() of the task."))
    paused = forms.BooleanField(
        required=False, help_text=_("Create the schedule paused. It fires after it is resumed.")
    )

    def __init__(
        self,
        data: Any = None,
        files: Any = None,
        *,
        tenants: QuerySet[Tenant],
        row: RecurringTask | None = None,
        secrets: bool = False,
    ) -> None:
        without = [*(("paused",) if row else ()), *(() if secrets else SECRETS)]
        initial = _initial_of(row)
        super().__init__(data, files, tenants=tenants, row=row, initial=initial, without=without)
        self._choose("task", task_names(row))
        self._choose("timezone", sorted(zone_names() | ({row.time_zone} if row else set())))
        calendars = Calendar.objects.using(conf.settings().DATABASE).order_by("name")
        if row is not None:
            calendars = calendars.filter(tenant=row.tenant_id)
        else:
            calendars = calendars.filter(tenant__in=tenants.order_by().values("pk"))
        offered = calendars.values_list("name", flat=True).distinct()[:_OFFERED]
        self._choose("calendar", sorted({*offered, *(row.calendars if row else ())}))
        chosen = str(self.data.get("timezone") or "")
        in_zone(self, chosen if chosen in zone_names() else row.time_zone if row else None)

    def _choose(self, name: str, values: Iterable[str]) -> None:
        self.fields[name].choices = [(value, value) for value in values]  # type: ignore[attr-defined]

    def fieldsets(self) -> list[tuple[Any, list[forms.BoundField]]]:
        """Return the fields of this form, in their groups; an option without a group is in the last
        one.
        """
        grouped = {name for _title, names in FIELDSETS for name in names}
        ungrouped = [name for name in _OPTIONS if name not in grouped]
        groups = [*FIELDSETS[:-1], (FIELDSETS[-1][0], (*ungrouped, *FIELDSETS[-1][1]))]
        present = [
            (title, [name for name in names if name in self.fields]) for title, names in groups
        ]
        return [(title, [self[name] for name in names]) for title, names in present if names]

    def clean(self) -> dict[str, Any]:
        """Check each kind of part, so that errors are shown at its field."""
        cleaned: dict[str, Any] = super().clean() or {}
        for name in _WHEN:
            try:
                parts = _parts_of(name, cleaned.get(name))
                if parts:
                    checked(parts, seed=self.name_of(cleaned), allow_never=self.is_paused(cleaned))
            except DurableTasksError as refused:
                self.add_error(name, str(refused))
        return cleaned

    def is_paused(self, cleaned: dict[str, Any]) -> bool:
        """Return whether the schedule is paused, so that it may be one that never fires."""
        return (
            self.row.status == RecurringStatus.PAUSED if self.row else bool(cleaned.get("paused"))
        )

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments of ``upsert``: for a new row all that are filled in, for an
        existing one those that differ.
        """
        cleaned, row = self.cleaned_data, self.row
        changed = (
            set(self.changed_data)
            if row
            else {name for name in cleaned if cleaned[name] not in (None, "", [], {})}
        )
        keywords: dict[str, Any] = {
            name: cleaned[name] for name in changed - {*_WHEN, "name", "tenant", "jitter"}
        }
        if changed.intersection(_WHEN):
            keywords["parts"] = [
                part for name in _WHEN for part in _parts_of(name, cleaned.get(name))
            ]
        if "jitter" in changed:
            keywords["jitter"] = text = cleaned["jitter"].strip()
            with suppress(ValueError):  # a percentage, or what upsert() refuses
                keywords["jitter"] = float(text or 0)
        if not cleaned.get("start_time"):
            keywords.pop("start_time", None)  # a start cannot be removed, only changed
        keywords |= {"task": cleaned["task"], "paused": self.is_paused(cleaned)}
        return keywords | self.identity()


def _parts_of(name: str, value: Any) -> list[dict[str, Any]]:
    if value in (None, "", []):
        return []
    if name == "cron":
        return [{"cron": line.strip()} for line in value.splitlines() if line.strip()]
    if name == "parts":
        return list(value)
    return [{name: value.replace("\r\n", "\n") if isinstance(value, str) else value}]


def task_names(row: RecurringTask | None) -> list[str]:
    """Return the tasks of the project, and the callbacks and messages that schedules may create.

    The other tasks of this package are internal: their arguments name rows that the engine writes.
    """
    inspect.load_tasks()
    names = {name for name in registry.names() if not registry.is_internal(name)}
    return sorted(names | ({row.task} if row else set()))


# From a row ---------------------------------------------------------------------------------------


def _initial_of(row: RecurringTask | None) -> dict[str, Any]:
    schedule = row or RecurringTask(time_zone=ports.schedule_zone())
    initial = {name: getattr(schedule, name) for name in (*_OPTIONS, "task", *SECRETS)}
    initial |= {option: getattr(schedule, column) for option, column in readers.COLUMNS.items()}
    initial |= {name: pretty(initial[name]) for name in SECRETS}
    initial["jitter"] = (
        f"{schedule.jitter_percent:g}%" if schedule.jitter_percent else f"{schedule.jitter:g}"
    )
    if row is None:
        return initial | {"parts": "[]"}
    times = {
        name: moment.astimezone(zone(row.time_zone)).isoformat() if moment else ""
        for name in ("start_time", "end_time")
        for moment in (getattr(row, name),)
    }
    # Distribute the parts over the fields. Parts without a simple field keep their stored form.
    plain = [part for part in row.timetable if len(part) == 1]
    crons = [part["cron"] for part in plain if "cron" in part]
    first = {
        kind: next((part for part in plain if kind in part), None) for kind in ("interval", "rrule")
    }
    single = {kind: part[kind] for kind, part in first.items() if part is not None}
    remaining = [
        part
        for part in row.timetable
        if part not in first.values() and not (len(part) == 1 and "cron" in part)
    ]
    return initial | times | {"cron": "\n".join(crons), **single, "parts": pretty(remaining)}


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


def newest_entries(
    entries: OccurrenceQuerySet, limit: int, until: datetime | None = None
) -> list[OccurrenceRecord]:
    """Return the newest of a schedule's ledger entries, up to this fire time: single ones by their
    index, ranges and manual runs by theirs.
    """
    single = entries.single().order_by("-unique_fire_time")
    ranges = entries.filter(unique_fire_time=None).order_by("-fire_time")
    if until is not None:
        single = single.filter(unique_fire_time__lte=until)
        ranges = ranges.filter(fire_time__lte=until)
    both = [*single[:limit], *ranges[:limit]]
    return sorted(both, key=lambda entry: (entry.fire_time, entry.pk), reverse=True)[:limit]


def statuses_of_tasks(entries: Iterable[Any]) -> dict[Any, str]:
    """Return the statuses of the tasks of ledger entries that still exist, by their ids."""
    keys = {entry.task_id for entry in entries if entry.task_id}
    tasks = Task.objects.using(conf.settings().DATABASE).filter(pk__in=keys)
    return dict(tasks.values_list("pk", "status"))


def task_link(line: OccurrenceRecord, status: str | None) -> Any:
    """Link the task of a ledger entry by its status, or the task that blocked it."""
    if line.task_id is None:
        return display.row_link("task", line.blocked_by, "the run that blocked it")
    if not status:
        return "no longer kept"
    return display.row_link("task", line.task_id, display.badge(status, status))


def count_of(entry: OccurrenceRecord) -> str:
    """Return the number of fire times of a ledger entry."""
    return f"{'' if entry.count_is_exact else '≥ '}{entry.count:,}"
