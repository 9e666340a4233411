"""Checks of workflow runs and of dependencies."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db.models import Count, Exists, OuterRef, Q

from django_durable_tasks.choices import DEADLINE, OPEN, Status, WorkflowStatus
from django_durable_tasks.contrib.verify.check import (
    PATIENCE,
    Finding,
    Rows,
    VerifyContext,
    check,
    lock_edges,
    rows_of,
)
from django_durable_tasks.dependencies import edges, resolve, rules
from django_durable_tasks.dependencies.edges import workflow_runs
from django_durable_tasks.models import (
    EndingEvent,
    RequestKind,
    Task,
    TaskDependency,
    TaskRequest,
    WorkflowRun,
)
from django_durable_tasks.models.workflows import COUNTS
from django_durable_tasks.states import dependencies
from django_durable_tasks.store import tables
from django_durable_tasks.store.tables import publish_after_commit
from django_durable_tasks.workflows import runs
from django_durable_tasks.workflows.builder import verdict
from django_durable_tasks.workflows.runs import ABANDONED_AFTER

# Checks of dependencies: the counts of BLOCKED tasks, the resolution of edges, and ending events.


_FOLD = 2_000
_PROCESSED_WITHIN = 5 * PATIENCE


@check(
    "unresolved-edges",
    TaskDependency,
    "graphs",
    lock=lock_edges,
    repair="record the ending event again, for the leader to resolve",
)
def unresolved(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Will each edge of an ended upstream be resolved?

    Edges whose upstream has ended or was deleted, without an ending event that would resolve
    them.
    """
    upstream = tables.tasks().filter(pk=OuterRef("depends_on"))
    event = rows_of(EndingEvent).filter(task_id=OuterRef("depends_on"), resolved=False)
    has_task = Exists(tables.tasks().filter(pk=OuterRef("task")))
    # No filter on "depends_on is not null": Django would join the upstreams and leave out deleted
    # ones.
    waiting = rows.filter(gate__isnull=True, resolved_at__isnull=True, outcome__isnull=True)
    queryset = waiting.filter(~Exists(upstream.filter(status__in=OPEN)), ~Exists(event), has_task)
    for pk, above, status in queryset.values_list("pk", "depends_on_id", "depends_on__status"):
        right = (
            f"{status or rules.DELETED}, because the task {above} it waits for"
            f" {'has ended' if status else 'was deleted'}"
        )
        yield Finding(pk, "outcome", None, right)


