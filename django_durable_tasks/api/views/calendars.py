"""``/calendars``: the business calendars of the tenant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks import conf
from django_durable_tasks.api import problems
from django_durable_tasks.api.addresses import address_of
from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.fields import (
    KEY_LENGTH,
    AnyJson,
    Body,
    BoundedList,
    Day,
    Instant,
    Integer,
    OneOf,
    Text,
    WallTime,
)
from django_durable_tasks.api.lists import PAGE_PARAMETERS, cursor_of, limit_of, listed, page_of
from django_durable_tasks.api.objects import entity_tag, require_version, shown_by, tagged
from django_durable_tasks.api.openapi import list_of
from django_durable_tasks.api.problems import Problem
from django_durable_tasks.api.writes import Answer, WritingEndpoint
from django_durable_tasks.engine.tenants.quotas import charge
from django_durable_tasks.models import Calendar
from django_durable_tasks.operations.calendars import DELETE, SAVE
from django_durable_tasks.operations.operation import Operation
from django_durable_tasks.rules.recurring.calendars import DayKind, SpecialDay
from django_durable_tasks.rules.tenants.api_keys import ApiScope

_DAYS = 1_000


class SpecialDayBody(Body):
    """A date that differs from its weekday."""

    date = Day()
    kind = OneOf(choices=[kind.value for kind in DayKind], default=DayKind.CLOSED.value)
    until = WallTime(required=False, allow_null=True, help_text="Of HALF: the last open minute.")
    name = Text(required=False, allow_blank=True, max_length=KEY_LENGTH)


class CalendarEditBody(Body):
    """The fields of a calendar that can be changed. ``days`` replaces all special days."""

    description = Text(required=False, allow_blank=True, max_length=500)
    working_days = BoundedList(
        child=Integer(min_value=1, max_value=7), required=False, max_length=7
    )
    days = BoundedList(child=SpecialDayBody(), required=False, max_length=_DAYS)
    reason = Text(required=False, allow_blank=True, max_length=500)


class NewCalendarBody(CalendarEditBody):
    """A calendar to create."""

    name = Text(max_length=KEY_LENGTH)


class CalendarAnswer(Body):
    """A calendar. ``days`` are its special days, at most 1,000, the latest first."""

    calendar_id = Integer(source="pk")
    name = Text()
    description = Text(allow_blank=True)
    working_days = AnyJson(help_text="ISO weekdays, 1 Monday to 7 Sunday.")
    updated_at = Instant()
    updated_by = Text(allow_blank=True)


def _calendars(tenant_id: int) -> Any:
    return Calendar.objects.using(conf.settings().DATABASE).filter(tenant_id=tenant_id)


def calendar_json(row: Calendar, _caller: Caller) -> dict[str, Any]:
    """Return a calendar as JSON values."""
    return shown_by(CalendarAnswer, row)


def _whole(row: Calendar, caller: Caller) -> dict[str, Any]:
    days = [_day(day) for day in row.days.order_by("-date")[:_DAYS]]
    return {**calendar_json(row, caller), "days": days}


def _day(day: Any) -> dict[str, Any]:
    return {
        "date": day.date.isoformat(),
        "kind": day.kind,
        "until": None if day.until is None else day.until.isoformat(),
        "name": day.name,
    }


def _special(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of SAVE."""
    found = {name: given[name] for name in ("description", "working_days") if name in given}
    if "days" in given:
        found["days"] = [
            SpecialDay(
                day["date"], DayKind(day["kind"]), day.get("name", ""), until=day.get("until")
            )
            for day in given["days"]
        ]
    return {**found, "reason": given.get("reason", "")}


def calendar_of(caller: Caller, key: int) -> Calendar:
    """Return a calendar of the caller's tenant; raises Problem."""
    row: Calendar | None = _calendars(caller.tenant.pk).filter(pk=key).first()
    if row is None:
        raise Problem(problems.NOT_FOUND, "There is no calendar with this id.")
    return row


