"""``/workflows`` and graphs of tasks."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from django.http import HttpResponse
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
    Id,
    Instant,
    Integer,
    JsonObject,
    OneOf,
    Seconds,
    Text,
)
from django_durable_tasks.api.lists import (
    PAGE_PARAMETERS,
    cursor_of,
    entity_tag,
    limit_of,
    listed,
    page_of,
    shown_by,
    tagged,
)
from django_durable_tasks.api.openapi import list_of
from django_durable_tasks.api.problems import INVALID, Problem, invalid_field, invalid_parameter
from django_durable_tasks.api.tasks import call_of, check_queue, future, not_past, refuse_masks
from django_durable_tasks.api.views.object_operations import ObjectAction, Resource, refused
from django_durable_tasks.api.views.tasks import task_of
from django_durable_tasks.api.writes import Answer, WritingEndpoint, body_of, perform
from django_durable_tasks.audit import recorded
from django_durable_tasks.choices import OnUpstreamFailure, TargetType, WorkflowStatus
from django_durable_tasks.dependencies.joins import needed_of
from django_durable_tasks.dependencies.references import MARK
from django_durable_tasks.diagrams import Diagram, draw
from django_durable_tasks.did_you_mean import did_you_mean
from django_durable_tasks.exceptions import DependencyCycle, DurableTasksError
from django_durable_tasks.models import Task, WorkflowRun
from django_durable_tasks.models.workflows import WorkflowRunQuerySet
from django_durable_tasks.operations.operation import Operation, OperationResult
from django_durable_tasks.registry import Registered
from django_durable_tasks.tasks.options import ATTEMPTS_MAX, CallOptions, call_options
from django_durable_tasks.tenants.quotas import charge_open_tasks, check_payload
from django_durable_tasks.tenants.values import ApiScope
from django_durable_tasks.workflows import Workflow, graph_data
from django_durable_tasks.workflows import operations as graph_operations
from django_durable_tasks.workflows.builder import Step

# Builds workflows from the bodies of requests.
#
# ``{"$result": "extract"}`` in the arguments of a step is the result of the earlier step
# ``extract``, and ``{"$result": "extract", "path": ["rows", 0]}`` a part of it.


STEPS_MAX = 1_000
_OPTIONS = ("queue", "priority", "max_attempts", "timeout")


class StepBody(Body):
    """One task of a workflow."""

    step = Text(max_length=KEY_LENGTH, help_text="Unique within the workflow.")
    target_type = OneOf(
        choices=[kind.value for kind in TargetType], default=TargetType.CELERY_TASK.value
    )
    target_config = JsonObject(
        help_text=f'An argument {{"{MARK}": "step"}} is the result of an earlier step.'
    )
    after = AnyJson(
        required=False,
        help_text="Steps that must end before: a list of names, or an object of names and"
        " MUST_SUCCEED, MUST_FINISH or MUST_FAIL.",
    )
    join = AnyJson(required=False, help_text="ALL (default), ANY, or how many of them.")
    on_upstream_failure = OneOf(
        choices=[policy.value for policy in OnUpstreamFailure],
        default=OnUpstreamFailure.SKIP.value,
    )
    queue = Text(required=False, max_length=KEY_LENGTH)
    priority = Integer(required=False, min_value=0, max_value=9)
    max_attempts = Integer(required=False, min_value=1, max_value=ATTEMPTS_MAX)
    timeout = Seconds(required=False, min_value=0.001)


class NewWorkflowBody(Body):
    """A workflow to start."""

    name = Text(max_length=KEY_LENGTH, help_text="Of A-Z a-z 0-9 _ . : / < > -")
    key = Text(
        required=False,
        max_length=KEY_LENGTH,
        help_text="If an open workflow has this key, the answer is that one.",
    )
    run_at = Instant(required=False, validators=[not_past], help_text="The earliest start.")
    deadline = Instant(
        required=False,
        validators=[future],
        help_text="Tasks that have not ended then are cancelled.",
    )
    priority = Integer(required=False, min_value=0, max_value=9)
    steps = BoundedList(child=StepBody(), max_length=STEPS_MAX, allow_empty=False)


class _TaskWithOptions(NamedTuple):
    """A registered task with the options of a step, as ``task.using(...)`` returns."""

    registered: Registered
    options: CallOptions


def items_of(body: Mapping[str, Any]) -> int:
    """Return for how many items a body that was not validated counts: its steps, and its edges, of
    which 100 cost as much as a step.
    """
    steps = body.get("steps")
    known = steps if isinstance(steps, list) else []
    after = [one.get("after") for one in known if isinstance(one, dict)]
    return len(known) + sum(len(one) for one in after if isinstance(one, list | dict)) // 100


def workflow_from(given: Mapping[str, Any], caller: Caller) -> Workflow:
    """Return the workflow of a validated body; raises Problem or DurableTasksError."""
    flow = Workflow(given["name"], deadline=given.get("deadline"))
    steps = dict[str, Step]()
    for index, one in enumerate(given["steps"]):
        pointer = f"#/steps/{index}"
        if one["step"] in steps:
            raise invalid_field(f"{pointer}/step", "is the name of another step", "duplicate")
        try:
            steps[one["step"]] = _added(flow, one, steps, caller, pointer)
        except DurableTasksError as refused:
            raise invalid_field(pointer, str(refused)) from None
    for index, one in enumerate(given["steps"]):
        _connect(steps, one, f"#/steps/{index}/after")
    return flow


def _added(
    flow: Workflow,
    given: Mapping[str, Any],
    steps: Mapping[str, Step],
    caller: Caller,
    pointer: str,
) -> Step:
    place = f"{pointer}/target_config"
    check_payload(caller.tenant, given["target_config"])
    config = _resolved(given["target_config"], steps, place)
    refuse_masks(config, place)
    target = call_of(given["target_type"], config, caller.tenant, pointer)
    check_queue(given, caller.tenant, pointer)
    options = {name: given[name] for name in _OPTIONS if name in given}
    return flow.add_call(
        _TaskWithOptions(target.registered, call_options(CallOptions(), options)),
        target.args,
        target.kwargs,
        join=given.get("join", "ALL"),
        on_upstream_failure=given["on_upstream_failure"],
        step=given["step"],
    )


def _resolved(value: Any, steps: Mapping[str, Step], pointer: str) -> Any:
    """Return arguments in which references to steps are the results of these steps."""
    if isinstance(value, dict):
        if MARK in value:
            return _reference(value, steps, pointer)
        return {name: _resolved(item, steps, pointer) for name, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, steps, pointer) for item in value]
    return value


def _reference(value: Mapping[str, Any], steps: Mapping[str, Step], pointer: str) -> Any:
    name, path = value[MARK], value.get("path", [])
    known = isinstance(name, str) and name in steps
    parts = isinstance(path, list) and all(type(part) in (str, int) for part in path)
    if not known or not parts or set(value) - {MARK, "path"}:
        raise invalid_field(
            pointer,
            f'contains a wrong reference: write {{"{MARK}": "step"}} with the name of an earlier'
            ' step, and "path" for a part of its result',
            "reference",
        )
    found = steps[name].result
    for part in path:
        found = found[part]
    return found


def _connect(steps: Mapping[str, Step], given: Mapping[str, Any], pointer: str) -> None:
    after = given.get("after", [])
    if not isinstance(after, list | dict) or not all(isinstance(name, str) for name in after):
        raise invalid_field(pointer, "is neither a list nor an object of names of steps", "type")
    for name in after:
        if name not in steps:
            hint = did_you_mean(name, list(steps))
            raise invalid_field(pointer, f"{name[:100]!r} is no step. {hint}".strip(), "unknown")
    try:
        needed_of(given.get("join", "ALL"), len(after))
    except DurableTasksError as refused:
        raise invalid_field(f"{pointer.removesuffix('after')}join", str(refused)) from None
    kinds = after if isinstance(after, dict) else dict.fromkeys(after, "MUST_SUCCEED")
    try:
        steps[given["step"]].after({steps[name]: kind for name, kind in kinds.items()})
    except DependencyCycle as refused:
        raise invalid_field(pointer, str(refused), "cycle") from None
    except DurableTasksError as refused:
        raise invalid_field(pointer, str(refused)) from None


# ``/workflows``: list, read, cancel and replay workflow runs, and their graphs.


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
    report = done.value
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
        path="cancel",
        scope=ApiScope.OPERATE,
        operations=(graph_operations.cancel_workflow,),
        result=_changes,
    ),
    ObjectAction(
        path="replay",
        scope=ApiScope.OPERATE,
        operations=(graph_operations.retry_workflow,),
        result=_changes,
    ),
)


# Graphs of tasks as JSON and SVG, and the dependencies of a task.


NEAR = 1_000
_SVG = "image/svg+xml"
AddBody = body_of("AddDependencyBody", graph_operations.add_edge)


class GraphAnswer(Body):
    """Tasks and the dependencies between them."""

    nodes = serializers.ListField(child=JsonObject())
    edges = serializers.ListField(child=JsonObject())


def _of_task(caller: Caller, key: uuid.UUID) -> Diagram:
    return graph_data.around(task_of(caller.tenant.pk, key), NEAR)


def _of_workflow(caller: Caller, key: uuid.UUID) -> Diagram:
    return graph_data.of_run(workflow_of(caller, key))


def _json(diagram: Diagram) -> Any:
    return json.loads(draw(diagram, "json"))


def _image(diagram: Diagram) -> HttpResponse:
    return HttpResponse(draw(diagram, "svg"), content_type=_SVG)


class WorkflowGraphEndpoint(ApiEndpoint):
    """The tasks and dependencies of a workflow run."""

    reads = ("workflowrun", "task")
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": GraphAnswer}

    def get(self, request: Request, workflow_id: uuid.UUID) -> Response:
        """Return the graph as JSON."""
        return Response(_json(_of_workflow(self.caller, workflow_id)))


class WorkflowImageEndpoint(ApiEndpoint):
    """The graph of a workflow run as SVG."""

    reads = ("workflowrun", "task")
    scopes: ClassVar = {"GET": ApiScope.READ}
    media_types = (_SVG, "image/*")

    def get(self, request: Request, workflow_id: uuid.UUID) -> HttpResponse:
        """Return the drawing."""
        return _image(_of_workflow(self.caller, workflow_id))


class DependenciesEndpoint(WritingEndpoint):
    """The dependencies of a task."""

    reads = ("task",)
    permissions: ClassVar = {
        "POST": (graph_operations.add_edge.permission,),
        "DELETE": (graph_operations.remove_edge.permission,),
    }
    scopes: ClassVar = {
        "GET": ApiScope.READ,
        "POST": ApiScope.OPERATE,
        "DELETE": ApiScope.OPERATE,
    }
    parameters: ClassVar = {"DELETE": frozenset({"upstream", "reason"})}
    bodies: ClassVar = {"POST": AddBody}
    operations: ClassVar = (graph_operations.add_edge, graph_operations.remove_edge)
    answers: ClassVar = dict.fromkeys(("GET", "POST", "DELETE"), GraphAnswer)

    def get(self, request: Request, task_id: uuid.UUID) -> Response:
        """Return the tasks connected with this one, at most 1,000, the nearest first."""
        return Response(_json(_of_task(self.caller, task_id)))

    def post(self, request: Request, task_id: uuid.UUID) -> Response:
        """Let the task, which has not started, wait for another one."""
        valid = AddBody.valid(self.body(request))
        return self._changed(request, task_id, valid, graph_operations.add_edge)

    def delete(self, request: Request, task_id: uuid.UUID) -> Response:
        """Let the task no longer wait for the task ``upstream``."""
        try:
            upstream = uuid.UUID(request.query_params.get("upstream", ""))
        except ValueError:
            raise invalid_parameter("upstream", "is required: the id of a task") from None
        given = {"upstream": upstream, "reason": request.query_params.get("reason", "")[:500]}
        return self._changed(request, task_id, given, graph_operations.remove_edge)

    def _changed(
        self, request: Request, task_id: uuid.UUID, values: Mapping[str, Any], operation: Operation
    ) -> Response:
        tenant_id, caller = self.caller.tenant.pk, self.caller

        def act() -> Answer:
            row = task_of(tenant_id, task_id)
            given = {**values, "upstream": self._upstream(request, values)}
            done = perform(operation, row, caller, given)
            if not done.changed and operation is graph_operations.remove_edge:
                raise refused(row)
            return Answer(200, _json(_of_task(caller, task_id)))

        return self.write(request, act)

    def _upstream(self, request: Request, given: Any) -> Task:
        try:
            return task_of(self.caller.tenant.pk, given["upstream"])
        except Problem:
            reason = ("is the id of no task", "unknown_task")
            if request.method == "DELETE":
                raise invalid_parameter("upstream", *reason, INVALID) from None
            raise invalid_field("#/upstream", *reason) from None


class DependenciesImageEndpoint(ApiEndpoint):
    """The tasks connected with a task as SVG."""

    reads = ("task",)
    scopes: ClassVar = {"GET": ApiScope.READ}
    media_types = (_SVG, "image/*")

    def get(self, request: Request, task_id: uuid.UUID) -> HttpResponse:
        """Return the drawing."""
        return _image(_of_task(self.caller, task_id))