@unresolved.repaired_by("ending event recorded again")
def _insert_events_again(context: VerifyContext, keys: Sequence[Any]) -> None:
    queryset = rows_of(TaskDependency).filter(pk__in=keys)
    upstreams = queryset.values_list("depends_on_id", "depends_on__epoch", "depends_on__status")
    edges.insert_events_again(
        {
            above: (epoch or 0, status or rules.DELETED)
            for above, epoch, status in upstreams
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
    return known.exclude(outcome=rules.FORCED)


@check(
    "edges-resolved-early",
    TaskDependency,
    "graphs",
    lock=lock_edges,
    repair="reset it to unresolved, and recount its task",
)
def resolved_early(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Is no edge resolved before its upstream has ended?

    Edges of a BLOCKED task that are resolved although their upstream is open.
    """
    early = _early(rows).values_list("pk", "outcome", "depends_on_id", "depends_on__status")
    for pk, outcome, above, status in early:
        yield Finding(pk, "outcome", outcome, f"empty, because the task {above} is {status}")


@resolved_early.repaired_by("reset to unresolved")
def _reset(context: VerifyContext, keys: Sequence[Any]) -> None:
    edges.arm_again(edges.edges().filter(pk__in=keys))
    _evaluate_joins(
        list(rows_of(TaskDependency).filter(pk__in=keys).values_list("task_id", flat=True))
    )


@check("has-dependents-flag", TaskDependency, "graphs", lock=lock_edges, repair="mark the upstream")
def unmarked(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Does each upstream task have its has-dependents flag?

    Edges whose upstream lacks its has-dependents flag, so that its ending would not create an
    ending event.
    """
    coming = TaskRequest.objects.using(tables.database()).filter(kind=RequestKind.DEPENDENTS)
    queryset = rows.filter(depends_on__has_dependents=False).exclude(
        depends_on__in=coming.values("task_id")
    )
    for pk, above, task in queryset.values_list("pk", "depends_on_id", "task_id"):
        right = f"true on the task {above}, because {task} waits for it"
        yield Finding(pk, "depends_on.has_dependents", False, right)


@unmarked.repaired_by("marked")
def _mark(context: VerifyContext, keys: Sequence[Any]) -> None:
    above = rows_of(TaskDependency).filter(pk__in=keys).values_list("depends_on_id", flat=True)
    dependencies.mark_upstreams([key for key in above if key is not None])


def _waiting(rows: Rows) -> Iterator[tuple[uuid.UUID, int | None, int, rules.EdgeCounts]]:
    """Return the BLOCKED tasks with their edges counted, except tasks of starts that are still in
    progress.

    Whether a start is sealed is read before its edges, because a sealed start has all of them.
    """
    blocked = list(
        rows.filter(status=Status.BLOCKED).values_list(
            "pk", "join_count", "unresolved_dependencies_count", "workflow_id"
        )
    )
    workflows = {workflow for *_, workflow in blocked if workflow is not None}
    under_way = (
        Q(status=WorkflowStatus.STARTING) | Q(released=False) | Q(cancel_requested_at__isnull=False)
    )
    unsealed = (
        set(workflow_runs().filter(under_way, pk__in=workflows).values_list("pk", flat=True))
        if workflows
        else set()
    )
    checked = [row for row in blocked if row[3] not in unsealed]
    counted = edges.tallies([row[0] for row in checked]) if checked else {}
    return (
        (pk, join, number, counted.get(pk, rules.EdgeCounts())) for pk, join, number, _ in checked
    )


@check("dependency-counts", Task, "graphs", repair="recount under the lock of the task")
def miscounted_joins(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Does the count of each BLOCKED task equal its unresolved edges?

    BLOCKED tasks whose count does not match their unresolved edges.
    """
    for pk, join, number, tally in _waiting(rows):
        if number != rules.needed(join, tally):
            right = f"{rules.needed(join, tally)}, according to its edges"
            yield Finding(pk, "unresolved_dependencies_count", number, right)


@check(
    "blocked-by-nothing",
    Task,
    "graphs",
    repair="evaluate its join again under the lock of the task",
)
def blocked_by_nothing(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Does each BLOCKED task have an unresolved edge?

    BLOCKED tasks whose join is met, or can no longer be met.
    """
    for pk, join, _, tally in _waiting(rows):
        decision = rules.join_decision(join, tally, "")
        if decision == rules.JoinDecision.RELEASE:
            yield Finding(pk, "status", Status.BLOCKED.value, "released, because nothing blocks it")
        elif decision != rules.JoinDecision.STAY:
            right = "SKIPPED or FAILED, because its join cannot be met"
            yield Finding(pk, "status", Status.BLOCKED.value, right)


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
    publish_after_commit(resolve.reevaluate_joins(dependencies.lock_rows(keys), keys, {}).messages)


@check("duplicate-endings", EndingEvent, "graphs", repair="delete the later event")
def duplicates(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Is there at most one ending event per ending?

    Ending events that repeat an earlier one, so that a workflow would count the ending twice.
    """
    same = rows_of(EndingEvent).filter(
        task_id=OuterRef("task_id"),
        epoch=OuterRef("epoch"),
        delta=OuterRef("delta"),
        pk__lt=OuterRef("pk"),
    )
    queryset = rows.exclude(delta=0).filter(Exists(same))
    for pk, task, epoch in queryset.values_list("pk", "task_id", "epoch"):
        yield Finding(
            pk, "task_id", task, f"one event of epoch {epoch}, and there is an earlier one"
        )


@duplicates.repaired_by("deleted")
def _drop(context: VerifyContext, keys: Sequence[Any]) -> None:
    unresolved_events = edges.endings().filter(pk__in=keys, resolved=False)
    pending = unresolved_events.values_list("task_id", "epoch", "status")
    edges.insert_events_again({task: (epoch, status) for task, epoch, status in pending})
    edges.endings().filter(pk__in=keys).delete()


@check("ending-events-waiting", EndingEvent, "graphs", repair="resolve and count it", late=True)
def unprocessed(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Is each ending event processed in time?

    Ending events that were not processed for minutes.

    The age is taken from the last change of the task, so an event may be older than that.
    """
    if not context.is_steady_for(_PROCESSED_WITHIN):
        return
    task_of = tables.tasks().filter(pk=OuterRef("task_id"))
    queryset = rows.exclude(delta=0).filter(
        Exists(task_of.filter(updated_at__lt=context.ago(_PROCESSED_WITHIN)))
    )
    right = f"processed by the leader within {_PROCESSED_WITHIN:g} s"
    for pk, task, resolved in queryset.values_list("pk", "task_id", "resolved"):
        field, value = ("task_id", task) if resolved else ("resolved", resolved)
        yield Finding(pk, field, value, right)


@check("orphan-ending-events", EndingEvent, "graphs", repair="resolve and count it")
def orphans(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Does the task of each ending event exist?

    Ending events whose task was deleted.
    """
    task = tables.tasks().filter(pk=OuterRef("task_id"))
    queryset = rows.exclude(delta=0).filter(~Exists(task))
    for pk, task_id in queryset.values_list("pk", "task_id"):
        yield Finding(pk, "task_id", task_id, "an existing task")


@orphans.repaired_by("resolved and counted")
@unprocessed.repaired_by("resolved and counted")
def _process(context: VerifyContext, keys: Sequence[Any]) -> Collection[Any]:
    publish_after_commit(resolve.resolve_given_endings(keys).messages)
    _count(edges.endings().filter(pk__in=keys))
    remaining = set(edges.endings().filter(pk__in=keys).values_list("pk", flat=True))
    return [key for key in keys if key not in remaining]


# Checks of workflow runs: their counts against their tasks, their status, and starts that were
# never finished.


_BATCH, _MOST = 2_000, 20


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A workflow run, the number of its tasks by status, and its uncounted ending events: their
    keys, statuses and deltas.
    """

    run: WorkflowRun
    present: Mapping[str, int]
    events: Sequence[tuple[int, str, int]] = ()

    @property
    def counted(self) -> dict[str, int]:
        """The counters of the run."""
        return {column: getattr(self.run, column) for column in COUNTS.values()}

    @property
    def in_events(self) -> Counter[str]:
        """The changes of the counters by the ending events."""
        changes = Counter[str]()
        for _, status, delta in self.events:
            changes[COUNTS[status]] += delta
        return changes

    @property
    def open(self) -> int:
        """How many of its tasks have not ended."""
        return sum(self.present.get(status, 0) for status in OPEN)


def wrong_counts(facts: RunFacts) -> list[Finding]:
    """Return the counters that differ from the tasks, including the changes of pending ending
    events. ``value`` is set if a repair can correct it.

    Pruned tasks were counted and no longer exist. For a run with pruned tasks, no counter may be
    lower than the number of existing tasks, and tasks that have not ended must be counted as open.
    """
    run, counted, in_events = facts.run, facts.counted, facts.in_events
    if run.status == WorkflowStatus.STARTING:
        return []
    expected = {column: counted[column] + in_events[column] for column in counted}
    there = {column: facts.present.get(status, 0) for status, column in COUNTS.items()}
    is_pruned = sum(there.values()) + facts.open != run.total
    wrong = []
    for column, number in there.items():
        if expected[column] < number or (expected[column] != number and not is_pruned):
            value = number - in_events[column]
            right = f"{value}, by a recount of its tasks"
            wrong.append(Finding(run.pk, column, counted[column], right, value=value))
    ended = sum(expected.values())
    if is_pruned and not wrong and run.total - ended != facts.open:
        value = ended + facts.open
        finding = Finding(
            run.pk, "total", run.total, f"{value}: {ended} ended and {facts.open} open"
        )
        if expected == there:
            return [replace(finding, value=value)]
        advice = "Some of its tasks were deleted: find the cause and cancel the run."
        return [replace(finding, repair="", advice=advice)]
    return wrong


def wrong_status(facts: RunFacts) -> Finding | None:
    """Return what is wrong with the status of a run, by its own counters; None if nothing is, or
    if ending events are pending.
    """
    run = facts.run
    if facts.events or run.status == WorkflowStatus.STARTING:
        return None
    cancelled = run.cancel_requested_at is not None
    overdue = cancelled and run.reason == DEADLINE
    right = verdict(facts.counted, run.total, cancelled=cancelled, overdue=overdue)
    if right == run.status:
        return None
    why = "all of its tasks have ended"
    if right == WorkflowStatus.RUNNING:
        why = f"{facts.open} of its tasks are open"
    return Finding(run.pk, "status", run.status, f"{right}, because {why}")


Events = dict[uuid.UUID, list[tuple[int, str, int]]]


def _events(keys: Sequence[uuid.UUID]) -> Events:
    by_workflow: Events = defaultdict(list)
    waiting = edges.endings().filter(workflow_id__in=keys).order_by("pk")
    for workflow, pk, status, change in waiting.values_list("workflow_id", "pk", "status", "delta"):
        if workflow is not None:
            by_workflow[workflow].append((pk, status, change))
    return by_workflow


def _facts(rows: Rows) -> Iterator[RunFacts]:
    """Yield the runs whose tasks did not change while they were counted.

    While a run is locked, its ending events are only added. If they are the same before and after
    the count, no task ended or was replayed in between.
    """
    locked_runs: list[WorkflowRun] = list(rows)
    keys = [run.pk for run in locked_runs]
    before = _events(keys)
    present: dict[uuid.UUID, Counter[str]] = defaultdict(Counter)
    counted = (
        tables.tasks().filter(workflow__in=keys).order_by().values_list("workflow_id", "status")
    )
    for workflow, status, number in counted.annotate(number=Count("pk")):
        present[workflow][status] = number
    after = _events(keys)
    for run in locked_runs:
        if before.get(run.pk) == after.get(run.pk):
            yield RunFacts(run, present[run.pk], after.get(run.pk, ()))


@check("workflow-counts", WorkflowRun, "graphs", repair="write the recount under the run's lock")
def miscounted(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Do the counts of each workflow run equal the statuses of its tasks?

    Runs whose counts do not match the statuses of their tasks.
    """
    for facts in _facts(rows):
        yield from wrong_counts(facts)


@miscounted.repaired_by("recounted")
def _recount(context: VerifyContext, keys: Sequence[Any]) -> None:
    for facts in _facts(rows_of(WorkflowRun).filter(pk__in=keys)):
        wrong = wrong_counts(facts)
        right = {finding.field: finding.value for finding in wrong if finding.value is not None}
        workflow_runs().filter(pk=facts.run.pk).update(updated_at=tables.NOW, **right)
    _count_again(keys)


def _count(events: Any) -> None:
    """Count ending events until these are counted."""
    while events.uncounted().exists() and runs.count_endings(_FOLD):
        pass


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
    _count(edges.endings().filter(task_id__in=keys))


@check("workflow-status", WorkflowRun, "graphs", repair="set the status from its counts")
def wrong_statuses(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Does the status of each workflow run match its counts?

    Open runs whose tasks have all ended, and ended runs with open tasks.
    """
    for facts in _facts(rows):
        finding = None if wrong_counts(facts) else wrong_status(facts)
        if finding is not None:
            yield finding


@wrong_statuses.repaired_by("status set from its counts")
def _correct_statuses(context: VerifyContext, keys: Sequence[Any]) -> None:
    _count_again(keys)


@check("workflow-starts", WorkflowRun, "graphs", repair="delete its tasks", late=True)
def abandoned(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Is each start of a workflow finished or removed?

    Starts without progress that the leader has not removed.
    """
    if not context.is_steady_for(ABANDONED_AFTER):
        return
    queryset = rows.filter(
        status=WorkflowStatus.STARTING,
        parent__isnull=True,
        updated_at__lt=context.ago(2 * ABANDONED_AFTER),
    )
    for pk in queryset.values_list("pk", flat=True):
        right = f"finished or removed within {ABANDONED_AFTER:g} s of its last progress"
        yield Finding(pk, "status", WorkflowStatus.STARTING.value, right)


@abandoned.repaired_by("abandoned and removed")
def _remove(context: VerifyContext, keys: Sequence[Any]) -> Collection[Any]:
    removed = [key for key in keys if runs.give_up(key, context.ago(ABANDONED_AFTER))]
    for key in removed:
        batches = iter(range(_MOST))
        while runs.remove_given_up(key, _BATCH) and next(batches, None) is not None:
            pass
    return removed
