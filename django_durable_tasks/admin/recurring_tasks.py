"""The admin of schedules and of the ledger: form, list, page, outcomes and operations."""

from __future__ import annotations

import functools
import operator
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.admin import display, filters
from django_durable_tasks.admin.actions import OperationPage, action_of
from django_durable_tasks.admin.fields import InstantField, JsonField, NamedRowForm, in_zone
from django_durable_tasks.admin.readonly import OwnFormAdmin, ReadOnlyAdmin, section
from django_durable_tasks.celery import inspect
from django_durable_tasks.choices import FireOutcome, Overlap, RecurringStatus
from django_durable_tasks.cluster.status import LATE
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import Calendar, OccurrenceRecord, RecurringTask, Task, Tenant
from django_durable_tasks.models.schedules import OccurrenceQuerySet
from django_durable_tasks.operations import Operation
from django_durable_tasks.schedules import lifecycle, manual_runs
from django_durable_tasks.schedules import options as readers
from django_durable_tasks.schedules.explain import FireTime, preview, upcoming
from django_durable_tasks.schedules.manual_runs import BackfillReport
from django_durable_tasks.schedules.misfires import QUARANTINED
from django_durable_tasks.schedules.schedule_cache import overrides_of
from django_durable_tasks.schedules.timetables.builder import checked, words
from django_durable_tasks.schedules.timetables.zones import zone, zone_names
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks.explanations import Level, Sentence

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


