"""Starts workflows: the rows of a plan, in one transaction or in batches."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db import Error, IntegrityError, connections
from django.db.models import Q

from django_durable_tasks import conf, registry
from django_durable_tasks.choices import Status, WorkflowStatus
from django_durable_tasks.dependencies import edges, edit, resolve
from django_durable_tasks.dependencies.edges import workflow_runs
from django_durable_tasks.dependencies.joins import NewEdge, PlannedEdge, layers, needed
from django_durable_tasks.dependencies.references import written
from django_durable_tasks.exceptions import TransitionRefused, UniqueConflict
from django_durable_tasks.models import DEFAULT_TENANT_ID, Task, WorkflowRun
from django_durable_tasks.models.tasks import TaskQuerySet, new_task_id, new_task_ids
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.registry import Registered
from django_durable_tasks.states import dependencies, inserts
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.commit_hooks import FAST_PATH_MAX, publish_after_commit
from django_durable_tasks.store.errors import Isolation
from django_durable_tasks.task_values import NewTask, Run
from django_durable_tasks.tasks.new_task import TaskTemplate, step_template, traced_together
from django_durable_tasks.tasks.options import CallOptions
from django_durable_tasks.workflows.builder import Builder, Plan, PlannedTask

# Converts a validated plan to unsaved rows with ids: tasks, edges and runs. Writes nothing.
#
# Called by ``start`` and ``runs``.


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
    drafted = WorkflowDraft(
        plan, ids, _runs_of(plan, launch, now, inside, sealed), [], [], [], set()
    )
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
        new = steps.new_task(task, drafted, place)._replace(
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


def _runs_of(
    plan: Plan, launch: StartOptions, now: datetime, inside: WorkflowRun | None, sealed: bool
) -> list[WorkflowRun]:
    sizes = Counter(task.scope for task in plan.tasks)
    runs: list[WorkflowRun] = []
    for place, scope in enumerate(plan.scopes):
        if scope.parent is None and inside is not None:
            runs.append(inside)
            continue
        for name in scope.callbacks.values():
            registry.get(name).check(["the id of the run"], {})
        run_id = new_task_id()
        deadline = scope.deadline if isinstance(scope.deadline, datetime) else None
        if isinstance(scope.deadline, float):
            deadline = (launch.run_at or now) + timedelta(seconds=scope.deadline)
        outermost = scope.parent is None
        runs.append(
            WorkflowRun(
                id=run_id,
                tenant_id=launch.tenant_id,
                name=scope.name,
                released=sealed,
                status=WorkflowStatus.RUNNING if sealed else WorkflowStatus.STARTING,
                key=launch.key if outermost else None,
                open_key=launch.key if outermost else None,
                parent=None if scope.parent is None else runs[scope.parent].pk,
                root=runs[0].root if runs else run_id,
                recurring_task=launch.recurring_task,
                fire_time=launch.fire_time,
                deadline_at=deadline,
                callbacks=dict(scope.callbacks),
                total=sizes[place],
                sealed_at=now if sealed else None,
            )
        )
    return runs


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
        known, template = self._template(task)
        task_id = drafted.ids[place]
        if task.refers:
            args, kwargs = written(list(task.args), drafted.ids), written(task.kwargs, drafted.ids)
            known.check(args, kwargs)
            new = template.task(args, kwargs, kwargs, task_id)
        else:
            new = template.called(task.args, task.kwargs, task_id)
        return new._replace(workflow_id=drafted.runs[task.scope].pk, step=task.step[:200])

    def _template(self, task: PlannedTask) -> tuple[Registered, TaskTemplate]:
        key = (task.task, task.on_upstream_failure, task.refers, task.hides_secrets)
        given = task.options
        last = self._last.get(key)
        # Headers that are equal may be different JSON: 1, 1.0 and true.
        if last is None or last[0].headers is not given.headers or last[0] != given:
            options = replace(
                given,
                task_id=None,
                tenant=self._launch.tenant_id,
                run_at=given.run_at or self._launch.run_at or self._now,
                priority=self._launch.priority if given.priority is None else given.priority,
                on_upstream_failure=task.on_upstream_failure,
            )
            registered = registry.get(task.task)
            template = step_template(
                registered, options, refers=task.refers, hides_secrets=task.hides_secrets
            )
            last = self._last[key] = (given, registered, template)
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


def planned(builder: Builder) -> Plan:
    """Return the validated graph of a workflow. Raises an error if it exceeds the limits of the
    settings.
    """
    most = conf.settings().WORKFLOW_MAX_TASKS
    return builder.plan(most_tasks=most, most_edges=_EDGES_PER_TASK * most)


def start_after(run: Run, plan: Plan) -> WorkflowRun:
    """Start the workflow that a task function returned, in the transaction that records its
    success.

    The workflow gets the recurring task, fire time and priority of the task.
    """
    columns = ("recurring_task_id", "fire_time", "priority")
    starter = tables.tasks().filter(pk=run.task_id).values_list(*columns, named=True).get()
    launch = StartOptions(
        tenant_id=run.tenant_id,
        priority=starter.priority,
        recurring_task=starter.recurring_task_id,
        fire_time=starter.fire_time,
    )
    return start(plan, launch)


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
        before = None if connection.needs_rollback else _of_key(launch)
        if before is None:
            raise UniqueConflict(
                f"The workflow {plan.scopes[0].name!r} takes a key that is in use: {taken}"
            ) from taken
        return before
    return drafted.runs[0]


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
    wanted = [PlannedEdge(upstream=edge.upstream_id) for edge in across]
    edit.check_upstreams(wanted, outside, drafted.runs[0].tenant_id)


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
    try:
        _write_in_batches(drafted, within, progress)
        _seal(drafted, across)
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


def _write_in_batches(
    drafted: WorkflowDraft, within: Sequence[NewEdge], progress: Progress | None
) -> None:
    root, total, done = drafted.runs[0], len(drafted.rows) + len(drafted.edges), 0
    for first in range(0, len(drafted.rows), BATCH):
        with tables.atomic():
            _lock_start(root.pk)
            inserts.create_many(drafted.rows[first : first + BATCH])
        done = _report_progress(root, min(first + BATCH, len(drafted.rows)), total, progress)
    for first in range(0, len(within), BATCH):
        with tables.atomic():
            _lock_start(root.pk)
            edges.insert_edges(within[first : first + BATCH])
        _report_progress(root, done + min(first + BATCH, len(within)), total, progress)


def _report_progress(root: WorkflowRun, done: int, total: int, progress: Progress | None) -> int:
    logger.info(
        "Starting workflow %s (%s): %d of %d tasks created.", root.name, root.pk, done, total
    )
    if progress is not None:
        progress(done, total)
    return done


def _lock_start(root: uuid.UUID) -> None:
    """Record progress and lock the run, so that no other process can abandon the start.

    Raises TransitionRefused if the start was abandoned.
    """
    own = workflow_runs().starting().filter(pk=root, cancel_requested_at__isnull=True)
    if not own.update(updated_at=tables.NOW):
        raise TransitionRefused(
            f"The start of workflow {root} was given up while it was written: it was cancelled, or"
            f" made no progress for {TAKEN_OVER_AFTER:g} s while another start needed its key."
            " Its tasks are deleted; start it again."
        )


def _seal(drafted: WorkflowDraft, across: Sequence[NewEdge]) -> None:
    """Set all runs to RUNNING in the transaction that inserts the edges to existing tasks."""
    root = drafted.runs[0].pk
    with tables.atomic():
        _lock_start(root)
        if across:
            outside = dependencies.lock_rows(sorted(drafted.outside))
            _check_outside(drafted, across, outside)
            edit.insert_edges(across, outside)
        WorkflowRun.objects.using(tables.database()).unguarded().filter(
            root=root, status=WorkflowStatus.STARTING
        ).update(
            status=WorkflowStatus.RUNNING,
            sealed_at=tables.NOW,
            updated_at=tables.NOW,
            released=False,
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
    parts = list(workflow_runs().filter(root=root).values_list("pk", flat=True))
    return tables.tasks().filter(workflow__in=parts)


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


_isolation = Isolation[uuid.UUID]("start of workflow")


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
    number = sum(_isolation.each(list(sealed.values_list("pk", flat=True)), release))
    over = Q(updated_at__lt=idle_since) | Q(cancel_requested_at__isnull=False)
    abandoned = outermost.starting().filter(over).order_by("pk")
    return number + sum(_isolation.each(list(abandoned.values_list("pk", flat=True)), remove))
