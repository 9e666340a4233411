"""Operations on graphs, each with all that follows from it, or as a preview."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from django.db import IntegrityError, OperationalError, transaction
from django.db.models import Exists, F, OuterRef, Q
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.audit import AuditRecorder, comment, current_actor, done_by, recorded
from django_durable_tasks.choices import (
    OPEN,
    TERMINAL,
    DependencyType,
    Gate,
    OnUpstreamFailure,
    Status,
)
from django_durable_tasks.dependencies import edges, edit, replay, resolve
from django_durable_tasks.dependencies.edges import workflow_runs
from django_durable_tasks.dependencies.rules import PlannedEdge
from django_durable_tasks.exceptions import InvalidDependency, TransitionRefused
from django_durable_tasks.models import Task, WorkflowRun
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.operations import Argument, ArgumentType, Mode, Reason, Target, operation
from django_durable_tasks.option_values import chosen
from django_durable_tasks.states import attempt_log, dependencies, endings
from django_durable_tasks.states.guarded_update import TrackedChanges, watching
from django_durable_tasks.store import tables
from django_durable_tasks.store.dialects import MYSQL, POSTGRESQL, verb
from django_durable_tasks.store.errors import LOCK_TIMEOUTS, code_of, retry_on_deadlock
from django_durable_tasks.store.tables import publish_after_commit
from django_durable_tasks.tasks import operator_actions

# Runs an operation on a graph together with everything that follows from it, or previews it.
#
# A preview executes the same statements in the same transaction, reads the resulting statuses and
# rolls back. Nothing is published and no signal is sent, because Django discards the on-commit
# callbacks of a transaction that is rolled back ("Performing actions after commit"). Called by
# ``operations``.


T = TypeVar("T")
_MANY = 2_000
_LOCK_TIMEOUT = 5
"""Seconds that a preview waits for a row lock."""


@dataclass(frozen=True, slots=True)
class StatusChange:
    """The change of one task. ``before`` and ``after`` are equal if only its edges or
    gates change.
    """

    task_id: uuid.UUID
    step: str
    name: str
    before: str
    after: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GraphReport:
    """The changes of an operation, or of its preview, the oldest task first.

    ``stop_requested`` contains the RUNNING tasks that were requested to stop.
    """

    changes: tuple[StatusChange, ...]
    stop_requested: tuple[uuid.UUID, ...]
    dry_run: bool

    @property
    def total(self) -> int:
        """Return the number of tasks affected."""
        return len(self.changes) + len(self.stop_requested)


@dataclass(slots=True)
class GraphOperation:
    """The state of one operation: the tasks changed, those requested to stop, and tasks to report
    by name.

    ``resolve_again`` contains tasks whose last ending has to be resolved again.
    """

    watch: TrackedChanges
    stop_requested: set[uuid.UUID] = field(default_factory=set)
    named: dict[uuid.UUID, str] = field(default_factory=dict)
    resolve_again: set[uuid.UUID] = field(default_factory=set)

    def cancel(self, ids: Collection[uuid.UUID], why: str) -> None:
        """Cancel those of these tasks that wait and request RUNNING ones to stop, in primary-key
        order.
        """
        for task_ids in in_parts(sorted(ids)):
            tasks = tables.tasks().filter(pk__in=task_ids)
            endings.cancel(tasks, why)
            # In a caller's transaction a RUNNING task is not locked. A retry may have made it wait
            # since.
            still_open = list(
                tasks.filter(status__in=OPEN, cancel_requested_at=None).values_list("pk", flat=True)
            )
            if still_open:
                endings.request_cancel(tasks.filter(pk__in=still_open), why)
                self.stop_requested.update(still_open)


@contextmanager
def _recorded(name: str, row: Task | WorkflowRun | None) -> Iterator[AuditRecorder]:
    """Record the changes of an operation on this object; None for a set of tasks."""
    with recorded(name) as entry:
        if row is not None:
            kind = "task" if isinstance(row, Task) else "workflow run"
            entry.subject(kind, row.pk, row.tenant_id)
        yield entry


def carry_out(
    act: Callable[[GraphOperation], None],
    name: str,
    row: Task | WorkflowRun | None = None,
    *,
    dry_run: bool,
) -> GraphReport:
    """Execute ``act`` and everything that follows from it in one transaction; with ``dry_run``,
    roll back.

    ``name`` and ``row`` are the operation and its object in the audit entry. Both return the same
    report. Raises the errors of ``act``. Retries after a deadlock.
    """

    @retry_on_deadlock
    def once() -> GraphReport:
        # A preview records nothing.
        changes: AbstractContextManager[Any] = tables.atomic() if dry_run else _recorded(name, row)
        with watching(preview=dry_run) as watch, changes as entry:
            operation = GraphOperation(watch)
            with _lock_timeout() if dry_run else nullcontext():
                act(operation)
                _resolve_consequences(operation)
            report = _report(operation, dry_run)
            if dry_run:
                transaction.set_rollback(True, using=tables.database())
            elif operation.named:
                entry.detail(change="; ".join(operation.named.values()))
        return report

    try:
        return once()
    except OperationalError as error:
        if dry_run and code_of(error) in LOCK_TIMEOUTS:
            raise TransitionRefused(
                f"Tasks of this graph stayed locked for more than {_LOCK_TIMEOUT} s: try again."
            ) from error
        raise


@verb
def _lock_timeout() -> AbstractContextManager[None]:
    """Limit how long a preview waits for row locks to ``_LOCK_TIMEOUT`` seconds."""
    return nullcontext()


@_lock_timeout.on(POSTGRESQL)
def _lock_timeout_of_transaction() -> AbstractContextManager[None]:
    tables.count(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}s'", {})
    return nullcontext()


@_lock_timeout.on(MYSQL)
@contextmanager
def _lock_timeout_of_session() -> Iterator[None]:
    ((before,),) = tables.read("SELECT @@innodb_lock_wait_timeout", {})
    tables.count(f"SET innodb_lock_wait_timeout = {_LOCK_TIMEOUT}", {})
    try:
        yield
    finally:
        tables.count(f"SET innodb_lock_wait_timeout = {int(before)}", {})


# Consequences -------------------------------------------------------------------------------------


def _resolve_consequences(operation: GraphOperation) -> None:
    """Resolve the endings that this operation caused, and those caused by them, until no task waits
    for one.
    """
    # Events of earlier endings are left to the leader, which may have locked them and may wait for
    # a task that this transaction has locked.
    last = tables.tasks().filter(pk=OuterRef("task_id"), epoch=OuterRef("epoch"))
    waits = (
        edges.edges()
        .unresolved()
        .filter(depends_on=OuterRef("task_id"), outcome__isnull=True, task__status=Status.BLOCKED)
    )
    unresolved = edges.endings().unresolved().filter(Exists(last), Exists(waits))
    waiting = set(operation.resolve_again)
    while True:
        waiting |= operation.watch.latest
        operation.watch.latest.clear()
        events = [
            event
            for task_ids in in_parts(sorted(waiting))
            for event in unresolved.filter(task_id__in=task_ids).values_list("pk", "task_id")
        ]
        waiting = {task_id for _, task_id in events}
        moved = 0
        for chunk in in_parts(events):
            done = resolve.resolve_given_endings([event for event, _ in chunk])
            publish_after_commit(done.messages)
            moved += done.events
        if not moved:
            return


def below(ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Return these tasks and all tasks that depend on them, of any status; one
    statement per level.
    """
    keys, frontier = set(ids), set(ids)
    while frontier:
        under: set[uuid.UUID] = set()
        for task_ids in in_parts(sorted(frontier)):
            dependents = edges.edges().below(task_ids).order_by().values_list("task", flat=True)
            under.update(dependents.distinct())
        frontier = under - keys
        keys |= frontier
    return keys


