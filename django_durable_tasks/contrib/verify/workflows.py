"""Checks of workflow runs and of dependencies."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from django.db.models import Count, Exists, OuterRef, Q

from django_durable_tasks.choices import OPEN, Status, WorkflowStatus
from django_durable_tasks.contrib.verify.check import (
    PATIENCE,
    Rows,
    RunFacts,
    Severity,
    VerifyContext,
    Wrong,
    WrongField,
    check,
    lock_edges,
    rows_of,
    wrong_counts,
    wrong_status,
)
from django_durable_tasks.dependencies import edges, resolve
from django_durable_tasks.dependencies.edges import workflow_runs
from django_durable_tasks.dependencies.joins import (
    DELETED,
    FORCED,
    EdgeCounts,
    JoinDecision,
    join_decision,
    needed,
)
from django_durable_tasks.models import (
    EndingEvent,
    RequestKind,
    Task,
    TaskDependency,
    TaskRequest,
    WorkflowRun,
)
from django_durable_tasks.models.workflows import COUNTS
from django_durable_tasks.states import transitions
from django_durable_tasks.store import tables
from django_durable_tasks.store.commit_hooks import publish_after_commit
from django_durable_tasks.workflows import runs, start
from django_durable_tasks.workflows.start import ABANDONED_AFTER

# Checks of dependencies: the counts of BLOCKED tasks, the resolution of edges, and ending events.


_DEPENDENCIES_FOLD = 2_000
_PROCESSED_WITHIN = 5 * PATIENCE


@check(
    "unresolved-edges",
    TaskDependency,
    "Will each edge of an ended upstream be resolved?",
    group="graphs",
    lock=lock_edges,
    repair="record the ending event again, for the leader to resolve",
)
def unresolved(context: VerifyContext, rows: Rows) -> Iterator[Wrong]:
    """Edges whose upstream has ended or was deleted, without an ending event that would resolve
    them.
    """
    upstream = tables.tasks().filter(pk=OuterRef("depends_on"))
    event = rows_of(EndingEvent).filter(task_id=OuterRef("depends_on"), resolved=False)
    # No filter on "depends_on is not null": Django would join the upstreams and leave out deleted
    # ones.
    waiting = rows.filter(gate__isnull=True, resolved_at__isnull=True, outcome__isnull=True)
    found = waiting.filter(~Exists(upstream.filter(status__in=OPEN)), ~Exists(event), _has_task())
    for pk, above, status in found.values_list("pk", "depends_on_id", "depends_on__status"):
        yield Wrong(
            pk,
            "outcome",
            None,
            f"{status or DELETED}, because the task {above} it waits for"
            f" {'has ended' if status else 'was deleted'}",
        )


def _has_task() -> Exists:
    return Exists(tables.tasks().filter(pk=OuterRef("task")))


@unresolved.repaired_by("ending event recorded again")
def _insert_events_again(context: VerifyContext, keys: Sequence[Any]) -> None:
    these = rows_of(TaskDependency).filter(pk__in=keys)
    found = these.values_list("depends_on_id", "depends_on__epoch", "depends_on__status")
    edges.insert_events_again(
        {
            above: (epoch or 0, status or DELETED)
            for above, epoch, status in found
            if above is not None
        }
    )


def _early(rows: Rows) -> Rows:
    """Edges of BLOCKED tasks that are resolved although their upstream is open; edges that were
    forced are excluded.
    """
    known = rows.filter(
        resolved_at__isnull=False, depends_on__status__in=OPEN, task__status=Status.BLOCKED
    )
    return known.exclude(outcome=FORCED)


@check(
    "edges-resolved-early",
    TaskDependency,
    "Is no edge resolved before its upstream has ended?",
    group="graphs",
    lock=lock_edges,
    repair="reset it to unresolved, and recount its task",
)
def resolved_early(context: VerifyContext, rows: Rows) -> Iterator[Wrong]:
    """Edges of a BLOCKED task that are resolved although their upstream is open."""
    found = _early(rows).values_list("pk", "outcome", "depends_on_id", "depends_on__status")
    for pk, outcome, above, status in found:
        yield Wrong(pk, "outcome", outcome, f"empty, because the task {above} is {status}")


@resolved_early.repaired_by("reset to unresolved")
def _reset(context: VerifyContext, keys: Sequence[Any]) -> None:
    edges.arm_again(keys)
    _evaluate_joins(
        list(rows_of(TaskDependency).filter(pk__in=keys).values_list("task_id", flat=True))
    )


@check(
    "has-dependents-flag",
    TaskDependency,
    "Does each upstream task have its has-dependents flag?",
    group="graphs",
    lock=lock_edges,
    repair="mark the upstream",
)
def unmarked(context: VerifyContext, rows: Rows) -> Iterator[Wrong]:
    """Edges whose upstream lacks its has-dependents flag, so that its ending would not create an
    ending event.
    """
    coming = TaskRequest.objects.using(tables.database()).filter(kind=RequestKind.DEPENDENTS)
    found = rows.filter(depends_on__has_dependents=False).exclude(
        depends_on__in=coming.values("task_id")
    )
    for pk, above, task in found.values_list("pk", "depends_on_id", "task_id"):
        yield Wrong(
            pk,
            "depends_on.has_dependents",
            False,
            f"true on the task {above}, because {task} waits for it",
        )


@unmarked.repaired_by("marked")
def _mark(context: VerifyContext, keys: Sequence[Any]) -> None:
    above = rows_of(TaskDependency).filter(pk__in=keys).values_list("depends_on_id", flat=True)
    transitions.mark_upstreams([key for key in above if key is not None])


def _waiting(rows: Rows) -> Iterator[tuple[uuid.UUID, int | None, int, EdgeCounts]]:
    """Return the BLOCKED tasks with their edges counted, except tasks of starts that are still in
    progress.

    Whether a start is sealed is read before its edges, because a sealed start has all of them.
    """
    found = list(
        rows.filter(status=Status.BLOCKED).values_list(
            "pk", "join_count", "unresolved_dependencies_count", "workflow_id"
        )
    )
    workflows = {workflow for *_, workflow in found if workflow is not None}
    under_way = (
        Q(status=WorkflowStatus.STARTING) | Q(released=False) | Q(cancel_requested_at__isnull=False)
    )
    unsealed = (
        set(workflow_runs().filter(under_way, pk__in=workflows).values_list("pk", flat=True))
        if workflows
        else set()
    )
    checked = [row for row in found if row[3] not in unsealed]
    counted = edges.tallies([row[0] for row in checked]) if checked else {}
    return ((pk, join, number, counted.get(pk, EdgeCounts())) for pk, join, number, _ in checked)


@check(
    "dependency-counts",
    Task,
    "Does the count of each BLOCKED task equal its unresolved edges?",
    group="graphs",
    repair="recount under the lock of the task",
)
def miscounted_joins(context: VerifyContext, rows: Rows) -> Iterator[Wrong]:
    """BLOCKED tasks whose count does not match their unresolved edges."""
    for pk, join, number, tally in _waiting(rows):
        if number != needed(join, tally):
            yield Wrong(
                pk,
                "unresolved_dependencies_count",
                number,
                f"{needed(join, tally)}, according to its edges",
            )


@check(
    "blocked-by-nothing",
    Task,
    "Does each BLOCKED task have an unresolved edge?",
    group="graphs",
    repair="evaluate its join again under the lock of the task",
)
def blocked_by_nothing(context: VerifyContext, rows: Rows) -> Iterator[Wrong]:
    """BLOCKED tasks whose join is met, or can no longer be met."""
    for pk, join, _, tally in _waiting(rows):
        decision = join_decision(join, tally, "")
        if decision == JoinDecision.RELEASE:
            yield Wrong(pk, "status", Status.BLOCKED.value, "released, because nothing blocks it")
        elif decision != JoinDecision.STAY:
            right = "SKIPPED or FAILED, because its join cannot be met"
            yield Wrong(pk, "status", Status.BLOCKED.value, right)


@blocked_by_nothing.repaired_by("recounted")
@miscounted_joins.repaired_by("recounted")
def _recount_joins(context: VerifyContext, keys: Sequence[Any]) -> Collection[Any]:
    """Recount the edges of these tasks.

    Tasks with edges that are wrong themselves are left out, because a recount would release them
    too early.
    """
    early = set(_early(edges.edges().above(keys)).values_list("task_id", flat=True))
    recounted = [key for key in keys if key not in early]
    _evaluate_joins(recounted)
    return recounted


def _evaluate_joins(tasks: Sequence[uuid.UUID]) -> None:
    keys = sorted(set(tasks))
    publish_after_commit(resolve.reevaluate_joins(transitions.lock_rows(keys), keys, {}).messages)


@check(
    "duplicate-endings",
    EndingEvent,
    "Is there at most one ending event per ending?",
    group="graphs",
    repair="delete the later event",
)
def duplicates(context: VerifyContext, rows: Rows) -> Iterator[Wrong]:
    """Ending events that repeat an earlier one, so that a workflow would count the ending twice."""
    same = rows_of(EndingEvent).filter(
        task_id=OuterRef("task_id"),
        epoch=OuterRef("epoch"),
        delta=OuterRef("delta"),
        pk__lt=OuterRef("pk"),
    )
    found = rows.exclude(delta=0).filter(Exists(same))
    for pk, task, epoch in found.values_list("pk", "task_id", "epoch"):
        yield Wrong(pk, "task_id", task, f"one event of epoch {epoch}, and there is an earlier one")


@duplicates.repaired_by("deleted")
def _drop(context: VerifyContext, keys: Sequence[Any]) -> None:
    pending = (
        edges.endings()
        .filter(pk__in=keys, resolved=False)
        .values_list("task_id", "epoch", "status")
    )
    edges.insert_events_again({task: (epoch, status) for task, epoch, status in pending})
    edges.endings().filter(pk__in=keys).delete()


@check(
    "ending-events-waiting",
    EndingEvent,
    "Is each ending event processed in time?",
    group="graphs",
    repair="resolve and count it",
    severity=Severity.LATE,
)
def unprocessed(context: VerifyContext, rows: Rows) -> Iterator[Wrong]:
    """Ending events that were not processed for minutes.

    The age is taken from the last change of the task, so an event may be older than that.
    """
    if not context.is_steady_for(_PROCESSED_WITHIN):
        return
    task_of = tables.tasks().filter(pk=OuterRef("task_id"))
    found = rows.exclude(delta=0).filter(
        Exists(task_of.filter(updated_at__lt=context.ago(_PROCESSED_WITHIN)))
    )
    for pk, task, resolved in found.values_list("pk", "task_id", "resolved"):
        yield Wrong(
            pk,
            "resolved" if not resolved else "task_id",
            task if resolved else resolved,
            f"processed by the leader within {_PROCESSED_WITHIN:g} s",
        )


@check(
    "orphan-ending-events",
    EndingEvent,
    "Does the task of each ending event exist?",
    group="graphs",
    repair="resolve and count it",
)
def orphans(context: VerifyContext, rows: Rows) -> Iterator[Wrong]:
    """Ending events whose task was deleted."""
    task = tables.tasks().filter(pk=OuterRef("task_id"))
    found = rows.exclude(delta=0).filter(~Exists(task))
    for pk, task_id in found.values_list("pk", "task_id"):
        yield Wrong(pk, "task_id", task_id, "an existing task")


@orphans.repaired_by("resolved and counted")
@unprocessed.repaired_by("resolved and counted")
def _process(context: VerifyContext, keys: Sequence[Any]) -> Collection[Any]:
    publish_after_commit(resolve.resolve_given_endings(keys).messages)
    while edges.endings().uncounted().filter(pk__in=keys).exists() and runs.count_endings(
        _DEPENDENCIES_FOLD
    ):
        pass
    left = set(edges.endings().filter(pk__in=keys).values_list("pk", flat=True))
    return [key for key in keys if key not in left]


# Checks of workflow runs: their counts against their tasks, their status, and starts that were
# never finished.


_FOLD, _BATCH, _MOST = 2_000, 2_000, 20

Events = dict[uuid.UUID, list[tuple[int, str, int]]]


def _events(keys: Sequence[uuid.UUID]) -> Events:
    found: Events = defaultdict(list)
    waiting = edges.endings().filter(workflow_id__in=keys).order_by("pk")
    for workflow, pk, status, change in waiting.values_list("workflow_id", "pk", "status", "delta"):
        if workflow is not None:
            found[workflow].append((pk, status, change))
    return found


def _facts(rows: Rows) -> Iterator[tuple[uuid.UUID, RunFacts]]:
    """Yield the runs whose tasks did not change while they were counted.

    While a run is locked, its ending events are only added. If they are the same before and after
    the count, no task ended or was replayed in between.
    """
    found: list[WorkflowRun] = list(rows)
    keys = [run.pk for run in found]
    before, present = _events(keys), _present(keys)
    after = _events(keys)
    for run in found:
        if before.get(run.pk) == after.get(run.pk):
            yield run.pk, _fact(run, after.get(run.pk, []), present[run.pk])


def _present(keys: Sequence[uuid.UUID]) -> dict[uuid.UUID, Counter[str]]:
    counts: dict[uuid.UUID, Counter[str]] = defaultdict(Counter)
    counted = (
        tables.tasks().filter(workflow__in=keys).order_by().values_list("workflow_id", "status")
    )
    for workflow, status, number in counted.annotate(number=Count("pk")):
        counts[workflow][status] = number
    return counts


def _fact(
    run: WorkflowRun, events: Sequence[tuple[int, str, int]], present: Counter[str]
) -> RunFacts:
    uncounted: Counter[str] = Counter()
    for _, status, change in events:
        uncounted[COUNTS[status]] += change
    return RunFacts(
        status=run.status,
        total=run.total,
        counted={name: getattr(run, name) for name in COUNTS.values()},
        in_events=uncounted,
        present=present,
        uncounted_events=len(events),
        cancelled=run.cancel_requested_at is not None,
        reason=run.reason,
    )


@check(
    "workflow-counts",
    WorkflowRun,
    "Do the counts of each workflow run equal the statuses of its tasks?",
    group="graphs",
    repair="write the recount under the run's lock",
)
def miscounted(context: VerifyContext, rows: Rows) -> Iterator[Wrong]:
    """Runs whose counts do not match the statuses of their tasks."""
    for pk, run in _facts(rows):
        for wrong in wrong_counts(run):
            yield wrong.of(pk, "Some of its tasks were deleted: find the cause and cancel the run.")


@miscounted.repaired_by("recounted")
def _recount(context: VerifyContext, keys: Sequence[Any]) -> None:
    for pk, run in _facts(WorkflowRun.objects.using(tables.database()).filter(pk__in=keys)):
        safe: list[WrongField] = [wrong for wrong in wrong_counts(run) if wrong.safe]
        right = {wrong.field: wrong.value for wrong in safe}
        edges.workflow_runs().filter(pk=pk).update(updated_at=tables.NOW, **right)
    _count_again(keys)


def _count_again(keys: Sequence[uuid.UUID]) -> None:
    """Count these runs again, by inserting an ending event with delta 0 for each."""
    edges.endings().bulk_create(
        [
            EndingEvent(
                task_id=key, epoch=0, workflow_id=key, status=Status.SUCCESS, delta=0, resolved=True
            )
            for key in keys
        ]
    )
    while edges.endings().uncounted().filter(task_id__in=keys).exists() and runs.count_endings(
        _FOLD
    ):
        pass


@check(
    "workflow-status",
    WorkflowRun,
    "Does the status of each workflow run match its counts?",
    group="graphs",
    repair="set the status from its counts",
)
def wrong_statuses(context: VerifyContext, rows: Rows) -> Iterator[Wrong]:
    """Open runs whose tasks have all ended, and ended runs with open tasks."""
    for pk, run in _facts(rows):
        wrong = None if wrong_counts(run) else wrong_status(run)
        if wrong is not None:
            yield wrong.of(pk)


@wrong_statuses.repaired_by("status set from its counts")
def _correct_statuses(context: VerifyContext, keys: Sequence[Any]) -> None:
    _count_again(keys)


@check(
    "workflow-starts",
    WorkflowRun,
    "Is each start of a workflow finished or removed?",
    group="graphs",
    repair="delete its tasks",
    severity=Severity.LATE,
)
def abandoned(context: VerifyContext, rows: Rows) -> Iterator[Wrong]:
    """Starts without progress that the leader has not removed."""
    if not context.is_steady_for(ABANDONED_AFTER):
        return
    found = rows.filter(
        status=WorkflowStatus.STARTING,
        parent__isnull=True,
        updated_at__lt=context.ago(2 * ABANDONED_AFTER),
    )
    for pk in found.values_list("pk", flat=True):
        yield Wrong(
            pk,
            "status",
            WorkflowStatus.STARTING.value,
            f"finished or removed within {ABANDONED_AFTER:g} s of its last progress",
        )


@abandoned.repaired_by("abandoned and removed")
def _remove(context: VerifyContext, keys: Sequence[Any]) -> Collection[Any]:
    removed = [key for key in keys if start.give_up(key, context.ago(ABANDONED_AFTER))]
    for key in removed:
        batches = iter(range(_MOST))
        while start.remove_given_up(key, _BATCH) and next(batches, None) is not None:
            pass
    return removed
