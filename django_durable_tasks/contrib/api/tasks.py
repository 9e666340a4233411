"""``/tasks`` and ``/operations``: tasks, and operations on one or many of them."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, NamedTuple

from django.db.models import QuerySet
from django.http import HttpResponse
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks import conf
from django_durable_tasks.audit import acting, recorded
from django_durable_tasks.choices import OPEN, REPLAYABLE, Status, TargetType
from django_durable_tasks.contrib.api import bulk_operations, fields, problems, quotas, views
from django_durable_tasks.contrib.api.access import ApiScope
from django_durable_tasks.contrib.api.authentication import Caller
from django_durable_tasks.contrib.api.bulk_operations import TaskFilter
from django_durable_tasks.contrib.api.idempotent_requests import (
    RequestIdentity,
    StoredAnswer,
    create_with_answer,
)
from django_durable_tasks.contrib.api.models import BulkKind, BulkOperation
from django_durable_tasks.contrib.api.parsing import rendered
from django_durable_tasks.contrib.api.serializers import Answer, Body, Options, list_of
from django_durable_tasks.contrib.api.targets import check_queue, edited_arguments, target_of
from django_durable_tasks.dependencies import edges
from django_durable_tasks.dependencies.rules import edges_to
from django_durable_tasks.exceptions import DurableTasksError, IdempotencyConflict, QuotaExceeded
from django_durable_tasks.models import DEFAULT_TENANT_ID, DeadLetter, Task, TaskExecutionLog
from django_durable_tasks.operations import Operation, Target
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.store.tables import created_so_far
from django_durable_tasks.task_values import NewTask, first_uuid7_of
from django_durable_tasks.tasks import enqueue, operator_actions
from django_durable_tasks.tasks.enqueue import DELAY_MAX, Call, new_task
from django_durable_tasks.tasks.options import COUNTS, SECONDS, CallOptions, call_options
from django_durable_tasks.workflows import diagrams
from django_durable_tasks.workflows import operations as graph_operations
from django_durable_tasks.workflows.diagrams import FORMATS, NOT_INSTALLED, Diagram, draw

INCLUDED = ("target_config", "result", "progress")
_COLUMNS: Mapping[str, tuple[str, ...]] = {"target_config": ("args", "kwargs")}
# Edges of one task. Each locks its upstream task.
_UPSTREAMS_MAX = 100


class TaskOptions(Options):
    """The options of a new task or of a step."""

    class Meta(Options.Meta):
        model = Task
        options = tuple(field.name for field in dataclasses.fields(CallOptions))
        counts = COUNTS
        seconds = SECONDS
        hidden: Any = frozenset(
            {"task_id", "headers", "tenant", "weight", "max_crashes", "soft_timeout", "lease"}
            | {"expected_duration", "expires_in", "on_orphan", "join", "on_upstream_failure"}
        )


_CALL_OPTIONS = frozenset(TaskOptions.Meta.options)


class NewTaskBody(TaskOptions):
    """A task to create."""

    target_type = fields.OneOf(
        choices=TargetType,
        default=TargetType.CELERY_TASK.value,
        help_text="HTTP_CALLBACK sends a request to your server, QUEUE_MESSAGE a message to a"
        " queue. CELERY_TASK runs a durable task of this installation.",
    )
    target_config = fields.JsonObject(
        help_text="HTTP_CALLBACK: url, and if needed method (POST by default), headers, body,"
        " timeout, retry_on, no_retry_on and endpoint. QUEUE_MESSAGE: queue or exchange, and if"
        " needed routing_key, body, headers and content_type. CELERY_TASK: task, args and kwargs."
    )
    run_at = fields.Instant(
        required=False, validators=[fields.not_past], help_text="The earliest start."
    )
    delay = fields.Seconds(
        required=False,
        min_value=0,
        max_value=DELAY_MAX,
        help_text="Seconds until the earliest start, instead of run_at: for clients whose clock"
        " may be wrong.",
    )
    idempotency_key = fields.Key(
        required=False,
        help_text="A second task with this key is not created; the answer is the first one.",
    )
    on_conflict = fields.OneOf(
        choices=["return", "reject"],
        default="return",
        help_text="What to answer if idempotency_key belongs to an equal task.",
    )
    key = fields.Key(
        required=False,
        help_text="An open task with this key is edited instead of creating another one.",
    )
    expires_at = fields.Instant(
        required=False, validators=[fields.future], help_text="The latest start."
    )
    depends_on = fields.Items(
        child=fields.Id(), required=False, max_length=_UPSTREAMS_MAX, allow_empty=False
    )

    def validate(self, attrs: Any) -> Any:
        """Refuse two start times."""
        if "delay" in attrs and "run_at" in attrs:
            text = "cannot be given together with run_at"
            raise ValidationError({"delay": [serializers.ErrorDetail(text, code="conflict")]})
        return attrs


class TaskEditBody(Options):
    """The fields of a waiting task that can be edited; the others keep their values."""

    target_config = fields.JsonObject(required=False)
    run_at = fields.Instant(required=False, validators=[fields.not_past])
    expires_at = fields.Instant(required=False, validators=[fields.future])
    reason = views.reason_field()

    class Meta(Options.Meta):
        model = Task
        options = tuple(
            field.name
            for field in operator_actions.edit.fields
            if field.name not in ("args", "kwargs")
        )
        counts = COUNTS


class TaskAnswer(Answer):
    """A task. ``target_config``, ``result`` and ``progress`` only if ``include`` names them."""

    task_id = fields.Id(source="pk")
    target_type = fields.TargetKind("name")
    target_config = fields.TargetConfig("name", required=False, allow_null=True)
    target_config_error = fields.Text(
        required=False, allow_blank=True, help_text="Why target_config is null."
    )
    next_attempt_at = fields.Instant(allow_null=True)
    result = fields.SecretJson(required=False)
    result_error = fields.Text(
        required=False, allow_blank=True, help_text="Why result is null though there is one."
    )
    progress = fields.SecretJson(required=False)

    class Meta:
        model = Task
        hidden = (
            *("args", "kwargs", "options", "shard_key", "publish_count"),
            *("due_at", "lease_until", "epoch", "run_id", "node"),
            *("max_crashes", "on_orphan", "expected_duration", "weight", "time_zone"),
            *("unique_key", "overlap_key", "limit_key", "position"),
            *("join_count", "on_upstream_failure", "cause", "has_dependents"),
        )


class ExecutionAnswer(Answer):
    """One attempt of a task."""

    duration = fields.Seconds(allow_null=True, help_text="Seconds.")

    class Meta:
        model = TaskExecutionLog
        hidden = (
            *("task", "ready_at", "queued_at", "traceback", "exception", "run_id", "celery_id"),
        )


class Several(fields.Text):
    """Some of several words, separated by commas."""

    def __init__(self, words: Sequence[str], **options: Any) -> None:
        self.words = list(words)
        super().__init__(**options)

    def to_internal_value(self, data: Any) -> Any:
        """Return the words; raises ValidationError."""
        chosen = super().to_internal_value(data).split(",")
        if not set(chosen) <= set(self.words):
            text = f"is not one of {', '.join(self.words)}, or several of them after commas"
            raise ValidationError(text, code="choice")
        return chosen


# Pages of tasks by filters, of which most have no index of their own.
#
# A page reads at most ROWS_EXAMINED rows of the table. If these contain fewer matches than
# ``limit``, the page is shorter and has a cursor that continues after the examined rows.


ROWS_EXAMINED = 10_000
# The bits of an id that follow its millisecond.
_RANDOM = 80
_SELECTIVE = frozenset({"key", "idempotency_key", "workflow_id"})
"""Filters with an index that finds few rows."""


class TaskPagination(views.KeysetPagination):
    """A page of tasks by filters, the newest first."""

    def __init__(
        self, tenant_id: int, filters: Mapping[str, Any], without: Sequence[str] = (), **_: Any
    ) -> None:
        super().__init__(tenant_id)
        self.filters, self.without = filters, without

    def rows_of(
        self, queryset: QuerySet[Any], cursor: views.Cursor | None, limit: int
    ) -> Sequence[Any]:
        """Return the rows of the page. The columns of ``without`` are not read."""
        indexed, remaining = self._by_index(queryset)
        if not remaining:
            return super().rows_of(indexed.defer(*self.without), cursor, limit)
        backwards = cursor is not None and cursor.backwards
        last = self._last_examined(self.after(indexed, cursor), backwards)
        rows = self.after(queryset.filter(**self.filters).defer(*self.without), cursor)
        if last is not None:
            rows = rows.filter(**{"pk__lte" if backwards else "pk__gte": last})
        rows_read = list(self.ordered(rows, backwards)[: limit + 1])
        if backwards and last is None and not rows_read:
            return self.rows_of(queryset, None, limit)
        shown = self.bounded(rows_read[:limit], cursor, more=len(rows_read) > limit)
        if last is not None and len(rows_read) <= limit:
            beyond = views.Cursor(last, backwards)
            self.previous, self.following = (
                (beyond, self.following) if backwards else (self.previous, beyond)
            )
        return shown

    def _by_index(self, rows: QuerySet[Any]) -> tuple[QuerySet[Any], bool]:
        """Return the rows that an index ordered by id finds, and whether they have to be
        filtered.
        """
        ranges = {name: value for name, value in self.filters.items() if name.startswith("pk__")}
        lookups = set(self.filters) - set(ranges)
        if lookups & _SELECTIVE:
            return rows.filter(**self.filters), False
        if self.filters.get("status") in REPLAYABLE:
            return rows.filter(status=self.filters["status"], **ranges), lookups != {"status"}
        if self.tenant_id == DEFAULT_TENANT_ID:
            # The primary key is the only index with the rows of the default tenant.
            every: QuerySet[Task] = Task.objects.using(conf.settings().DATABASE)
            return every.filter(**ranges), True
        if lookups == {"status"} and self.filters["status"] in OPEN:
            of_tenant = quotas.open_tasks(self.tenant_id)
            return of_tenant.filter(status=self.filters["status"], **ranges), False
        return rows.filter(**ranges), bool(lookups)

    def _last_examined(self, rows: QuerySet[Any], backwards: bool) -> uuid.UUID | None:
        """Return the last id that the page may read; None if it may read all rows.

        It contains only the millisecond of a row, because that row may belong to another tenant and
        the client receives the id in its cursor.
        """
        ids = self.ordered(rows, backwards).values_list("pk", flat=True)
        ids_at_end: list[Any] = list(ids[ROWS_EXAMINED - 1 : ROWS_EXAMINED])
        if not ids_at_end:
            return None
        first_of_millisecond = ids_at_end[0].int >> _RANDOM << _RANDOM
        return uuid.UUID(int=first_of_millisecond + (2**_RANDOM - 1 if backwards else 0))


_FILTERS: Mapping[str, Any] = {
    "status": Several(
        list(Status), required=False, help_text="Only tasks in this status, or in several ones."
    ),
    "queue": fields.Key(required=False, help_text="Only tasks of this queue."),
    "name": fields.Key(required=False, help_text="Only tasks of this name."),
    "key": fields.Key(required=False, help_text="Only tasks with this key."),
    "idempotency_key": fields.Key(required=False, help_text="The task with this key."),
    "workflow_id": fields.Id(required=False, help_text="Only tasks of this workflow."),
    "recurring_task_id": fields.Id(required=False, help_text="Only tasks of this recurring task."),
    "from": fields.Instant(required=False, help_text="Created at or after this time."),
    "to": fields.Instant(required=False, help_text="Created before this time."),
}
_INCLUDE = {
    "include": Several(
        INCLUDED, required=False, help_text="Fields to add: target_config, result, progress."
    )
}
# The tasks that a request to create many names at most, and their size is that of the body.
_ITEMS_MAX = 1_000
# Items of one request that need statements of their own: about 14 each, or 20 ms of processor time,
# in a transaction that holds the locks of all of them.
_ALONE_MAX = 100
_TOO_MANY_ALONE = (
    f"is one of more than {_ALONE_MAX} items that have depends_on or a key of an existing task:"
    " send this item in another request"
)
_ADDS_DEPENDENCIES = (
    "adds a dependency to the existing task with this key, which needs a search for cycles: send"
    " this item in a request of its own, to POST /tasks"
)
# Tasks that a dry run of an operation on many tasks names.
_SAMPLE = 5
# Refused items that have all of their unknown fields named, with hints.
_EXPLAINED = 20


_REFUSALS = (problems.Problem, DurableTasksError, ValidationError)


class _ValidItem(NamedTuple):
    """An item of a bulk request whose fields are valid."""

    data: Mapping[str, Any]
    call: Call
    task: NewTask

    @property
    def field(self) -> str:
        """The field because of which it needs statements of its own."""
        names = ("depends_on", "key", "idempotency_key", "target_config")
        return "#/" + next(name for name in names if name in self.data)


class _Item(fields.JsonObject):
    """A body of POST /tasks, which is validated alone, so that a wrong one refuses no other."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the value."""
        return data


