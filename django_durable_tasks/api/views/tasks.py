"""``/tasks``: create, list, read and edit tasks, and operations on one or many of them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from django.db.models import QuerySet
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
    Flag,
    Id,
    Instant,
    Integer,
    JsonObject,
    OneOf,
    Seconds,
    Text,
    rendered,
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
from django_durable_tasks.api.problems import InvalidPart, Problem, invalid_field, problem_of
from django_durable_tasks.api.tasks import (
    PARAMETERS,
    ExecutionAnswer,
    NewTaskBody,
    TaskAnswer,
    TaskEditBody,
    check_existing,
    check_queue,
    edited_arguments,
    execution_json,
    filters_of,
    included_of,
    is_past,
    new_call,
    page_of_tasks,
    task_json,
    tasks_of,
    without_columns,
)
from django_durable_tasks.api.views.object_operations import ObjectAction, Resource, refused
from django_durable_tasks.api.writes import LIMITS, Answer, WritingEndpoint, perform
from django_durable_tasks.audit import acting, recorded
from django_durable_tasks.choices import OPEN, REPLAYABLE, Status
from django_durable_tasks.exceptions import DurableTasksError, QuotaExceeded
from django_durable_tasks.masking import text_for_tenants
from django_durable_tasks.models import (
    BulkKind,
    BulkOperation,
    DeliveryAttempt,
    Task,
    TaskExecutionLog,
)
from django_durable_tasks.models.tasks import BulkOperationQuerySet
from django_durable_tasks.operations.operation import Operation
from django_durable_tasks.store import tables
from django_durable_tasks.store.commit_hooks import created_so_far
from django_durable_tasks.task_values import NewTask
from django_durable_tasks.tasks import enqueue, operator_actions
from django_durable_tasks.tasks.new_task import Call, new_task
from django_durable_tasks.tenants import bulk_operations
from django_durable_tasks.tenants.idempotent_requests import RequestIdentity, create_with_answer
from django_durable_tasks.tenants.quotas import (
    charge_open_tasks,
    charge_some_open_tasks,
    quota_of_open_tasks,
)
from django_durable_tasks.tenants.values import ApiScope, TaskFilter
from django_durable_tasks.workflows import operations as graph_operations


def task_of(tenant_id: int, task_id: uuid.UUID, *, lock: bool = False) -> Task:
    """Return a task of the tenant, locked for a change if ``lock``; raises Problem.

    The task of another tenant does not exist for this one.
    """
    rows = tasks_of(tenant_id)
    if lock:
        rows = tables.locked_for_change(rows)
    row = rows.filter(pk=task_id).first()
    if row is None:
        raise Problem(problems.NOT_FOUND, "There is no task with this id.")
    return row


def task_address(task_id: uuid.UUID) -> str:
    """Return the path of a task."""
    return address_of("task", task_id=task_id)


class TasksEndpoint(WritingEndpoint):
    """All tasks of the tenant."""

    reads = ("task",)
    permissions: ClassVar = {"POST": ("add_task",)}
    scopes: ClassVar = {"GET": ApiScope.READ, "POST": ApiScope.CREATE}
    bodies: ClassVar = {"POST": NewTaskBody}
    answers: ClassVar = {"GET": list_of(TaskAnswer), "POST": TaskAnswer}
    creates = True
    parameters: ClassVar = {"GET": PARAMETERS}

    def get(self, request: Request) -> Response:
        """Return the tasks that match the filters, the newest first."""
        tenant_id, included = self.caller.tenant.pk, included_of(request)
        page = page_of_tasks(
            tenant_id,
            filters_of(request),
            cursor_of(request, tenant_id, Task),
            limit_of(request),
            without_columns(included),
        )
        return listed(request, tenant_id, page, lambda row: task_json(row, self.caller, included))

    def post(self, request: Request) -> Response:
        """Create a task, or return the one with the same idempotency key."""
        given: Mapping[str, Any] = NewTaskBody.valid(self.body(request))
        call = new_call(given, self.caller)
        return self.write(
            request,
            lambda: self._created(given, call),
            at_once=lambda identity: self._created_at_once(call, identity),
        )

    def _created_at_once(self, call: Call, identity: RequestIdentity) -> Answer | None:
        clock, tenant = self.caller.clock, self.caller.tenant
        if clock is None:
            return None
        # The body may have arrived long after the key.
        return create_with_answer(call, tenant, identity, clock.now(), LIMITS, self._answer_of)

    def _answer_of(self, row: Task) -> Answer:
        shown = rendered(task_json(row, self.caller.without_secrets()))
        headers = {"Location": task_address(row.pk), "ETag": entity_tag(row.epoch, shown)}
        return Answer(201, shown, headers)

    def _created(self, given: Mapping[str, Any], call: Call) -> Answer:
        row, is_new = self._scheduled(call)
        charge_open_tasks(self.caller.tenant, int(is_new))
        if not is_new:
            check_existing(given, row.pk, self)
        return replace(self._answer_of(row), status_code=201 if is_new else 200)

    def _scheduled(self, call: Call) -> tuple[Task, bool]:
        """Create the task with its audit entry; return it, and whether it is new."""
        before = created_so_far()
        with recorded("task.create", savepoint=False) as entry:
            row = enqueue.schedule(call)
            is_new = created_so_far() > before
            if is_new:
                entry.created_task(row)
        return row, is_new


class TaskEndpoint(WritingEndpoint):
    """One task."""

    reads = ("task",)
    permissions: ClassVar = {"PATCH": (operator_actions.edit.permission,)}
    scopes: ClassVar = {"GET": ApiScope.READ, "PATCH": ApiScope.OPERATE}
    bodies: ClassVar = {"PATCH": TaskEditBody}
    operations: ClassVar = (operator_actions.edit,)
    answers: ClassVar = {"GET": TaskAnswer, "PATCH": TaskAnswer}
    parameters: ClassVar = {"GET": frozenset({"include"})}

    def get(self, request: Request, task_id: uuid.UUID) -> Response:
        """Return the task."""
        included = included_of(request, default=("target_config", "result", "progress"))
        row = task_of(self.caller.tenant.pk, task_id)
        return tagged(request, row.epoch, task_json(row, self.caller, included))

    def patch(self, request: Request, task_id: uuid.UUID) -> Response:
        """Edit a task that has not started."""
        valid = TaskEditBody.valid(self.body(request))
        check_queue(valid, self.caller.tenant)
        tenant_id = self.caller.tenant.pk

        def act() -> Answer:
            row = task_of(tenant_id, task_id, lock=True)
            require_version(request, row.epoch)
            changes = self._changes(row, valid)
            done = perform(
                operator_actions.edit, tasks_of(tenant_id).filter(pk=task_id), self.caller, changes
            )
            if not done.changed:
                raise refused(row)
            edited = task_of(tenant_id, task_id)
            shown = task_json(edited, self.caller.without_secrets(), ("target_config",))
            return Answer(200, shown, {"ETag": entity_tag(edited.epoch, shown)})

        def before() -> Mapping[str, Any]:
            row = task_of(tenant_id, task_id)
            return task_json(row, self.caller.without_secrets(), ("target_config",))

        return self.write(request, act, before)

    def _changes(self, row: Task, given: Mapping[str, Any]) -> dict[str, Any]:
        changes = {name: value for name, value in given.items() if name != "target_config"}
        if "target_config" not in given:
            return changes
        config = given["target_config"]
        return {**changes, **edited_arguments(row.name, row, config, self.caller)}


class ExecutionsEndpoint(ApiEndpoint):
    """The attempts of a task, the newest first."""

    reads = ("task", "taskexecutionlog")
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": list_of(ExecutionAnswer)}
    parameters: ClassVar = {"GET": PAGE_PARAMETERS}

    def get(self, request: Request, task_id: uuid.UUID) -> Response:
        """Return the attempts that have ended."""
        tenant_id = self.caller.tenant.pk
        task_of(tenant_id, task_id)
        after = cursor_of(request, tenant_id, TaskExecutionLog)
        page = page_of(execution_rows(tenant_id, task_id), after, limit_of(request))
        return listed(request, tenant_id, page, lambda row: execution_json(row, self.caller))


def execution_rows(tenant_id: int, task_id: uuid.UUID) -> QuerySet[TaskExecutionLog]:
    """Return the attempts of a task of the tenant, without their long texts."""
    rows = TaskExecutionLog.objects.using(tables.database())
    return rows.filter(task_id=task_id, tenant_id=tenant_id).defer("traceback", "exception")


def _find(caller: Caller, task_id: uuid.UUID) -> Task:
    return task_of(caller.tenant.pk, task_id)


RESOURCE = Resource(
    name="task",
    reads="task",
    find=_find,
    show=task_json,
    answer=TaskAnswer,
    version=lambda row: int(row.epoch),
    subject=lambda row: tasks_of(row.tenant_id).filter(pk=row.pk),
)
SINGLE = replace(RESOURCE, subject=lambda row: row)
"""For operations that take the task itself and not a queryset."""


# ``POST /tasks/{id}/...``: the operations on one task, on its branch, and on its approvals.


def _retry(task: Task, _given: Mapping[str, Any]) -> Operation:
    """Release a waiting retry, or replay a task that has ended."""
    return operator_actions.replay if task.status in REPLAYABLE else operator_actions.retry


def _replay(_task: Task, given: Mapping[str, Any]) -> Operation:
    return operator_actions.replay_edited if "target_config" in given else operator_actions.replay


def _arguments(task: Task, given: Mapping[str, Any], caller: Caller) -> Mapping[str, Any]:
    """Check edited arguments as PATCH does."""
    if "target_config" not in given:
        return given
    config = given["target_config"]
    return {**given, **edited_arguments(task.name, task, config, caller)}


def _not_in_the_past(_task: Task, given: Mapping[str, Any], _caller: Caller) -> Mapping[str, Any]:
    if is_past(given["run_at"]):
        raise invalid_field("#/run_at", "is more than a day in the past", "past")
    return given


ACTIONS = (
    ObjectAction(path="cancel", scope=ApiScope.OPERATE, operations=(operator_actions.cancel,)),
    ObjectAction(
        path="retry",
        scope=ApiScope.OPERATE,
        operations=(operator_actions.retry, operator_actions.replay),
        choose=_retry,
    ),
    ObjectAction(
        path="replay",
        scope=ApiScope.OPERATE,
        operations=(operator_actions.replay, operator_actions.replay_edited),
        choose=_replay,
        prepare=_arguments,
        more={
            "target_config": JsonObject(
                required=False, help_text="As of PATCH; a mask keeps the stored value."
            )
        },
        without=frozenset({"args", "kwargs"}),
    ),
    ObjectAction(
        path="force-complete", scope=ApiScope.FORCE, operations=(operator_actions.force_complete,)
    ),
    ObjectAction(path="force-run", scope=ApiScope.FORCE, operations=(graph_operations.force_run,)),
    ObjectAction(
        path="reschedule",
        scope=ApiScope.OPERATE,
        operations=(operator_actions.reschedule,),
        prepare=_not_in_the_past,
    ),
)
ON_ONE_TASK = tuple(
    ObjectAction(
        path=path,
        scope=ApiScope.OPERATE,
        operations=(operation,),
    )
    for path, operation in (
        ("replay-from", graph_operations.retry_from),
        ("cancel-branch", graph_operations.cancel_branch),
        ("approve", graph_operations.approve),
        ("reject", graph_operations.reject),
        ("hold", graph_operations.hold),
        ("unhold", graph_operations.unhold),
    )
)
"""Operations that take the task itself and not a queryset."""


# ``/tasks/{id}/deliveries``: the requests that a callback has sent, and their answers.


class DeliveryAnswer(Body):
    """A request and its answer. Secrets are masked, also for keys with the scope ``secrets``."""

    attempt_number = Integer()
    outcome = Text(help_text="DONE, RETRY, FAILED or STOP.")
    started_at = Instant()
    method = Text()
    url = Text()
    request_headers = AnyJson(help_text="A list of names and values.")
    request_bytes = Integer()
    status = Integer(allow_null=True, help_text="Null if there was no answer.")
    failure = Text(allow_blank=True, help_text="Why there was no answer.")
    reason = Text(allow_blank=True)
    retry_delay = Seconds(allow_null=True, help_text="Seconds until the next attempt.")
    response_headers = AnyJson(help_text="A list of names and values.")
    response_body = Text(allow_blank=True, help_text="The first bytes of the answer.")
    response_truncated = Flag()
    total_seconds = Seconds()


class DeliveriesEndpoint(ApiEndpoint):
    """The requests that a task has sent, the newest first."""

    reads = ("task", "deliveryattempt")
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": list_of(DeliveryAnswer)}
    parameters: ClassVar = {"GET": PAGE_PARAMETERS}

    def get(self, request: Request, task_id: uuid.UUID) -> Response:
        """Return the requests of an HTTP callback or of a notification, with their answers."""
        tenant_id = self.caller.tenant.pk
        task_of(tenant_id, task_id)
        after = cursor_of(request, tenant_id, DeliveryAttempt)
        rows = DeliveryAttempt.objects.using(tables.database())
        page = page_of(rows.filter(task_id=task_id, tenant_id=tenant_id), after, limit_of(request))
        return listed(request, tenant_id, page, _shown)


def _shown(row: DeliveryAttempt) -> dict[str, Any]:
    return {**shown_by(DeliveryAnswer, row), "reason": text_for_tenants(row.reason)}


# ``/operations``: the progress of operations on many tasks.


_STATES = {
    Status.RUNNING: "RUNNING",
    Status.SUCCESS: "DONE",
    Status.FAILED: "FAILED",
    Status.CANCELLED: "CANCELLED",
}


class OperationAnswer(Body):
    """An operation on many tasks. Its task can be cancelled, and replayed to continue it."""

    operation_id = Id(source="pk")
    kind = OneOf(choices=[kind.value for kind in BulkKind])
    state = OneOf(choices=["PENDING", *_STATES.values()], source="pk")
    filters = JsonObject()
    task_id = Id()
    matched = Integer(help_text="Matching tasks so far.")
    changed = Integer()
    failed = Integer()
    errors = serializers.ListField(child=AnyJson())  # type: ignore[assignment]
    created_at = Instant()
    completed_at = Instant(allow_null=True)


def operations_of(tenant_id: int) -> BulkOperationQuerySet:
    """Return the bulk operations of one tenant, with their tasks."""
    found: BulkOperationQuerySet = BulkOperation.objects.using(conf.settings().DATABASE)
    return found.for_tenant(tenant_id).select_related("task")


def operation_address(key: uuid.UUID) -> str:
    """Return the path of an operation."""
    return address_of("operation", operation_id=key)


def operation_json(row: BulkOperation) -> dict[str, Any]:
    """Return an operation as JSON values; its state is that of its task."""
    return shown_by(OperationAnswer, row) | {"state": _state(row)}


def _state(row: BulkOperation) -> str:
    if row.completed_at is not None:
        return "DONE"
    return _STATES.get(Status(row.task.status), "PENDING")


class OperationsEndpoint(ApiEndpoint):
    """The operations of the tenant of the last 30 days."""

    reads = ("bulkoperation",)
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": list_of(OperationAnswer)}
    parameters: ClassVar = {"GET": PAGE_PARAMETERS}

    def get(self, request: Request) -> Response:
        """Return the operations, the newest first."""
        tenant_id = self.caller.tenant.pk
        after = cursor_of(request, tenant_id, BulkOperation)
        page = page_of(operations_of(tenant_id), after, limit_of(request))
        return listed(request, tenant_id, page, operation_json)


class OperationProgressEndpoint(ApiEndpoint):
    """One operation."""

    reads = ("bulkoperation",)
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": OperationAnswer}

    def get(self, request: Request, operation_id: uuid.UUID) -> Response:
        """Return the operation and its progress."""
        row = operations_of(self.caller.tenant.pk).filter(pk=operation_id).first()
        if row is None:
            raise Problem(problems.NOT_FOUND, "There is no operation with this id.")
        return Response(operation_json(row))


# ``/tasks/bulk``, ``/tasks/bulk-cancel`` and ``/tasks/bulk-replay``: operations on many tasks.


_ITEMS_MAX = 1_000
_SAMPLE = 5
_EXPLAINED = 20
"""How many refused items have all of their unknown fields named, with hints."""


class _Item(JsonObject):
    """A body of POST /tasks, which is validated alone, so that a wrong one refuses no other."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the value."""
        return data


