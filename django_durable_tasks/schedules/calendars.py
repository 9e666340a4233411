"""Writes calendars, and recomputes the next fire time of every schedule that uses one in the
same transaction.

Called by the admin and the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.db import IntegrityError
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from django_durable_tasks.audit import current_actor, recorded
from django_durable_tasks.choices import RecurringStatus, SpecialDay
from django_durable_tasks.exceptions import InvalidCalendar, InvalidSchedule, TransitionRefused
from django_durable_tasks.models import DEFAULT_TENANT_ID, Calendar, CalendarDay, RecurringTask
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.operations.operation import Target, operation
from django_durable_tasks.option_values import checked_key
from django_durable_tasks.schedules.business_days import BusinessDays
from django_durable_tasks.schedules.lifecycle import recurring
from django_durable_tasks.schedules.schedule_cache import agenda_of, business_days, calendars_of
from django_durable_tasks.schedules.writes import Move, advance
from django_durable_tasks.store import tables

_BULK = 1_000
_NAMED = 5


@operation(
    Target.CALENDAR,
    name="save",
    title=_("Save calendar"),
    help=_(
        "Creates or changes a calendar. Schedules that use it get their next fire times in the same"
        " transaction."
    ),
    permission="change_calendar",
    confirm=False,
    counted="saved",
    done=_("Saved calendar %(subject)s."),
)
def upsert(
    name: str,
    *,
    working_days: Sequence[int] | None = None,
    days: Iterable[SpecialDay] | None = None,
    description: str | None = None,
    origin: str | None = None,
    tenant: Any = None,
    revision: int | None = None,
) -> Calendar:
    """Create or change the calendar of this name; arguments that are None leave their column
    unchanged.

    ``days`` replaces all special days. A new calendar without ``working_days`` has Monday to
    Friday. The active schedules that use the calendar get a new next fire time. Raises
    InvalidCalendar if the days are invalid, if no working day is left (also in combination with
    other calendars of a schedule), or if a schedule would never fire again. With ``revision``,
    raises TransitionRefused if the calendar has another revision. After an error nothing is
    written.
    """
    tenant_id = DEFAULT_TENANT_ID if tenant is None else getattr(tenant, "pk", tenant)
    checked_key("name", name)
    special = None if days is None else tuple(days)
    given = {"description": description, "origin": origin}
    values: dict[str, Any] = {column: value for column, value in given.items() if value is not None}
    values |= {"updated_by": current_actor().by[:200], "reason": current_actor().reason[:500]}
    for _try in range(2):
        try:
            with recorded("calendar.save") as entry:
                before = _audited(_calendars().filter(tenant_id=tenant_id, name=name).first())
                pk = _locked(name, tenant_id)
                if (
                    revision is not None
                    and not _calendars().filter(pk=pk, revision=revision).exists()
                ):
                    raise TransitionRefused(
                        f"Calendar {name!r} was changed meanwhile: read it again."
                    )
                _write(pk, name, working_days, special, values)
                _replan(name, tenant_id)
                after = _audited(_calendars().get(pk=pk))
                entry.changed("calendar", pk, before, after, tenant_id)
            break
        except IntegrityError as taken:
            lost = taken
    else:
        raise lost
    found: Calendar = _calendars().get(pk=pk)
    return found


def _locked(name: str, tenant_id: int) -> int:
    """Lock the calendar of this name, or insert it, and return its id.

    Raises IntegrityError if a concurrent transaction inserted it first.
    """
    known = (
        _calendars()
        .select_for_update()
        .filter(tenant_id=tenant_id, name=name)
        .values_list("pk", flat=True)
        .first()
    )
    pk: int = _calendars().create(tenant_id=tenant_id, name=name).pk if known is None else known
    return pk


def _write(
    pk: int,
    name: str,
    working_days: Sequence[int] | None,
    days: Sequence[SpecialDay] | None,
    values: dict[str, Any],
) -> None:
    calendar = _calendars().get(pk=pk)
    known = business_days(calendar)
    special = known.special if days is None else tuple(days)
    week = known.working_days if working_days is None else tuple(working_days)
    BusinessDays(name=name, working_days=week, special=special)  # raises InvalidCalendar
    _calendars().filter(pk=pk).update(
        revision=F("revision") + 1, updated_at=DatabaseNow(), working_days=list(week), **values
    )
    if days is not None:
        _write_days(calendar, special)


@operation(
    Target.CALENDAR,
    title=_("Delete calendar"),
    help=_(
        "Calendars and their dates are deleted. A calendar that a schedule uses is not deleted."
    ),
    permission="delete_calendar",
    applies_to=Q(),
    counted="deleted",
    done=_("Deleted calendar %(subject)s."),
    summary=ngettext_lazy(
        "Deleted %(number)d calendar.", "Deleted %(number)d calendars.", "number"
    ),
)
def delete(calendar: Calendar) -> bool:
    """Delete a calendar; return False if it does not exist any more.

    Raises TransitionRefused if schedules that have not ended use it.
    """
    name, tenant_id = calendar.name, calendar.tenant_id
    with recorded("calendar.delete") as entry:
        locked = _calendars().select_for_update().filter(tenant_id=tenant_id, name=name).first()
        if locked is None:
            return False
        calendar = locked
        keys = naming(name, tenant_id)
        users = list(
            recurring()
            .filter(pk__in=keys)
            .order_by("name")
            .values_list("name", flat=True)[: _NAMED + 1]
        )
        if users:
            names = ", ".join(users[:_NAMED]) + (", …" if len(users) > _NAMED else "")
            raise TransitionRefused(
                f"Calendar {name!r} is named by {len(keys)} recurring tasks: {names}."
            )
        entry.changed("calendar", calendar.pk, _audited(calendar), {}, tenant_id)
        CalendarDay.objects.using(tables.database()).unguarded().filter(calendar=calendar).delete()
        _calendars().filter(pk=calendar.pk).delete()
    return True


def _audited(calendar: Calendar | None) -> dict[str, Any]:
    """Return the columns and special days for the audit entry."""
    if calendar is None:
        return {}
    names = ("name", "description", "working_days", "origin")
    special = business_days(calendar).special
    days = [[one.day, one.kind, one.until, one.name] for one in special]
    return {name: getattr(calendar, name) for name in names} | {"days": days}


def _calendars() -> Any:
    return Calendar.objects.using(tables.database()).unguarded()


def _write_days(calendar: Calendar, special: Sequence[SpecialDay]) -> None:
    days = CalendarDay.objects.using(tables.database()).unguarded()
    days.filter(calendar=calendar).delete()
    days.bulk_create(
        [
            CalendarDay(
                calendar=calendar,
                date=one.day,
                kind=one.kind.value,
                until=one.until,
                name=one.name[:200],
            )
            for one in special
        ],
        batch_size=_BULK,
    )


def naming(name: str, tenant_id: int) -> list[Any]:
    """Return the ids, in ascending order, of the schedules that use this calendar and have not
    ended.
    """
    rows = (
        recurring()
        .for_tenant(tenant_id)
        .exclude(status=RecurringStatus.CANCELLED)
        .exclude(calendars=[])
    )
    return [
        pk
        for pk, names in rows.order_by("pk").values_list("pk", "calendars").iterator()
        if name in names
    ]


def _replan(name: str, tenant_id: int) -> None:
    """Set the next fire time of the active schedules that use a calendar, ``_BULK`` at a time."""
    keys = naming(name, tenant_id)
    for first in range(0, len(keys), _BULK):
        rows = list(
            recurring()
            .filter(pk__in=keys[first : first + _BULK])
            .order_by("pk")
            .select_for_update()
        )
        calendars = calendars_of(rows)
        advance(
            [_move(row, calendars, name) for row in rows if row.status == RecurringStatus.ACTIVE]
        )


def _move(row: RecurringTask, calendars: Any, name: str) -> Move:
    try:
        following = agenda_of(row, calendars).next(row.watermark_at)
    except InvalidSchedule as broken:
        raise InvalidCalendar(
            f"Calendar {name!r} breaks recurring task {row.name!r}: {broken}"
        ) from broken
    except InvalidCalendar as closed:
        raise InvalidCalendar(
            f"With this calendar, recurring task {row.name!r} has no day left: {closed}"
        ) from closed
    if following is None:
        raise InvalidCalendar(
            f"Calendar {name!r} would leave recurring task {row.name!r} no fire; pause it first."
        )
    return Move(row.pk, row.revision, following.at, row.watermark_at)