def _report(operation: GraphOperation, dry_run: bool) -> GraphReport:
    before, changes = operation.watch.before, []
    for ids in in_parts(sorted({*before, *operation.named})):
        rows = (
            tables.tasks().filter(pk__in=ids).values_list("pk", "step", "name", "status", "reason")
        )
        for key, step, name, status, reason in sorted(rows):
            reported = operation.named.get(key, "")
            if before.get(key, status) != status or key in operation.named:
                changes.append(
                    StatusChange(
                        key, step or "", name, before.get(key, status), status, reason or reported
                    )
                )
    return GraphReport(tuple(changes), tuple(sorted(operation.stop_requested)), dry_run)


def in_parts(several: Iterable[T]) -> Iterator[list[T]]:
    """Yield the items in parts small enough for the parameters of one statement."""
    items = list(several)
    for first in range(0, len(items), _MANY):
        yield items[first : first + _MANY]


# Operations on graphs: cancel, retry, force, approve, reject, hold, and changes of edges; each
# with a dry run.
#
# Every operation returns a report of the tasks that it changed, including everything that follows.
# A dry run rolls back and returns the same report.


def _counts(report: GraphReport) -> dict[str, int]:
    return {"changed": len(report.changes), "stop_requested": len(report.stop_requested)}


_FAILED = (Status.FAILED, Status.EXPIRED, Status.CANCELLED)