class BulkCreateBody(Body):
    """Tasks to create. The result of each item has the index of the item."""

    items = BoundedList(
        child=_Item(),
        max_length=_ITEMS_MAX,
        allow_empty=False,
        help_text="Up to 1,000 bodies of POST /tasks.",
    )
    atomic = Flag(default=False, help_text="true: if one item is refused, no task is created.")


class BulkCreateAnswer(Body):
    """The result of each item, in the order of the request."""

    created = Integer()
    refused = Integer()
    data = serializers.ListField(child=AnyJson())  # type: ignore[assignment]


class BulkCreateEndpoint(WritingEndpoint):
    """Many tasks at once."""

    reads = ("task",)
    permissions: ClassVar = {"POST": ("add_task",)}
    scopes: ClassVar = {"POST": ApiScope.CREATE}
    bodies: ClassVar = {"POST": BulkCreateBody}
    answers: ClassVar = {"POST": BulkCreateAnswer}

    def post(self, request: Request) -> Response:
        """Create up to 1,000 tasks; an item that is refused does not affect the others."""
        body = self.body(request)
        items = body.get("items")
        self.charge_items(len(items) if isinstance(items, list) else 0)
        given = BulkCreateBody.valid(body)
        return self.write(request, lambda: self._created(given["items"], given["atomic"]))

    def _created(self, items: list[Any], atomic: bool) -> Answer:
        before, results = created_so_far(), dict[int, dict[str, Any]]()
        together: dict[int, NewTask] = {}
        explained, is_full = 0, False
        for index, item in enumerate(items):
            try:
                call, given = self._call(item, briefly=explained >= _EXPLAINED)
                task = new_task(call)
                if enqueue.needs_own_insert(call, task):
                    results[index] = self._created_alone(
                        call, given, charged=not atomic, is_full=is_full
                    )
                else:
                    together[index] = task
            except (Problem, DurableTasksError, serializers.ValidationError) as error:
                results[index] = _refused(index, problem_of(error))
                explained += 1
                # The open tasks are not counted again for each further item.
                is_full = is_full or isinstance(error, QuotaExceeded)
        if not atomic:
            admitted = charge_some_open_tasks(self.caller.tenant, len(together))
            for index in list(together)[admitted:]:
                del together[index]
                results[index] = _refused(
                    index, problem_of(quota_of_open_tasks(self.caller.tenant))
                )
        enqueue.insert_many(list(together.values()))
        results |= {index: _made(task.id) for index, task in together.items()}
        refused = [results[index] for index in sorted(results) if "problem" in results[index]]
        if atomic and refused:
            parts = [part for one in refused for part in one["problem"]["errors"]]
            raise Problem(
                problems.INVALID,
                f"{len(refused)} of {len(items)} items are refused, and no task is created.",
                more={"errors": parts[:_ITEMS_MAX]},
            )
        new = len(together) + created_so_far() - before
        if atomic:
            charge_open_tasks(self.caller.tenant, new)
        data = [results[index] for index in range(len(items))]
        self._record([one["task_id"] for one in data if one["status"] == 201])
        return Answer(200, {"created": new, "refused": len(refused), "data": data})

    def _record(self, ids: list[str]) -> None:
        """Write the audit entry of the new tasks."""
        tenant_id = self.caller.tenant.pk
        with recorded("task.create_many") as entry:
            entry.several("task", [(key, tenant_id) for key in ids], {}, {"created": len(ids)})

    def _call(self, item: Any, *, briefly: bool) -> tuple[Call, Mapping[str, Any]]:
        given: Mapping[str, Any] = NewTaskBody.valid(item, briefly=briefly)
        return new_call(given, self.caller), given

    def _created_alone(
        self, call: Call, given: Mapping[str, Any], *, charged: bool, is_full: bool
    ) -> dict[str, Any]:
        before = created_so_far()
        with tables.atomic():
            key = enqueue.submit(call)
            is_new = created_so_far() > before
            if is_new and is_full:
                raise quota_of_open_tasks(self.caller.tenant)
            if is_new and charged:
                charge_open_tasks(self.caller.tenant, 1)
            if not is_new:
                check_existing(given, key, self)
        return _made(key, 201 if is_new else 200)


