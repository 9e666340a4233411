"""Tasks in requests and answers: fields, targets, new tasks, edited arguments and pages."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.api import problems
from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.endpoint import ApiEndpoint
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
    read_instant,
)
from django_durable_tasks.api.lists import (
    PAGE_PARAMETERS,
    Cursor,
    KeysetPage,
    around,
    fields_of,
    page_of,
    shown_by,
)
from django_durable_tasks.api.problems import Problem, invalid_field, invalid_parameter
from django_durable_tasks.audit import masked_arguments
from django_durable_tasks.callbacks import http
from django_durable_tasks.callbacks.queue_messages import refuse_other_tenants
from django_durable_tasks.celery.routing import refuse_task_queues
from django_durable_tasks.choices import OPEN, REPLAYABLE, LogStatus, Status, TargetType
from django_durable_tasks.conf import TENANT
from django_durable_tasks.dependencies.references import MARK
from django_durable_tasks.did_you_mean import did_you_mean
from django_durable_tasks.exceptions import EncryptionError, IdempotencyConflict
from django_durable_tasks.host_clock import host_now
from django_durable_tasks.masking import MASK, masked, masked_text, text_for_tenants
from django_durable_tasks.models import DEFAULT_TENANT_ID, Task, Tenant
from django_durable_tasks.models.tasks import CELERY_MEMBERS, first_uuid7_of, target_config
from django_durable_tasks.registry import Registered
from django_durable_tasks.targets.addresses import parsed_url
from django_durable_tasks.task_names import HTTP_CALLBACK_TASK, QUEUE_MESSAGE_TASK
from django_durable_tasks.tasks import operator_actions
from django_durable_tasks.tasks.new_task import Call
from django_durable_tasks.tasks.options import ATTEMPTS_MAX, CallOptions, call_options
from django_durable_tasks.tenants.quotas import check_payload, open_tasks
from django_durable_tasks.tenants.values import ApiScope

# Targets as durable tasks: ``target_type`` and ``target_config`` of a request are the name and the
# arguments of a registered task, and back.


logger = logging.getLogger("django_durable_tasks.api")
_BUILT_IN = {
    TargetType.HTTP_CALLBACK: HTTP_CALLBACK_TASK,
    TargetType.QUEUE_MESSAGE: QUEUE_MESSAGE_TASK,
}
_TYPE_OF = {name: kind for kind, name in _BUILT_IN.items()}


@dataclass(frozen=True, slots=True)
class TargetCall:
    """A registered task and its arguments."""

    registered: Registered
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def call_of(kind: str, config: Mapping[str, Any], tenant: Tenant, pointer: str = "#") -> TargetCall:
    """Return the call of a target. ``pointer`` is the place of the object that has the two fields.

    Raises InvalidTarget for a queue of another tenant. Raises Problem for an unknown task and for
    one that API_TASKS does not name; the answers are the same, so that they do not reveal which
    tasks exist.
    """
    place = f"{pointer}/target_config"
    if kind != TargetType.CELERY_TASK:
        built_in = _registered(_BUILT_IN[TargetType(kind)], f"{pointer}/target_type", tenant)
        parameters = built_in.signature.parameters
        _check_members(config, parameters, place)
        for required, parameter in parameters.items():
            if parameter.default is parameter.empty and required not in config:
                raise invalid_field(f"{place}/{required}", "is required", "required")
        url = config.get("url") if kind == TargetType.HTTP_CALLBACK else None
        if isinstance(url, str) and conf.names_tenants("HTTP_ALLOW"):
            # The check of every call does not know the tenant.
            http.policy(tenant.slug).check(parsed_url(url))
        if kind == TargetType.QUEUE_MESSAGE:
            refuse_other_tenants(config, conf.settings().QUEUE_ALLOW, tenant.slug)
            _refuse_task_queues(config, tenant)
        return TargetCall(built_in, (), config)
    _check_members(config, CELERY_MEMBERS, place)
    name, args, kwargs = config.get("task"), config.get("args", []), config.get("kwargs", {})
    if not isinstance(name, str):
        raise invalid_field(f"{place}/task", "is required: the name of a durable task", "required")
    if not isinstance(args, list):
        raise invalid_field(f"{place}/args", "is no list", "type")
    if not isinstance(kwargs, dict):
        raise invalid_field(f"{place}/kwargs", "is no object", "type")
    return TargetCall(_registered(name, f"{place}/task", tenant), tuple(args), kwargs)


def _refuse_task_queues(config: Mapping[str, Any], tenant: Tenant) -> None:
    names = (config.get("exchange"), config.get("routing_key"), config.get("queue"))
    exchange, routing_key, queue = (name if isinstance(name, str) else "" for name in names)
    if exchange or queue:
        refuse_task_queues(exchange, routing_key if exchange else queue, tenant.slug)


def _check_members(config: Mapping[str, Any], known: Collection[str], place: str) -> None:
    for member in config:
        if member not in known:
            hint = did_you_mean(member, known)
            raise invalid_field(f"{place}/{member[:100]}", f"is no field. {hint}", "unknown_field")


def _registered(name: str, pointer: str, tenant: Tenant) -> Registered:
    if any(fnmatchcase(name, pattern) for pattern in conf.allowed("API_TASKS", tenant.slug)):
        problem = ports.load_tasks() if registry.find(name) is None else None
        found = registry.find(name)
        if found is not None:
            return found
        if problem is not None:
            # The task may exist. A client takes 422 as final, and would lose its task.
            logger.error("The task modules cannot be imported: %s", problem)
            raise Problem(
                problems.NOT_READY,
                "The tasks of this server are not loaded; it was logged.",
                headers={"Retry-After": "5"},
            )
    raise _unknown(name, pointer)


def _unknown(name: str, pointer: str) -> Problem:
    return invalid_field(
        pointer,
        f"{name[:200]!r} is no task that clients of the API may create. Check the name, or ask the"
        " operator to allow it.",
        "unknown_task",
    )


def kind_of(name: str) -> TargetType:
    """Return the type of target of a task with this name."""
    return _TYPE_OF.get(name, TargetType.CELERY_TASK)


def config_of(name: str, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the ``target_config`` of a task with this name and these arguments."""
    return target_config(kind_of(name), name, args, kwargs)