class CalendarsEndpoint(WritingEndpoint):
    """The calendars of the tenant, by name."""

    reads = ("calendar",)
    permissions: ClassVar = {"POST": ("add_calendar",)}
    scopes: ClassVar = {"GET": ApiScope.READ, "POST": ApiScope.SCHEDULES}
    parameters: ClassVar = {"GET": PAGE_PARAMETERS}
    bodies: ClassVar = {"POST": NewCalendarBody}
    answers: ClassVar = {"GET": list_of(CalendarAnswer), "POST": CalendarAnswer}
    operations: ClassVar[tuple[Operation, ...]] = (SAVE,)
    creates = True

    def get(self, request: Request) -> Response:
        """Return the calendars without their special days."""
        tenant_id = self.caller.tenant.pk
        after = cursor_of(request, tenant_id, Calendar, "name")
        page = page_of(_calendars(tenant_id), after, limit_of(request), by="name")
        return listed(request, tenant_id, page, lambda row: calendar_json(row, self.caller))

    def post(self, request: Request) -> Response:
        """Create a calendar."""
        given: Mapping[str, Any] = NewCalendarBody.valid(self.body(request))

        def act() -> Answer:
            name, caller = given["name"], self.caller
            if _calendars(caller.tenant.pk).filter(name=name).exists():
                raise Problem(problems.CONFLICT, f"The tenant has a calendar named {name!r}.")
            done = SAVE.perform(name, by=caller.name, tenant=caller.tenant, **_special(given))
            charge(caller.tenant, "calendars")
            row = calendar_of(caller, done.value.pk)
            shown = _whole(row, caller)
            address = address_of("calendar", calendar_id=row.pk)
            tag = entity_tag(row.revision, shown)
            return Answer(201, shown, {"Location": address, "ETag": tag})

        return self.write(request, act)


class CalendarEndpoint(WritingEndpoint):
    """One calendar."""

    reads = ("calendar",)
    permissions: ClassVar = {"PATCH": (SAVE.permission,), "DELETE": (DELETE.permission,)}
    scopes: ClassVar = {
        "GET": ApiScope.READ,
        "PATCH": ApiScope.SCHEDULES,
        "DELETE": ApiScope.SCHEDULES,
    }
    bodies: ClassVar = {"PATCH": CalendarEditBody}
    answers: ClassVar = dict.fromkeys(("GET", "PATCH", "DELETE"), CalendarAnswer)
    operations: ClassVar[tuple[Operation, ...]] = (SAVE, DELETE)

    def get(self, request: Request, calendar_id: int) -> Response:
        """Return the calendar with its special days."""
        row = calendar_of(self.caller, calendar_id)
        return tagged(request, row.revision, _whole(row, self.caller))

    def patch(self, request: Request, calendar_id: int) -> Response:
        """Change the calendar. Schedules that use it get their next fire times."""
        valid = CalendarEditBody.valid(self.body(request))
        caller = self.caller

        def act() -> Answer:
            row = calendar_of(caller, calendar_id)
            require_version(request, row.revision)
            SAVE.perform(
                row.name,
                by=caller.name,
                tenant=caller.tenant,
                revision=row.revision,
                **_special(valid),
            )
            changed = calendar_of(caller, calendar_id)
            shown = _whole(changed, caller)
            return Answer(200, shown, {"ETag": entity_tag(changed.revision, shown)})

        return self.write(request, act, lambda: _whole(calendar_of(caller, calendar_id), caller))

    def delete(self, request: Request, calendar_id: int) -> Response:
        """Delete the calendar, unless a schedule uses it; return it as it was."""

        def act() -> Answer:
            row = calendar_of(self.caller, calendar_id)
            shown = _whole(row, self.caller)
            DELETE.perform(row, by=self.caller.name, reason="")
            return Answer(200, shown)

        return self.write(request, act)
