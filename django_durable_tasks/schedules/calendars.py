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

from django_durable_tasks import ports
from django_durable_tasks.audit import current_actor, recorded
from django_durable_tasks.choices import RecurringStatus, SpecialDay
from django_durable_tasks.exceptions import InvalidCalendar, InvalidSchedule, TransitionRefused
from django_durable_tasks.models import DEFAULT_TENANT_ID, Calendar, Tenant
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.operations import Target, operation
from django_durable_tasks.option_values import checked_key
from django_durable_tasks.schedules.business_days import BusinessDays
from django_durable_tasks.schedules.lifecycle import check_added_runs, check_rolled
from django_durable_tasks.schedules.schedule_cache import (
    agenda_of,
    business_days,
    calendars_of,
    recurring,
)
from django_durable_tasks.schedules.writes import Move, advance
from django_durable_tasks.store import tables

_BULK = 1_000
_MOST_ROLLED_DAYS = 20_000
"""The sum of the longest closures of all recurring tasks of a tenant that roll over them: each
day is examined, in about 0.2 ms.
"""
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
    Friday. If its days change, the active schedules that use it get a new next fire time. Raises
    InvalidCalendar if the days are invalid, if no working day is left (also in combination with
    other calendars of a schedule), or if a schedule would never fire again. With ``revision``,
    raises TransitionRefused if the calendar has another revision. After an error nothing is
    written.
    """
    tenant_id = DEFAULT_TENANT_ID if tenant is None else getattr(tenant, "pk", tenant)
    checked_key("name", name)
    special = None if days is None else tuple(days)
    texts = {"description": description, "origin": origin}
    values: dict[str, Any] = {column: value for column, value in texts.items() if value is not None}
    values |= {"updated_by": current_actor().by[:200], "reason": current_actor().reason[:500]}
    for _try in range(2):
        try:
            with recorded("calendar.save") as entry:
                named = _calendars().filter(tenant_id=tenant_id, name=name)
                calendar = named.select_for_update().first()
                before = _audited(calendar)
                if calendar is None:
                    # Raises IntegrityError if a concurrent transaction inserted it first.
                    calendar = _calendars().create(tenant_id=tenant_id, name=name)
                if revision is not None and calendar.revision != revision:
                    raise TransitionRefused(
                        f"Calendar {name!r} was changed meanwhile: read it again."
                    )
                stored = business_days(calendar)
                week = stored.working_days if working_days is None else tuple(working_days)
                # Raises InvalidCalendar.
                valid = BusinessDays(
                    name=name,
                    working_days=week,
                    special=stored.special if special is None else special,
                )
                calendar.special = valid.special
                named.update(
                    revision=F("revision") + 1,
                    updated_at=DatabaseNow(),
                    working_days=list(week),
                    days=calendar.days,
                    **values,
                )
                if not before or valid != stored:
                    _replan(name, tenant_id)
                saved: Calendar = named.get()
                entry.changed("calendar", saved.pk, before, _audited(saved), tenant_id)
                return saved
        except IntegrityError as taken:
            lost = taken
    raise lost


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
        rows = recurring().filter(pk__in=keys).order_by("name")
        users = list(rows.values_list("name", flat=True)[: _NAMED + 1])
        if users:
            names = ", ".join(users[:_NAMED]) + (", …" if len(users) > _NAMED else "")
            raise TransitionRefused(
                f"Calendar {name!r} is named by {len(keys)} recurring tasks: {names}."
            )
        entry.changed("calendar", calendar.pk, _audited(calendar), {}, tenant_id)
        _calendars().filter(pk=calendar.pk).delete()
    return True


def _audited(calendar: Calendar | None) -> dict[str, Any]:
    """Return the columns and special days for the audit entry."""
    if calendar is None:
        return {}
    names = ("name", "description", "working_days", "origin")
    days = [
        [special_day.day, special_day.kind, special_day.until, special_day.name]
        for special_day in calendar.special
    ]
    return {name: getattr(calendar, name) for name in names} | {"days": days}


def _calendars() -> Any:
    return Calendar.objects.using(tables.database()).unguarded()


def naming(name: str, tenant_id: int) -> list[Any]:
    """Return the ids, in ascending order, of the schedules that use this calendar and have not
    ended.
    """
    rows = recurring().for_tenant(tenant_id).exclude(status=RecurringStatus.CANCELLED)
    names_by_id = rows.exclude(calendars=[]).order_by("pk").values_list("pk", "calendars")
    return [pk for pk, names in names_by_id.iterator() if name in names]


def _replan(name: str, tenant_id: int) -> None:
    """Set the next fire time of the active schedules that use a calendar, ``_BULK`` at a time."""
    keys, rolled = naming(name, tenant_id), 0
    most = None
    if ports.quotas is not None:
        tenant = Tenant.objects.using(tables.database()).get(pk=tenant_id)
        most = ports.quotas.runs_per_day(tenant)
    for first in range(0, len(keys), _BULK):
        locked = recurring().filter(pk__in=keys[first : first + _BULK]).order_by("pk")
        rows, moves = list(locked.select_for_update()), list[Move]()
        calendars = calendars_of(rows)
        for row in rows:
            if row.status != RecurringStatus.ACTIVE:
                continue
            try:
                agenda = agenda_of(row, calendars)
                if most is not None:
                    rolled += check_rolled(row, calendars)
                    check_added_runs(row, agenda, most)
                following = agenda.next(row.watermark_at)
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
                    f"Calendar {name!r} would leave recurring task {row.name!r} no fire; pause it"
                    " first."
                )
            if rolled > _MOST_ROLLED_DAYS:
                raise InvalidCalendar(
                    f"Calendar {name!r} has long closures, over which the fire times of more than"
                    f" {_MOST_ROLLED_DAYS:,} days would be rolled for its {len(keys):,} recurring"
                    " tasks. Give it shorter closures, or some of the tasks roll=SKIP."
                )
            moves.append(Move(row.pk, row.revision, following.at, row.watermark_at))
        advance(moves)
