"""A workflow is started whole or not at all: in one transaction, or, when it is large, in batches
that are sealed.

A large start writes its rows in transactions of some thousand each, under runs that stand STARTING:
every task is BLOCKED, nobody releases or counts anything. One guarded UPDATE seals it, and from
then on it lives; what may run at once is released in batches, by the starter or, should it have
died, by the leader. A start that was given up is fenced first (``cancel_requested_at``), so that a
starter which wakes up again writes nothing more, and then removed in batches. Inside a transaction
of the caller every start is a part of that transaction.
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
from django_durable_tasks.engine.dependencies import edges, edit, resolve
from django_durable_tasks.engine.dependencies.edges import runs
from django_durable_tasks.engine.workflows.rows import Draft, StartOptions, draft
from django_durable_tasks.exceptions import TransitionRefused, UniqueConflict
from django_durable_tasks.models import Task, TaskDependency, WorkflowRun
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tasks.runs import Run
from django_durable_tasks.rules.workflows.builder import Builder
from django_durable_tasks.rules.workflows.plan import Plan, PlannedEdge, WorkflowStatus

logger = logging.getLogger("django_durable_tasks.workflows")
Progress = Callable[[int, int], object]
"""What is told, after each batch, how many rows (tasks and edges) of how many are written."""

LARGE = 10_000
"""A start of more tasks than this is written in batches."""
BATCH = 2_000
"""How many rows one of its transactions writes."""
ABANDONED_AFTER = 600.0
"""A start without progress for so long (seconds, by the database's clock) is removed by the leader
...
"""
TAKEN_OVER_AFTER = 60.0
"""... and gives its key up this early to another start under the same key."""


def planned(builder: Builder) -> Plan:
    """Return the checked graph of a workflow, within the limits of the settings."""
    settings = conf.settings()
    return builder.plan(
        most_tasks=settings.WORKFLOW_MAX_TASKS, most_edges=settings.WORKFLOW_MAX_EDGES
    )


def start_after(run: Run, plan: Plan) -> WorkflowRun:
    """Start the workflow that a body returned, in the transaction of its success; a fire time is
    handed on.
    """
    born_of = (
        tables.tasks()
        .filter(pk=run.task_id)
        .values_list("recurring_task_id", "fire_time", "priority")
    )
    recurring_task, fire_time, priority = born_of.get()
    launch = StartOptions(
        tenant_id=run.tenant_id,
        priority=priority,
        recurring_task=recurring_task,
        fire_time=fire_time,
    )
    return start(plan, launch)


def start(plan: Plan, launch: StartOptions, progress: Progress | None = None) -> WorkflowRun:
    """Write a workflow and let its first tasks go; return its run.

    Another open run of the same key and tenant is returned instead, also one that is still being
    written (STARTING), unless it has made no progress for a minute: then it is given up for this
    one. Raises our errors before a row is written; TransitionRefused when a large start was given
    up by others while it was written.
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


def _start_at_once(found: Draft) -> None:
    with tables.atomic():
        runs().bulk_create(found.runs)
        write(found)
        publish_after_commit(let_go(found.roots))


def write(found: Draft) -> None:
    """Insert tasks and edges; upstreams outside of the plan are locked first, and told again if
    they have ended.
    """
    within, across = _parted(found)
    outside = transitions.lock_rows(sorted(found.outside)) if across else {}
    _check_outside(found, across, outside)
    transitions.create_many(found.rows)
    edges.insert(within)
    if across:
        edit.insert_edges(across, outside)


def _parted(found: Draft) -> tuple[list[TaskDependency], list[TaskDependency]]:
    """Return the edges within the plan, gates included, and those to tasks that exist already."""
    across = [edge for edge in found.edges if edge.depends_on_id in found.outside]
    within = (
        [edge for edge in found.edges if edge.depends_on_id not in found.outside]
        if across
        else found.edges
    )
    return within, across


def _check_outside(
    found: Draft, across: Sequence[TaskDependency], outside: dict[uuid.UUID, Task]
) -> None:
    wanted = [PlannedEdge(upstream=edge.upstream_id) for edge in across]
    edit.check_upstreams(wanted, outside, found.runs[0].tenant_id)


def let_go(roots: Sequence[uuid.UUID]) -> list[TaskMessage]:
    """Release rows that wait for nothing, some at once and rung, all others due."""
    batch, messages = conf.settings().BATCH_SIZE, []
    for first in range(0, len(roots), batch):
        rows = transitions.lock_rows(roots[first : first + batch])
        messages += resolve.release([row for row in rows.values() if row.status == Status.BLOCKED])
    return messages


# Large starts -------------------------------------------------------------------------------------


def _start_in_batches(found: Draft, progress: Progress | None) -> None:
    root = found.runs[0]
    within, across = _parted(found)
    _check_outside(found, across, tables.tasks().in_bulk(sorted(found.outside)) if across else {})
    runs().bulk_create(found.runs)
    try:
        _write_in_batches(found, within, progress)
        _seal(found, across)
    except BaseException:
        # What is left is removed by the leader, if not by us.
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
    found: Draft, within: Sequence[TaskDependency], progress: Progress | None
) -> None:
    root, total, done = found.runs[0], len(found.rows) + len(found.edges), 0
    for first in range(0, len(found.rows), BATCH):
        with tables.atomic():
            _hold(root.pk)
            transitions.create_many(found.rows[first : first + BATCH])
        done = _tell_progress(root, min(first + BATCH, len(found.rows)), total, progress)
    for first in range(0, len(within), BATCH):
        with tables.atomic():
            _hold(root.pk)
            edges.insert(within[first : first + BATCH])
        _tell_progress(root, done + min(first + BATCH, len(within)), total, progress)


