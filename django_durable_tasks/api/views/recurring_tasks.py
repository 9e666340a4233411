"""``/recurring-tasks``, their fire times, and ``/calendars``."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from django.db import IntegrityError
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks import conf
from django_durable_tasks.api import problems
from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.endpoint import ApiEndpoint, address_of
from django_durable_tasks.api.fields import (
    KEY_LENGTH,
    AnyJson,
    Body,
    BoundedList,
    Day,
    Flag,
    Id,
    Instant,
    Integer,
    JsonObject,
    OneOf,
    Seconds,
    Text,
    WallTime,
)
from django_durable_tasks.api.lists import (
    PAGE_PARAMETERS,
    cursor_of,
    entity_tag,
    limit_of,
    listed,
    page_of,
    require_version,
    shown_by,
    tagged,
)
from django_durable_tasks.api.openapi import list_of
from django_durable_tasks.api.problems import (
    Problem,
    invalid_field,
    invalid_parameter,
    refused_option,
)
from django_durable_tasks.api.tasks import (
    TargetCall,
    arguments_in,
    call_of,
    check_queue,
    edited_arguments,
    instant_of,
    kind_of,
    readable,
    refuse_masks,
    shown_config,
)
from django_durable_tasks.api.views.object_operations import ObjectAction, Resource
from django_durable_tasks.api.writes import Answer, WritingEndpoint
from django_durable_tasks.choices import (
    CatchUp,
    CatchUpOrder,
    DayKind,
    Overlap,
    RecurringStatus,
    SpecialDay,
    TargetType,
)
from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.masking import text_for_tenants
from django_durable_tasks.models import Calendar, OccurrenceRecord, RecurringTask
from django_durable_tasks.models.schedules import OccurrenceQuerySet, RecurringTaskQuerySet
from django_durable_tasks.operations.operation import Operation, OperationResult
from django_durable_tasks.schedules import calendars, lifecycle, manual_runs
from django_durable_tasks.schedules.business_days import Roll
from django_durable_tasks.schedules.lifecycle import check_runs_per_day
from django_durable_tasks.schedules.options import API, columns
from django_durable_tasks.schedules.schedule_cache import agenda_of
from django_durable_tasks.schedules.timetables.types import DstGap, DstOverlap
from django_durable_tasks.store import tables
from django_durable_tasks.tenants.quotas import charge, check_payload
from django_durable_tasks.tenants.values import ApiScope

# The fields of recurring tasks in requests and answers, named as in the specification.


_CRON_MAX, _RULE_MAX, _TIMES_MAX = 200, 1_000, 1_000
_ALIASES = {"interval_seconds": "interval"}
_NOT_OPTIONS = frozenset({"name", "target_type", "target_config", "reason", "paused"})


def _choices(words: Any) -> list[str]:
    return [str(word.value) for word in words]


class ScheduleEditBody(Body):
    """The fields of a recurring task that can be changed; the others keep their values."""

    target_config = JsonObject(required=False)
    interval_seconds = Seconds(required=False, min_value=1)
    cron = Text(required=False, max_length=_CRON_MAX)
    rrule = Text(required=False, max_length=_RULE_MAX)
    at = BoundedList(child=Instant(), required=False, allow_empty=False, max_length=_TIMES_MAX)
    timezone = Text(required=False, max_length=64, help_text="An IANA name: Europe/London.")
    calendar = Text(required=False, max_length=KEY_LENGTH)
    roll = OneOf(choices=_choices(Roll), required=False)
    dst_gap = OneOf(choices=_choices(DstGap), required=False)
    dst_overlap = OneOf(choices=_choices(DstOverlap), required=False)
    start_time = Instant(required=False)
    end_time = Instant(required=False, allow_null=True)
    max_runs = Integer(required=False, allow_null=True, min_value=1, max_value=10**12)
    jitter = Seconds(required=False, min_value=0)
    expires_in = Seconds(required=False, allow_null=True, min_value=0.001)
    catch_up_mode = OneOf(choices=_choices(CatchUp), required=False)
    misfire_grace = Seconds(required=False, min_value=0)
    catchup_window = Seconds(required=False, allow_null=True, min_value=0)
    max_catchup_runs = Integer(required=False, min_value=1, max_value=1_000)
    catchup_order = OneOf(choices=_choices(CatchUpOrder), required=False)
    catchup_pace = Seconds(required=False, min_value=0)
    overlap = OneOf(choices=_choices(Overlap), required=False)
    priority = Integer(required=False, allow_null=True, min_value=0, max_value=9)
    queue = Text(required=False, max_length=KEY_LENGTH)
    description = Text(required=False, allow_blank=True, max_length=500)


class NewScheduleBody(ScheduleEditBody):
    """A recurring task to create, with one of interval_seconds, cron, rrule and at."""

    name = Text(max_length=KEY_LENGTH, help_text="Unique within the tenant.")
    target_type = OneOf(choices=_choices(TargetType), default=TargetType.CELERY_TASK.value)
    target_config = JsonObject()
    idempotency_key = Text(required=False, max_length=KEY_LENGTH)
    paused = Flag(default=False)


class ScheduleAnswer(Body):
    """A recurring task."""

    recurring_task_id = Id(source="pk")
    name = Text()
    description = Text(allow_blank=True)
    status = OneOf(choices=_choices(RecurringStatus))
    status_reason = Text(allow_blank=True)
    status_by = Text(allow_blank=True)
    paused_until = Instant(allow_null=True)
    error = Text(allow_blank=True)
    interval_seconds = Seconds(allow_null=True)
    timetable = AnyJson()
    time_zone = Text()
    calendars = AnyJson()
    roll = Text()
    start_time = Instant()
    end_time = Instant(allow_null=True)
    next_run_at = Instant(allow_null=True)
    last_run_at = Instant(allow_null=True)
    max_runs = Integer(allow_null=True)
    runs_count = Integer()
    catch_up_mode = OneOf(choices=_choices(CatchUp))
    misfire_grace = Seconds()
    overlap = OneOf(choices=_choices(Overlap))
    jitter = Seconds()
    priority = Integer(allow_null=True)
    queue = Text(allow_blank=True)
    idempotency_key = Text(allow_null=True)
    created_at = Instant()
    updated_at = Instant()


class OccurrenceAnswer(Body):
    """What happened at one fire time."""

    fire_time = Instant()
    effective_at = Instant(allow_null=True)
    outcome = Text()
    reason = Text(allow_blank=True)
    task_id = Id(allow_null=True)
    created_at = Instant()


class FireTimeAnswer(Body):
    """A fire time of the future: ``effective`` includes jitter and moves of calendars."""

    nominal = Instant()
    effective = Instant()
    remarks = serializers.ListField(child=Text())


def schedule_json(row: RecurringTask, caller: Caller) -> dict[str, Any]:
    """Return a recurring task as JSON values, masked unless the caller may read secrets."""
    found = shown_by(ScheduleAnswer, row)
    found["target_type"] = kind_of(row.task).value
    found["target_config"], found["target_config_error"] = readable(
        lambda: shown_config(row.task, row.args, row.kwargs, plain=caller.reads_secrets), row
    )
    return found


def occurrence_json(row: OccurrenceRecord) -> dict[str, Any]:
    """Return a ledger entry as JSON values."""
    return shown_by(OccurrenceAnswer, row)


_KINDS = ("interval_seconds", "cron", "rrule", "at")


def kinds_in(given: Mapping[str, Any]) -> list[str]:
    """Return the fields with a timetable that a body has."""
    return [name for name in _KINDS if name in given]


@contextmanager
def errors_of_timetable(given: Mapping[str, Any]) -> Iterator[None]:
    """Name the field with the timetable in an error that names no other field."""
    try:
        yield
    except InvalidSchedule as refused:
        kinds = kinds_in(given)
        if not kinds or refused_option(refused):
            raise
        detail = text_for_tenants(str(refused))
        raise invalid_field(f"#/{kinds[0]}", detail) from None


def options_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of ``RecurringTask.objects.upsert`` for the fields of a body. Raises
    Problem if it has two timetables.
    """
    kinds = kinds_in(given)
    if len(kinds) > 1:
        raise invalid_field(
            f"#/{kinds[1]}", f"cannot be given together with {kinds[0]}", "conflict"
        )
    return {
        _ALIASES.get(name, name): value for name, value in given.items() if name not in _NOT_OPTIONS
    }