class BulkCreateBody(Body):
    """Tasks to create. The result of each item has the index of the item."""

    items = fields.Items(
        child=_Item(),
        max_length=_ITEMS_MAX,
        allow_empty=False,
        help_text=f"Up to {_ITEMS_MAX:,} bodies of POST /tasks. At most {_ALONE_MAX} of them may"
        " have depends_on, or a key of an existing task or of an earlier item.",
    )
    atomic = fields.Flag(
        default=False, help_text="true: if one item is refused, no task is created."
    )


class BulkCreateAnswer(Body):
    """The result of each item, in the order of the request."""

    created = fields.Integer()
    refused = fields.Integer()
    data = serializers.ListField(child=fields.AnyJson())  # type: ignore[assignment]


class BulkFilterBody(Body):
    """Which tasks, as in the list of tasks, and why."""

    queue = fields.Key(required=False)
    name = fields.Key(required=False)
    created_from = fields.Instant(required=False, help_text="Created at or after this time.")
    created_to = fields.Instant(required=False, help_text="Created before this time.")
    reason = views.reason_field()


class BulkCancelBody(BulkFilterBody):
    """Which open tasks to cancel; without a filter all."""

    status = fields.OneOf(choices=sorted(OPEN), required=False)


class BulkReplayBody(BulkFilterBody):
    """Which ended tasks to replay; without a status the FAILED ones."""

    status = fields.OneOf(choices=sorted(REPLAYABLE), default=Status.FAILED.value)


