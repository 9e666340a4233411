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
from django_durable_tasks.choices import DayKind, RecurringStatus, SpecialDay, TargetType
from django_durable_tasks.contrib.api import fields, problems, targets, views
from django_durable_tasks.contrib.api.access import ApiScope
from django_durable_tasks.contrib.api.authentication import Caller
from django_durable_tasks.contrib.api.idempotent_requests import StoredAnswer
from django_durable_tasks.contrib.api.openapi import LIMIT_MAX
from django_durable_tasks.contrib.api.problems import Problem, invalid_field
from django_durable_tasks.contrib.api.quotas import charge
from django_durable_tasks.contrib.api.serializers import Answer, Options, list_of
from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.masking import text_for_tenants
from django_durable_tasks.models import Calendar, OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.operations import OperationResult, Target
from django_durable_tasks.schedules import calendars, lifecycle
from django_durable_tasks.schedules import options as readers
from django_durable_tasks.schedules.lifecycle import check_runs_per_day
from django_durable_tasks.schedules.manual_runs import BackfillReport
from django_durable_tasks.schedules.options import API, columns
from django_durable_tasks.schedules.timetables.rrule import (
    MOST_COUNTED,
    MOST_DATES,
    MOST_INTERVAL,
    MOST_LINES,
)
from django_durable_tasks.store import tables
from django_durable_tasks.tasks.enqueue import Call

# Characters of a cron expression and of an RRULE, and times of `at`: a bound for their parsers.
_CRON_MAX, _RULE_MAX, _TIMES_MAX = 200, 1_000, 1_000
# Special days of a calendar in one request.
_DAYS = 1_000
_KINDS = ("interval_seconds", "cron", "rrule", "at")
_TIMES = frozenset(
    {*_KINDS, "timezone", "calendar", "roll", "start_time", "end_time", "dst_gap", "dst_overlap"}
)
"""The fields that determine how often a recurring task runs."""
_NOT_OPTIONS = frozenset({"name", "target_type", "target_config", "reason", "paused"})


class ScheduleEditBody(Options):
    """The fields of a recurring task that can be changed; the others keep their values."""

    target_config = fields.JsonObject(required=False)
    interval_seconds = fields.Seconds(required=False, min_value=1)
    cron = fields.Text(
        required=False,
        max_length=_CRON_MAX,
        help_text="Five fields: minute, hour, day of month, month and day of week, such as"
        " '30 2 * * mon-fri'; or a nickname such as '@daily'.",
    )
    rrule = fields.Text(
        required=False,
        max_length=_RULE_MAX,
        help_text="RRULE, RDATE, EXRULE, EXDATE and DTSTART of RFC 5545, one per line: at most"
        f" {_RULE_MAX:,} characters, {MOST_LINES} lines and {MOST_DATES} commas."
        f" INTERVAL is at most {MOST_INTERVAL:,}, and COUNT {MOST_COUNTED:,}.",
    )
    at = fields.Items(
        child=fields.Instant(), required=False, allow_empty=False, max_length=_TIMES_MAX
    )
    calendar = fields.Key(required=False)
    expires_in = fields.Seconds(required=False, allow_null=True, min_value=0.001)

    class Meta(Options.Meta):
        model = RecurringTask
        options = tuple(readers.ScheduleOptions.__annotations__)
        columns = readers.COLUMNS
        choices = readers.CHOICES
        counts = readers.COUNTS
        seconds = dict.fromkeys((*readers.SECONDS, "jitter"), 0.0)
        nullable = readers.NULLABLE
        hidden: Any = frozenset(
            {"interval", "parts", "seconds", "solar", "latitude", "longitude", "offset", "every"}
            | {"count", "day", "month", "time", "args", "kwargs", "options", "overlap_key"}
            | {"idempotency_key"}
        )