def shown_config(name: str, args: Any, kwargs: Any, *, plain: bool) -> dict[str, Any]:
    """Return the ``target_config`` as it is shown: with its secrets masked unless ``plain``."""
    if plain:
        return config_of(name, args, kwargs)
    hidden = masked_arguments(name, args, kwargs)
    return config_of(name, hidden["args"], hidden["kwargs"])


UNREADABLE = "The stored value cannot be decrypted. The operator was informed by the log."


def readable(read: Callable[[], Any], row: Any) -> tuple[Any, str]:
    """Return a stored value and an empty text; None and the reason if it cannot be decrypted.

    One such value must not hide the other objects of a list, or stop an operation that does not
    need it.
    """
    try:
        return read(), ""
    except EncryptionError as error:
        # The text names the key and the row, which concern operators only.
        logger.error("%s %s cannot be decrypted: %s", type(row).__name__, row.pk, error)
        return None, UNREADABLE


def without_secrets(body: Any) -> Any:
    """Return a body with the secrets masked that its objects would not show, at every depth."""
    return masked(_without_positional(body), conf.settings().SECRET_NAMES)


def _without_positional(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_positional(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    found = {name: _without_positional(item) for name, item in value.items()}
    config = found.get("target_config")
    if isinstance(config, dict) and isinstance(config.get("args"), list):
        name = config.get("task")
        if isinstance(name, str) and registry.find(name) is None:
            # The names of the parameters must be the same in a process that has just started.
            ports.load_tasks()
        hidden = masked_arguments(name if isinstance(name, str) else "", config["args"], {})
        config["args"] = hidden["args"]
    return found


# The fields of tasks in requests and answers, named as in the specification.


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


# Arguments that a client sends for a task that exists: masks, references and permitted names.
#
# PATCH and replay build their arguments here only.


_POINTER = "#/target_config"


def refuse_masks(value: Any, pointer: str = _POINTER) -> None:
    """Refuse masks and references in the arguments of a new object, which has nothing to keep.

    Raises Problem.
    """
    if _has_mask(value):
        raise invalid_field(pointer, "contains a mask; send the value itself", "masked")
    if _references(value):
        raise invalid_field(pointer, f"contains {MARK!r}, the key of references", "reference")


def edited_arguments(
    name: str,
    row: Any,
    given: Mapping[str, Any],
    caller: Caller,
) -> dict[str, Any]:
    """Return ``args`` and ``kwargs`` of a task, or of a recurring task, with this name after a
    change of its ``target_config``.

    Members that CELERY_TASK leaves out keep their values, as masks do. A caller that may not read
    secrets may keep one only if it changes nothing: otherwise it could send the secret to a
    recipient of its choice. For it everything is compared with what it is shown, so that no answer
    reveals whether a guess at a secret is right. Raises Problem, or PayloadTooLarge.
    """
    is_call = kind_of(name) == TargetType.CELERY_TASK
    sent = [given.get("args", []), given.get("kwargs", {})] if is_call else [[], given]
    # First, because the other checks read each value.
    check_payload(caller.tenant, sent)
    stored, args, kwargs = _stored_config(name, row, given)
    left_out = stored if is_call else {}
    config = {**left_out, **given}
    if not caller.reads_secrets:
        shown = shown_config(name, args, kwargs, plain=False)
        seen = {**{member: shown[member] for member in left_out}, **given}
        if _has_mask(seen):
            if seen != shown:
                raise invalid_field(
                    _POINTER, "is changed: send all of its secrets again, not their masks", "masked"
                )
            config = stored
    elif _has_mask(given):
        config = _kept(config, stored, _POINTER)
    known = _references(stored)
    if any(reference not in known for reference in _references(config)):
        raise invalid_field(_POINTER, f"adds {MARK!r}, the key of references", "reference")
    target = call_of(kind_of(name), config, caller.tenant)
    if target.registered.options.name != name:
        raise invalid_field(f"{_POINTER}/task", "cannot be changed", "read_only")
    edited = {"args": list(target.args), "kwargs": dict(target.kwargs)}
    check_payload(caller.tenant, [edited["args"], edited["kwargs"]])
    return edited


def _stored_config(
    name: str, row: Any, given: Mapping[str, Any]
) -> tuple[dict[str, Any], Any, Any]:
    """Return the stored ``target_config``, args and kwargs; of a row that cannot be decrypted, an
    empty one, if the edit replaces all of it.
    """
    try:
        args, kwargs = row.args, row.kwargs
    except EncryptionError:
        is_whole = kind_of(name) != TargetType.CELERY_TASK or {"args", "kwargs"} <= given.keys()
        if not is_whole or _has_mask(given):
            raise
        args, kwargs = [], {}
    return config_of(name, args, kwargs), args, kwargs


def _has_mask(value: Any) -> bool:
    return any(MASK in text for text in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _references(value: Any) -> list[Any]:
    """Return the objects that refer to results, at every depth."""
    if isinstance(value, Mapping):
        own = [dict(value)] if MARK in value else []
        return own + [found for item in value.values() for found in _references(item)]
    if isinstance(value, list | tuple):
        return [found for item in value for found in _references(item)]
    return []


def _kept(given: Any, stored: Any, pointer: str) -> Any:
    """Replace masks by the stored values at their places; raises Problem if there is none."""
    if isinstance(given, str) and MASK in given:
        names = conf.settings().SECRET_NAMES
        if stored is None or (given != MASK and masked_text(str(stored), names) != given):
            raise invalid_field(
                pointer, "is a mask, and there is no stored value to keep", "masked"
            )
        return stored
    if isinstance(given, Mapping):
        source = stored if isinstance(stored, Mapping) else {}
        return {
            name: _kept(item, source.get(name), f"{pointer}/{name}"[:200])
            for name, item in given.items()
        }
    if isinstance(given, list):
        items = stored if isinstance(stored, list) and len(stored) == len(given) else []
        return [
            _kept(item, items[at] if items else None, f"{pointer}/{at}"[:200])
            for at, item in enumerate(given)
        ]
    return given


# Builds the calls of new tasks from validated bodies.


_OPTIONS = (
    "run_at",
    "idempotency_key",
    "key",
    "queue",
    "priority",
    "max_attempts",
    "timeout",
    "expires_at",
    "depends_on",
)


def new_call(given: Mapping[str, Any], caller: Caller, pointer: str = "#") -> Call:
    """Return the call of a new task. ``pointer`` is the place of its fields. Raises Problem or
    DurableTasksError.
    """
    # First, because the other checks read each value of a body that the quota may refuse.
    check_payload(caller.tenant, arguments_in(given))
    refuse_masks(given["target_config"], f"{pointer}/target_config")
    target = call_of(given["target_type"], given["target_config"], caller.tenant, pointer)
    check_queue(given, caller.tenant, pointer)
    options = {name: given[name] for name in _OPTIONS if name in given}
    options["tenant"] = caller.tenant.pk
    return Call(target.registered, target.args, target.kwargs, call_options(CallOptions(), options))


def arguments_in(given: Mapping[str, Any]) -> list[Any]:
    """Return what the arguments of a body are, before it is validated."""
    config = given["target_config"]
    if given["target_type"] != TargetType.CELERY_TASK:
        return [[], config]
    return [config.get("args", []), config.get("kwargs", {})]


def check_existing(given: Mapping[str, Any], task_id: uuid.UUID, endpoint: ApiEndpoint) -> None:
    """Check a call that found an existing task: ``on_conflict`` may refuse it, and a ``key`` has
    edited the task. Raises Problem or IdempotencyConflict.
    """
    if given["on_conflict"] == "reject":
        raise IdempotencyConflict(f"Task {task_id} has this idempotency key or unique key.")
    if "key" in given:
        endpoint.require_scope(ApiScope.OPERATE)
        endpoint.caller.require_permission(operator_actions.edit.permission)


def check_queue(given: Mapping[str, Any], tenant: Tenant, pointer: str = "#") -> None:
    """Raise Problem unless the body names no queue, or one of API_QUEUES for this tenant."""
    name = given.get("queue")
    allowed = [entry.replace(TENANT, tenant.slug) for entry in conf.settings().API_QUEUES]
    if name and not any(fnmatchcase(name, entry) for entry in allowed):
        raise invalid_field(
            f"{pointer}/queue",
            f"{name!r} is no queue that clients of the API may choose. Leave it out, or ask the"
            " operator to allow it.",
            "unknown_queue",
        )


# Pages of tasks by filters, of which most have no index of their own.
#
# A page reads at most ROWS_EXAMINED rows of the table. If these contain fewer matches than
# ``limit``, the page is shorter and has a cursor that continues after the examined rows.


ROWS_EXAMINED = 10_000
FILTERS = frozenset({"status", "queue", "name", "from", "to"})
PARAMETERS = FILTERS | PAGE_PARAMETERS | {"include"}
_LONGEST = 200
_RANDOM = 80
"""The bits of an id that follow its millisecond."""


def filters_of(request: Request) -> dict[str, Any]:
    """Return the filters of a request as lookups; raises Problem."""
    found: dict[str, Any] = {}
    for name in ("queue", "name"):
        if name in request.query_params:
            found[name] = _text(request, name)
    if "status" in request.query_params:
        found["status"] = _status(request.query_params["status"])
    # Ids sort by creation time, so a range of time is a range of the primary key.
    if "from" in request.query_params:
        found["pk__gte"] = first_uuid7_of(_milliseconds(request, "from"))
    if "to" in request.query_params:
        found["pk__lt"] = first_uuid7_of(_milliseconds(request, "to"))
    return found


def _text(request: Request, name: str) -> str:
    value: str = request.query_params[name]
    if not 0 < len(value) <= _LONGEST:
        raise invalid_parameter(name, f"give 1 to {_LONGEST} characters", "range")
    return value


def _status(text: str) -> str:
    if text not in set(Status):
        raise invalid_parameter("status", f"is not one of {', '.join(Status)}", "choice")
    return text


def _milliseconds(request: Request, name: str) -> int:
    return max(0, int(instant_of(request, name).timestamp() * 1_000))


def instant_of(request: Request, name: str) -> datetime:
    """Return the time in a parameter; raises Problem."""
    try:
        return read_instant(request.query_params[name])
    except ValidationError as refused:
        (detail,) = refused.detail
        raise invalid_parameter(name, str(detail), "format") from None


def tasks_of(tenant_id: int) -> QuerySet[Task]:
    """Return the tasks of one tenant; every query of the API begins with them."""
    found: QuerySet[Task] = Task.objects.using(conf.settings().DATABASE).for_tenant(tenant_id)
    return found


def page_of_tasks(
    tenant_id: int,
    filters: Mapping[str, Any],
    cursor: Cursor | None,
    limit: int,
    without: Collection[str] = (),
) -> KeysetPage:
    """Return the page of tasks that match the filters, the newest first. The columns of ``without``
    are not read.
    """
    rows = tasks_of(tenant_id).filter(**filters).defer(*without)
    read, remaining = _by_index(tenant_id, filters)
    if not remaining:
        return page_of(read.defer(*without), cursor, limit)
    backwards = cursor is not None and cursor.backwards
    last = _last_examined(read, cursor)
    if last is not None:
        rows = rows.filter(**{"pk__lte" if backwards else "pk__gte": last})
    if cursor is not None:
        rows = rows.filter(**{f"pk__{cursor.comparison(falling=True)}": cursor.key})
    found = list(rows.order_by("pk" if backwards else "-pk")[: limit + 1])
    if backwards and last is None and not found:
        return page_of_tasks(tenant_id, filters, None, limit, without)
    page = around(found[:limit], cursor, by="pk", more=len(found) > limit)
    if last is None or len(found) > limit:
        return page
    beyond = Cursor(last, backwards)
    return replace(page, previous=beyond) if backwards else replace(page, following=beyond)


def _by_index(tenant_id: int, filters: Mapping[str, Any]) -> tuple[QuerySet[Task], bool]:
    """Return the rows that an index ordered by id finds, and whether they have to be filtered."""
    ranges = {name: value for name, value in filters.items() if name.startswith("pk__")}
    others = set(filters) - set(ranges)
    if filters.get("status") in REPLAYABLE:
        rows = tasks_of(tenant_id).filter(status=filters["status"])
        return rows.filter(**ranges), others != {"status"}
    if tenant_id != DEFAULT_TENANT_ID and others == {"status"} and filters["status"] in OPEN:
        rows = open_tasks(tenant_id).filter(status=filters["status"])
        return rows.filter(**ranges), False
    if tenant_id != DEFAULT_TENANT_ID:
        return tasks_of(tenant_id).filter(**ranges), bool(others)
    # The primary key is the only index with the rows of the default tenant.
    every: QuerySet[Task] = Task.objects.using(conf.settings().DATABASE)
    return every.filter(**ranges), True


def _last_examined(rows: QuerySet[Task], cursor: Cursor | None) -> uuid.UUID | None:
    """Return the last id that the page may read; None if it may read all rows.

    It contains only the millisecond of a row, because that row may belong to another tenant and
    the client receives the id in its cursor.
    """
    backwards = cursor is not None and cursor.backwards
    if cursor is not None:
        rows = rows.filter(**{f"pk__{cursor.comparison(falling=True)}": cursor.key})
    ids = rows.order_by("pk" if backwards else "-pk").values_list("pk", flat=True)
    found: list[Any] = list(ids[ROWS_EXAMINED - 1 : ROWS_EXAMINED])
    if not found:
        return None
    first_of_millisecond = found[0].int >> _RANDOM << _RANDOM
    return uuid.UUID(int=first_of_millisecond + (2**_RANDOM - 1 if backwards else 0))
