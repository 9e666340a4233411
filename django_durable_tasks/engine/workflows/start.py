"""Starts workflows: in one transaction, or in batches if the workflow is large. A start is complete
or has no effect.

A large start writes its tasks in transactions of BATCH rows, with the runs in status STARTING and
every task BLOCKED, so that no task is released or counted. One guarded UPDATE then seals it. Tasks
without upstreams are released in batches by the starter or, if its process died, by the leader. An
abandoned start is fenced first (``cancel_requested_at``), so that its starter writes nothing more,
and then deleted in batches. Inside a caller's transaction every start is a part of that
transaction.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from django.db import Error, IntegrityError, connections
from django.db.models import Q

from django_durable_tasks import conf
from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.db.isolation import Isolation
from django_durable_tasks.engine.db.publish_on_commit import publish_after_commit
from django_durable_tasks.engine.dependencies import edges, edit, inserts, resolve
from django_durable_tasks.engine.dependencies.edges import runs
from django_durable_tasks.engine.workflows.rows import StartOptions, WorkflowDraft, draft
from django_durable_tasks.exceptions import TransitionRefused, UniqueConflict
from django_durable_tasks.models import Task, WorkflowRun
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.rules.dependencies import NewEdge
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tasks.runs import Run
from django_durable_tasks.rules.workflows.builder import Builder
from django_durable_tasks.rules.workflows.plan import Plan, PlannedEdge, WorkflowStatus

logger = logging.getLogger("django_durable_tasks.workflows")
Progress = Callable[[int, int], object]
"""Called after each batch with the number of rows (tasks and edges) written and their total."""

LARGE = 10_000
"""A start with more tasks than this is written in batches."""
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
    settings = conf.settings()
    return builder.plan(
        most_tasks=settings.WORKFLOW_MAX_TASKS, most_edges=settings.WORKFLOW_MAX_EDGES
    )


def start_after(run: Run, plan: Plan) -> WorkflowRun:
    """Start the workflow that a task function returned, in the transaction that records its
    success.

    The workflow gets the recurring task, fire time and priority of the task.
    """
    starter = (
        tables.tasks()
        .filter(pk=run.task_id)
        .values_list("recurring_task_id", "fire_time", "priority")
    )
    recurring_task, fire_time, priority = starter.get()
    launch = StartOptions(
        tenant_id=run.tenant_id,
        priority=priority,
        recurring_task=recurring_task,
        fire_time=fire_time,
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
    if before is not None and not _takes_over(before, now):
        return before
    found = draft(plan, launch, now, sealed=not large)
    try:
        if large:
            _start_in_batches(found, progress)
        else:
            _start_at_once(found)
    except IntegrityError as taken:
        before = None if connection.needs_rollback else _of_key(launch)
        if before is None:
            raise UniqueConflict(
                f"The workflow {plan.scopes[0].name!r} takes a key that is in use: {taken}"
            ) from taken
        return before
    return found.runs[0]


def _of_key(launch: StartOptions) -> WorkflowRun | None:
    if launch.key is None:
        return None
    return runs().filter(tenant_id=launch.tenant_id, open_key=launch.key).first()


def _start_at_once(found: WorkflowDraft) -> None:
    with tables.atomic():
        runs().bulk_create(found.runs)
        write(found)
        publish_after_commit(release_without_upstreams(found.roots))


def write(found: WorkflowDraft) -> None:
    """Insert the tasks and edges.

    Upstreams outside the plan are locked first. If they have ended, their ending is resolved again.
    """
    within, across = _split_edges(found)
    outside = transitions.lock_rows(sorted(found.outside)) if across else {}
    _check_outside(found, across, outside)
    transitions.create_many(found.rows)
    inserts.insert(within)
    if across:
        edit.insert_edges(across, outside)


def _split_edges(found: WorkflowDraft) -> tuple[list[NewEdge], list[NewEdge]]:
    """Return the edges within the plan, gates included, and those to tasks that exist already."""
    across = [edge for edge in found.edges if edge.depends_on_id in found.outside]
    within = (
        [edge for edge in found.edges if edge.depends_on_id not in found.outside]
        if across
        else found.edges
    )
    return within, across


def _check_outside(
    found: WorkflowDraft, across: Sequence[NewEdge], outside: dict[uuid.UUID, Task]
) -> None:
    wanted = [PlannedEdge(upstream=edge.upstream_id) for edge in across]
    edit.check_upstreams(wanted, outside, found.runs[0].tenant_id)


def release_without_upstreams(roots: Sequence[uuid.UUID]) -> list[TaskMessage]:
    """Release BLOCKED tasks without upstreams; return the messages of those that may be published
    at once.
    """
    batch, messages = conf.settings().BATCH_SIZE, []
    for first in range(0, len(roots), batch):
        rows = transitions.lock_rows(roots[first : first + batch])
        messages += resolve.release([row for row in rows.values() if row.status == Status.BLOCKED])
    return messages


# Large starts -------------------------------------------------------------------------------------


def _start_in_batches(found: WorkflowDraft, progress: Progress | None) -> None:
    root = found.runs[0]
    within, across = _split_edges(found)
    _check_outside(found, across, tables.tasks().in_bulk(sorted(found.outside)) if across else {})
    runs().bulk_create(found.runs)
    try:
        _write_in_batches(found, within, progress)
        _seal(found, across)
    except BaseException:
        # If this cleanup fails too, the leader deletes the rest.
        with suppress(Error):
            if give_up(root.pk):
                while remove_given_up(root.pk, BATCH):
                    pass
        raise
    root.refresh_from_db(using=tables.database())
    for first in range(0, len(found.roots), BATCH):
        _release(root.pk, tables.tasks().filter(pk__in=found.roots[first : first + BATCH]))
    while release_roots(root.pk, BATCH):
        pass
    root.released = True


def _write_in_batches(
    found: WorkflowDraft, within: Sequence[NewEdge], progress: Progress | None
) -> None:
    root, total, done = found.runs[0], len(found.rows) + len(found.edges), 0
    for first in range(0, len(found.rows), BATCH):
        with tables.atomic():
            _lock_start(root.pk)
            transitions.create_many(found.rows[first : first + BATCH])
        done = _report_progress(root, min(first + BATCH, len(found.rows)), total, progress)
    for first in range(0, len(within), BATCH):
        with tables.atomic():
            _lock_start(root.pk)
            inserts.insert(within[first : first + BATCH])
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
    own = runs().starting().filter(pk=root, cancel_requested_at__isnull=True)
    if not own.update(updated_at=tables.NOW):
        raise TransitionRefused(
            f"The start of workflow {root} was given up while it was written: it was cancelled, or"
            f" made no progress for {TAKEN_OVER_AFTER:g} s while another start needed its key."
            " Its tasks are deleted; start it again."
        )


def _seal(found: WorkflowDraft, across: Sequence[NewEdge]) -> None:
    """Set all runs to RUNNING in the transaction that inserts the edges to existing tasks."""
    root = found.runs[0].pk
    with tables.atomic():
        _lock_start(root)
        if across:
            outside = transitions.lock_rows(sorted(found.outside))
            _check_outside(found, across, outside)
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
    free = (
        _tasks_of(root)
        .filter(status=Status.BLOCKED, unresolved_dependencies_count=0)
        .order_by("pk")
    )
    number = _release(root, free[:limit])
    if not number:
        runs().filter(root=root, released=False).update(released=True)
    return number


def _release(root: uuid.UUID, tasks: TaskQuerySet) -> int:
    with tables.atomic():
        # With the run locked, a requested cancellation prevents any further release.
        sealed = runs().filter(
            pk=root, status=WorkflowStatus.RUNNING, released=False, cancel_requested_at__isnull=True
        )
        if sealed.select_for_update().first() is None:
            return 0
        ids = list(tasks.values_list("pk", flat=True))
        publish_after_commit(release_without_upstreams(ids))
    return len(ids)


def _tasks_of(root: uuid.UUID) -> TaskQuerySet:
    parts = list(runs().filter(root=root).values_list("pk", flat=True))
    return tables.tasks().filter(workflow__in=parts)


def _unreleased() -> list[uuid.UUID]:
    sealed = runs().filter(status=WorkflowStatus.RUNNING, completed_at__isnull=True, released=False)
    return list(sealed.filter(parent__isnull=True).order_by("pk").values_list("pk", flat=True))


# Abandoned starts ---------------------------------------------------------------------------------


def _takes_over(before: WorkflowRun, now: datetime) -> bool:
    if before.status != WorkflowStatus.STARTING:
        return False
    return give_up(before.pk, idle_since=now - timedelta(seconds=TAKEN_OVER_AFTER))


def _abandoned(idle_since: datetime) -> list[uuid.UUID]:
    idle = Q(updated_at__lt=idle_since)
    over = (
        runs()
        .starting()
        .filter(idle | Q(cancel_requested_at__isnull=False), completed_at__isnull=True)
    )
    return list(over.filter(parent__isnull=True).order_by("pk").values_list("pk", flat=True))


def give_up(root: uuid.UUID, idle_since: datetime | None = None) -> bool:
    """Fence the starter of a run that is not sealed, and free its key.

    Return False if it was sealed, or made progress since ``idle_since``.
    """
    this = runs().starting().filter(pk=root)
    if idle_since is not None:
        this = this.filter(Q(updated_at__lt=idle_since) | Q(cancel_requested_at__isnull=False))
    return bool(this.update(cancel_requested_at=tables.NOW, open_key=None, reason="ABANDONED"))


def remove_given_up(root: uuid.UUID, limit: int) -> int:
    """Delete at most ``limit`` tasks of an abandoned start with their edges and, when no task is
    left, its runs.

    Return how many tasks were deleted; 0 when nothing is left.
    """
    with tables.atomic():
        this = (
            runs().starting().filter(pk=root, cancel_requested_at__isnull=False).select_for_update()
        )
        if this.first() is None:
            return 0
        deleted = list(_tasks_of(root).order_by().values_list("pk", flat=True)[:limit])
        edges.edges().above(deleted).delete()
        tables.tasks().filter(pk__in=deleted).delete()
        if not deleted:
            runs().filter(root=root).delete()
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

    def remove(root: uuid.UUID) -> int:
        return remove_given_up(root, limit) if give_up(root, idle_since) else 0

    released = _isolation.each(_unreleased(), lambda root: release_roots(root, limit))
    return sum(released) + sum(_isolation.each(_abandoned(idle_since), remove))
