"""``/workflows`` and graphs of tasks."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.audit import recorded
from django_durable_tasks.choices import OnUpstreamFailure, TargetType
from django_durable_tasks.contrib.api import fields, tasks, views
from django_durable_tasks.contrib.api.access import ApiScope
from django_durable_tasks.contrib.api.authentication import Caller
from django_durable_tasks.contrib.api.idempotent_requests import StoredAnswer
from django_durable_tasks.contrib.api.problems import invalid_field, problem_in
from django_durable_tasks.contrib.api.quotas import charge_open_tasks
from django_durable_tasks.contrib.api.serializers import Answer, Body
from django_durable_tasks.contrib.api.targets import target_of
from django_durable_tasks.dependencies.rules import MARK, needed_of
from django_durable_tasks.exceptions import DependencyCycle, DurableTasksError
from django_durable_tasks.models import WorkflowRun
from django_durable_tasks.operations import OperationResult, Target
from django_durable_tasks.registry import Registered
from django_durable_tasks.tasks.options import COUNTS, CallOptions, call_options
from django_durable_tasks.texts import did_you_mean
from django_durable_tasks.workflows import Workflow, diagrams
from django_durable_tasks.workflows.builder import Step

# Builds workflows from the bodies of requests.
#
# ``{"$result": "extract"}`` in the arguments of a step is the result of the earlier step
# ``extract``, and ``{"$result": "extract", "path": ["rows", 0]}`` a part of it.


# Steps of a workflow in one request, which is one transaction.
_STEPS_MAX = 1_000
# Dependencies of these steps together: ten a step. 39,000 of them took 1.2 s of processor time, and
# each answer with the graph 2.3 s.
_DEPENDENCIES_MAX = 10_000


class StepBody(tasks.TaskOptions):
    """One task of a workflow."""

    step = fields.Key(help_text="Unique within the workflow.")
    target_type = fields.OneOf(choices=TargetType, default=TargetType.CELERY_TASK.value)
    target_config = fields.JsonObject(
        help_text=f'An argument {{"{MARK}": "step"}} is the result of an earlier step.'
    )
    after = fields.AnyJson(
        required=False,
        help_text="Steps that must end before: a list of names, or an object of names and"
        " MUST_SUCCEED, MUST_FINISH or MUST_FAIL. All steps together: at most"
        f" {_DEPENDENCIES_MAX:,}.",
    )
    join = fields.AnyJson(required=False, help_text="ALL (default), ANY, or how many of them.")
    on_upstream_failure = fields.OneOf(
        choices=OnUpstreamFailure,
        default=OnUpstreamFailure.SKIP.value,
    )

    class Meta(tasks.TaskOptions.Meta):
        options = tuple(
            name
            for name in tasks.TaskOptions.Meta.options
            if name not in {"run_at", "expires_at", "key", "idempotency_key", "depends_on"}
            and name not in tasks.TaskOptions.Meta.hidden
        )


class NewWorkflowBody(Body):
    """A workflow to start."""

    name = fields.Key(help_text="Of A-Z a-z 0-9 _ . : / < > -")
    key = fields.Key(
        required=False,
        help_text="If an open workflow has this key, the answer is that one.",
    )
    run_at = fields.Instant(
        required=False, validators=[fields.not_past], help_text="The earliest start."
    )
    deadline = fields.Instant(
        required=False,
        validators=[fields.future],
        help_text="Tasks that have not ended then are cancelled.",
    )
    priority = fields.Integer(
        required=False, min_value=COUNTS["priority"][0], max_value=COUNTS["priority"][1]
    )
    steps = fields.Items(child=StepBody(), max_length=_STEPS_MAX, allow_empty=False)


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
    after = [step.get("after") for step in known if isinstance(step, dict)]
    edges = sum(len(names) for names in after if isinstance(names, list | dict))
    return len(known) + edges // 100


def workflow_from(data: Mapping[str, Any], caller: Caller) -> Workflow:
    """Return the workflow of a validated body; raises Problem or DurableTasksError."""
    flow = Workflow(data["name"], deadline=data.get("deadline"))
    steps, total = dict[str, Step](), 0
    for index, step_data in enumerate(data["steps"]):
        after = step_data.get("after", [])
        total += len(after) if isinstance(after, list | dict) else 0
        if total > _DEPENDENCIES_MAX:
            raise invalid_field(
                f"#/steps/{index}/after",
                f"is one of more than {_DEPENDENCIES_MAX:,} dependencies of the workflow: let steps"
                " with the same upstreams wait for one step in between, or start several workflows",
                "too_many",
            )
    for index, step_data in enumerate(data["steps"]):
        pointer = f"#/steps/{index}"
        if step_data["step"] in steps:
            raise invalid_field(f"{pointer}/step", "is the name of another step", "duplicate")
        try:
            target = target_of(
                step_data, caller, pointer, lambda config, place: _resolved(config, steps, place)
            )
            options = {name: step_data[name] for name in StepBody.Meta.options if name in step_data}
            steps[step_data["step"]] = flow.add_call(
                _TaskWithOptions(target.task, call_options(CallOptions(), options)),
                target.args,
                target.kwargs,
                join=step_data.get("join", "ALL"),
                on_upstream_failure=step_data["on_upstream_failure"],
                step=step_data["step"],
                # The client chooses who receives a callback or a message.
                hides_secrets=step_data["target_type"] != TargetType.CELERY_TASK
                and not caller.reads_secrets,
            )
        except DurableTasksError as refused:
            raise problem_in(pointer, refused) from None
    for index, step_data in enumerate(data["steps"]):
        place = f"#/steps/{index}/after"
        after = step_data.get("after", [])
        if not isinstance(after, list | dict) or not all(isinstance(name, str) for name in after):
            raise invalid_field(place, "is neither a list nor an object of names of steps", "type")
        for name in after:
            if name not in steps:
                hint = did_you_mean(name, list(steps))
                raise invalid_field(place, f"{name[:100]!r} is no step. {hint}".strip(), "unknown")
        try:
            needed_of(step_data.get("join", "ALL"), len(after))
        except DurableTasksError as refused:
            raise invalid_field(f"{place.removesuffix('after')}join", str(refused)) from None
        kinds = after if isinstance(after, dict) else dict.fromkeys(after, "MUST_SUCCEED")
        try:
            steps[step_data["step"]].after({steps[name]: kind for name, kind in kinds.items()})
        except DependencyCycle as refused:
            raise invalid_field(place, str(refused), "cycle") from None
        except DurableTasksError as refused:
            raise invalid_field(place, str(refused)) from None
    return flow


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
    is_path = isinstance(path, list) and all(type(key) in (str, int) for key in path)
    if not known or not is_path or set(value) - {MARK, "path"}:
        raise invalid_field(
            pointer,
            f'contains a wrong reference: write {{"{MARK}": "step"}} with the name of an earlier'
            ' step, and "path" for a part of its result',
            "reference",
        )
    result = steps[name].result
    for key in path:
        result = result[key]
    return result


class WorkflowAnswer(Answer):
    """A workflow run. The numbers are those of endings that the leader has counted."""

    workflow_id = fields.Id(source="pk")
    parent_id = fields.Id(source="parent", allow_null=True)
    recurring_task_id = fields.Id(source="recurring_task", allow_null=True)

    class Meta:
        model = WorkflowRun
        hidden = (
            *("parent", "root", "recurring_task", "fire_time"),
            *("callbacks", "updated_at", "sealed_at"),
        )


class WorkflowViewSet(views.OperationsMixin, views.ReadMixin):
    """The workflow runs of the tenant, the newest first."""

    singular, noun = "Workflow", "workflow"
    answer = WorkflowAnswer
    targets = (Target.WORKFLOW,)

    def version_of(self, row: WorkflowRun) -> int:
        """Return the time of the last change in microseconds."""
        return int(row.updated_at.timestamp() * 1_000_000)

    @views.endpoint(scope=ApiScope.CREATE, body=NewWorkflowBody)
    def create(self, request: Request) -> Response:
        """Start a workflow, or return the open one with the same key."""
        self.charge_items(items_of(self.body()))
        data = self.valid()
        flow = workflow_from(data, self.caller)
        return self.write(lambda: self._started(data, flow))

    def _started(self, data: Mapping[str, Any], flow: Workflow) -> StoredAnswer:
        tenant, key = self.caller.tenant, data.get("key")
        before = key and self.rows().filter(open_key=key).exists()
        with recorded("workflow.start") as entry:
            try:
                run = flow.start(
                    run_at=data.get("run_at"),
                    key=key,
                    tenant=tenant,
                    priority=data.get("priority"),
                )
            except DurableTasksError as refused:
                names = [step["step"] for step in data["steps"]]
                if refused.step not in names:
                    raise
                pointer = f"#/steps/{names.index(refused.step)}"
                raise problem_in(pointer, refused) from None
            if not before:
                entry.subject("workflow", run.pk, tenant.pk)
                entry.detail(name=run.name, key=key, total=run.total)
        if not before:
            charge_open_tasks(tenant, run.total)
        location = views.address_of("workflow-detail", workflow_id=run.pk)
        return self.changed(run, 200 if before else 201, Location=location)

    def result(self, done: OperationResult) -> dict[str, Any]:
        """Return the numbers of changed tasks."""
        report = done.value
        changed, stopping = len(report.changes), len(report.stop_requested)
        return {"changed_tasks": changed, "stop_requested": stopping}

    @views.endpoint("graph", reads=("workflowrun", "task"), answer=tasks.GraphAnswer)
    def graph(self, request: Request, workflow_id: uuid.UUID) -> Response:
        """Return the tasks and dependencies of a workflow run as JSON."""
        return Response(tasks.graph_json(diagrams.of_run(self.find())))

    @views.endpoint(
        "graph.svg",
        reads=("workflowrun", "task"),
        media_types=tasks.IMAGES,
    )
    def image(self, request: Request, workflow_id: uuid.UUID) -> HttpResponse:
        """Return the drawing of a workflow run."""
        return tasks.graph_image(diagrams.of_run(self.find()))