# ``/recurring-tasks``: create, list, read and change recurring tasks.


def schedules_of(tenant_id: int) -> RecurringTaskQuerySet:
    """Return the recurring tasks of one tenant."""
    found: RecurringTaskQuerySet = RecurringTask.objects.using(conf.settings().DATABASE)
    return found.for_tenant(tenant_id)


def schedule_of(caller: Caller, key: uuid.UUID, *, lock: bool = False) -> RecurringTask:
    """Return a recurring task of the caller's tenant, locked if ``lock``; raises Problem."""
    rows = schedules_of(caller.tenant.pk)
    row = (rows.select_for_update() if lock else rows).filter(pk=key).first()
    if row is None:
        raise Problem(problems.NOT_FOUND, "There is no recurring task with this id.")
    return row


def _address(key: uuid.UUID) -> str:
    return address_of("recurring-task", recurring_task_id=key)


_TIMES = frozenset(
    {"interval_seconds", "cron", "rrule", "at", "timezone", "calendar", "roll", "start_time"}
    | {"end_time", "dst_gap", "dst_overlap"}
)
"""The fields that determine how often a recurring task runs."""


class RecurringTasksEndpoint(WritingEndpoint):
    """All recurring tasks of the tenant, by name."""

    reads = ("recurringtask",)
    permissions: ClassVar = {"POST": ("add_recurringtask",)}
    scopes: ClassVar = {"GET": ApiScope.READ, "POST": ApiScope.SCHEDULES}
    bodies: ClassVar = {"POST": NewScheduleBody}
    answers: ClassVar = {"GET": list_of(ScheduleAnswer), "POST": ScheduleAnswer}
    creates = True
    parameters: ClassVar = {"GET": PAGE_PARAMETERS | {"status"}}

    def get(self, request: Request) -> Response:
        """Return the recurring tasks that match the filter."""
        tenant_id = self.caller.tenant.pk
        rows = schedules_of(tenant_id)
        if "status" in request.query_params:
            status = request.query_params["status"]
            if status not in set(RecurringStatus):
                names = ", ".join(RecurringStatus)
                raise invalid_parameter("status", f"is not one of {names}", "choice")
            rows = rows.filter(status=status)
        after = cursor_of(request, tenant_id, RecurringTask, "name")
        page = page_of(rows, after, limit_of(request), by="name")
        return listed(request, tenant_id, page, lambda row: schedule_json(row, self.caller))

    def post(self, request: Request) -> Response:
        """Create a recurring task, or return the one with the same idempotency key."""
        given: Mapping[str, Any] = NewScheduleBody.valid(self.body(request))
        check_payload(self.caller.tenant, arguments_in(given))
        check_queue(given, self.caller.tenant)
        refuse_masks(given["target_config"])
        target = call_of(given["target_type"], given["target_config"], self.caller.tenant)

        def act() -> Answer:
            with errors_of_timetable(given):
                return self._created(given, target)

        return self.write(request, act)

    def _created(self, given: Mapping[str, Any], target: TargetCall) -> Answer:
        name, tenant_id = given["name"], self.caller.tenant.pk
        options = options_of(given) | {"args": list(target.args), "kwargs": dict(target.kwargs)}
        values = columns(name, options, may_never_fire=given["paused"])
        values |= {"task": target.registered.options.name, "source": API}
        known = given.get("idempotency_key")
        same = known and schedules_of(tenant_id).filter(idempotency_key=known).exists()
        if not same:
            lifecycle.release_name(name, tenant_id)
        try:
            with tables.atomic():
                row = lifecycle.create(name, tenant_id, values, given["paused"])
        except IntegrityError:
            raise Problem(
                problems.CONFLICT,
                f"The tenant has a recurring task with the name {name!r}.",
            ) from None
        if not same:
            check_runs_per_day(self.caller.tenant, agenda_of(row), row.watermark_at)
            charge(self.caller.tenant, "recurring_tasks")
        shown = schedule_json(schedule_of(self.caller, row.pk), self.caller.without_secrets())
        headers = {"Location": _address(row.pk), "ETag": entity_tag(row.revision, shown)}
        return Answer(200 if same else 201, shown, headers)


