"""``POST /tasks/{id}/...``: the operations on one task, on its branch, and on its approvals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    return tasks.REPLAY_EDITED if {"args", "kwargs"} & set(given) else tasks.REPLAY


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
    ),
    ObjectAction(path="force-complete", scope=ApiScope.FORCE, operations=(tasks.FORCE_COMPLETE,)),
    ObjectAction(path="force-run", scope=ApiScope.FORCE, operations=(workflows.FORCE_RUN,)),
    ObjectAction(path="reschedule", scope=ApiScope.OPERATE, operations=(tasks.RESCHEDULE,)),
)
ON_ONE_TASK = tuple(
    ObjectAction(path=path, scope=ApiScope.OPERATE, operations=(operation,))
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
