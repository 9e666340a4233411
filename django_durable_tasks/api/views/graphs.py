"""Graphs of tasks as JSON and SVG, and the dependencies of a task."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

from django.http import HttpResponse
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.endpoint import ApiEndpoint
from django_durable_tasks.api.fields import Body, JsonObject
from django_durable_tasks.api.operation_calls import body_of, perform
from django_durable_tasks.api.problems import INVALID, Problem, invalid_field, invalid_parameter
from django_durable_tasks.api.views.object_operations import refused
from django_durable_tasks.api.views.tasks import task_of
from django_durable_tasks.api.views.workflows import workflow_of
from django_durable_tasks.api.writes import Answer, WritingEndpoint
from django_durable_tasks.diagrams import Diagram, draw
from django_durable_tasks.engine.workflows import graph_data
from django_durable_tasks.models import Task
from django_durable_tasks.operations import dependencies
from django_durable_tasks.operations.operation import Operation
from django_durable_tasks.rules.tenants.api_keys import ApiScope

NEAR = 1_000
_SVG = "image/svg+xml"
AddBody = body_of("AddDependencyBody", dependencies.ADD)


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
        "POST": (dependencies.ADD.permission,),
        "DELETE": (dependencies.REMOVE.permission,),
    }
    scopes: ClassVar = {
        "GET": ApiScope.READ,
        "POST": ApiScope.OPERATE,
        "DELETE": ApiScope.OPERATE,
    }
    parameters: ClassVar = {"DELETE": frozenset({"upstream", "reason"})}
    bodies: ClassVar = {"POST": AddBody}
    operations: ClassVar = (dependencies.ADD, dependencies.REMOVE)
    answers: ClassVar = dict.fromkeys(("GET", "POST", "DELETE"), GraphAnswer)

    def get(self, request: Request, task_id: uuid.UUID) -> Response:
        """Return the tasks connected with this one, at most 1,000, the nearest first."""
        return Response(_json(_of_task(self.caller, task_id)))

    def post(self, request: Request, task_id: uuid.UUID) -> Response:
        """Let the task, which has not started, wait for another one."""
        valid = AddBody.valid(self.body(request))
        return self._changed(request, task_id, valid, dependencies.ADD)

    def delete(self, request: Request, task_id: uuid.UUID) -> Response:
        """Let the task no longer wait for the task ``upstream``."""
        try:
            upstream = uuid.UUID(request.query_params.get("upstream", ""))
        except ValueError:
            raise invalid_parameter("upstream", "is required: the id of a task") from None
        given = {"upstream": upstream, "reason": request.query_params.get("reason", "")[:500]}
        return self._changed(request, task_id, given, dependencies.REMOVE)

    def _changed(
        self, request: Request, task_id: uuid.UUID, values: Mapping[str, Any], operation: Operation
    ) -> Response:
        tenant_id, caller = self.caller.tenant.pk, self.caller

        def act() -> Answer:
            row = task_of(tenant_id, task_id)
            given = {**values, "upstream": self._upstream(request, values)}
            done = perform(operation, row, caller, given)
            if not done.changed and operation is dependencies.REMOVE:
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