class RetryMode(StrEnum):
    """Which tasks of a workflow are replayed."""

    ALL = "ALL"
    FAILED = "FAILED"
    FAILED_AND_DOWNSTREAM = "FAILED_AND_DOWNSTREAM"


# Cancel -------------------------------------------------------------------------------------------


@operation(
    Target.WORKFLOW,
    name="cancel",
    title=_("Cancel the workflow"),
    help=_(
        "Waiting tasks of the run and of its sub-workflows are cancelled immediately and never run."
        " Running tasks receive a request to stop."
    ),
    permission="cancel_workflowrun",
    sweeps=True,
    counted=_counts,
)
def cancel_workflow(run: WorkflowRun, *, dry_run: bool = False) -> GraphReport:
    """Cancel a run and all runs inside it: waiting tasks at once, RUNNING ones are requested to
    stop.

    First, a separate transaction flags the runs, so that none of them is extended any more. A run
    whose tasks have all ended is not changed.
    """
    why = _comment("CANCELLED")
    # Repeated, because a run without the flag may have added another run meanwhile.
    while not dry_run:
        unflagged = workflow_runs().open().filter(pk__in=_run_ids(run), cancel_requested_at=None)
        if not unflagged.update(cancel_requested_at=tables.NOW, reason=why, updated_at=tables.NOW):
            break

    def act(operation: GraphOperation) -> None:
        open_tasks = tables.tasks().filter(workflow__in=_run_ids(run), status__in=OPEN)
        operation.cancel(list(open_tasks.values_list("pk", flat=True)), why)

    report = carry_out(act, "workflow_run.cancel", run, dry_run=dry_run)
    if dry_run or report.total:
        return report
    # The leader has cancelled tasks of these runs, or requested them to stop, since the flag was
    # set; if it has not, the flags are cleared.
    runs, flagged_at = _run_ids(run), F("workflow__cancel_requested_at")
    changed = Q(reason=why, completed_at__gte=flagged_at) | Q(cancel_requested_at__gte=flagged_at)
    if tables.tasks().filter(changed, workflow__in=runs).exists():
        with _recorded("workflow_run.cancel", run) as entry:
            entry.detail(cancel_requested=True)
    else:
        flagged = workflow_runs().open().filter(pk__in=runs, reason=why)
        flagged.update(cancel_requested_at=None, reason="")
    return report


def _comment(action: str) -> str:
    return comment(action, current_actor().by, current_actor().reason)


def _run_ids(run: WorkflowRun) -> list[uuid.UUID]:
    """Return a run and all runs inside it."""
    return sorted([run.pk, *(sub.pk for sub in edges.sub_workflows_of([run])[run.pk])])


@operation(
    Target.TASK,
    title=_("Cancel this branch"),
    help=_(
        "The task and all tasks that depend on it are cancelled. Running tasks receive a request"
        " to stop."
    ),
    permission="cancel_workflowrun",
    sweeps=True,
    counted=_counts,
)
def cancel_branch(task: Task, *, dry_run: bool = False) -> GraphReport:
    """Cancel a task and all direct and indirect dependents; RUNNING ones are requested to stop."""
    why = _comment("CANCELLED")
    return carry_out(
        lambda operation: operation.cancel(below([task.pk]), why),
        "task.cancel_branch",
        task,
        dry_run=dry_run,
    )


# Run again ----------------------------------------------------------------------------------------


