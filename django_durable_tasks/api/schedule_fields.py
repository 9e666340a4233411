"""The fields of recurring tasks in requests and answers, named as in the specification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rest_framework import serializers

from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.fields import (
    KEY_LENGTH,
    AnyJson,
    Body,
    BoundedList,
    Flag,
    Id,
    Instant,
    Integer,
    JsonObject,
    OneOf,
    Seconds,
    Text,
)
from django_durable_tasks.api.lists import shown_by
from django_durable_tasks.api.problems import invalid_field, refused_option
from django_durable_tasks.api.tasks import kind_of, readable, shown_config
from django_durable_tasks.choices import CatchUp, CatchUpOrder, Overlap, RecurringStatus, TargetType
from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.masking import text_for_tenants
from django_durable_tasks.models import OccurrenceRecord, RecurringTask
from django_durable_tasks.rules.recurring.calendars import Roll
from django_durable_tasks.rules.recurring.timetables.types import DstGap, DstOverlap

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