# The states of ended tasks that are not those of an operation: it has stopped.
_STATES = {Status.RUNNING: "RUNNING", Status.SUCCESS: "DONE", Status.FAILED: "FAILED"}
_STOPPED = "CANCELLED"


class _State(fields.OneOf):
    """The state of an operation on many tasks, which is that of its task. CANCELLED if the task has
    ended otherwise or was pruned before its last step.
    """

    def shown(self, row: BulkOperation, *, plain: bool) -> str:
        """Return the state."""
        if row.completed_at is not None:
            return "DONE"
        status = row.task_status  # type: ignore[attr-defined]
        return _STATES.get(status, "PENDING" if status in OPEN else _STOPPED)


class OperationAnswer(Answer):
    """An operation on many tasks. Its task can be cancelled, and replayed to continue it."""

    operation_id = fields.Id(source="pk")
    state = _State(choices=["PENDING", *_STATES.values(), _STOPPED])
    filters = fields.SecretObject()
    errors = serializers.ListField(child=fields.AnyJson())  # type: ignore[assignment]

    class Meta:
        model = BulkOperation
        hidden = ("last_id", "until_id", "created_by", "reason")


class GraphAnswer(Answer):
    """Tasks and the dependencies between them."""

    nodes = serializers.ListField(child=fields.JsonObject())
    edges = serializers.ListField(child=fields.JsonObject())