@operation(
    Target.WORKFLOW,
    name="replay",
    title=_("Replay the workflow"),
    help=_(
        "Ended tasks of the run and of its sub-workflows run again under the same idempotency keys."
        " Failures and crashes are counted from zero."
    ),
    permission="retry_workflowrun",
    opens_tasks=True,
    sweeps=True,
    modes=(
        Mode(
            name=RetryMode.FAILED,
            title=_("Failed only"),
            help=_(
                "Tasks that failed, expired or were cancelled run again, and tasks that were"
                " skipped because of them."
            ),
        ),
        Mode(
            name=RetryMode.FAILED_AND_DOWNSTREAM,
            title=_("Failed and downstream"),
            help=_(
                "Tasks that failed, expired or were cancelled run again, and all tasks that depend"
                " on them, including successful ones."
            ),
        ),
        Mode(
            name=RetryMode.ALL,
            title=_("All"),
            help=_("All ended tasks run again, including successful ones."),
        ),
    ),
    counted=_counts,
)
def retry_workflow(run: WorkflowRun, mode: str, *, dry_run: bool = False) -> GraphReport:
    """Run tasks of a run, and of the runs inside it, again; an ended or cancelled run is opened
    again.

    ALL selects every ended task. FAILED selects failed, expired and cancelled tasks, and those
    skipped because of them. FAILED_AND_DOWNSTREAM also selects everything that depends on them,
    including successful tasks. A task that runs again waits for its upstreams that do. Raises
    TransitionRefused if no task can run again, or if a task downstream is RUNNING.
    """
    kind = chosen("mode", mode, RetryMode)

    def act(operation: GraphOperation) -> None:
        tasks = tables.tasks().filter(workflow__in=_run_ids(run))
        failed = tasks.filter(status__in=_FAILED)
        if kind != RetryMode.ALL and not failed.exists():
            raise TransitionRefused(
                f"No task of {run} failed, expired or was cancelled: there is nothing to retry."
            )
        if kind == RetryMode.FAILED:
            operator_actions.replay(failed)
        elif kind == RetryMode.ALL:
            _again(tasks.filter(status__in=TERMINAL))
        else:
            _again(_with_below(failed))

    return _run_again(act, "workflow_run.replay", run, dry_run)


@operation(
    Target.TASK,
    name="replay_from",
    title=_("Replay from here"),
    help=_("The ended task and all tasks that depend on it run again, including successful ones."),
    permission="retry_workflowrun",
    opens_tasks=True,
    sweeps=True,
    counted=_counts,
)
def retry_from(task: Task, *, dry_run: bool = False) -> GraphReport:
    """Run an ended task again with everything that depends on it, including successful tasks.

    Raises TransitionRefused if it has not ended, or if a task downstream is RUNNING.
    """

    def act(operation: GraphOperation) -> None:
        row = tables.tasks().filter(pk=task.pk).first()
        if row is None:
            raise TransitionRefused(
                f"There is no task {task.pk}: it was never created, or its retention is over."
            )
        if row.status not in TERMINAL:
            raise TransitionRefused(
                f"Task {row.pk} is {row.status}: only an ended task runs again."
            )
        _again(_with_below(tables.tasks().filter(pk=row.pk)))

    return _run_again(act, "task.replay_from", task, dry_run)


def _with_below(selected: TaskQuerySet) -> TaskQuerySet:
    keys = below(list(selected.values_list("pk", flat=True)))
    return tables.tasks().filter(pk__in=sorted(keys))


def _again(selected: TaskQuerySet) -> None:
    actor = current_actor()
    ids = list(selected.values_list("pk", flat=True))
    returned = replay.again(ids, done_by("replayed", actor.by, actor.reason))
    attempt_log.close_replayed_letters(returned, by=actor.by, reason=actor.reason)


def _run_again(
    act: Callable[[GraphOperation], None], name: str, row: Task | WorkflowRun | None, dry_run: bool
) -> GraphReport:
    try:
        return carry_out(act, name, row, dry_run=dry_run)
    except IntegrityError as taken:
        raise TransitionRefused(
            f"A newer open task or run owns a key of one of these: {taken}"
        ) from taken


# Force --------------------------------------------------------------------------------------------


