"""Operations on a workflow run, and on tasks with dependencies."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext_lazy as _

from django_durable_tasks.engine.workflows import operations
from django_durable_tasks.engine.workflows.operations import GraphReport, RetryMode
from django_durable_tasks.models import WorkflowRun
from django_durable_tasks.operations.gates import reported
from django_durable_tasks.operations.operation import Mode, Operation, Reason, Target


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

OPERATIONS = (CANCEL, REPLAY, REPLAY_FROM, CANCEL_BRANCH, FORCE_RUN, FORCE_COMPLETE)
