"""Reads what a tick needs of schedules, and builds their agendas."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from django.db.models import JSONField, TextField
from django.db.models.functions import Cast

from django_durable_tasks.encryption import StorageLocation, decrypted
from django_durable_tasks.exceptions import DurableTasksError, InvalidSchedule
from django_durable_tasks.models import Calendar, RecurringTask
from django_durable_tasks.models.fields import EncryptedJSONField
from django_durable_tasks.models.schedules import RecurringTaskQuerySet
from django_durable_tasks.schedules.agenda import Agenda, Override, agenda
from django_durable_tasks.schedules.business_days import BusinessDays, Roll, combined
from django_durable_tasks.schedules.timetables.builder import checked, timetable
from django_durable_tasks.schedules.timetables.types import DstGap, DstOverlap, Timetable
from django_durable_tasks.store import tables


def recurring() -> RecurringTaskQuerySet:
    """Return a queryset of all recurring tasks."""
    rows: RecurringTaskQuerySet = RecurringTask.objects.using(tables.database()).unguarded()
    return rows


# Reads the columns of schedules that a tick needs, as plain values.
#
# A model instance takes several times as long to create: it has twice as many columns, and each
# JSON column is decoded, although most schedules have the same timetable, options and calendars.


_UNREAD = frozenset(
    {"description", "status", "error", "paused_at", "target_type", "interval_seconds"}
    | {"runs_count", "next_run_at", "last_run_at", "ledger_from", "tzdata_version"}
    | {"idempotency_key", "source", "declaration", "undeclared_at", "encryption_key"}
    | {"created_at", "updated_at"}
)
_COLUMNS = {
    "pk" if column.primary_key else column.attname: column
    for column in RecurringTask._meta.concrete_fields
    if column.attname not in _UNREAD
}
_NAMES = tuple(
    f"{name}_json" if isinstance(column, JSONField) else name for name, column in _COLUMNS.items()
)


class ScheduleRow:
    """A stored schedule with the attributes of RecurringTask that a tick reads.

    The JSON columns are texts, such as ``options_json``, until they are read as attributes. What
    the attributes ``options``, ``timetable`` and ``calendars`` return is shared between schedules
    and must not be changed. ``args`` and ``kwargs`` raise EncryptionKeyMissing or DecryptionFailed.
    """

    def __init__(self, columns: Iterable[Any]) -> None:
        self.__dict__.update(zip(_NAMES, columns, strict=True))

    def __getattr__(self, name: str) -> Any:
        text = self.__dict__.get(f"{name}_json")
        if text is None:
            raise AttributeError(f"A tick does not read {name!r} of schedules.")
        if isinstance(_COLUMNS[name], EncryptedJSONField):
            table = RecurringTask._meta.db_table
            place = StorageLocation(self.tenant_id, table, name, str(self.pk))
            return decrypted(json.loads(text), place)
        # No two schedules share overrides.
        return json.loads(text) if name == "overrides" else _decoded(text)


AnySchedule: TypeAlias = RecurringTask | ScheduleRow
"""A schedule, either as a model instance, which may be unsaved, or as a tick reads it."""


_decoded = lru_cache(maxsize=4_096)(json.loads)


def read_rows(ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, ScheduleRow]:
    """Return these schedules by id; at most one statement."""
    if not ids:
        return {}
    columns = [
        Cast(name, TextField()) if isinstance(column, JSONField) else name
        for name, column in _COLUMNS.items()
    ]
    rows = tables.with_ids(recurring(), "id", ids)
    return {row[0]: ScheduleRow(row) for row in rows.values_list(*columns)}


# Builds the agendas of schedules. The days of calendars are kept in memory by their version.


_MAX_CALENDARS = 1_000

Version = tuple[int, int, datetime]
"""Id, revision and last change of a calendar. The last change is included because a revision that
was rolled back is used again.
"""

_days: dict[Version, BusinessDays] = {}


P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", RecurringTask, AnySchedule)


def readable(read: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Decorator: turn unexpected errors from a corrupted RecurringTask row into InvalidSchedule."""

    @wraps(read)
    def reading(row: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(row, *args, **kwargs)
        except DurableTasksError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as broken:
            raise InvalidSchedule(
                f"Recurring task {row.name!r} cannot be read ({type(broken).__name__}: {broken}):"
                " declare it again."
            ) from broken

    return reading


Calendars: TypeAlias = dict[tuple[int, str], Version]
"""Maps (tenant id, name) to the version of a calendar."""


def calendars_of(rows: Sequence[AnySchedule], also: Iterable[str] = ()) -> Calendars:
    """Return the calendars that these rows refer to, and those named ``also``; no statement if
    there is none.
    """
    calendars: Calendars = {}
    names = {name for row in rows for name in row.calendars}.union(also)
    if names:
        versions = Calendar.objects.using(tables.database()).filter(name__in=names)
        columns = versions.values_list("tenant_id", "name", "pk", "revision", "updated_at")
        calendars.update(
            {
                (tenant, name): (pk, revision, changed)
                for tenant, name, pk, revision, changed in columns
            }
        )
    return calendars


@readable
def agenda_of(row: AnySchedule, calendars: Calendars | None = None) -> Agenda:
    """Return the agenda of this row, saved or not.

    Raises InvalidSchedule if the row is corrupted or refers to a missing calendar.
    """
    return agenda_from(row, business_days_of(row, calendars), overrides_of(row))


def business_days_of(row: AnySchedule, calendars: Calendars | None = None) -> BusinessDays | None:
    """Return the days of the row's calendars; raises InvalidSchedule if one is missing."""
    calendars = calendars_of([row]) if calendars is None else calendars
    return _days_of(named_calendars(row, calendars))


def named_calendars(row: AnySchedule, calendars: Calendars) -> tuple[Version, ...]:
    """Return the versions of the row's calendars; raises InvalidSchedule if one is missing."""
    missing = [name for name in row.calendars if (row.tenant_id, name) not in calendars]
    if missing:
        raise InvalidSchedule.of(
            "calendars", row.calendars, f"there is no calendar {missing[0]!r} of this tenant."
        )
    return tuple(calendars[row.tenant_id, name] for name in row.calendars)


def _days_of(named: Sequence[Version]) -> BusinessDays | None:
    several = list[BusinessDays]()
    for version in named:
        days = _days.get(version)
        if days is None:
            if len(_days) > _MAX_CALENDARS:
                _days.clear()
            calendar = Calendar.objects.using(tables.database()).get(pk=version[0])
            days = _days[version] = business_days(calendar)
        several.append(days)
    return combined(several) if several else None


def agenda_from(
    row: AnySchedule, days: BusinessDays | None, overrides: Sequence[Override] = ()
) -> Agenda:
    """Return the agenda of a saved or unsaved row with these days and overrides; executes no
    statement.
    """
    return agenda(
        _times(row, days),
        zone=row.time_zone,
        days=days,
        roll=Roll(row.roll),
        start=row.start_time,
        end=row.end_time,
        overrides=overrides,
    )


@readable
def check(row: RecurringTask) -> None:
    """Raise InvalidSchedule if the row is corrupted, so that computing its fire times might not
    end.
    """
    checked(
        row.timetable, zone=row.time_zone, anchor=row.start_time, seed=row.name, allow_never=True
    )


@readable
def fire_times_of(row: RecurringTask) -> Timetable:
    """Return the timetable of the row without start, end, roll and overrides."""
    check(row)
    return _times(row, _days_of(named_calendars(row, calendars_of([row]))))


def _times(row: AnySchedule, days: BusinessDays | None) -> Timetable:
    return timetable(
        row.timetable,
        zone=row.time_zone,
        anchor=row.start_time,
        dst_gap=DstGap(row.dst_gap),
        dst_overlap=DstOverlap(row.dst_overlap),
        seed=row.name,
        days=days,
    )


def overrides_of(row: AnySchedule) -> list[Override]:
    """Return the operator's overrides of single fire times of this schedule, by fire time."""
    return [
        Override(
            datetime.fromisoformat(stored["fire_time"]),
            stored["action"],
            datetime.fromisoformat(stored["move_to"]) if stored["move_to"] else None,
            stored["reason"],
            stored["by"],
        )
        for stored in row.overrides
    ]


def stored_overrides(overrides: Iterable[Override]) -> list[dict[str, Any]]:
    """Return the overrides as ``RecurringTask.overrides`` stores them."""
    return [
        {
            "fire_time": override.fire_time.isoformat(),
            "action": str(override.action),
            "move_to": override.move_to.isoformat() if override.move_to else None,
            "reason": override.reason,
            "by": override.by,
        }
        for override in sorted(overrides, key=lambda override: override.fire_time)
    ]


def business_days(calendar: Calendar) -> BusinessDays:
    """Return the calendar as BusinessDays. Raises InvalidCalendar if it has no working day."""
    return BusinessDays(
        name=calendar.name, working_days=tuple(calendar.working_days), special=calendar.special
    )