_SVG = "image/svg+xml"
IMAGES = (_SVG, "image/*")


def graph_json(diagram: Diagram) -> Any:
    return json.loads(draw(diagram, "json"))


def graph_image(diagram: Diagram) -> HttpResponse:
    """Return the drawing; raises Problem if the optional app that draws is not installed."""
    if "svg" not in FORMATS:
        raise problems.Problem(problems.NOT_FOUND, NOT_INSTALLED)
    return HttpResponse(draw(diagram, "svg"), content_type=_SVG)


_REMOVE = {
    "upstream": fields.Id(required=True, help_text="the id of a task"),
    "reason": fields.Text(required=False, allow_blank=True, help_text="Why; kept with the name."),
}


def new_call(data: Mapping[str, Any], caller: Caller) -> Call:
    """Return the call of a new task. Raises Problem or DurableTasksError."""
    target = target_of(data, caller)
    options = {name: value for name, value in data.items() if name in _CALL_OPTIONS}
    if "delay" in data:
        options["run_at"] = estimated_now() + timedelta(seconds=data["delay"])
    options["tenant"] = caller.tenant.pk
    return dataclasses.replace(target, options=call_options(CallOptions(), options))


_bulk = partial(
    views.endpoint,
    detail=False,
    method="post",
    scope=ApiScope.OPERATE,
    reads=("task", "durable_tasks_api.bulkoperation"),
    answer=OperationAnswer,
    statuses=(202,),
)


class OneTaskMixin(views.ApiViewSet):
    """Finds the task of an address."""

    answer = TaskAnswer
    version = "epoch"

    def page_of_task(self, answer_class: type[Answer]) -> Response:
        """Return a page of the rows of the task."""
        self.find()
        model: Any = answer_class.Meta.model
        rows = model.objects.using(conf.settings().DATABASE).filter(
            task_id=self.kwargs["task_id"], tenant_id=self.tenant_id
        )
        unread = {"traceback", "exception"} & {column.name for column in model._meta.fields}
        plain = self.caller.reads_secrets
        return self.page(rows.defer(*unread), lambda row: answer_class.shown(row, plain=plain))


