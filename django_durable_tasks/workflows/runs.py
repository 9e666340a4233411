"""Workflow runs: started from a plan, extended by tasks and followups, ended by counts, cancelled
after their deadline.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from django.db import Error, IntegrityError, connections
from django.db.models import F, Q

from django_durable_tasks import conf, registry
from django_durable_tasks.choices import DEADLINE, OPEN, DependencyType, Status, WorkflowStatus
from django_durable_tasks.dependencies import edges, edit, resolve
from django_durable_tasks.dependencies.edges import (
    request_cancel_runs,
    sub_workflows_of,
    workflow_runs,
)
from django_durable_tasks.dependencies.rules import NewEdge, PlannedEdge, layers, needed, written
from django_durable_tasks.exceptions import (
    DurableTasksError,
    TransitionRefused,
    UniqueConflict,
    UnknownTask,
    WorkflowTooLarge,
)
from django_durable_tasks.masking import shortened
from django_durable_tasks.models import DEFAULT_TENANT_ID, Task, WorkflowRun
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.models.workflows import COUNTS
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.registry import Registered
from django_durable_tasks.states import dependencies, endings, inserts, runs
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.errors import Isolation, is_outage, retry_on_deadlock
from django_durable_tasks.store.tables import FAST_PATH_MAX, publish_after_commit
from django_durable_tasks.task_values import NewTask, Run, new_task_id, new_task_ids
from django_durable_tasks.tasks import attempts, enqueue
from django_durable_tasks.tasks.enqueue import Call, TaskTemplate, step_template, traced_together
from django_durable_tasks.tasks.options import CallOptions, Schedule
from django_durable_tasks.texts import counted
from django_durable_tasks.workflows import builder
from django_durable_tasks.workflows.builder import AddedTasks, Builder, FollowUp, Plan, PlannedTask

# Converts a validated plan to unsaved rows with ids: tasks, edges and runs. Writes nothing.


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
    above = builder.above(plan.tasks)
    # Ids sort by creation time, but not within a millisecond. They are assigned by layer, so that
    # lists show upstreams first.
    ids = dict[int, uuid.UUID]()
    for layer in layers(above):
        ids.update(zip(layer, new_task_ids(len(layer)), strict=True))
    sizes = Counter(task.scope for task in plan.tasks)
    new_runs: list[WorkflowRun] = []
    for place, scope in enumerate(plan.scopes):
        if scope.parent is None and inside is not None:
            new_runs.append(inside)
            continue
        for name in scope.callbacks.values():
            registry.get(name).check(["the id of the run"], {})
        run_id = new_task_id()
        deadline = scope.deadline if isinstance(scope.deadline, datetime) else None
        if isinstance(scope.deadline, float):
            deadline = (launch.run_at or now) + timedelta(seconds=scope.deadline)
        outermost = scope.parent is None
        new_runs.append(
            WorkflowRun(
                id=run_id,
                tenant_id=launch.tenant_id,
                name=scope.name,
                released=sealed,
                status=WorkflowStatus.RUNNING if sealed else WorkflowStatus.STARTING,
                key=launch.key if outermost else None,
                open_key=launch.key if outermost else None,
                parent=None if scope.parent is None else new_runs[scope.parent].pk,
                root=new_runs[0].root if new_runs else run_id,
                recurring_task=launch.recurring_task,
                fire_time=launch.fire_time,
                deadline_at=deadline,
                callbacks=dict(scope.callbacks),
                total=sizes[place],
                sealed_at=now if sealed else None,
            )
        )
    drafted = WorkflowDraft(plan, ids, new_runs, [], [], [], set())
    # Tasks beyond FAST_PATH_MAX cannot be published at once, so they are created as PENDING. The
    # other first tasks are released when everything is written.
    steps = _Steps(launch, now)
    upstream_places = {place for places in above.values() for place in places}
    for place, task in enumerate(plan.tasks):
        gates = [
            NewEdge(ids[place], gate=gate, comment=comment[:500]) for gate, comment in task.gates
        ]
        upstreams = []
        for edge in task.edges:
            upstream = edge.upstream
            if isinstance(upstream, uuid.UUID):
                drafted.outside.add(upstream)
            else:
                upstream = ids[upstream]
            new_edge = NewEdge(ids[place], upstream, edge.kind, on_upstream_failure=edge.policy)
            upstreams.append(new_edge)
        unresolved = needed(task.needed, edges.tally_of([*gates, *upstreams]))
        free = not unresolved and sealed and len(drafted.roots) >= FAST_PATH_MAX
        try:
            checked = steps.new_task(task, drafted, place)
        except DurableTasksError as refused:
            refused.step = task.step
            raise
        new = checked._replace(
            status=Status.PENDING if free else Status.BLOCKED,
            unresolved=unresolved,
            join_count=task.needed,
            has_dependents=place in upstream_places,
        )
        drafted.edges += [*gates, *upstreams]
        drafted.rows.append(new)
        if not unresolved and not free:
            drafted.roots.append(ids[place])
    drafted.rows[:] = traced_together(drafted.rows, plan.scopes[0].name)
    return drafted


class _Steps:
    """Builds the tasks of a start. Steps of one durable task with the same options share a
    template, because building it takes longer than building a task.
    """

    def __init__(self, launch: StartOptions, now: datetime) -> None:
        self._launch, self._now = launch, now
        self._last: dict[
            tuple[str, str, bool, bool], tuple[CallOptions, Registered, TaskTemplate]
        ] = {}

    def new_task(self, task: PlannedTask, drafted: WorkflowDraft, place: int) -> NewTask:
        """Return the task of a step; raises DurableTasksError."""
        registered, template = self._template(task)
        task_id = drafted.ids[place]
        if task.refers:
            args, kwargs = written(list(task.args), drafted.ids), written(task.kwargs, drafted.ids)
            registered.check(args, kwargs)
            if registered.types is not None:
                converted, kwargs = registered.types.to_json(task.task, args, kwargs, refers=True)
                args = list(converted)
            new = template.task(args, kwargs, kwargs, task_id)
        else:
            new = template.called(task.args, task.kwargs, task_id)
        return new._replace(workflow_id=drafted.runs[task.scope].pk, step=task.step[:200])

    def _template(self, task: PlannedTask) -> tuple[Registered, TaskTemplate]:
        key = (task.task, task.on_upstream_failure, task.refers, task.hides_secrets)
        planned_options = task.options
        last = self._last.get(key)
        # Headers that are equal may be different JSON: 1, 1.0 and true.
        if (
            last is None
            or last[0].headers is not planned_options.headers
            or last[0] != planned_options
        ):
            options = replace(
                planned_options,
                task_id=None,
                tenant=self._launch.tenant_id,
                run_at=planned_options.run_at or self._launch.run_at or self._now,
                priority=self._launch.priority
                if planned_options.priority is None
                else planned_options.priority,
                on_upstream_failure=task.on_upstream_failure,
            )
            registered = registry.get(task.task)
            template = step_template(
                registered, options, refers=task.refers, hides_secrets=task.hides_secrets
            )
            last = self._last[key] = (planned_options, registered, template)
        return last[1], last[2]


# Starts workflows: in one transaction, or in batches if the workflow is large. A start is complete
# or has no effect.
#
# A large start writes its tasks in transactions of BATCH rows, with the runs in status STARTING
# and every task BLOCKED, so that no task is released or counted. One guarded UPDATE then seals it.
# Tasks without upstreams are released in batches by the starter or, if its process died, by the
# leader. An abandoned start is fenced first (``cancel_requested_at``), so that its starter writes
# nothing more, and then deleted in batches. Inside a caller's transaction every start is a part of
# that transaction.


logger = logging.getLogger("django_durable_tasks.workflows")
Progress = Callable[[int, int], object]
"""Called after each batch with the number of rows (tasks and edges) written and their total."""

LARGE = 10_000
"""A start with more tasks than this is written in batches."""
_EDGES_PER_TASK = 5
"""A workflow may have this many edges for each of WORKFLOW_MAX_TASKS: a join over all tasks of a
stage needs one edge for each of them, and a stage seldom has more than a few joins.
"""
BATCH = 2_000
"""Rows per transaction of a large start."""
ABANDONED_AFTER = 600.0
"""After this many seconds without progress, by the database clock, the leader deletes a start."""
TAKEN_OVER_AFTER = 60.0
"""After this many seconds without progress, another start with the same key may replace a start."""


def planned(workflow: Builder) -> Plan:
    """Return the validated graph of a workflow. Raises an error if it exceeds the limits of the
    settings.
    """
    most = conf.settings().WORKFLOW_MAX_TASKS
    return workflow.plan(most_tasks=most, most_edges=_EDGES_PER_TASK * most)


def start(plan: Plan, launch: StartOptions, progress: Progress | None = None) -> WorkflowRun:
    """Create a workflow, release its first tasks and return its run.

    If an open run of the same tenant and key exists, it is returned instead, also if it is still
    STARTING. If that start made no progress for TAKEN_OVER_AFTER seconds, it is abandoned and
    replaced. Raises an error of this package before anything is written, UniqueConflict if a task's
    key is in use, and TransitionRefused if another process abandoned a large start while it was
    written.
    """
    connection = connections[tables.database()]
    large = (
        len(plan.tasks) > LARGE and connection.get_autocommit() and not connection.in_atomic_block
    )
    now = database_now()
    before = _of_key(launch)
    if before is not None:
        idle_since = now - timedelta(seconds=TAKEN_OVER_AFTER)
        if before.status != WorkflowStatus.STARTING or not give_up(before.pk, idle_since):
            return before
    drafted = draft(plan, launch, now, sealed=not large)
    try:
        if large:
            _start_in_batches(drafted, progress)
        else:
            with tables.atomic():
                workflow_runs().bulk_create(drafted.runs)
                write(drafted)
                publish_after_commit(release_without_upstreams(drafted.roots))
    except IntegrityError as taken:
        if connection.needs_rollback:
            raise UniqueConflict(
                f"The workflow {plan.scopes[0].name!r} takes a key that is in use."
            ) from taken
        before = _of_key(launch)
        if before is None:
            raise UniqueConflict(_taken_key(plan, launch)) from taken
        return before
    return drafted.runs[0]


def _taken_key(plan: Plan, launch: StartOptions) -> str:
    """Return which step has a key that another task or another step has."""
    text = f"The workflow {plan.scopes[0].name!r} takes a key that is in use"
    rows = tables.tasks().filter(tenant_id=launch.tenant_id)
    for option, column in (("key", "open_key"), ("idempotency_key", "idempotency_key")):
        steps = dict[str, str]()
        for task in plan.tasks:
            key = getattr(task.options, option)
            if key and steps.setdefault(key, task.step) != task.step:
                return f"{text}: steps {steps[key]!r} and {task.step!r} have {option}={key!r}."
        owners = tables.with_texts(rows, column, sorted(steps)).values_list("pk", column)
        for task_id, key in owners[:1]:
            return (
                f"{text}: {option}={key!r} of step {steps[key]!r} belongs to task {task_id}."
                " Give the step another key, or none, and the workflow one by .start(key=...)."
            )
    return f"{text}."


def _of_key(launch: StartOptions) -> WorkflowRun | None:
    if launch.key is None:
        return None
    return workflow_runs().filter(tenant_id=launch.tenant_id, open_key=launch.key).first()


def write(drafted: WorkflowDraft) -> None:
    """Insert the tasks and edges.

    Upstreams outside the plan are locked first. If they have ended, their ending is resolved again.
    """
    within, across = _split_edges(drafted)
    outside = dependencies.lock_rows(sorted(drafted.outside)) if across else {}
    _check_outside(drafted, across, outside)
    inserts.create_many(drafted.rows)
    edges.insert_edges(within)
    if across:
        edit.insert_edges(across, outside)


def _split_edges(drafted: WorkflowDraft) -> tuple[list[NewEdge], list[NewEdge]]:
    """Return the edges within the plan, gates included, and those to tasks that exist already."""
    within, across = list[NewEdge](), list[NewEdge]()
    for edge in drafted.edges:
        (across if edge.depends_on_id in drafted.outside else within).append(edge)
    return within, across


def _check_outside(
    drafted: WorkflowDraft, across: Sequence[NewEdge], outside: dict[uuid.UUID, Task]
) -> None:
    planned = [PlannedEdge(upstream=edge.upstream_id) for edge in across]
    edit.check_upstreams(planned, outside, drafted.runs[0].tenant_id)


def release_without_upstreams(roots: Sequence[uuid.UUID]) -> list[TaskMessage]:
    """Release BLOCKED tasks without upstreams; return the messages of those that may be published
    at once.
    """
    batch, messages = conf.settings().BATCH_SIZE, []
    for first in range(0, len(roots), batch):
        rows = dependencies.lock_rows(roots[first : first + batch])
        messages += resolve.release([row for row in rows.values() if row.status == Status.BLOCKED])
    return messages


# Large starts -------------------------------------------------------------------------------------


def _start_in_batches(drafted: WorkflowDraft, progress: Progress | None) -> None:
    root = drafted.runs[0]
    within, across = _split_edges(drafted)
    _check_outside(
        drafted, across, tables.tasks().in_bulk(sorted(drafted.outside)) if across else {}
    )
    workflow_runs().bulk_create(drafted.runs)
    total = len(drafted.rows) + len(drafted.edges)

    def write_in_batches(rows: Sequence[Any], insert: Callable[[Any], object], before: int) -> None:
        for first in range(0, len(rows), BATCH):
            with tables.atomic():
                _lock_start(root.pk)
                insert(rows[first : first + BATCH])
            done = before + min(first + BATCH, len(rows))
            logger.info(
                "Starting workflow %s (%s): %d of %d tasks created.",
                root.name,
                root.pk,
                done,
                total,
            )
            if progress is not None:
                progress(done, total)

    try:
        write_in_batches(drafted.rows, inserts.create_many, 0)
        write_in_batches(within, edges.insert_edges, len(drafted.rows))
        with tables.atomic():
            _lock_start(root.pk)
            if across:
                outside = dependencies.lock_rows(sorted(drafted.outside))
                _check_outside(drafted, across, outside)
                edit.insert_edges(across, outside)
            workflow_runs().filter(root=root.pk, status=WorkflowStatus.STARTING).update(
                status=WorkflowStatus.RUNNING,
                sealed_at=tables.NOW,
                updated_at=tables.NOW,
                released=False,
            )
    except BaseException:
        # If this cleanup fails too, the leader deletes the rest.
        with suppress(Error):
            if give_up(root.pk):
                while remove_given_up(root.pk, BATCH):
                    pass
        raise
    root.refresh_from_db(using=tables.database())
    for first in range(0, len(drafted.roots), BATCH):
        _release(root.pk, tables.tasks().filter(pk__in=drafted.roots[first : first + BATCH]))
    while release_roots(root.pk, BATCH):
        pass
    root.released = True


def _lock_start(root: uuid.UUID) -> None:
    """Record progress and lock the run, so that no other process can abandon the start.

    Raises TransitionRefused if the start was abandoned.
    """
    starting = workflow_runs().starting().filter(pk=root, cancel_requested_at__isnull=True)
    if not starting.update(updated_at=tables.NOW):
        raise TransitionRefused(
            f"The start of workflow {root} was given up while it was written: it was cancelled, or"
            f" made no progress for {TAKEN_OVER_AFTER:g} s while another start needed its key."
            " Its tasks are deleted; start it again."
        )


def release_roots(root: uuid.UUID, limit: int) -> int:
    """Release at most ``limit`` tasks of a sealed start that have no unresolved dependencies;
    return how many.

    Returns 0 when it is done.
    """
    free = _tasks_of(root).filter(status=Status.BLOCKED, unresolved_dependencies_count=0)
    number = _release(root, free.order_by("pk")[:limit])
    if not number:
        workflow_runs().filter(root=root, released=False).update(released=True)
    return number


def _release(root: uuid.UUID, tasks: TaskQuerySet) -> int:
    with tables.atomic():
        # With the run locked, a requested cancellation prevents any further release.
        sealed = workflow_runs().filter(
            pk=root, status=WorkflowStatus.RUNNING, released=False, cancel_requested_at__isnull=True
        )
        if sealed.select_for_update().first() is None:
            return 0
        ids = list(tasks.values_list("pk", flat=True))
        publish_after_commit(release_without_upstreams(ids))
    return len(ids)


def _tasks_of(root: uuid.UUID) -> TaskQuerySet:
    run_ids = list(workflow_runs().filter(root=root).values_list("pk", flat=True))
    return tables.tasks().filter(workflow__in=run_ids)


# Abandoned starts ---------------------------------------------------------------------------------


def give_up(root: uuid.UUID, idle_since: datetime | None = None) -> bool:
    """Fence the starter of a run that is not sealed, and free its key.

    Return False if it was sealed, or made progress since ``idle_since``.
    """
    this = workflow_runs().starting().filter(pk=root)
    if idle_since is not None:
        this = this.filter(Q(updated_at__lt=idle_since) | Q(cancel_requested_at__isnull=False))
    return bool(this.update(cancel_requested_at=tables.NOW, open_key=None, reason="ABANDONED"))


def remove_given_up(root: uuid.UUID, limit: int) -> int:
    """Delete at most ``limit`` tasks of an abandoned start with their edges and, when no task is
    left, its runs.

    Return how many tasks were deleted; 0 when nothing is left.
    """
    with tables.atomic():
        given_up = workflow_runs().starting().filter(pk=root, cancel_requested_at__isnull=False)
        if given_up.select_for_update().first() is None:
            return 0
        deleted = list(_tasks_of(root).order_by().values_list("pk", flat=True)[:limit])
        edges.edges().above(deleted).delete()
        tables.tasks().filter(pk__in=deleted).delete()
        if not deleted:
            workflow_runs().filter(root=root).delete()
            logger.warning("The start of workflow %s was abandoned; its tasks were deleted.", root)
    return len(deleted)


_starts = Isolation[uuid.UUID]("start of workflow")


def finish_starts(now: datetime, limit: int) -> int:
    """Process one batch of the starts that their process left: release sealed ones, delete
    abandoned ones.

    A start is abandoned if it was cancelled or made no progress for ABANDONED_AFTER seconds.
    Returns the number of tasks; call it until that is 0.
    """
    idle_since = now - timedelta(seconds=ABANDONED_AFTER)
    outermost = workflow_runs().filter(parent__isnull=True, completed_at__isnull=True)

    def release(root: uuid.UUID) -> int:
        return release_roots(root, limit)

    def remove(root: uuid.UUID) -> int:
        return remove_given_up(root, limit) if give_up(root, idle_since) else 0

    sealed = outermost.filter(status=WorkflowStatus.RUNNING, released=False).order_by("pk")
    number = sum(_starts.each(list(sealed.values_list("pk", flat=True)), release))
    over = Q(updated_at__lt=idle_since) | Q(cancel_requested_at__isnull=False)
    abandoned = outermost.starting().filter(over).order_by("pk")
    return number + sum(_starts.each(list(abandoned.values_list("pk", flat=True)), remove))


# Extends workflow runs by the tasks that a task function adds, and counts endings until a run
# ends.
#
# Called by the followups below and the maintenance job ``count_endings``.


# Growth -------------------------------------------------------------------------------------------


def hold(run: Run, plan: Plan, *, grows: bool) -> None:
    """Lock everything that an extension or a start changes before the task itself is locked.

    The lock order is that of the whole engine: the tenant (for edges between existing tasks), the
    run, then tasks in primary-key order. Raises DependencyCycle if a dependent of the task is
    upstream of an added task.
    """
    outside = {
        edge.upstream
        for task in plan.tasks
        for edge in task.edges
        if isinstance(edge.upstream, uuid.UUID)
    }
    below: set[uuid.UUID] = set()
    if grows:
        if outside:
            edit.lock_tenant(run.tenant_id)
        _locked_run(run)
        below = set(edges.edges().below([run.task_id]).unresolved().values_list("task", flat=True))
    if below or outside:
        dependencies.lock_rows([*({run.task_id} | below | outside)], even_running=True)
    if below and outside:
        edit.check_circle(below, outside)


def _locked_run(run: Run) -> WorkflowRun | None:
    """Lock and return the workflow run of this task, or None."""
    if run.workflow_id is None:
        return None
    return workflow_runs().filter(pk=run.workflow_id).select_for_update().first()


def add_tasks(run: Run, plan: Plan) -> None:
    """Add the tasks that a task function returned to its run, in the transaction of its success.

    Dependents of the task also wait for the last of the new tasks. A run that is being cancelled is
    not extended. Raises WorkflowTooLarge.
    """
    inside = _locked_run(run)
    if (
        inside is None
        or inside.status != WorkflowStatus.RUNNING
        or inside.cancel_requested_at is not None
    ):
        logger.warning(
            "The workflow of task %s can no longer be extended; %s not added.",
            run.task_id,
            counted(len(plan.tasks), "task was", "tasks were"),
        )
        return
    limit = conf.settings().WORKFLOW_MAX_TASKS
    existing = sum(workflow_runs().filter(root=inside.root).values_list("total", flat=True))
    if existing + len(plan.tasks) > limit:
        raise WorkflowTooLarge(
            f"The workflow {inside.name!r} has {existing:,} tasks; with {len(plan.tasks):,} more it"
            f" would have more than {limit:,} (DURABLE_TASKS['WORKFLOW_MAX_TASKS'])."
        )
    launch = StartOptions(
        tenant_id=run.tenant_id, recurring_task=inside.recurring_task, fire_time=inside.fire_time
    )
    drafted = draft(plan, launch, database_now(), inside)
    added = Counter(task.scope for task in plan.tasks)[0]
    workflow_runs().filter(pk=inside.pk).update(total=F("total") + added, updated_at=tables.NOW)
    workflow_runs().bulk_create(drafted.runs[1:])
    write(drafted)
    _block_dependents(run.task_id, drafted)
    publish_after_commit(release_without_upstreams(drafted.roots))


def _block_dependents(task_id: uuid.UUID, drafted: WorkflowDraft) -> None:
    """Insert edges from the last of the new tasks to the dependents of this task, with the same
    conditions.
    """
    upstreams = {edge.depends_on_id for edge in drafted.edges}
    last = [
        key
        for place, key in drafted.ids.items()
        if key not in upstreams and not drafted.plan.tasks[place].scope
    ]
    conditions = {
        edge.task_id: edge
        for edge in edges.edges().below([task_id]).unresolved()
        if edge.dependency_type != DependencyType.MUST_FAIL
    }
    below = list(conditions)
    rows = dependencies.lock_rows(below) if below else {}
    waiting = {key: row for key, row in rows.items() if row.status == Status.BLOCKED}
    edges.insert_edges(
        [
            NewEdge(
                task_id=key,
                depends_on_id=leaf,
                dependency_type=conditions[key].dependency_type,
                on_upstream_failure=conditions[key].on_upstream_failure,
            )
            for key in waiting
            for leaf in last
        ]
    )
    if waiting:
        dependencies.mark_upstreams(last)
        counted = edges.tallies(waiting)
        dependencies.set_needed(
            {key: needed(row.join_count, counted[key]) for key, row in waiting.items()}
        )


# Counting -----------------------------------------------------------------------------------------


_counted = Isolation[uuid.UUID | None]("workflow")


def count_endings(limit: int) -> int:
    """Count at most ``limit`` ending events into their runs and end the runs that are complete;
    return how many.

    A run that cannot be counted or ended is postponed; the others are processed.
    """
    uncounted = edges.endings().uncounted().exclude(workflow_id__in=_counted.postponed())
    events: dict[uuid.UUID | None, list[int]] = defaultdict(list)
    for event, run in uncounted.values_list("pk", "workflow_id")[:limit]:
        events[run].append(event)
    if not events:
        return 0
    counted = _counted.batch(
        lambda: _count_events(chain(*events.values())),
        lambda: list(events),
        lambda run: _count_events(events[run]),
    )
    return sum(counted)


@retry_on_deadlock
def _count_events(numbers: Iterable[int]) -> int:
    with tables.atomic():
        # Lock the runs before the events, so that a replay of a task is counted before the task's
        # next ending.
        counted = edges.endings().filter(pk__in=list(numbers))
        keys = {key for key in counted.values_list("workflow_id", flat=True) if key is not None}
        locked_runs = list(workflow_runs().filter(pk__in=keys).order_by("pk").select_for_update())
        events = list(counted.order_by("pk").select_for_update())
        changes: dict[uuid.UUID, Counter[str]] = defaultdict(Counter)
        for event in events:
            if event.workflow_id is not None:
                changes[event.workflow_id][COUNTS[event.status]] += event.delta
        for row in locked_runs:
            if row.pk in changes:
                _count(row, changes[row.pk])
        edges.endings().filter(pk__in=[event.pk for event in events]).delete()
    return len(events)


def _count(row: WorkflowRun, changes: Mapping[str, int]) -> None:
    """Write the counts of these endings to a locked run, and end it if it is complete.

    Raises UnknownTask if the run would end and this process has not registered one of its
    callbacks.
    """
    counts = {column: getattr(row, column) + changes.get(column, 0) for column in COUNTS.values()}
    new_status = WorkflowStatus(row.status)
    if new_status != WorkflowStatus.STARTING:
        cancelled = row.cancel_requested_at is not None
        new_status = builder.verdict(
            counts, row.total, cancelled=cancelled, overdue=cancelled and row.reason == DEADLINE
        )
    ended = new_status not in (WorkflowStatus.STARTING, WorkflowStatus.RUNNING)
    callbacks: dict[str, str] = {}
    if ended and new_status != row.status:
        ending = "on_success" if new_status == WorkflowStatus.SUCCESS else "on_failure"
        kinds = (ending, "on_complete")
        callbacks = {kind: row.callbacks[kind] for kind in kinds if kind in row.callbacks}
    unknown = next((name for name in callbacks.values() if registry.find(name) is None), None)
    if unknown is not None:
        raise UnknownTask(
            f"Workflow {row.name!r} cannot end: callback {unknown} is not registered here."
        )
    workflow_runs().filter(pk=row.pk).update(
        status=new_status,
        completed_at=(row.completed_at or tables.NOW) if ended else None,
        updated_at=tables.NOW,
        open_key=None if ended else row.open_key,
        **counts,
    )
    for kind, name in callbacks.items():
        # The idempotency key lets the task of a callback be created once.
        options = CallOptions(tenant=row.tenant_id, idempotency_key=f"workflow-{row.pk}-{kind}")
        try:
            with tables.atomic():
                enqueue.submit(Call(registry.get(name), (str(row.pk),), {}, options))
        except (Exception, SystemExit) as refused:
            if is_outage(refused):
                raise
            # The run ends anyway, with the error of its callback as the reason.
            logger.exception(
                "Could not create the callback %s=%s of workflow %s.", kind, name, row.pk
            )
            workflow_runs().filter(pk=row.pk).update(
                reason=shortened(f"{kind} was not called: {refused}", 200)
            )


# Cancels workflow runs whose deadline has passed, or that a newer run replaced.
#
# First, one UPDATE sets ``cancel_requested_at`` on the run and all runs inside it, so that none of
# them is extended any more. Then their open tasks are cancelled, or requested to stop, in batches.
# If the process dies in between, the next batch continues from the flag. The run itself ends when
# its endings are counted: as FAILED after its deadline, otherwise as CANCELLED. Called by the
# maintenance job ``end_late_workflows``.


_cancelled = Isolation[uuid.UUID]("workflow")


def cancel_late(now: datetime, limit: int) -> int:
    """Request the cancellation of at most ``limit`` runs whose deadline has passed; return how many
    runs were flagged.

    A run without open tasks is left alone, because it only has to be counted.
    """
    due_runs = list(
        workflow_runs()
        .late(now)
        .exclude(pk__in=_cancelled.postponed())
        .order_by("deadline_at")[:limit]
    )
    sub_workflows = sub_workflows_of(due_runs) if due_runs else {}
    late = [
        run.pk
        for run in due_runs
        if _open_in([run.pk, *(sub.pk for sub in sub_workflows[run.pk])]).exists()
    ]
    return sum(
        _cancelled.batch(
            lambda: request_cancel_runs(workflow_runs().filter(pk__in=late), DEADLINE),
            lambda: late,
            lambda key: request_cancel_runs(workflow_runs().filter(pk=key), DEADLINE),
        )
    )


def _open_in(run_ids: Iterable[uuid.UUID]) -> TaskQuerySet:
    return tables.tasks().filter(workflow__in=list(run_ids), status__in=OPEN)


def cancel_called_off(limit: int) -> int:
    """Cancel at most ``limit`` open tasks of flagged runs, or request RUNNING ones to stop; return
    how many.

    The oldest tasks come first. They are mostly upstreams, so this stops what would start next.
    Call it until it returns 0.
    """
    flagged = workflow_runs().filter(
        status=WorkflowStatus.RUNNING, completed_at__isnull=True, cancel_requested_at__isnull=False
    )
    reached, reasons = 0, dict(flagged.order_by("pk").values_list("pk", "reason"))

    requested = Q(status=Status.RUNNING, cancel_requested_at__isnull=False)

    def cancel(key: uuid.UUID) -> None:
        nonlocal reached
        if reached >= limit:
            return
        waiting = _open_in([key]).exclude(requested).order_by("pk").values_list("pk", flat=True)
        batch = list(waiting[: limit - reached])
        if batch:
            tasks, why = tables.tasks().filter(pk__in=batch), reasons[key]
            with tables.atomic():
                number = endings.cancel(tasks, why) + endings.request_cancel(tasks, why)
            reached += number

    _cancelled.each(reasons, cancel)
    return reached


# Creates the tasks and workflows that a task function returned, in the transaction that records
# its success.


@retry_on_deadlock
def succeed(run: Run, result: str | None, worker: str, followups: Sequence[FollowUp]) -> bool:
    """Record the success with its log row and its follow-up tasks, all or nothing; return False if
    it was fenced.
    """
    plans = [planned(followup) if isinstance(followup, Builder) else None for followup in followups]
    schedules = enqueue.planned_followups(
        (followup for followup in followups if isinstance(followup, Schedule)), run.tenant_id
    )
    with tables.atomic():
        for followup, plan in zip(followups, plans, strict=True):
            if plan is not None:
                hold(run, plan, grows=isinstance(followup, AddedTasks))
        accepted = runs.succeed(run, result, worker)
        if accepted:
            enqueue.create_followups(schedules)
            for followup, plan in zip(followups, plans, strict=True):
                if isinstance(followup, AddedTasks) and plan is not None:
                    add_tasks(run, plan)
                elif plan is not None:
                    # The workflow gets the recurring task, fire time and priority of the task.
                    names = ("recurring_task", "fire_time", "priority")
                    starter = tables.tasks().filter(pk=run.task_id).values(*names).get()
                    start(plan, StartOptions(tenant_id=run.tenant_id, **starter))
    return accepted or attempts.succeeded(run)
