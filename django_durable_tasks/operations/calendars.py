"""Operations on a calendar."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_durable_tasks.engine.recurring import calendars
from django_durable_tasks.models import Calendar
from django_durable_tasks.operations.operation import Operation, OperationResult, Target


def _save(name: str, *, by: str, reason: str, **values: Any) -> OperationResult:
    """Take the same keywords as ``engine.recurring.calendars.upsert``."""
    saved = calendars.upsert(name, by=by, reason=reason, **values)
    return OperationResult({"saved": 1}, _now("Saved calendar %s.") % name, value=saved)


def _delete(calendar: Calendar, *, by: str, reason: str) -> OperationResult:
    removed = Calendar.objects.remove(
        calendar.name, tenant=calendar.tenant_id, by=by, reason=reason
    )
    return OperationResult({"deleted": int(removed)}, _now("Deleted calendar %s.") % calendar.name)


def _deleted(number: int) -> str:
    return ngettext("Deleted %d calendar.", "Deleted %d calendars.", number) % number


SAVE = Operation(
    target=Target.CALENDAR,
    name="save",
    title=_("Save calendar"),
    help=_(
        "Creates or changes a calendar. Schedules that use it get their next fire times in the same"
        " transaction."
    ),
    permission="change_calendar",
    perform=_save,
    confirm=False,
)
DELETE = Operation(
    target=Target.CALENDAR,
    name="delete",
    title=_("Delete calendar"),
    help=_(
        "Calendars and their dates are deleted. A calendar that a schedule uses is not deleted."
    ),
    permission="delete_calendar",
    perform=_delete,
    applies_to=Q(),
    summary=_deleted,
)

OPERATIONS = (SAVE, DELETE)