class TaskViewSet(views.OperationsMixin, views.ReadMixin, OneTaskMixin):
    """Tasks: create, list, read, edit and operate."""

    targets = (Target.TASKS, Target.TASK)
    performed = (operator_actions.edit, operator_actions.replay_edited)
    scopes: ClassVar = {"force_complete": ApiScope.FORCE, "force_run": ApiScope.FORCE}
    alternatives: ClassVar = {
        operator_actions.retry: (operator_actions.replay,),
        operator_actions.replay: (operator_actions.replay_edited,),
    }
    more: ClassVar = {
        operator_actions.replay: {
            "target_config": fields.JsonObject(
                required=False, help_text="As of PATCH; a mask keeps the stored value."
            )
        }
    }

    def show(self, row: Task, caller: Caller, included: Sequence[str] = ()) -> dict[str, Any]:
        """Return a task as JSON values, with the fields that ``included`` names, and after an edit
        with ``target_config``.
        """
        if self.action == "partial_update":
            included = ("target_config",)
        without = [name for name in INCLUDED if name not in included]
        return TaskAnswer.shown(row, plain=caller.reads_secrets, without=without)

    @views.endpoint(is_list=True, filters={**_FILTERS, **_INCLUDE})
    def list(self, request: Request) -> Response:
        """Return the tasks that match the filters, the newest first."""
        parameters, caller = self.query(), self.caller
        included = parameters.pop("include", ())
        without = [
            column
            for name in INCLUDED
            if name not in included
            for column in _COLUMNS.get(name, (name,))
        ]
        without.append("position")  # no answer contains it, and it may be large
        lookups = dict(parameters)
        # Ids sort by creation time, so that a range of time is a range of the primary key.
        for name, lookup in (("from", "pk__gte"), ("to", "pk__lt")):
            if name in lookups:
                unix_ms = max(0, int(lookups.pop(name).timestamp() * 1_000))
                lookups[lookup] = first_uuid7_of(unix_ms)
        statuses = lookups.pop("status", ())
        if statuses:
            several = len(statuses) > 1
            lookups["status__in" if several else "status"] = statuses if several else statuses[0]
        paginator = TaskPagination(self.tenant_id, lookups, without)
        return self.page(self.rows(), lambda row: self.show(row, caller, included), paginator)

    @views.endpoint(filters=_INCLUDE)
    def retrieve(self, request: Request, task_id: uuid.UUID) -> Response:
        """Return the task."""
        included = self.query().get("include", INCLUDED)
        row = self.find()
        return self.tagged(row, self.show(row, self.caller, included))

    @views.endpoint(scope=ApiScope.CREATE, body=NewTaskBody)
    def create(self, request: Request) -> Response:
        """Create a task, or return the one with the same idempotency key."""
        data = self.valid()
        call = new_call(data, self.caller)
        return self.write(partial(self._created, data, call), at_once=partial(self._at_once, call))

    def _at_once(self, call: Call, identity: RequestIdentity) -> StoredAnswer | None:
        clock, tenant = self.caller.clock, self.caller.tenant
        if clock is None:
            return None
        # The body may have arrived long after the key.
        return create_with_answer(
            call, tenant, identity, clock.now(), views.LIMITS, self._answer_of
        )

    def _answer_of(self, row: Task, status: int = 201) -> StoredAnswer:
        shown = rendered(self.show(row, self.caller.without_secrets()))
        location = views.address_of("task-detail", task_id=row.pk)
        return StoredAnswer(status, shown, {"Location": location, "ETag": self.tag_of(row, shown)})

    def _created(self, data: Mapping[str, Any], call: Call) -> StoredAnswer:
        before = created_so_far()
        with recorded("task.create", savepoint=False) as entry:
            row = enqueue.schedule(call)
            is_new = created_so_far() > before
            if is_new:
                entry.created_task(row)
        quotas.charge_open_tasks(self.caller.tenant, int(is_new))
        if not is_new:
            self._check_existing(data, row.pk)
        return self._answer_of(row, 201 if is_new else 200)

    def _check_existing(self, data: Mapping[str, Any], task_id: uuid.UUID) -> None:
        """Check a call that found an existing task: ``on_conflict`` may refuse it, and a ``key``
        has edited the task. Raises Problem or IdempotencyConflict.
        """
        if data["on_conflict"] == "reject":
            raise IdempotencyConflict(f"Task {task_id} has this idempotency key or unique key.")
        if "key" in data:
            self.require_scope(ApiScope.OPERATE)
            self.caller.require_permission(operator_actions.edit.permission)

    @views.endpoint(scope=ApiScope.OPERATE, operations=(operator_actions.edit,), body=TaskEditBody)
    def partial_update(self, request: Request, task_id: uuid.UUID) -> Response:
        """Edit a task that has not started."""
        edit = operator_actions.edit

        def change(row: Task, data: dict[str, Any]) -> None:
            check_queue(data, self.caller.tenant)
            changes = self.prepared(edit, row, data)
            done = views.perform(edit, self.subject(edit, row), self.caller, changes)
            if not done.changed:
                raise views.refused(row)

        return self.edit_with(change, lock=True)

    def chosen(self, operation: Operation, row: Task, data: Mapping[str, Any]) -> Operation:
        """Replay what has ended instead of a retry, and with edited arguments if there are any."""
        if operation is operator_actions.retry and row.status in REPLAYABLE:
            return operator_actions.replay
        if operation is operator_actions.replay and "target_config" in data:
            return operator_actions.replay_edited
        return operation

    def prepared(self, operation: Operation, row: Task, data: dict[str, Any]) -> Mapping[str, Any]:
        """Check edited arguments, and the time of a reschedule."""
        if operation is operator_actions.reschedule:
            try:
                fields.not_past(data["run_at"])
            except ValidationError:
                text = "is more than a day in the past"
                raise problems.invalid_field("#/run_at", text, "past") from None
        if "target_config" not in data:
            return data
        changes = {name: value for name, value in data.items() if name != "target_config"}
        return {**changes, **edited_arguments(row.name, row, data["target_config"], self.caller)}

    # The attempts of a task.

    @views.endpoint(
        "executions",
        reads=("task", "taskexecutionlog"),
        answer=list_of(ExecutionAnswer),
        is_list=True,
    )
    def executions(self, request: Request, task_id: uuid.UUID) -> Response:
        """Return the attempts that have ended, the newest first."""
        return self.page_of_task(ExecutionAnswer)

    # The tasks connected with a task.

    def _graph(self) -> Diagram:
        return diagrams.around(self.find())

    @views.endpoint("dependencies", answer=GraphAnswer)
    def dependencies(self, request: Request, task_id: uuid.UUID) -> Response:
        """Return the tasks connected with this one: at most 1,000, at most 100 dependencies away.

        The nearest are first. At most 10,000 of their dependencies are returned.
        """
        return Response(graph_json(self._graph()))

    @dependencies.mapping.post
    @views.endpoint(
        id="addTaskDependency",
        scope=ApiScope.OPERATE,
        operations=(graph_operations.add_edge,),
        body=views.body_of("AddDependencyBody", graph_operations.add_edge),
        answer=GraphAnswer,
    )
    def add_dependency(self, request: Request, task_id: uuid.UUID) -> Response:
        """Let the task, which has not started, wait for another one."""
        return self._with_upstream(self.valid(), graph_operations.add_edge)

    @dependencies.mapping.delete
    @views.endpoint(
        id="removeTaskDependency",
        scope=ApiScope.OPERATE,
        operations=(graph_operations.remove_edge,),
        filters=_REMOVE,
        answer=GraphAnswer,
    )
    def remove_dependency(self, request: Request, task_id: uuid.UUID) -> Response:
        """Let the task no longer wait for the task ``upstream``."""
        parameters = self.query()
        parameters["reason"] = parameters.get("reason", "")[: views.REASON_MAX]
        return self._with_upstream(parameters, graph_operations.remove_edge)

    def _with_upstream(self, data: Mapping[str, Any], operation: Operation) -> Response:
        def act() -> StoredAnswer:
            row = self.find()
            upstream = self.rows().filter(pk=data["upstream"]).first()
            if upstream is None:
                reason = ("is the id of no task", "unknown_task")
                if operation is graph_operations.remove_edge:
                    raise problems.invalid_parameter("upstream", *reason, problems.INVALID)
                raise problems.invalid_field("#/upstream", *reason)
            done = views.perform(operation, row, self.caller, {**data, "upstream": upstream})
            if not done.changed and operation is graph_operations.remove_edge:
                raise views.refused(row)
            return StoredAnswer(200, graph_json(self._graph()))

        return self.write(act)

    @views.endpoint("dependencies.svg", media_types=IMAGES)
    def image(self, request: Request, task_id: uuid.UUID) -> HttpResponse:
        """Return the drawing of the tasks connected with a task."""
        return graph_image(self._graph())

    # Many tasks at once.

    @views.endpoint(
        "bulk",
        detail=False,
        method="post",
        id="createTasks",
        scope=ApiScope.CREATE,
        permissions=("add_task",),
        body=BulkCreateBody,
        answer=BulkCreateAnswer,
    )
    def bulk(self, request: Request) -> Response:
        """Create up to 1,000 tasks; an item that is refused does not affect the others."""
        items = self.body().get("items")
        self.charge_items(len(items) if isinstance(items, list) else 0)
        data = self.valid()
        return self.write(lambda: self._created_many(data["items"], data["atomic"]))

    def _created_many(self, items: Sequence[Any], atomic: bool) -> StoredAnswer:
        before, results = created_so_far(), dict[int, dict[str, Any]]()
        valid: dict[int, _ValidItem] = {}
        for index, body in enumerate(items):
            try:
                item_data = NewTaskBody.valid(body, briefly=len(results) >= _EXPLAINED)
                call = new_call(item_data, self.caller)
                valid[index] = _ValidItem(item_data, call, new_task(call))
            except _REFUSALS as error:
                results[index] = _refused(index, problems.problem_of(error))
        independent = [item.task for item in valid.values() if item.call.options.depends_on is None]
        free = {task.id for task in enqueue.with_free_keys(self.tenant_id, independent)}
        together = {index: item.task for index, item in valid.items() if item.task.id in free}
        is_full = False
        if not atomic:
            admitted = quotas.charge_some_open_tasks(self.caller.tenant, len(together))
            is_full = admitted < len(together)
            for index in list(together)[admitted:]:
                del together[index]
                full = problems.problem_of(quotas.quota_of_open_tasks(self.caller.tenant))
                results[index] = _refused(index, full)
        inserted = enqueue.insert_many(list(together.values()))
        results |= {
            index: _made(task.id) for index, task in together.items() if task.id in inserted
        }
        remaining = {index: item for index, item in valid.items() if index not in results}
        self._add_existing(remaining, results)
        alone = 0
        for index, item in remaining.items():
            if index in results:
                continue
            alone += 1
            try:
                if alone > _ALONE_MAX:
                    raise problems.invalid_field(item.field, _TOO_MANY_ALONE, "too_many")
                if _adds_dependencies(item):
                    raise problems.invalid_field("#/depends_on", _ADDS_DEPENDENCIES, "not_in_bulk")
                results[index] = self._created_alone(
                    item.call, item.data, charged=not atomic, is_full=is_full
                )
            except _REFUSALS as error:
                results[index] = _refused(index, problems.problem_of(error))
                # The open tasks are not counted again for each further item.
                is_full = is_full or isinstance(error, QuotaExceeded)
        refused = [results[index] for index in sorted(results) if "problem" in results[index]]
        if atomic and refused:
            errors = [error for result in refused for error in result["problem"]["errors"]]
            raise problems.Problem(
                problems.INVALID,
                f"{len(refused)} of {len(items)} items are refused, and no task is created.",
                more={"errors": errors[:_ITEMS_MAX]},
            )
        new = len(inserted) + created_so_far() - before
        if atomic:
            quotas.charge_open_tasks(self.caller.tenant, new)
        data = [results[index] for index in range(len(items))]
        ids = [result["task_id"] for result in data if result["status"] == 201]
        with recorded("task.create_many") as entry:
            rows = [(key, self.tenant_id) for key in ids]
            entry.several("task", rows, {}, {"created": len(ids)})
        return StoredAnswer(200, {"created": new, "refused": len(refused), "data": data})

    def _add_existing(
        self, items: Mapping[int, _ValidItem], results: dict[int, dict[str, Any]]
    ) -> None:
        """Add the results of the items whose idempotency keys belong to existing tasks."""
        keys = {item.task.idempotency_key or "" for item in items.values()} - {""}
        first = enqueue.first_calls(self.tenant_id, keys)
        for index, item in items.items():
            existing = first.get(item.task.idempotency_key or "")
            if existing is None:
                continue
            try:
                label = f"idempotency_key={item.task.idempotency_key!r}"
                enqueue.check_same_call(existing, item.task, label)
                self._check_existing(item.data, existing.pk)
                results[index] = _made(existing.pk, 200)
            except _REFUSALS as error:
                results[index] = _refused(index, problems.problem_of(error))

    def _created_alone(
        self, call: Call, data: Mapping[str, Any], *, charged: bool, is_full: bool
    ) -> dict[str, Any]:
        before = created_so_far()
        with tables.atomic():
            key = enqueue.submit(call)
            is_new = created_so_far() > before
            if is_new and is_full:
                raise quotas.quota_of_open_tasks(self.caller.tenant)
            if is_new and charged:
                quotas.charge_open_tasks(self.caller.tenant, 1)
            if not is_new:
                self._check_existing(data, key)
        return _made(key, 201 if is_new else 200)

    @_bulk(
        "bulk-cancel", id="cancelTasks", operations=(operator_actions.cancel,), body=BulkCancelBody
    )
    def bulk_cancel(self, request: Request) -> Response:
        """Cancel all open tasks that match a filter; ``Location`` shows the progress."""
        return self._started(BulkKind.CANCEL)

    @_bulk(
        "bulk-replay", id="replayTasks", operations=(operator_actions.replay,), body=BulkReplayBody
    )
    def bulk_replay(self, request: Request) -> Response:
        """Replay all ended tasks that match a filter; ``Location`` shows the progress."""
        return self._started(BulkKind.REPLAY)

    def _started(self, kind: BulkKind) -> Response:
        data, caller = self.valid(), self.caller
        which = TaskFilter(
            status=Status(data["status"]) if "status" in data else None,
            queue=data.get("queue"),
            name=data.get("name"),
            since=data.get("created_from"),
            before=data.get("created_to"),
        )

        def act() -> StoredAnswer:
            with acting(by=caller.name, reason=data.get("reason", "")):
                row = bulk_operations.start(caller.tenant, kind, which)
            if kind is BulkKind.REPLAY:
                # A cancellation frees the quota, so that it must not be refused by it.
                quotas.charge_open_tasks(caller.tenant, 1)
            shown = OperationAnswer.shown(row)
            if self.dry_run:
                shown["sample"] = self._sample(which, row.until_id)
            location = views.address_of("operation-detail", operation_id=row.pk)
            return StoredAnswer(202, shown, {"Location": location})

        return self.write(act)

    def _sample(self, which: TaskFilter, until: uuid.UUID) -> Sequence[str]:
        """Return some of the matching tasks, for a dry run."""
        filters = {
            "status": which.status,
            "status__in": sorted(OPEN) if which.status is None else None,
            "queue": which.queue,
            "name": which.name,
            "pk__gte": which.first_id,
            "pk__lt": until,
        }
        lookups = {name: value for name, value in filters.items() if value is not None}
        sample = TaskPagination(self.tenant_id, lookups).rows_of(self.rows(), None, _SAMPLE)
        return [str(row.pk) for row in sample]