_OPTIONS = tuple(
    option
    for option in readers.ScheduleOptions.__annotations__
    if option in {column.name for column in RecurringTask._meta.concrete_fields} - _OTHERS
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
        schedule = row or RecurringTask(time_zone=ports.schedule_zone())
        initial = {name: getattr(schedule, name) for name in (*_OPTIONS, "task", *SECRETS)}
        initial |= {option: getattr(schedule, column) for option, column in readers.COLUMNS.items()}
        initial |= {name: display.pretty(initial[name]) for name in SECRETS}
        percent = f"{schedule.jitter_percent:g}%" if schedule.jitter_percent else ""
        initial |= {"jitter": percent or f"{schedule.jitter:g}", "parts": "[]"}
        if row is not None:
            for name in ("start_time", "end_time"):
                at = getattr(row, name)
                initial[name] = at.astimezone(zone(row.time_zone)).isoformat() if at else ""
            # Distribute the parts over the fields. Parts without a simple field keep their stored
            # form.
            plain = [part for part in row.timetable if len(part) == 1]
            crons = [part for part in plain if "cron" in part]
            firsts = [
                [part for part in plain if kind in part][:1] for kind in ("interval", "rrule")
            ]
            initial["cron"] = "\n".join(part["cron"] for part in crons)
            for part in chain(*firsts):
                initial |= part
            remaining = [part for part in row.timetable if part not in [*crons, *chain(*firsts)]]
            initial["parts"] = display.pretty(remaining)
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
    clock, lines = zone(row.time_zone), []
    offset: timedelta | None = None
    for fire in fires:
        before, offset = offset, fire.nominal.astimezone(clock).utcoffset()
        marks = [
            word
            for remark in fire.remarks
            for start, word in _MARKS.items()
            if remark.startswith(start)
        ]
        if before not in (None, offset) and "DST" not in marks:
            marks.append("clocks changed")
        starts_late = fire.effective != fire.nominal
        lines.append(
            {
                "local": local_of(fire.nominal, row.time_zone),
                "utc": utc_of(fire.nominal),
                "starts": local_of(fire.effective, row.time_zone) if starts_late else "",
                "relative": display.since(fire.effective, now),
                "marks": display.badges(
                    [(f"remark-{word.replace(' ', '-')}", word) for word in dict.fromkeys(marks)]
                ),
                "remarks": fire.remarks,
                "fire_time": fire.nominal.astimezone(clock).isoformat(),
            }
        )
    return lines


def local_of(moment: datetime, zone_name: str) -> str:
    """Return an instant as wall time of a zone, with weekday and offset."""
    local = moment.astimezone(zone(zone_name))
    fraction = f".{local.microsecond:06}".rstrip("0") if local.microsecond else ""
    return f"{local:%a %Y-%m-%d %H:%M:%S}{fraction} {local:%Z}".strip()


def utc_of(moment: datetime) -> str:
    """Return an instant in UTC, in the format of the ledger and the command line."""
    return moment.astimezone(UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


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
_OF_ENTRY = (
    "recurring_task_id",
    "id",
    "fire_time",
    "last_fire_time",
    "outcome",
    "count",
    "task_id",
)


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
    # The newest entries of each schedule: of single fire times, and of ranges and manual runs.
    database = conf.settings().DATABASE
    ledger = OccurrenceRecord.objects.filter(recurring_task=OuterRef("pk"))
    single = ledger.single().order_by("-unique_fire_time").values("unique_fire_time")
    ranges = ledger.filter(unique_fire_time__isnull=True).order_by("-fire_time").values("fire_time")
    schedules = RecurringTask.objects.using(database).filter(pk__in=[row.pk for row in rows])
    lower_bounds = schedules.annotate(
        single_from=Subquery(single[LOOKED_AT - 1 : LOOKED_AT]),
        other_from=Subquery(ranges[LOOKED_AT - 1 : LOOKED_AT]),
    )
    bounds = list(lower_bounds.order_by().values_list("pk", "single_from", "other_from"))
    conditions = [
        *_from(
            {pk: single_from for pk, single_from, _other_from in bounds},
            "unique_fire_time__gte",
            unique_fire_time__isnull=False,
        ),
        *_from(
            {pk: other_from for pk, _single, other_from in bounds},
            "fire_time__gte",
            unique_fire_time__isnull=True,
        ),
    ]
    newest = OccurrenceRecord.objects.using(database).filter(
        functools.reduce(operator.or_, conditions)
    )
    entries: dict[uuid.UUID, list[Any]] = defaultdict(list)
    for entry in newest.order_by().values_list(*_OF_ENTRY, named=True):
        entries[entry.recurring_task_id].append(entry)
    for of_one in entries.values():
        of_one.sort(key=lambda entry: (entry.fire_time, entry.id))
    statuses = statuses_of_tasks(entry for of_one in entries.values() for entry in of_one[-MARKS:])
    return {pk: _recent(of_one, statuses, now - _DAY) for pk, of_one in entries.items()}


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


def _sentences(row: RecurringTask, now: datetime, problem: str) -> list[Sentence]:
    sentences = []
    if problem:
        text = f"Its fire times cannot be computed. {problem}"
        sentences.append(Sentence(Level.TROUBLE, text))
    if row.status == RecurringStatus.CANCELLED:
        text = f"It has ended ({row.status_reason or '-'}) and never fires again."
        return [*sentences, Sentence(Level.WAIT, text)]
    if row.status == RecurringStatus.PAUSED:
        return [*sentences, _paused(row)]
    if row.undeclared_at is not None:
        text = "It is no longer declared in code. It fires until an operator ends it."
        sentences.append(Sentence(Level.WAIT, text))
    if row.next_run_at is None:
        return [*sentences, Sentence(Level.TROUBLE, "It is active and has no next fire.")]
    late = (now - row.next_run_at).total_seconds()
    if late > LATE.total_seconds():
        text = (
            f"Its fire time of {display.instant(row.next_run_at)} has not been processed for"
            f" {display.duration(late)}. Check that a scheduler is the leader."
        )
        return [*sentences, Sentence(Level.TROUBLE, text)]
    text = f"It fires next {display.since(row.next_run_at, now)}."
    return [*sentences, Sentence(Level.FINE, text)]


def _paused(row: RecurringTask) -> Sentence:
    if row.status_reason == QUARANTINED:
        error = display.clean(row.error or "-")
        text = (
            f"It is QUARANTINED: it could not be triggered ({error}). Correct it, then resume it."
        )
        return Sentence(Level.TROUBLE, text)
    by = f" by {row.status_by}" if row.status_by else ""
    why = f" ({row.status_reason})" if row.status_reason else ""
    since = f" since {display.instant(row.paused_at)}" if row.paused_at else ""
    until = (
        f"It resumes at {display.instant(row.paused_until)}."
        if row.paused_until
        else "It does not fire until it is resumed."
    )
    return Sentence(Level.WAIT, f"It is paused{since}{by}{why}. {until}")


# The admin of schedules: next fires, last outcomes and actions.


@admin.display(description=_("when"))
def when(row: RecurringTask) -> SafeString | str:
    """Show the timetable as text, and its zone."""
    text = words(row.timetable)
    calendars = f" · {', '.join(row.calendars)}" if row.calendars else ""
    return display.beneath(
        text if len(text) < 100 else f"{text[:100]}…", f"{row.time_zone}{calendars}"
    )


@admin.display(description=_("status"))
def state(row: Any) -> SafeString | str:
    """Show the status and further conditions, and who set it, why, and until when."""
    marks = [(f"schedule-{row.status}", row.status)]
    is_active = row.status == RecurringStatus.ACTIVE
    if is_active and row.next_run_at and row.next_run_at < row.seen_at - LATE:
        marks.append(("overdue", "late"))
    if row.status_reason == QUARANTINED:
        marks.append(("failed", "quarantined"))
    if row.undeclared_at is not None:
        marks.append(("undeclared", "no longer declared"))
    by = f"by {row.status_by}" if row.status_by and row.status_reason else ""
    until = f"until {display.instant(row.paused_until)}" if row.paused_until else ""
    why = " ".join(sentence for sentence in (row.status_reason, by, until) if sentence)
    return display.beneath(
        display.badges(marks), display.first_line(row.error) if row.error else why
    )


@admin.display(description=_("next run"))
def next_run(row: Any) -> SafeString | str:
    """Show the next fire time, absolute and relative; for a paused schedule, when it resumes."""
    if row.next_run_at is None:
        return display.NOTHING
    resumes = "resumes " if row.status == RecurringStatus.PAUSED else ""
    relative = display.since(row.next_run_at, row.seen_at)
    return display.beneath(display.instant(row.next_run_at), f"{resumes}{relative}")


@admin.display(description=_("last run"))
def _last_run(row: Any) -> SafeString | str:
    """Show the creation time of the newest task."""
    if row.last_run_at is None:
        return display.NOTHING
    relative = display.since(row.last_run_at, row.seen_at)
    return display.beneath(display.instant(row.last_run_at), relative)


@admin.display(description=_("last fire times"))
def last_outcomes(row: Any) -> SafeString | str:
    """Show a badge for each of the last fire times, the newest last, and the creation time of the
    newest task.
    """
    signs = display.marks((mark.word, mark.fire_time, mark.count) for mark in row.recent.marks)
    ran = f"last run {display.since(row.last_run_at, row.seen_at)}" if row.last_run_at else ""
    return display.beneath(signs, ran)


@admin.display(description=_("not run, 24 h"))
def not_run(row: Any) -> SafeString | str:
    """Show how many fire times of the last day were missed or skipped."""
    recent, at_least = row.recent, "" if row.recent.exact else "≥ "
    counts = [
        f"{at_least}{number:,} {word}"
        for number, word in ((recent.missed, "missed"), (recent.skipped, "skipped"))
        if number
    ]
    if not counts:
        return display.NOTHING
    entries = display.list_of("occurrencerecord", schedule=row.pk, outcome="unrun")
    return display.link(entries, display.lines(counts))


@admin.display(description=_("runs"))
def _runs(row: RecurringTask) -> SafeString | str:
    """Show the number of runs, and its maximum."""
    most = f" of {row.max_runs}" if row.max_runs is not None else ""
    tasks = display.link(display.list_of("task", recurring_task__id__exact=row.pk), _("its tasks"))
    return display.beneath(tasks, f"{row.runs_count}{most} by the clock")


@admin.display(description=_("jitter"))
def _jitter(row: RecurringTask) -> str:
    if row.jitter_percent:
        return f"up to {row.jitter_percent:g}% of the way to the next fire"
    return f"up to {row.jitter:g} s" if row.jitter else display.NOTHING


@admin.register(RecurringTask)
class RecurringTaskAdmin(OwnFormAdmin):
    """Recurring tasks."""

    noun = "schedule"
    labels: ClassVar = {"watermark_at": _("recorded up to")}
    list_display = (
        display.column(_("name"), lambda row: display.beneath(row.name, row.task), "named"),
        when,
        state,
        next_run,
        last_outcomes,
        not_run,
    )
    list_filter = (
        "status",
        filters.ScheduleConditionFilter,
        "target_type",
        filters.SourceFilter,
        filters.TenantFilter,
    )
    lookups_allowed = frozenset({"status__exact"})
    sortable_by = ()
    ordering = ("tenant_id", "name")
    search_fields = ("name",)
    search_help_text = _("A complete id, or a part of the name of the schedule or of its task.")
    actions = (action_of(lifecycle.pause), action_of(lifecycle.resume), action_of(lifecycle.cancel))
    operations = page_operations = OPERATIONS
    change_form_template = "admin/django_durable_tasks/recurringtask/change_form.html"
    change_list_template = "admin/django_durable_tasks/recurringtask/change_list.html"
    reads_with_page = ("tenant",)
    unlisted = ("args", "kwargs", "options")
    fieldsets = (
        section(
            None,
            (state, "tenant"),
            display.column(
                _("when"), lambda row: display.beneath(words(row.timetable), row.time_zone)
            ),
            (next_run, _last_run),
            (_runs, "description"),
        ),
        section(
            _("Call"),
            "task",
            display.column(_("arguments"), lambda row: display.arguments_block(row.task, row)),
            ("queue", "priority"),
            "options",
        ),
        section(
            _("When"),
            "timetable",
            ("time_zone", "dst_gap", "dst_overlap"),
            (
                display.column(
                    _("calendars"), lambda row: ", ".join(row.calendars) or display.NOTHING
                ),
                "roll",
            ),
            _jitter,
            ("start_time", "end_time"),
            "watermark_at",
            collapsed=True,
        ),
        section(
            _("Late or busy"),
            ("catch_up_mode", "misfire_grace"),
            ("catchup_window", "max_catchup_runs"),
            ("catchup_order", "catchup_pace"),
            ("overlap", "overlap_key"),
            "expires_in",
            collapsed=True,
        ),
        section(
            _("Origin"),
            ("source", "undeclared_at"),
            ("idempotency_key", "revision"),
            ("created_at", "updated_at"),
            "tzdata_version",
            collapsed=True,
        ),
    )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        condition = filters.by_id_or(search_term, "name__icontains", "task__icontains")
        return queryset.filter(condition), False

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Read the page, then the outcomes of the last fire times of its schedules."""
        page = super().get_changelist_instance(request)
        outcomes = recent(page.result_list, database_now())
        for row in page.result_list:
            row.recent = outcomes.get(row.pk, RecentOutcomes())
        return page

    def title_of(self, row: Any) -> str:
        return str(row.name)

    def operation_page(self, request: HttpRequest, operation: Operation, row: Any) -> OperationPage:
        """Return the page of an operation, whose times are those of the schedule's zone."""

        def report(report: BackfillReport) -> dict[str, Any]:
            """Return the context of what a backfill would do."""
            steps = [
                {
                    "at": local_of(step.fire_time, row.time_zone),
                    "action": display.badge(f"action-{step.action}", step.action),
                    "why": step.why,
                }
                for step in report.steps
            ]
            return {"steps": steps, "remark": report.remark}

        page = super().operation_page(request, operation, row)
        return replace(page, label=f"Schedule {row.name}", zone=row.time_zone, report=report)

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Return the next fires, the last ledger entries, the explanation of a fire time, and the
        buttons.
        """
        now = database_now()
        form = WhyForm(request.GET if "at" in request.GET else None)
        in_zone(form, row.time_zone)
        answer = ""
        if form.is_bound and form.is_valid():
            try:
                answer = row.explain(form.cleaned_data["at"])
            except DurableTasksError as refused:
                form.add_error("at", str(refused))
        planned, problem = [], ""
        try:
            planned = shown_fires(upcoming(row, FIRES, now), row, now)
        except (DurableTasksError, ValueError, TypeError, LookupError) as broken:
            # The row may have been written by another release or by SQL. Its page must open, to
            # show the problem.
            problem = f"{type(broken).__name__}: {broken}"
        # The last entries by fire time: single ones by their index, ranges and manual runs by
        # theirs.
        entries = list[OccurrenceRecord]()
        if request.user.has_perm("django_durable_tasks.view_occurrencerecord"):
            ledger = OccurrenceRecord.objects.using(row._state.db).filter(recurring_task=row.pk)
            entries = newest_entries(ledger, LINES)
        statuses = statuses_of_tasks(entries)
        lines = [
            {
                "line": entry,
                "outcome": display.badge(entry.outcome, entry.outcome),
                "at": local_of(entry.fire_time, row.time_zone),
                "to": local_of(entry.last_fire_time, row.time_zone) if entry.last_fire_time else "",
                "count": "" if entry.count == 1 else count_of(entry),
                "task": task_link(entry, statuses.get(entry.task_id)),
                "why": display.clean(entry.reason),
            }
            for entry in entries
        ]
        overrides = [
            {
                "override": override,
                "at": local_of(override.fire_time, row.time_zone),
                "open": override.fire_time > now,
                "to": local_of(override.move_to, row.time_zone) if override.move_to else "",
                "fire_time": override.fire_time.isoformat(),
            }
            for override in overrides_of(row)[::-1][: _OVERRIDES + 1]
        ]
        # The removal of an override is offered beside each override.
        fits: dict[Operation, bool] = {
            operation: operation.fits(row.status) and operation is not lifecycle.withdraw_override
            for operation in OPERATIONS
        }
        is_open = row.status != RecurringStatus.CANCELLED
        return {
            "sentences": _sentences(row, now, problem),
            "buttons": [
                *self.edit_buttons(request, row, "Edit…"),
                *self.operation_buttons(request, row, fits),
            ],
            "fires": planned,
            "lines": lines,
            "ledger": display.list_of("occurrencerecord", schedule=row.pk),
            "overrides": overrides[:_OVERRIDES],
            "more_overrides": overrides[_OVERRIDES:],
            "why": form,
            "answer": answer,
            "may_override": is_open and lifecycle.override.is_permitted(request.user),
            "override": self.operation_url(row, lifecycle.override),
            "remove_override": self.operation_url(row, lifecycle.withdraw_override),
            "one_at_a_time": row.overlap != Overlap.ALLOW,
        }

    # The page that adds or edits a schedule -------------------------------------------------------

    def edit_form(self, request: HttpRequest, *posted: Any, **options: Any) -> RecurringForm:
        return RecurringForm(*posted, **options, secrets=display.reads_secrets(request))

    def preview(self, request: HttpRequest, form: RecurringForm) -> dict[str, Any]:
        """Return the fire times that the schedule would have."""
        looked = preview(number=FIRES, **form.keywords())
        return {
            "looked": looked,
            "fires": shown_fires(looked.fires, looked.row, looked.now),
            "resting": form.is_paused(form.cleaned_data),
        }

    def save_row(self, request: HttpRequest, form: RecurringForm) -> tuple[Any, str]:
        is_new = form.row is None
        revision = None if is_new else form.row.revision
        saved = lifecycle.upsert(**form.keywords(), revision=revision, replaces_ended=is_new)
        return saved, f"Schedule {saved.name} is saved. Past fire times do not fire."

    def is_editable(self, row: Any) -> bool:
        return bool(row.status != RecurringStatus.CANCELLED)

    def with_name(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Leave out ended schedules of operators, whose names are free."""
        return rows.exclude(
            ~Q(source__in=(readers.CODE, readers.SETTINGS)), status=RecurringStatus.CANCELLED
        )

    def has_edit_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("django_durable_tasks.change_recurringtask"))


# The admin of the ledger: the outcome of each fire time, its reason and its task.


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
        self.keys = list[int]()
        key, comma, until_text = str(self.used_parameters.get("schedule", "")).partition(",")
        try:
            pk, until = uuid.UUID(key), datetime.fromisoformat(until_text) if comma else None
        except ValueError:
            return []
        if until is not None and until.tzinfo is None:
            return []
        schedules = filters.visible(request, RecurringTask.objects.using(conf.settings().DATABASE))
        row = schedules.only("name").filter(pk=pk).first()
        if row is None:
            return []
        ledger = OccurrenceRecord.objects.using(row._state.db).filter(recurring_task=row.pk)
        entries = newest_entries(ledger.only("fire_time"), OF_ONE, until)
        self.keys = [entry.pk for entry in entries]
        # The next page begins at the oldest entry of this one.
        oldest = entries[-1].fire_time if len(entries) == OF_ONE else None
        older = [
            (f"{row.pk},{at.isoformat()}", f"{row.name}, {display.instant(at)}")
            for at in (until, oldest)
            if at
        ]
        return [(str(row.pk), row.name), *older]

    def has_output(self) -> bool:
        """Show the filter if a schedule is selected: its name is a choice, and "All" removes it."""
        return self.value() is not None

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the entries that were found by the indexes of fire times."""
        return rows.filter(pk__in=self.keys)


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
_COUNT = display.column(_("how many"), count_of)
_TASK = display.column(_("task"), lambda entry: task_link(entry, entry.task_status))


@admin.register(OccurrenceRecord)
class OccurrenceRecordAdmin(ReadOnlyAdmin):
    """The ledger."""

    labels: ClassVar = {"created_at": _("recorded at")}
    list_display = (_at, _schedule, _OUTCOME, _COUNT, _TASK, "reason", "term", "created_at")
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
        statuses = statuses_of_tasks(rows)
        for entry in rows:
            entry.schedule_name = names.get(entry.recurring_task_id, "")
            entry.task_status = statuses.get(entry.task_id)
