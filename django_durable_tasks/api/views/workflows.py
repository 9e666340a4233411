"""``/workflows``: list, read, cancel and replay workflow runs, and their graphs."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks import conf
from django_durable_tasks.api import problems
from django_durable_tasks.api.addresses import address_of
from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.endpoint import ApiEndpoint
from django_durable_tasks.api.fields import Body, Id, Instant, Integer, OneOf, Text
from django_durable_tasks.api.lists import PAGE_PARAMETERS, cursor_of, limit_of, listed, page_of
from django_durable_tasks.api.new_workflows import NewWorkflowBody, items_of
from django_durable_tasks.api.new_workflows import workflow_of as workflow_from
from django_durable_tasks.api.objects import entity_tag, shown_by, tagged
from django_durable_tasks.api.openapi import list_of
from django_durable_tasks.api.problems import Problem
from django_durable_tasks.api.views.object_operations import ObjectAction, Resource
from django_durable_tasks.api.writes import Answer, WritingEndpoint
from django_durable_tasks.engine.audit.recorder import recorded
from django_durable_tasks.engine.tenants.quotas import charge_open_tasks
from django_durable_tasks.models import WorkflowRun
from django_durable_tasks.models.workflow_run import WorkflowRunQuerySet
from django_durable_tasks.operations import workflows
from django_durable_tasks.operations.operation import OperationResult
from django_durable_tasks.rules.tenants.api_keys import ApiScope
from django_durable_tasks.rules.workflows.plan import WorkflowStatus
from django_durable_tasks.workflows import Workflow


class WorkflowAnswer(Body):
    """A workflow run. The numbers are those of endings that the leader has counted."""

    workflow_id = Id(source="pk")
    name = Text()
    status = OneOf(choices=[status.value for status in WorkflowStatus])
    reason = Text(allow_blank=True)
    key = Text(allow_null=True)
    parent_id = Id(source="parent", allow_null=True)
    recurring_task_id = Id(source="recurring_task", allow_null=True)
    total = Integer()
    succeeded = Integer()
    failed = Integer()
    cancelled = Integer()
    skipped = Integer()
    expired = Integer()
    deadline_at = Instant(allow_null=True)
    cancel_requested_at = Instant(allow_null=True)
    created_at = Instant()
    completed_at = Instant(allow_null=True)


def runs_of(tenant_id: int) -> WorkflowRunQuerySet:
    """Return the workflow runs of one tenant."""
    found: WorkflowRunQuerySet = WorkflowRun.objects.using(conf.settings().DATABASE)
    return found.for_tenant(tenant_id)


def workflow_of(caller: Caller, key: uuid.UUID) -> WorkflowRun:
    """Return a workflow run of the caller's tenant; raises Problem."""
    row = runs_of(caller.tenant.pk).filter(pk=key).first()
    if row is None:
        raise Problem(problems.NOT_FOUND, "There is no workflow with this id.")
    return row


def workflow_json(row: WorkflowRun, _caller: Caller) -> dict[str, Any]:
    """Return a workflow run as JSON values."""
    return shown_by(WorkflowAnswer, row)


def _version(row: WorkflowRun) -> int:
    return int(row.updated_at.timestamp() * 1_000_000)


class WorkflowsEndpoint(WritingEndpoint):
    """The workflow runs of the tenant."""

    reads = ("workflowrun",)
    permissions: ClassVar = {"POST": ("add_workflowrun",)}
    scopes: ClassVar = {"GET": ApiScope.READ, "POST": ApiScope.CREATE}
    bodies: ClassVar = {"POST": NewWorkflowBody}
    answers: ClassVar = {"GET": list_of(WorkflowAnswer), "POST": WorkflowAnswer}
    creates = True
    parameters: ClassVar = {"GET": PAGE_PARAMETERS}

    def get(self, request: Request) -> Response:
        """Return the workflow runs, the newest first."""
        tenant_id = self.caller.tenant.pk
        after = cursor_of(request, tenant_id, WorkflowRun)
        page = page_of(runs_of(tenant_id), after, limit_of(request))
        return listed(request, tenant_id, page, lambda row: workflow_json(row, self.caller))

    def post(self, request: Request) -> Response:
        """Start a workflow, or return the open one with the same key."""
        body = self.body(request)
        self.charge_items(items_of(body))
        given: Mapping[str, Any] = NewWorkflowBody.valid(body)
        flow = workflow_from(given, self.caller)
        return self.write(request, lambda: self._started(given, flow))

    def _started(self, given: Mapping[str, Any], flow: Workflow) -> Answer:
        tenant, key = self.caller.tenant, given.get("key")
        before = key and runs_of(tenant.pk).filter(open_key=key).exists()
        with recorded("workflow.start") as entry:
            run = flow.start(
                run_at=given.get("run_at"), key=key, tenant=tenant, priority=given.get("priority")
            )
            if not before:
                entry.subject("workflow", run.pk, tenant.pk)
                entry.detail(name=run.name, key=key, total=run.total)
        if not before:
            charge_open_tasks(tenant, run.total)
        shown = workflow_json(run, self.caller)
        address = address_of("workflow", workflow_id=run.pk)
        headers = {"Location": address, "ETag": entity_tag(_version(run), shown)}
        return Answer(200 if before else 201, shown, headers)


class WorkflowEndpoint(ApiEndpoint):
    """One workflow run."""

    reads = ("workflowrun",)
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": WorkflowAnswer}

    def get(self, request: Request, workflow_id: uuid.UUID) -> Response:
        """Return the workflow run."""
        row = workflow_of(self.caller, workflow_id)
        return tagged(request, _version(row), workflow_json(row, self.caller))


def _changes(done: OperationResult) -> dict[str, Any]:
    report = done.report
    if report is None:
        return {}
    return {
        "changed_tasks": len(report.changes),
        "stop_requested": len(report.stop_requested),
    }


RESOURCE = Resource(
    name="workflow",
    reads="workflowrun",
    find=workflow_of,
    show=workflow_json,
    answer=WorkflowAnswer,
    version=_version,
)
ACTIONS = (
    ObjectAction(
        path="cancel", scope=ApiScope.OPERATE, operations=(workflows.CANCEL,), result=_changes
    ),
    ObjectAction(
        path="replay",
        scope=ApiScope.OPERATE,
        operations=(workflows.REPLAY,),
        result=_changes,
    ),
)