def _adds_dependencies(item: _ValidItem) -> bool:
    """Whether the item would add upstreams to the existing task with its key."""
    if item.task.key is None or item.call.options.depends_on is None:
        return False
    upstreams = edges_to(item.call.options.depends_on)
    return any(
        edges.edges().above([owner]).below(upstreams).count() < len(upstreams)
        for owner in enqueue.key_owners(item.task)
    )


def _made(task_id: Any, status: int = 201) -> dict[str, Any]:
    return {"status": status, "task_id": str(task_id)}


def _refused(index: int, problem: problems.Problem) -> dict[str, Any]:
    """Return the result of a refused item; its places begin with the place of the item."""
    invalid_parts = problem.parts or (problems.InvalidPart("#", problem.detail),)
    errors = [
        {**invalid.as_json(), invalid.place: f"#/items/{index}{invalid.name.removeprefix('#')}"}
        for invalid in invalid_parts
    ]
    content = {"code": problem.kind.code, "detail": problem.detail, "errors": errors}
    return {"status": problem.kind.status, "problem": content}


class OperationViewSet(views.ReadMixin, views.ApiViewSet):
    """The operations on many tasks of the last 30 days."""

    singular, noun = "Operation", "operation"
    answer = OperationAnswer

    def rows(self) -> QuerySet[Any]:
        """Return the operations with the statuses of their tasks."""
        return bulk_operations.with_task_status(super().rows())

    @views.endpoint()
    def retrieve(self, request: Request, operation_id: uuid.UUID) -> Response:
        """Return the operation and its progress."""
        return Response(self.show(self.find(), self.caller))


# Dead letters: tasks that have failed for good.


class DeadLetterAnswer(Answer):
    """Why a task failed finally, and how the dead letter was closed."""

    dead_letter_id = fields.Integer(source="pk")
    resolution = fields.Text(allow_blank=True)

    class Meta:
        model = DeadLetter
        hidden = ("args", "kwargs")


class DeadLetterViewSet(views.OperationsMixin, views.ReadMixin):
    """The dead letters of the tenant."""

    answer = DeadLetterAnswer
    version = "pk"
    lookup_url_kwarg = "letter_id"
    targets = (Target.DEAD_LETTERS,)

    @views.endpoint(
        is_list=True,
        filters={
            "state": fields.OneOf(
                choices=["open", "all"], required=False, help_text="open (default) or all."
            )
        },
    )
    def list(self, request: Request) -> Response:
        """Return the open dead letters, or all with ``state=all``, the newest first."""
        rows: Any = self.rows()
        return self.page(rows if self.query().get("state") == "all" else rows.open())
