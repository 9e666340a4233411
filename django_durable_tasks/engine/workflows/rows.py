"""Converts a validated plan to unsaved rows with ids: tasks, edges and runs. Writes nothing.

Called by ``start`` and ``runs``.
"""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django_durable_tasks import registry
from django_durable_tasks.engine.db.publish_on_commit import FAST_PATH_MAX
from django_durable_tasks.engine.dependencies import edges
from django_durable_tasks.engine.tasks.new_task import TaskTemplate, step_template
from django_durable_tasks.engine.tasks.traces import traced_together
from django_durable_tasks.models import DEFAULT_TENANT_ID, WorkflowRun
from django_durable_tasks.models.task_queries import new_task_id, new_task_ids
from django_durable_tasks.registry import Registered
from django_durable_tasks.rules.dependencies import NewEdge, layers, needed
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tasks.new_task import NewTask
from django_durable_tasks.rules.tasks.options import CallOptions
from django_durable_tasks.rules.workflows.plan import (
    Plan,
    PlannedEdge,
    PlannedTask,
    WorkflowStatus,
    written,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """The start time, key and tenant of a workflow, and the fire time that it belongs to."""

    run_at: datetime | None = None
    key: str | None = None
    tenant_id: int = DEFAULT_TENANT_ID
    priority: int | None = None
    recurring_task: uuid.UUID | None = None
    fire_time: datetime | None = None


@dataclass(slots=True)
class WorkflowDraft:
    """A plan with its ids and unsaved rows.

    ``roots`` are the tasks to release after the insert, ``outside`` the existing upstreams.
    """

    plan: Plan
    ids: dict[int, uuid.UUID]
    runs: list[WorkflowRun]
    rows: list[NewTask]
    edges: list[NewEdge]
    roots: list[uuid.UUID]
    outside: set[uuid.UUID]


def draft(
    plan: Plan,
    launch: StartOptions,
    now: datetime,
    inside: WorkflowRun | None = None,
    *,
    sealed: bool = True,
) -> WorkflowDraft:
    """Return the rows of a plan. Raises an error of this package for invalid tasks or arguments.

    With ``inside``, the tasks of scope 0 join that run and no run is created for it. If ``sealed``
    is False, the runs get the status STARTING, because the plan is written in several transactions.
    """
    above = {
        place: [edge.upstream for edge in task.edges if isinstance(edge.upstream, int)]
        for place, task in enumerate(plan.tasks)
    }
    # Ids sort by creation time, but not within a millisecond. They are assigned by layer, so that
    # lists show upstreams first.
    ids = dict[int, uuid.UUID]()
    for layer in layers(above):
        ids.update(zip(layer, new_task_ids(len(layer)), strict=True))
    found = WorkflowDraft(plan, ids, _runs_of(plan, launch, now, inside, sealed), [], [], [], set())
    # Tasks beyond FAST_PATH_MAX cannot be published at once, so they are created as PENDING. The
    # other first tasks are released when everything is written.
    steps = _Steps(launch, now)
    upstream_places = {place for places in above.values() for place in places}
    for place, task in enumerate(plan.tasks):
        gates = [
            NewEdge(ids[place], gate=gate, comment=comment[:500]) for gate, comment in task.gates
        ]
        upstreams = [_edge(edge, ids[place], found) for edge in task.edges]
        unresolved = needed(task.needed, edges.tally_of([*gates, *upstreams]))
        free = not unresolved and sealed and len(found.roots) >= FAST_PATH_MAX
        new = steps.new_task(task, found, place)._replace(
            status=Status.PENDING if free else Status.BLOCKED,
            unresolved=unresolved,
            join_count=task.needed,
            has_dependents=place in upstream_places,
        )
        found.edges += [*gates, *upstreams]
        found.rows.append(new)
        if not unresolved and not free:
            found.roots.append(ids[place])
    found.rows[:] = traced_together(found.rows, plan.scopes[0].name)
    return found


def _runs_of(
    plan: Plan, launch: StartOptions, now: datetime, inside: WorkflowRun | None, sealed: bool
) -> list[WorkflowRun]:
    sizes = Counter(task.scope for task in plan.tasks)
    found: list[WorkflowRun] = []
    for place, scope in enumerate(plan.scopes):
        if scope.parent is None and inside is not None:
            found.append(inside)
            continue
        for name in scope.callbacks.values():
            registry.get(name).check(["the id of the run"], {})
        run_id = new_task_id()
        deadline = scope.deadline if isinstance(scope.deadline, datetime) else None
        if isinstance(scope.deadline, float):
            deadline = (launch.run_at or now) + timedelta(seconds=scope.deadline)
        outermost = scope.parent is None
        found.append(
            WorkflowRun(
                id=run_id,
                tenant_id=launch.tenant_id,
                name=scope.name,
                released=sealed,
                status=WorkflowStatus.RUNNING if sealed else WorkflowStatus.STARTING,
                key=launch.key if outermost else None,
                open_key=launch.key if outermost else None,
                parent=None if scope.parent is None else found[scope.parent].pk,
                root=found[0].root if found else run_id,
                recurring_task=launch.recurring_task,
                fire_time=launch.fire_time,
                deadline_at=deadline,
                callbacks=dict(scope.callbacks),
                total=sizes[place],
                sealed_at=now if sealed else None,
            )
        )
    return found


class _Steps:
    """Builds the tasks of a start. Steps of one durable task with the same options share a
    template, because building it takes longer than building a task.
    """

    def __init__(self, launch: StartOptions, now: datetime) -> None:
        self._launch, self._now = launch, now
        self._last: dict[tuple[str, str, bool], tuple[CallOptions, Registered, TaskTemplate]] = {}

    def new_task(self, task: PlannedTask, found: WorkflowDraft, place: int) -> NewTask:
        """Return the task of a step; raises DurableTasksError."""
        known, template = self._template(task)
        task_id = found.ids[place]
        if task.refers:
            args, kwargs = written(list(task.args), found.ids), written(task.kwargs, found.ids)
            known.check(args, kwargs)
            new = template.task(args, kwargs, kwargs, task_id)
        else:
            new = template.called(task.args, task.kwargs, task_id)
        return new._replace(workflow_id=found.runs[task.scope].pk, step=task.step[:200])

    def _template(self, task: PlannedTask) -> tuple[Registered, TaskTemplate]:
        key, given = (task.task, task.on_upstream_failure, task.refers), task.options
        last = self._last.get(key)
        # Headers that are equal may be different JSON: 1, 1.0 and true.
        if last is None or last[0].headers is not given.headers or last[0] != given:
            known = registry.get(task.task)
            template = step_template(known, self._options(task), refers=task.refers)
            last = self._last[key] = (given, known, template)
        return last[1], last[2]

    def _options(self, task: PlannedTask) -> CallOptions:
        given = task.options
        return replace(
            given,
            task_id=None,
            tenant=self._launch.tenant_id,
            run_at=given.run_at or self._launch.run_at or self._now,
            priority=self._launch.priority if given.priority is None else given.priority,
            on_upstream_failure=task.on_upstream_failure,
        )


def _edge(edge: PlannedEdge, task_id: uuid.UUID, found: WorkflowDraft) -> NewEdge:
    if isinstance(edge.upstream, uuid.UUID):
        found.outside.add(edge.upstream)
        upstream = edge.upstream
    else:
        upstream = found.ids[edge.upstream]
    return NewEdge(task_id, upstream, edge.kind, on_upstream_failure=edge.policy)
