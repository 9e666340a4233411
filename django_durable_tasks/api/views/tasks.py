"""``/tasks``: create, list, read and edit tasks; their attempts."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.api import problems
from django_durable_tasks.api.addresses import address_of
from django_durable_tasks.api.argument_edits import edited_arguments
from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.endpoint import ApiEndpoint
from django_durable_tasks.api.json_body import rendered
from django_durable_tasks.api.lists import PAGE_PARAMETERS, cursor_of, limit_of, listed, page_of
from django_durable_tasks.api.new_tasks import check_existing, check_queue, new_call
from django_durable_tasks.api.objects import entity_tag, require_version, tagged
from django_durable_tasks.api.openapi import list_of
from django_durable_tasks.api.operation_calls import perform
from django_durable_tasks.api.problems import Problem
from django_durable_tasks.api.task_fields import (
    ExecutionAnswer,
    NewTaskBody,
    TaskAnswer,
    TaskEditBody,
    execution_json,
    included_of,
    task_json,
    without_columns,
)
from django_durable_tasks.api.task_lists import PARAMETERS, filters_of, page_of_tasks, tasks_of
from django_durable_tasks.api.views.object_operations import Resource, refused
from django_durable_tasks.api.writes import LIMITS, Answer, WritingEndpoint
from django_durable_tasks.engine.audit.recorder import recorded
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.publish_on_commit import created_so_far
from django_durable_tasks.engine.tasks import enqueue
from django_durable_tasks.engine.tasks.new_task import Call
from django_durable_tasks.engine.tenants.answered_tasks import create_with_answer
from django_durable_tasks.engine.tenants.idempotent_requests import RequestIdentity
from django_durable_tasks.engine.tenants.quotas import charge_open_tasks
from django_durable_tasks.models import Task, TaskExecutionLog
from django_durable_tasks.operations.tasks import EDIT
from django_durable_tasks.rules.tenants.api_keys import ApiScope


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
    permissions: ClassVar = {"PATCH": (EDIT.permission,)}
    scopes: ClassVar = {"GET": ApiScope.READ, "PATCH": ApiScope.OPERATE}
    bodies: ClassVar = {"PATCH": TaskEditBody}
    operations: ClassVar = (EDIT,)
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
            done = perform(EDIT, tasks_of(tenant_id).filter(pk=task_id), self.caller, changes)
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