@operation(
    Target.TASKS,
    name="force_complete_in_graph",
    title=_("Force-complete tasks of workflows"),
    help=_("The tasks become SUCCESS without running, and tasks that depend on them are released."),
    not_in_api="tasks.force_complete has the same effect on one task",
    permission="force_workflowrun",
    reason=Reason.REQUIRED_IN_FORMS,
    counted=_counts,
)
def force_complete(tasks: TaskQuerySet, *, dry_run: bool = False) -> GraphReport:
    """Set tasks to SUCCESS without running them.

    Their dependents are released, and tasks that were skipped because of them wait again.
    """

    def act(operation: GraphOperation) -> None:
        if not operator_actions.force_complete(tasks):
            raise TransitionRefused(
                "None of these tasks can be set to SUCCESS: they do not exist or have succeeded."
            )

    return _run_again(act, "tasks.force_complete_in_graph", None, dry_run)


@operation(
    Target.TASKS,
    title=_("Force-run tasks"),
    help=_(
        "BLOCKED and SKIPPED tasks run now, without waiting for dependencies, approvals and holds."
    ),
    permission="force_workflowrun",
    opens_tasks=True,
    reason=Reason.REQUIRED_IN_FORMS,
    counted=_counts,
)
def force_run(tasks: TaskQuerySet, *, dry_run: bool = False) -> GraphReport:
    """Run BLOCKED and SKIPPED tasks now, regardless of their upstreams and gates.

    Tasks that were skipped because of them wait again. Raises TransitionRefused if none of the
    tasks is BLOCKED or SKIPPED.
    """
    actor = current_actor()

    def act(operation: GraphOperation) -> None:
        forced, returned = replay.force_run(tasks, _comment("forced"), by=actor.by)
        if not forced:
            raise TransitionRefused(
                "None of these tasks is BLOCKED or SKIPPED: there is nothing to force."
            )
        attempt_log.close_replayed_letters([*forced, *returned], by=actor.by, reason=actor.reason)

    return _run_again(act, "tasks.force_run", None, dry_run)


# Gates --------------------------------------------------------------------------------------------


@operation(
    Target.TASK,
    title=_("Approve"),
    help=_("The task that waits for an approval runs when all other dependencies are met."),
    permission="approve_taskdependency",
    counted=_counts,
)
def approve(task: Task, *, dry_run: bool = False) -> GraphReport:
    """Open the approval that a task waits for. Raises TransitionRefused if it waits for none."""
    return _open_gate(task, Gate.APPROVAL, "approved", "task.approve", dry_run)


@operation(
    Target.TASK,
    title=_("Reject"),
    help=_(
        "The task that waits for an approval will not run. Tasks that depend on it are skipped or"
        " fail, as their policy says."
    ),
    permission="approve_taskdependency",
    reason=Reason.REQUIRED_IN_FORMS,
    counted=_counts,
)
def reject(task: Task, *, dry_run: bool = False) -> GraphReport:
    """Cancel a task that waits for an approval; a replay waits for it again.

    Raises TransitionRefused if it waits for none.
    """
    actor = current_actor()

    def act(operation: GraphOperation) -> None:
        gates = edges.edges().above([task.pk]).gates().unresolved().filter(gate=Gate.APPROVAL)
        dependencies.lock_rows(sorted(below([task.pk])))
        if not gates.update(
            outcome="REJECTED", resolved_by=actor.by[:200], comment=actor.reason[:500]
        ):
            raise TransitionRefused(f"Task {task.pk} waits for no {Gate.APPROVAL}.")
        operation.cancel([task.pk], _comment("REJECTED"))

    return carry_out(act, "task.reject", task, dry_run=dry_run)


@operation(
    Target.TASK,
    title=_("Hold"),
    help=_("The task, which has not started, waits until its hold is ended."),
    permission="approve_taskdependency",
    counted=_counts,
)
def hold(task: Task, *, dry_run: bool = False) -> GraphReport:
    """Let a task that has not started wait for ``unhold``.

    Raises TransitionRefused if it has started or is held already.
    """
    actor = current_actor()

    def act(operation: GraphOperation) -> None:
        if not edit.place_gate(task.pk, Gate.HOLD, by=actor.by, reason=actor.reason):
            raise TransitionRefused(f"Task {task.pk} is held already.")
        operation.named[task.pk] = _comment("held")

    return carry_out(act, "task.hold", task, dry_run=dry_run)


@operation(
    Target.TASK,
    title=_("End the hold"),
    help=_("The task runs when all other dependencies are met."),
    permission="approve_taskdependency",
    counted=_counts,
)
def unhold(task: Task, *, dry_run: bool = False) -> GraphReport:
    """End the hold of a task. Raises TransitionRefused if it is not held."""
    return _open_gate(task, Gate.HOLD, "released", "task.unhold", dry_run)