def _made(task_id: Any, status: int = 201) -> dict[str, Any]:
    return {"status": status, "task_id": str(task_id)}


def _refused(index: int, problem: Problem) -> dict[str, Any]:
    """Return the result of a refused item; its places begin with the place of the item."""
    parts = problem.parts or (InvalidPart("#", problem.detail),)
    errors = [
        {**part.as_json(), part.place: f"#/items/{index}{part.name.removeprefix('#')}"}
        for part in parts
    ]
    content = {"code": problem.kind.code, "detail": problem.detail, "errors": errors}
    return {"status": problem.kind.status, "problem": content}


class BulkFilterBody(Body):
    """Which tasks, as in the list of tasks, and why."""

    queue = Text(required=False, max_length=KEY_LENGTH)
    name = Text(required=False, max_length=KEY_LENGTH)
    created_from = Instant(required=False, help_text="Created at or after this time.")
    created_to = Instant(required=False, help_text="Created before this time.")
    reason = Text(required=False, allow_blank=True, max_length=500)


class BulkCancelBody(BulkFilterBody):
    """Which open tasks to cancel; without a filter all."""

    status = OneOf(choices=sorted(OPEN), required=False)


class BulkReplayBody(BulkFilterBody):
    """Which ended tasks to replay; without a status the FAILED ones."""

    status = OneOf(choices=sorted(REPLAYABLE), default=Status.FAILED.value)