class NewScheduleBody(ScheduleEditBody):
    """A recurring task to create, with one of interval_seconds, cron, rrule and at."""

    name = fields.Key(help_text="Unique within the tenant.")
    target_type = fields.OneOf(choices=TargetType, default=TargetType.CELERY_TASK.value)
    target_config = fields.JsonObject()
    idempotency_key = fields.Key(required=False)
    paused = fields.Flag(default=False)


class ScheduleAnswer(Answer):
    """A recurring task."""

    recurring_task_id = fields.Id(source="pk")
    target_type = fields.TargetKind("task")
    target_config = fields.TargetConfig("task", allow_null=True)
    target_config_error = fields.Text(allow_blank=True, help_text="Why target_config is null.")

    class Meta:
        model = RecurringTask
        hidden = (
            *("task", "args", "kwargs", "options", "declaration"),
            *("paused_at", "undeclared_at", "watermark_at", "ledger_from", "tzdata_version"),
            *("source", "revision", "overlap_key", "jitter_percent"),
        )


class OccurrenceAnswer(Answer):
    """What happened at one fire time."""

    class Meta:
        model = OccurrenceRecord
        hidden = (
            *("recurring_task", "last_fire_time", "count", "count_is_exact"),
            *("term", "blocked_by", "request_id"),
        )


class FireTimeAnswer(Answer):
    """A fire time of the future: ``effective`` includes jitter and moves of calendars."""

    nominal = fields.Instant()
    effective = fields.Instant()
    remarks = serializers.ListField(child=fields.Text())


def kinds_in(data: Mapping[str, Any]) -> list[str]:
    """Return the fields with a timetable that a body has."""
    return [name for name in _KINDS if name in data]


@contextmanager
def errors_of_timetable(data: Mapping[str, Any]) -> Iterator[None]:
    """Name the field with the timetable in an error that names no other field."""
    try:
        yield
    except InvalidSchedule as refused:
        kinds = kinds_in(data)
        if not kinds or refused.option:
            raise
        raise invalid_field(f"#/{kinds[0]}", text_for_tenants(str(refused))) from None