def _tell_progress(root: WorkflowRun, done: int, total: int, progress: Progress | None) -> int:
    logger.info(
        "Starting workflow %s (%s): %d of %d tasks created.", root.name, root.pk, done, total
    )
    if progress is not None:
        progress(done, total)
    return done


def _hold(root: uuid.UUID) -> None:
    """Note progress, under the lock that keeps others from giving the start up; raises
    TransitionRefused.
    """
    mine = runs().starting().filter(pk=root, cancel_requested_at__isnull=True)
    if not mine.update(updated_at=tables.NOW):
        raise TransitionRefused(
            f"The start of workflow {root} was given up while it was written: it was cancelled, or"
            f" made no progress for {TAKEN_OVER_AFTER:g} s while its key was wanted. What was"
            " written is removed; start it anew."
        )


def _seal(found: Draft, across: Sequence[TaskDependency]) -> None:
    """Let the whole live at one instant, in the transaction that ties it to tasks which exist
    already.
    """
    root = found.runs[0].pk
    with tables.atomic():
        _hold(root)
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
    """Release at most so many tasks of a sealed start that wait for nothing; return how many, 0
    once it is done.
    """
    free = (
        _of_whole(root)
        .filter(status=Status.BLOCKED, unresolved_dependencies_count=0)
        .order_by("pk")
    )
    number = _release(root, free[:limit])
    if not number:
        runs().filter(root=root, released=False).update(released=True)
    return number


def _release(root: uuid.UUID, question: TaskQuerySet) -> int:
    with tables.atomic():
        # Under the run's lock: a cancel that has been asked for releases nothing any more.
        sealed = runs().filter(
            pk=root, status=WorkflowStatus.RUNNING, released=False, cancel_requested_at__isnull=True
        )
        if sealed.select_for_update().first() is None:
            return 0
        ids = list(question.values_list("pk", flat=True))
        publish_after_commit(let_go(ids))
    return len(ids)


def _of_whole(root: uuid.UUID) -> TaskQuerySet:
    parts = list(runs().filter(root=root).values_list("pk", flat=True))
    return tables.tasks().filter(workflow__in=parts)


def _unreleased() -> list[uuid.UUID]:
    sealed = runs().filter(status=WorkflowStatus.RUNNING, completed_at__isnull=True, released=False)
    return list(sealed.filter(parent__isnull=True).order_by("pk").values_list("pk", flat=True))


# Starts that are given up -------------------------------------------------------------------------


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
    """Fence the starter of a run that is not sealed, and let its key go; False when it was sealed
    or made progress.
    """
    this = runs().starting().filter(pk=root)
    if idle_since is not None:
        this = this.filter(Q(updated_at__lt=idle_since) | Q(cancel_requested_at__isnull=False))
    return bool(this.update(cancel_requested_at=tables.NOW, open_key=None, reason="ABANDONED"))


def remove_given_up(root: uuid.UUID, limit: int) -> int:
    """Delete at most so many tasks of a start that was given up, with their edges, and at last its
    runs.

    Return how many tasks were deleted; 0 once nothing is left.
    """
    with tables.atomic():
        this = (
            runs().starting().filter(pk=root, cancel_requested_at__isnull=False).select_for_update()
        )
        if this.first() is None:
            return 0
        gone = list(_of_whole(root).order_by().values_list("pk", flat=True)[:limit])
        edges.edges().above(gone).delete()
        tables.tasks().filter(pk__in=gone).delete()
        if not gone:
            runs().filter(root=root).delete()
            logger.warning("The start of workflow %s was abandoned; its tasks were deleted.", root)
    return len(gone)


_isolation = Isolation[uuid.UUID]("start of workflow")


def finish_starts(now: datetime, limit: int) -> int:
    """Go on by a batch with what starters left: release the sealed, remove what nobody will seal;
    return how many rows.

    A start is abandoned that was cancelled, or made no progress for ten minutes. Call until it
    returns 0.
    """
    idle_since = now - timedelta(seconds=ABANDONED_AFTER)

    def remove(root: uuid.UUID) -> int:
        return remove_given_up(root, limit) if give_up(root, idle_since) else 0

    released = _isolation.each(_unreleased(), lambda root: release_roots(root, limit))
    return sum(released) + sum(_isolation.each(_abandoned(idle_since), remove))