class _BulkOperationEndpoint(WritingEndpoint):
    """Starts an operation on all tasks that match a filter."""

    reads = ("task", "bulkoperation")
    kind: ClassVar[BulkKind]
    starts_operation = True
    scopes: ClassVar = {"POST": ApiScope.OPERATE}
    answers: ClassVar = {"POST": OperationAnswer}

    def post(self, request: Request) -> Response:
        """Start the operation; its address in ``Location`` shows the progress."""
        given = self.bodies["POST"].valid(self.body(request))
        which = TaskFilter(
            status=Status(given["status"]) if "status" in given else None,
            queue=given.get("queue"),
            name=given.get("name"),
            since=given.get("created_from"),
            before=given.get("created_to"),
        )
        caller = self.caller

        def act() -> Answer:
            with acting(by=caller.name, reason=given.get("reason", "")):
                row = bulk_operations.start(caller.tenant, self.kind, which)
            if self.kind is BulkKind.REPLAY:
                # A cancellation frees the quota, so that it must not be refused by it.
                charge_open_tasks(caller.tenant, 1)
            shown = operation_json(row) | (
                self._sample(which, row.until_id) if self.dry_run else {}
            )
            return Answer(202, shown, {"Location": operation_address(row.pk)})

        return self.write(request, act)

    def _sample(self, which: TaskFilter, until: uuid.UUID) -> dict[str, Any]:
        """Return some of the matching tasks, for a dry run."""
        filters = {
            "status": which.status,
            "status__in": sorted(OPEN) if which.status is None else None,
            "queue": which.queue,
            "name": which.name,
            "pk__gte": which.first_id,
            "pk__lt": until,
        }
        given = {name: value for name, value in filters.items() if value is not None}
        page = page_of_tasks(self.caller.tenant.pk, given, None, _SAMPLE)
        return {"sample": [str(row.pk) for row in page.rows]}


class BulkCancelEndpoint(_BulkOperationEndpoint):
    """Cancels all open tasks that match a filter."""

    permissions: ClassVar = {"POST": (operator_actions.cancel.permission,)}
    kind = BulkKind.CANCEL
    bodies: ClassVar = {"POST": BulkCancelBody}


class BulkReplayEndpoint(_BulkOperationEndpoint):
    """Replays all ended tasks that match a filter."""

    permissions: ClassVar = {"POST": (operator_actions.replay.permission,)}
    kind = BulkKind.REPLAY
    bodies: ClassVar = {"POST": BulkReplayBody}