class RecurringTaskEndpoint(WritingEndpoint):
    """One recurring task."""

    reads = ("recurringtask",)
    permissions: ClassVar = {"PATCH": ("change_recurringtask",)}
    scopes: ClassVar = {"GET": ApiScope.READ, "PATCH": ApiScope.SCHEDULES}
    bodies: ClassVar = {"PATCH": ScheduleEditBody}
    answers: ClassVar = {"GET": ScheduleAnswer, "PATCH": ScheduleAnswer}

    def get(self, request: Request, recurring_task_id: uuid.UUID) -> Response:
        """Return the recurring task."""
        row = schedule_of(self.caller, recurring_task_id)
        return tagged(request, row.revision, schedule_json(row, self.caller))

    def patch(self, request: Request, recurring_task_id: uuid.UUID) -> Response:
        """Change the recurring task; only times after now fire."""
        valid = ScheduleEditBody.valid(self.body(request), partial=True)
        check_queue(valid, self.caller.tenant)
        caller = self.caller.without_secrets()

        def act() -> Answer:
            row = schedule_of(caller, recurring_task_id, lock=True)
            require_version(request, row.revision)
            options = self._options(row, valid)
            with errors_of_timetable(valid):
                RecurringTask.objects.upsert(
                    name=row.name,
                    task=row.task,
                    tenant=caller.tenant,
                    revision=row.revision,
                    **options,
                )
                changed = schedule_of(caller, recurring_task_id)
                if _TIMES & valid.keys():
                    check_runs_per_day(caller.tenant, agenda_of(changed), changed.watermark_at)
            shown = schedule_json(changed, caller)
            return Answer(200, shown, {"ETag": entity_tag(changed.revision, shown)})

        return self.write(
            request,
            act,
            lambda: schedule_json(schedule_of(caller, recurring_task_id), caller),
        )

    def _options(self, row: RecurringTask, given: Mapping[str, Any]) -> dict[str, Any]:
        options = options_of(given)
        if "target_config" not in given:
            return options
        config = given["target_config"]
        return {**options, **edited_arguments(row.task, row, config, self.caller)}


