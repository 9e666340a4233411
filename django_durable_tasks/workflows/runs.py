"""Workflow runs: extended by tasks and followups, ended by counts, cancelled after their
deadline.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain

from django.db.models import F, Q

from django_durable_tasks import conf, registry
from django_durable_tasks.choices import DEADLINE, OPEN, DependencyType, Status, WorkflowStatus
from django_durable_tasks.dependencies import edges, edit
from django_durable_tasks.dependencies.edges import (
    request_cancel_runs,
    sub_workflows_of,
    workflow_runs,
)
from django_durable_tasks.dependencies.joins import NewEdge, needed
from django_durable_tasks.exceptions import UnknownTask, WorkflowTooLarge
from django_durable_tasks.masking import shortened
from django_durable_tasks.models import WorkflowRun
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.models.workflows import COUNTS
from django_durable_tasks.states import dependencies, endings, runs
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.commit_hooks import publish_after_commit
from django_durable_tasks.store.errors import Isolation, is_outage, retry_on_deadlock
from django_durable_tasks.task_values import Run
from django_durable_tasks.tasks import attempts, enqueue
from django_durable_tasks.tasks.new_task import Call
from django_durable_tasks.tasks.options import CallOptions, Schedule
from django_durable_tasks.workflows import start
from django_durable_tasks.workflows.builder import AddedTasks, Builder, FollowUp, Plan, verdict
from django_durable_tasks.workflows.start import (
    StartOptions,
    WorkflowDraft,
    draft,
    release_without_upstreams,
    write,
)

# Extends workflow runs by the tasks that a task function adds, and counts endings until a run
# ends.
#
# How a run starts is in ``start``. Called by the followups below and the maintenance job
# ``count_endings``.


logger = logging.getLogger("django_durable_tasks.workflows")

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
            "The workflow of task %s can no longer be extended; %d tasks were not added.",
            run.task_id,
            len(plan.tasks),
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


_isolation = Isolation[uuid.UUID | None]("workflow")


def count_endings(limit: int) -> int:
    """Count at most ``limit`` ending events into their runs and end the runs that are complete;
    return how many.

    A run that cannot be counted or ended is postponed; the others are processed.
    """
    uncounted = edges.endings().uncounted().exclude(workflow_id__in=_isolation.postponed())
    events: dict[uuid.UUID | None, list[int]] = defaultdict(list)
    for event, run in uncounted.values_list("pk", "workflow_id")[:limit]:
        events[run].append(event)
    if not events:
        return 0
    counted = _isolation.batch(
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
        new_status = verdict(
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
    WorkflowRun.objects.using(tables.database()).unguarded().filter(pk=row.pk).update(
        status=new_status,
        completed_at=(row.completed_at or tables.NOW) if ended else None,
        updated_at=tables.NOW,
        open_key=None if ended else row.open_key,
        **counts,
    )
    for kind, name in callbacks.items():
        _call_back(row, kind, name)


def _call_back(row: WorkflowRun, kind: str, name: str) -> None:
    """Create the task of a callback, with an idempotency key, so that it is created once.

    If its own code raises an error, the error becomes the reason of the run, which ends anyway.
    """
    options = CallOptions(tenant=row.tenant_id, idempotency_key=f"workflow-{row.pk}-{kind}")
    try:
        with tables.atomic():
            enqueue.submit(Call(registry.get(name), (str(row.pk),), {}, options))
    except (Exception, SystemExit) as refused:
        if is_outage(refused):
            raise
        logger.exception("Could not create the callback %s=%s of workflow %s.", kind, name, row.pk)
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


_deadlines_isolation = Isolation[uuid.UUID]("workflow")


def cancel_late(now: datetime, limit: int) -> int:
    """Request the cancellation of at most ``limit`` runs whose deadline has passed; return how many
    runs were flagged.

    A run without open tasks is left alone, because it only has to be counted.
    """
    due_runs = list(
        workflow_runs()
        .late(now)
        .exclude(pk__in=_deadlines_isolation.postponed())
        .order_by("deadline_at")[:limit]
    )
    parts = sub_workflows_of(due_runs) if due_runs else {}
    late = [
        run.pk
        for run in due_runs
        if _open_in([run.pk, *(part.pk for part in parts[run.pk])]).exists()
    ]
    return sum(
        _deadlines_isolation.batch(
            lambda: request_cancel_runs(workflow_runs().filter(pk__in=late), DEADLINE),
            lambda: late,
            lambda key: request_cancel_runs(workflow_runs().filter(pk=key), DEADLINE),
        )
    )


def _open_in(parts: Iterable[uuid.UUID]) -> TaskQuerySet:
    return tables.tasks().filter(workflow__in=list(parts), status__in=OPEN)


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
            these, why = tables.tasks().filter(pk__in=batch), reasons[key]
            with tables.atomic():
                number = endings.cancel(these, why) + endings.request_cancel(these, why)
            reached += number

    _deadlines_isolation.each(reasons, cancel)
    return reached


# Creates the tasks and workflows that a task function returned, in the transaction that records
# its success.


@retry_on_deadlock
def succeed(run: Run, result: str | None, worker: str, followups: Sequence[FollowUp] = ()) -> bool:
    """Record the success with its log row and its follow-up tasks, all or nothing; return False if
    it was fenced.
    """
    if not followups:
        return attempts.succeed(run, result, worker)
    plans = [
        start.planned(followup) if isinstance(followup, Builder) else None for followup in followups
    ]
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
                    start.start_after(run, plan)
    return accepted or attempts.succeeded(run)
