"""``POST /tasks/{id}/...``: the operations on one task, on its branch, and on its approvals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django_durable_tasks.api.argument_edits import edited_arguments
from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.fields import JsonObject
from django_durable_tasks.api.problems import invalid_field
from django_durable_tasks.api.task_fields import is_past
from django_durable_tasks.api.views.object_operations import ObjectAction
from django_durable_tasks.models import Task
from django_durable_tasks.operations import gates, tasks, workflows
from django_durable_tasks.operations.operation import Operation
from django_durable_tasks.rules.states import REPLAYABLE
from django_durable_tasks.rules.tenants.api_keys import ApiScope


def _retry(task: Task, _given: Mapping[str, Any]) -> Operation:
    """Release a waiting retry, or replay a task that has ended."""
    return tasks.REPLAY if task.status in REPLAYABLE else tasks.RETRY


def _replay(_task: Task, given: Mapping[str, Any]) -> Operation:
    return tasks.REPLAY_EDITED if "target_config" in given else tasks.REPLAY


def _arguments(task: Task, given: Mapping[str, Any], caller: Caller) -> Mapping[str, Any]:
    """Check edited arguments as PATCH does."""
    if "target_config" not in given:
        return given
    config = given["target_config"]
    return {**given, **edited_arguments(task.name, task, config, caller)}


def _not_in_the_past(_task: Task, given: Mapping[str, Any], _caller: Caller) -> Mapping[str, Any]:
    if is_past(given["run_at"]):
        raise invalid_field("#/run_at", "is more than a day in the past", "past")
    return given


ACTIONS = (
    ObjectAction(path="cancel", scope=ApiScope.OPERATE, operations=(tasks.CANCEL,)),
    ObjectAction(
        path="retry",
        scope=ApiScope.OPERATE,
        operations=(tasks.RETRY, tasks.REPLAY),
        choose=_retry,
    ),
    ObjectAction(
        path="replay",
        scope=ApiScope.OPERATE,
        operations=(tasks.REPLAY, tasks.REPLAY_EDITED),
        choose=_replay,
        prepare=_arguments,
        more={
            "target_config": JsonObject(
                required=False, help_text="As of PATCH; a mask keeps the stored value."
            )
        },
        without=frozenset({"args", "kwargs"}),
    ),
    ObjectAction(path="force-complete", scope=ApiScope.FORCE, operations=(tasks.FORCE_COMPLETE,)),
    ObjectAction(path="force-run", scope=ApiScope.FORCE, operations=(workflows.FORCE_RUN,)),
    ObjectAction(
        path="reschedule",
        scope=ApiScope.OPERATE,
        operations=(tasks.RESCHEDULE,),
        prepare=_not_in_the_past,
    ),
)
ON_ONE_TASK = tuple(
    ObjectAction(
        path=path,
        scope=ApiScope.OPERATE,
        operations=(operation,),
    )
    for path, operation in (
        ("replay-from", workflows.REPLAY_FROM),
        ("cancel-branch", workflows.CANCEL_BRANCH),
        ("approve", gates.APPROVE),
        ("reject", gates.REJECT),
        ("hold", gates.HOLD),
        ("unhold", gates.UNHOLD),
    )
)
"""Operations that take the task itself and not a queryset."""