def _created_task(done: OperationResult) -> dict[str, Any]:
    return {"task_id": str(done.value.pk)}


def _steps(done: OperationResult) -> dict[str, Any]:
    return {"counts": dict(done.counts), "message": done.message}


RESOURCE = Resource(
    name="recurring-task",
    reads="recurringtask",
    find=schedule_of,
    show=schedule_json,
    answer=ScheduleAnswer,
    version=lambda row: int(row.revision),
)
_PLAIN = (
    ("pause", lifecycle.pause),
    ("resume", lifecycle.resume),
    ("snooze", lifecycle.snooze),
    ("override", lifecycle.override),
    ("remove-override", lifecycle.withdraw_override),
    ("cancel", lifecycle.cancel),
)
ACTIONS = (
    *(
        ObjectAction(
            path=path, scope=ApiScope.SCHEDULES, operations=(operation,), may_change_nothing=True
        )
        for path, operation in _PLAIN
    ),
    ObjectAction(
        path="trigger-now",
        scope=ApiScope.SCHEDULES,
        operations=(manual_runs.trigger_now,),
        result=_created_task,
    ),
    ObjectAction(
        path="backfill",
        scope=ApiScope.SCHEDULES,
        operations=(manual_runs.backfill,),
        result=_steps,
        may_change_nothing=True,
    ),
)


