"""Operations on workflow runs, dependencies, approvals and holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.utils.translation import gettext_lazy as _

from django_durable_tasks.choices import DependencyType, OnUpstreamFailure
from django_durable_tasks.models import Task, WorkflowRun
from django_durable_tasks.operations.operation import (
    Argument,
    ArgumentType,
    Mode,
    Operation,
    OperationResult,
    Reason,
    Target,
)
from django_durable_tasks.workflows import operations
from django_durable_tasks.workflows.operations import GraphReport, RetryMode

# Operations on the approval or the hold of one task.


def reported(engine: Callable[..., GraphReport]) -> Callable[..., OperationResult]:
    """Return the operation of an engine function that returns a report."""

    def perform(
        subject: Any, *, by: str, reason: str, dry_run: bool = False, **fields: Any
    ) -> OperationResult:
        report = engine(subject, by=by, reason=reason, dry_run=dry_run, **fields)
        return OperationResult(
            {"changed": len(report.changes), "stop_requested": len(report.stop_requested)},
            report=report,
        )

    return perform


def _gate(
    name: str, engine: Callable[..., GraphReport], title: Any, text: Any, **more: Any
) -> Operation:
    def act(task: Task, **given: Any) -> GraphReport:
        return engine(task, **given)

    return Operation(
        target=Target.TASK,
        name=name,
        title=title,
        help=text,
        permission="approve_taskdependency",
        perform=reported(act),
        dry_run=True,
        **more,
    )


APPROVE = _gate(
    "approve",
    operations.approve,
    _("Approve"),
    _("The task that waits for an approval runs when all other dependencies are met."),
)
REJECT = _gate(
    "reject",
    operations.reject,
    _("Reject"),
    _(
        "The task that waits for an approval will not run. Tasks that depend on it are skipped or"
        " fail, as their policy says."
    ),
    reason=Reason.REQUIRED_IN_FORMS,
)
HOLD = _gate(
    "hold",
    operations.hold,
    _("Hold"),
    _("The task, which has not started, waits until its hold is ended."),
)
UNHOLD = _gate(
    "unhold",
    operations.unhold,
    _("End the hold"),
    _("The task runs when all other dependencies are met."),
)

GATE_OPERATIONS = (APPROVE, REJECT, HOLD, UNHOLD)


# Operations on a workflow run, and on tasks with dependencies.


def _replay(run: WorkflowRun, *, mode: str, **given: Any) -> GraphReport:
    return operations.retry_workflow(run, mode, **given)


CANCEL = Operation(
    target=Target.WORKFLOW,
    name="cancel",
    title=_("Cancel the workflow"),
    help=_(
        "Waiting tasks of the run and of its sub-workflows are cancelled immediately and never run."
        " Running tasks receive a request to stop."
    ),
    permission="cancel_workflowrun",
    perform=reported(operations.cancel_workflow),
    dry_run=True,
    sweeps=True,
)
REPLAY = Operation(
    target=Target.WORKFLOW,
    name="replay",
    title=_("Replay the workflow"),
    help=_(
        "Ended tasks of the run and of its sub-workflows run again under the same idempotency keys."
        " Failures and crashes are counted from zero."
    ),
    permission="retry_workflowrun",
    opens_tasks=True,
    perform=reported(_replay),
    dry_run=True,
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
)
REPLAY_FROM = Operation(
    target=Target.TASK,
    name="replay_from",
    title=_("Replay from here"),
    help=_("The ended task and all tasks that depend on it run again, including successful ones."),
    permission="retry_workflowrun",
    opens_tasks=True,
    perform=reported(operations.retry_from),
    dry_run=True,
    sweeps=True,
)
CANCEL_BRANCH = Operation(
    target=Target.TASK,
    name="cancel_branch",
    title=_("Cancel this branch"),
    help=_(
        "The task and all tasks that depend on it are cancelled. Running tasks receive a request"
        " to stop."
    ),
    permission="cancel_workflowrun",
    perform=reported(operations.cancel_branch),
    dry_run=True,
    sweeps=True,
)
FORCE_RUN = Operation(
    target=Target.TASKS,
    name="force_run",
    title=_("Force-run tasks"),
    help=_(
        "BLOCKED and SKIPPED tasks run now, without waiting for dependencies, approvals and holds."
    ),
    permission="force_workflowrun",
    opens_tasks=True,
    perform=reported(operations.force_run),
    reason=Reason.REQUIRED_IN_FORMS,
    dry_run=True,
)
FORCE_COMPLETE = Operation(
    target=Target.TASKS,
    name="force_complete_in_graph",
    title=_("Force-complete tasks of workflows"),
    help=_("The tasks become SUCCESS without running, and tasks that depend on them are released."),
    not_in_api="tasks.force_complete has the same effect on one task",
    permission="force_workflowrun",
    perform=reported(operations.force_complete),
    reason=Reason.REQUIRED_IN_FORMS,
    dry_run=True,
)

WORKFLOW_OPERATIONS = (CANCEL, REPLAY, REPLAY_FROM, CANCEL_BRANCH, FORCE_RUN, FORCE_COMPLETE)


# Operations that add or remove a dependency between two tasks.


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


def _add(task: Task, *, upstream: Task, type: str, policy: str | None, **given: Any) -> GraphReport:
    return operations.add_edge(task, upstream, type, policy=policy or None, **given)


def _remove(task: Task, *, upstream: Task, **given: Any) -> GraphReport:
    return operations.remove_edge(task, upstream, **given)


_UPSTREAM = Argument(
    name="upstream",
    kind=ArgumentType.TASK_ID,
    label=_("Depends on"),
    help=_("The id of the upstream task."),
    required=True,
)
ADD = Operation(
    target=Target.DEPENDENCY,
    name="add",
    title=_("Add a dependency"),
    help=_(
        "A task that has not started waits for another one. A dependency that would close a cycle"
        " is refused with its path."
    ),
    permission="add_taskdependency",
    perform=reported(_add),
    dry_run=True,
    fields=(
        _UPSTREAM,
        Argument(
            name="type",
            kind=ArgumentType.CHOICE,
            label=_("Type"),
            help=_("How the upstream task must end."),
            choices=_TYPES,
            default=DependencyType.MUST_SUCCEED,
            required=True,
        ),
        Argument(
            name="policy",
            kind=ArgumentType.CHOICE,
            label=_("Otherwise"),
            help=_("What happens to the task if the upstream task ends otherwise."),
            choices=_POLICIES,
        ),
    ),
)
REMOVE = Operation(
    target=Target.DEPENDENCY,
    name="remove",
    title=_("Remove the dependency"),
    help=_(
        "The task no longer waits for the other one. It runs when all other dependencies are met."
    ),
    permission="delete_taskdependency",
    perform=reported(_remove),
    dry_run=True,
    fields=(_UPSTREAM,),
)

DEPENDENCY_OPERATIONS = (ADD, REMOVE)


OPERATIONS = (
    *WORKFLOW_OPERATIONS,
    *DEPENDENCY_OPERATIONS,
    *GATE_OPERATIONS,
)