def _open_gate(task: Task, gate: Gate, action: str, name: str, dry_run: bool) -> GraphReport:
    actor = current_actor()

    def act(operation: GraphOperation) -> None:
        edit.open_gate(task.pk, gate, by=actor.by, reason=actor.reason)
        operation.named[task.pk] = comment(action, actor.by)

    return carry_out(act, name, task, dry_run=dry_run)


# Edges --------------------------------------------------------------------------------------------


_TYPES = (
    (DependencyType.MUST_SUCCEED, _("MUST_SUCCEED: it must end as SUCCESS")),
    (DependencyType.MUST_FINISH, _("MUST_FINISH: it must end in any status")),
    (DependencyType.MUST_FAIL, _("MUST_FAIL: it must end as FAILED")),
)
_POLICIES = (
    ("", _("the task's own policy")),
    (OnUpstreamFailure.SKIP, _("SKIP: the task is skipped")),
    (OnUpstreamFailure.FAIL, _("FAIL: the task fails")),
    (OnUpstreamFailure.WAIT, _("WAIT: the task continues to wait")),
    (OnUpstreamFailure.RUN, _("RUN: the task runs anyway")),
)
Upstream = Annotated[
    Task, Argument(_("Depends on"), _("The id of the upstream task."), kind=ArgumentType.TASK_ID)
]


@operation(
    Target.DEPENDENCY,
    name="add",
    title=_("Add a dependency"),
    help=_(
        "A task that has not started waits for another one. A dependency that would close a cycle"
        " is refused with its path."
    ),
    permission="add_taskdependency",
    counted=_counts,
)
def add_edge(
    task: Task,
    upstream: Upstream,
    type: Annotated[
        str,
        Argument(_("Type"), _("How the upstream task must end."), required=True, choices=_TYPES),
    ] = DependencyType.MUST_SUCCEED,
    *,
    policy: Annotated[
        str | None,
        Argument(
            _("Otherwise"),
            _("What happens to the task if the upstream task ends otherwise."),
            choices=_POLICIES,
        ),
    ] = None,
    dry_run: bool = False,
) -> GraphReport:
    """Let a task that has not started wait for ``upstream``; ``type`` is MUST_SUCCEED, MUST_FINISH
    or MUST_FAIL.

    ``policy`` overrides the task's policy for an upstream that ends otherwise. Raises
    DependencyCycle with the path, InvalidDependency, InvalidOption or TransitionRefused.
    """
    actor = current_actor()
    edge = PlannedEdge(
        upstream=upstream.pk,
        kind=chosen("kind", type, DependencyType),
        policy=chosen("on_upstream_failure", policy, OnUpstreamFailure) if policy else None,
    )

    def act(operation: GraphOperation) -> None:
        planned = {upstream.pk: edge}
        if not edit.link(task.pk, planned, by=actor.by, reason=actor.reason):
            raise InvalidDependency(
                f"Task {task.pk} waits for {upstream.pk} already, by {edge.kind}."
            )
        operation.named[task.pk] = f"waits for {upstream.step or upstream.name} by {edge.kind}"
        operation.resolve_again.add(upstream.pk)

    return carry_out(act, "dependency.add", task, dry_run=dry_run)


@operation(
    Target.DEPENDENCY,
    name="remove",
    title=_("Remove the dependency"),
    help=_(
        "The task no longer waits for the other one. It runs when all other dependencies are met."
    ),
    permission="delete_taskdependency",
    counted=_counts,
)
def remove_edge(task: Task, upstream: Upstream, *, dry_run: bool = False) -> GraphReport:
    """Delete an edge of a BLOCKED task, which runs if nothing else blocks it.

    Raises InvalidDependency if the edge does not exist, and TransitionRefused if the task is not
    BLOCKED.
    """

    def act(operation: GraphOperation) -> None:
        if not edges.edges().above([task.pk]).below([upstream.pk]).exists():
            raise InvalidDependency(
                f"Task {task.pk} does not wait for task {upstream.pk}: there is no such edge."
            )
        edit.unlink(task.pk, [upstream.pk])
        operation.named[task.pk] = _comment(f"no longer waits for {upstream.step or upstream.name}")

    return carry_out(act, "dependency.remove", task, dry_run=dry_run)
