"""The fields of tasks in requests and answers, named as in the specification."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from rest_framework import serializers
from rest_framework.request import Request

from django_durable_tasks import conf
from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.fields import (
    KEY_LENGTH,
    AnyJson,
    Body,
    BoundedList,
    Id,
    Instant,
    Integer,
    JsonObject,
    OneOf,
    Seconds,
    Text,
)
from django_durable_tasks.api.objects import fields_of, shown_by
from django_durable_tasks.api.problems import invalid_parameter
from django_durable_tasks.api.target_mapping import kind_of, readable, shown_config
from django_durable_tasks.host_clock import host_now
from django_durable_tasks.models import Task
from django_durable_tasks.rules.states import LogStatus, Status
from django_durable_tasks.rules.target_types import TargetType
from django_durable_tasks.rules.tasks.masking import masked, masked_text
from django_durable_tasks.rules.tasks.options import ATTEMPTS_MAX
from django_durable_tasks.rules.tenants.texts import text_for_tenants

INCLUDED = ("target_config", "result", "progress")
_PAST_MAX = timedelta(days=1)
_UPSTREAMS_MAX = 100


def is_past(value: datetime) -> bool:
    """Return whether a start time is so old that it must be an error of the client."""
    return value < host_now() - _PAST_MAX


def not_past(value: Any) -> None:
    """Raise ValidationError for a start time of more than a day ago."""
    if is_past(value):
        raise serializers.ValidationError("is more than a day in the past", code="past")


def future(value: Any) -> None:
    """Raise ValidationError for a time that has passed."""
    if value <= host_now():
        raise serializers.ValidationError("is in the past", code="past")


class NewTaskBody(Body):
    """A task to create."""

    target_type = OneOf(
        choices=[kind.value for kind in TargetType],
        default=TargetType.CELERY_TASK.value,
        help_text="HTTP_CALLBACK sends a request to your server, QUEUE_MESSAGE a message to a"
        " queue. CELERY_TASK runs a durable task of this installation.",
    )
    target_config = JsonObject(
        help_text="HTTP_CALLBACK: url, and if needed method (POST by default), headers, body,"
        " timeout, retry_on, no_retry_on and endpoint. QUEUE_MESSAGE: queue or exchange, and if"
        " needed routing_key, body, headers and content_type. CELERY_TASK: task, args and kwargs."
    )
    run_at = Instant(required=False, validators=[not_past], help_text="The earliest start.")
    idempotency_key = Text(
        required=False,
        max_length=KEY_LENGTH,
        help_text="A second task with this key is not created; the answer is the first one.",
    )
    on_conflict = OneOf(
        choices=["return", "reject"],
        default="return",
        help_text="What to answer if idempotency_key belongs to an equal task.",
    )
    key = Text(
        required=False,
        max_length=KEY_LENGTH,
        help_text="An open task with this key is edited instead of creating another one.",
    )
    queue = Text(required=False, max_length=KEY_LENGTH)
    priority = Integer(required=False, min_value=0, max_value=9)
    max_attempts = Integer(required=False, min_value=1, max_value=ATTEMPTS_MAX)
    timeout = Seconds(required=False, min_value=0.001)
    expires_at = Instant(required=False, validators=[future], help_text="The latest start.")
    depends_on = BoundedList(
        child=Id(), required=False, max_length=_UPSTREAMS_MAX, allow_empty=False
    )


class TaskEditBody(Body):
    """The fields of a waiting task that can be edited; the others keep their values."""

    target_config = JsonObject(required=False)
    run_at = Instant(required=False, validators=[not_past])
    expires_at = Instant(required=False, validators=[future])
    priority = Integer(required=False, min_value=0, max_value=9)
    queue = Text(required=False, max_length=KEY_LENGTH)
    reason = Text(required=False, max_length=500, allow_blank=True)


class TaskAnswer(Body):
    """A task. ``target_config``, ``result`` and ``progress`` only if ``include`` names them."""

    task_id = Id(source="pk")
    name = Text()
    target_type = OneOf(choices=[kind.value for kind in TargetType])
    target_config = JsonObject(required=False, allow_null=True)
    target_config_error = Text(
        required=False, allow_blank=True, help_text="Why target_config is null."
    )
    status = OneOf(choices=[status.value for status in Status])
    reason = Text(allow_blank=True)
    queue = Text()
    priority = Integer()
    run_at = Instant()
    next_attempt_at = Instant(allow_null=True)
    expires_at = Instant(allow_null=True)
    idempotency_key = Text(allow_null=True)
    key = Text(allow_null=True)
    attempts = Integer()
    max_attempts = Integer()
    failures = Integer()
    crashes = Integer()
    last_error = Text(allow_blank=True)
    result = AnyJson(required=False)
    result_error = Text(
        required=False, allow_blank=True, help_text="Why result is null though there is one."
    )
    progress = AnyJson(required=False)
    cancel_requested_at = Instant(allow_null=True)
    created_at = Instant()
    updated_at = Instant()
    started_at = Instant(allow_null=True)
    completed_at = Instant(allow_null=True)
    recurring_task_id = Id(allow_null=True)
    fire_time = Instant(allow_null=True)
    workflow_id = Id(allow_null=True)
    step = Text(allow_null=True)
    unresolved_dependencies_count = Integer()


class ExecutionAnswer(Body):
    """One attempt of a task."""

    attempt_number = Integer()
    status = OneOf(choices=[status.value for status in LogStatus])
    started_at = Instant(allow_null=True)
    completed_at = Instant()
    duration = Seconds(allow_null=True, help_text="Seconds.")
    error_message = Text(allow_blank=True)
    worker = Text(allow_blank=True)
    node = Id(allow_null=True)


def included_of(request: Request, default: Collection[str] = ()) -> frozenset[str]:
    """Return the fields that ``?include=`` names, separated by commas; raises Problem."""
    text = request.query_params.get("include")
    if text is None:
        return frozenset(default)
    names = frozenset(text.split(","))
    if not names <= set(INCLUDED):
        raise invalid_parameter("include", f"is not a list of {', '.join(INCLUDED)}", "choice")
    return names


_ENCRYPTED = ("target_config", "result")
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "target_config": ("args", "kwargs"),
    "result": ("result",),
    "progress": ("progress",),
}


def without_columns(included: Collection[str]) -> list[str]:
    """Return the columns that ``task_json`` does not read for these fields."""
    return [one for name in INCLUDED if name not in included for one in _COLUMNS[name]]


def task_json(task: Task, caller: Caller, included: Collection[str] = ()) -> dict[str, Any]:
    """Return a task as JSON values, masked unless the caller may read secrets."""
    plain, names = caller.reads_secrets, conf.settings().SECRET_NAMES
    shown = _Shown(task, plain, names)
    found: dict[str, Any] = {}
    for name, field in fields_of(TaskAnswer).items():
        if name.removesuffix("_error") in INCLUDED and name.removesuffix("_error") not in included:
            continue
        if name in _ENCRYPTED:
            value, found[f"{name}_error"] = readable(partial(shown.value, str(field.source)), task)
        elif name.removesuffix("_error") in _ENCRYPTED:
            continue
        else:
            value = shown.value(str(field.source))
        found[name] = None if value is None else field.to_representation(value)
    return found


class _Shown:
    """The values of a task as they are shown."""

    def __init__(self, task: Task, plain: bool, names: str) -> None:
        self.task, self.plain, self.names = task, plain, names

    def value(self, source: str) -> Any:
        task = self.task
        if source == "target_type":
            return kind_of(task.name)
        if source == "target_config":
            return shown_config(task.name, task.args, task.kwargs, plain=self.plain)
        if source in ("result", "progress"):
            return self._json(getattr(task, source))
        if source == "last_error":
            return error_text(task.last_error, self.plain)
        return getattr(task, source)

    def _json(self, value: Any) -> Any:
        return value if self.plain else masked(value, self.names)


def execution_json(row: Any, caller: Caller) -> dict[str, Any]:
    """Return an attempt as JSON values, masked unless the caller may read secrets."""
    found = shown_by(ExecutionAnswer, row)
    found["error_message"] = error_text(found["error_message"], caller.reads_secrets)
    return found


def error_text(text: str, plain: bool) -> str:
    """Return the text of an error without names of settings; masked unless ``plain``."""
    shown = text if plain else masked_text(text, conf.settings().SECRET_NAMES)
    return text_for_tenants(shown)