def options_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of ``RecurringTask.objects.upsert`` for the fields of a body. Raises
    Problem if it has two timetables.
    """
    kinds = kinds_in(data)
    if len(kinds) > 1:
        text = f"cannot be given together with {kinds[0]}"
        raise invalid_field(f"#/{kinds[1]}", text, "conflict")
    options = {name: value for name, value in data.items() if name not in _NOT_OPTIONS}
    if "interval_seconds" in options:
        options["interval"] = options.pop("interval_seconds")
    return options


_AT = {"at": fields.Instant(required=True, help_text="a fire time such as 2026-03-07T00:00:00Z")}
_STATUS = {
    "status": fields.OneOf(
        choices=RecurringStatus,
        required=False,
        help_text="Only objects in this status.",
    )
}
_COUNT = {
    "limit": fields.Integer(min_value=1, max_value=LIMIT_MAX, required=False, help_text="How many.")
}


class RecurringTaskViewSet(views.OperationsMixin, views.ReadMixin):
    """The recurring tasks of the tenant, by name."""

    answer = ScheduleAnswer
    order = "name"
    targets = (Target.SCHEDULE,)
    operates = ApiScope.SCHEDULES
    paths: ClassVar = {"run_now": "trigger-now"}
    may_change_nothing = True

    @views.endpoint(is_list=True, filters=_STATUS)
    def list(self, request: Request) -> Response:
        """Return the recurring tasks that match the filter."""
        return self.page(self.rows().filter(**self.query()))

    @views.endpoint(scope=ApiScope.SCHEDULES, body=NewScheduleBody)
    def create(self, request: Request) -> Response:
        """Create a recurring task, or return the one with the same idempotency key."""
        data = self.valid()
        target = targets.target_of(data, self.caller)

        def act() -> StoredAnswer:
            with errors_of_timetable(data):
                return self._created(data, target)

        return self.write(act)

    def _created(self, data: Mapping[str, Any], target: Call) -> StoredAnswer:
        name, tenant = data["name"], self.caller.tenant
        keywords = options_of(data) | {"args": [*target.args], "kwargs": dict(target.kwargs)}
        values = columns(name, keywords, may_never_fire=data["paused"])
        values |= {"task": target.task.options.name, "source": API}
        known = data.get("idempotency_key")
        same = known and self.rows().filter(idempotency_key=known).exists()
        if not same:
            lifecycle.release_name(name, tenant.pk)
        try:
            with tables.atomic():
                row = lifecycle.create(name, tenant.pk, values, data["paused"])
        except IntegrityError:
            text = f"The tenant has a recurring task with the name {name!r}."
            raise Problem(problems.CONFLICT, text) from None
        if not same:
            check_runs_per_day(row)
            charge(tenant, "recurring_tasks")
        location = views.address_of("recurring-task-detail", recurring_task_id=row.pk)
        stored = self.rows().get(pk=row.pk)
        return self.changed(stored, 200 if same else 201, Location=location)

    @views.endpoint(scope=ApiScope.SCHEDULES, body=ScheduleEditBody)
    def partial_update(self, request: Request, recurring_task_id: uuid.UUID) -> Response:
        """Change the recurring task; only times after now fire."""
        tenant = self.caller.tenant

        def change(row: RecurringTask, data: dict[str, Any]) -> None:
            targets.check_queue(data, tenant)
            keywords = options_of(data)
            if "target_config" in data:
                config = data["target_config"]
                keywords |= targets.edited_arguments(
                    row.task, row, config, self.caller, row.overlap_key
                )
            with errors_of_timetable(data):
                RecurringTask.objects.upsert(
                    name=row.name, task=row.task, tenant=tenant, revision=row.revision, **keywords
                )
                if _TIMES & data.keys():
                    check_runs_per_day(self.find())

        return self.edit_with(change, lock=True)

    @views.endpoint(scope=ApiScope.SCHEDULES, operations=(lifecycle.cancel,))
    def destroy(self, request: Request, recurring_task_id: uuid.UUID) -> Response:
        """End the recurring task permanently and release its name. Its tasks and its ledger are
        kept, and it is deleted when none of them is left.
        """

        def act() -> StoredAnswer:
            row = self.find()
            if row.status != RecurringStatus.CANCELLED:
                lifecycle.cancel.perform(row, by=self.caller.name, reason="")
            lifecycle.release_name(row.name, self.tenant_id)
            return self.changed(self.find())

        return self.write(act, self.before)

    def result(self, done: OperationResult) -> dict[str, Any]:
        """Return the task of a run, and the numbers of a backfill."""
        if isinstance(done.value, BackfillReport):
            return {"counts": dict(done.counts), "message": done.message}
        return {"task_id": str(done.value.pk)} if isinstance(done.value, Task) else {}

    # Fire times.

    @views.endpoint(
        "preview",
        answer=list_of(FireTimeAnswer),
        filters=_COUNT,
        has_refusals=True,
    )
    def preview(self, request: Request, recurring_task_id: uuid.UUID) -> Response:
        """Return the next ``limit`` fire times; none for one that has ended or is paused."""
        fires = self.find().next_fire_times(views.limit_of(request))
        return Response({"data": [FireTimeAnswer.shown(fire) for fire in fires]})

    @views.endpoint(
        "occurrences",
        reads=("recurringtask", "occurrencerecord"),
        answer=list_of(OccurrenceAnswer),
        is_list=True,
    )
    def occurrences(self, request: Request, recurring_task_id: uuid.UUID) -> Response:
        """Return the ledger: what happened at each fire time, the latest first."""
        ledger: Any = OccurrenceRecord.objects.using(conf.settings().DATABASE)
        rows = ledger.single().filter(recurring_task_id=self.find().pk)
        pages = views.KeysetPagination(self.tenant_id, "unique_fire_time", descending=True)
        return self.page(rows, OccurrenceAnswer.shown, pages)

    @views.endpoint("explain", filters=_AT, has_refusals=True)
    def explain(self, request: Request, recurring_task_id: uuid.UUID) -> Response:
        """Return sentences about the fire time ``at``: why it has run or not, or what will
        happen.
        """
        row = self.find()
        text = row.explain(self.query()["at"])
        return Response({"at": request.query_params["at"], "explanation": text})


class SpecialDayBody(Answer):
    """A date that differs from its weekday."""

    date = fields.Day(source="day")
    kind = fields.OneOf(choices=DayKind, default=DayKind.CLOSED.value)
    until = fields.WallTime(
        required=False, allow_null=True, help_text="Of HALF: the last open minute."
    )
    name = fields.Key(required=False, allow_blank=True)


class CalendarEditBody(Options):
    """The fields of a calendar that can be changed. ``days`` replaces all special days."""

    working_days = fields.Items(
        child=fields.Integer(min_value=1, max_value=7), required=False, max_length=7
    )
    days = fields.Items(child=SpecialDayBody(), required=False, max_length=_DAYS)
    reason = views.reason_field()

    class Meta(Options.Meta):
        model = Calendar
        options = ("description",)


class NewCalendarBody(CalendarEditBody):
    """A calendar to create."""

    name = fields.Key()


class CalendarAnswer(Answer):
    """A calendar. ``days`` are its special days, at most 1,000, the latest first."""

    calendar_id = fields.Integer(source="pk")

    class Meta:
        model = Calendar
        hidden = ("days", "origin", "revision", "reason")


class CalendarViewSet(views.ReadMixin, views.ApiViewSet):
    """The calendars of the tenant, by name; a list leaves out their special days."""

    answer = CalendarAnswer
    order = "name"

    def show(self, row: Calendar, caller: Caller) -> dict[str, Any]:
        """Return a calendar, with its special days except in a list."""
        values = super().show(row, caller)
        if self.action != "list":
            values["days"] = [
                SpecialDayBody.shown(special_day) for special_day in row.special[::-1][:_DAYS]
            ]
        return values

    def _values(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keywords of calendars.upsert."""
        values = {name: data[name] for name in ("description", "working_days") if name in data}
        if "days" in data:
            values["days"] = [
                SpecialDay(
                    day["day"], DayKind(day["kind"]), day.get("name", ""), until=day.get("until")
                )
                for day in data["days"]
            ]
        by, tenant = self.caller.name, self.caller.tenant
        return {**values, "reason": data.get("reason", ""), "by": by, "tenant": tenant}

    @views.endpoint(
        scope=ApiScope.SCHEDULES,
        permissions=("add_calendar",),
        operations=(calendars.upsert,),
        body=NewCalendarBody,
    )
    def create(self, request: Request) -> Response:
        """Create a calendar."""
        data = self.valid()

        def act() -> StoredAnswer:
            name = data["name"]
            if self.rows().filter(name=name).exists():
                raise Problem(problems.CONFLICT, f"The tenant has a calendar named {name!r}.")
            done = calendars.upsert.perform(name, **self._values(data))
            charge(self.caller.tenant, "calendars")
            row = self.rows().get(pk=done.value.pk)
            return self.changed(
                row, 201, Location=views.address_of("calendar-detail", calendar_id=row.pk)
            )

        return self.write(act)

    @views.endpoint(scope=ApiScope.SCHEDULES, operations=(calendars.upsert,), body=CalendarEditBody)
    def partial_update(self, request: Request, calendar_id: int) -> Response:
        """Change the calendar. Schedules that use it get their next fire times."""
        return self.edit_with(
            lambda row, data: calendars.upsert.perform(
                row.name, revision=row.revision, **self._values(data)
            )
        )

    @views.endpoint(scope=ApiScope.SCHEDULES, operations=(calendars.delete,))
    def destroy(self, request: Request, calendar_id: int) -> Response:
        """Delete the calendar, unless a schedule uses it; return it as it was."""
        return self.delete_with(calendars.delete)
