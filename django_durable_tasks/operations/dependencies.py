"""Operations that add or remove a dependency between two tasks."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext_lazy as _

from django_durable_tasks.engine.workflows import operations
from django_durable_tasks.engine.workflows.operations import GraphReport
from django_durable_tasks.models import Task
from django_durable_tasks.operations.gates import reported
from django_durable_tasks.operations.operation import Argument, ArgumentType, Operation, Target
from django_durable_tasks.rules.dependencies import DependencyType, OnUpstreamFailure

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

OPERATIONS = (ADD, REMOVE)
