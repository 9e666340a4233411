"""Operations on the approval or the hold of one task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.utils.translation import gettext_lazy as _

from django_durable_tasks.engine.workflows import operations
from django_durable_tasks.engine.workflows.operations import GraphReport
from django_durable_tasks.models import Task
from django_durable_tasks.operations.operation import Operation, OperationResult, Reason, Target


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

OPERATIONS = (APPROVE, REJECT, HOLD, UNHOLD)