# ``/recurring-tasks/{id}/preview``, ``occurrences`` and ``explain``: fire times.


class PreviewEndpoint(ApiEndpoint):
    """The next fire times."""

    reads = ("recurringtask",)
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": list_of(FireTimeAnswer)}
    has_refusals = True
    parameters: ClassVar = {"GET": frozenset({"limit"})}

    def get(self, request: Request, recurring_task_id: uuid.UUID) -> Response:
        """Return the next ``limit`` fire times; none for one that has ended or is paused."""
        row = schedule_of(self.caller, recurring_task_id)
        fires = row.next_fire_times(limit_of(request))
        return Response({"data": [shown_by(FireTimeAnswer, one) for one in fires]})


class OccurrencesEndpoint(ApiEndpoint):
    """The ledger: what happened at each fire time, the latest first."""

    reads = ("recurringtask", "occurrencerecord")
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": list_of(OccurrenceAnswer)}
    parameters: ClassVar = {"GET": PAGE_PARAMETERS}

    def get(self, request: Request, recurring_task_id: uuid.UUID) -> Response:
        """Return the entries of single fire times."""
        tenant_id = self.caller.tenant.pk
        row = schedule_of(self.caller, recurring_task_id)
        ledger: OccurrenceQuerySet = OccurrenceRecord.objects.using(conf.settings().DATABASE)
        rows = ledger.single().filter(recurring_task_id=row.pk)
        order = "unique_fire_time"
        after = cursor_of(request, tenant_id, OccurrenceRecord, order)
        page = page_of(rows, after, limit_of(request), by=order, descending=True)
        return listed(request, tenant_id, page, occurrence_json)


class ExplainEndpoint(ApiEndpoint):
    """Why a fire time has run or not, or what will happen at it."""

    reads = ("recurringtask",)
    scopes: ClassVar = {"GET": ApiScope.READ}
    has_refusals = True
    parameters: ClassVar = {"GET": frozenset({"at"})}

    def get(self, request: Request, recurring_task_id: uuid.UUID) -> Response:
        """Return sentences about the fire time ``at``."""
        row = schedule_of(self.caller, recurring_task_id)
        if "at" not in request.query_params:
            raise invalid_parameter("at", "is required: a time such as 2026-03-07T00:00:00Z")
        at = instant_of(request, "at")
        text = row.explain(at)
        return Response({"at": request.query_params["at"], "explanation": text})


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
    """Return the keywords of calendars.upsert."""
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
    operations: ClassVar[tuple[Operation, ...]] = (calendars.upsert,)
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
            done = calendars.upsert.perform(
                name, by=caller.name, tenant=caller.tenant, **_special(given)
            )
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
    permissions: ClassVar = {
        "PATCH": (calendars.upsert.permission,),
        "DELETE": (calendars.delete.permission,),
    }
    scopes: ClassVar = {
        "GET": ApiScope.READ,
        "PATCH": ApiScope.SCHEDULES,
        "DELETE": ApiScope.SCHEDULES,
    }
    bodies: ClassVar = {"PATCH": CalendarEditBody}
    answers: ClassVar = dict.fromkeys(("GET", "PATCH", "DELETE"), CalendarAnswer)
    operations: ClassVar[tuple[Operation, ...]] = (calendars.upsert, calendars.delete)

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
            calendars.upsert.perform(
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
            calendars.delete.perform(row, by=self.caller.name, reason="")
            return Answer(200, shown)

        return self.write(request, act)
