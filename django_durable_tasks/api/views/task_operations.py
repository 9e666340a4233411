"""``/tasks/{id}/cancel``, ``retry``, ``replay``, ``force-complete`` and ``reschedule``."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.api.operation_calls import body_of, perform
from django_durable_tasks.api.task_fields import entity_tag, task_json
from django_durable_tasks.api.task_lists import tasks_of
from django_durable_tasks.api.views.tasks import refused, task_of
from django_durable_tasks.api.writes import Answer, WritingEndpoint
from django_durable_tasks.models import Task
from django_durable_tasks.operations import tasks
from django_durable_tasks.operations.operation import Operation
from django_durable_tasks.rules.states import REPLAYABLE
from django_durable_tasks.rules.tenants.api_keys import ApiScope

Chosen = Callable[[Task, Mapping[str, Any]], Operation]


@dataclass(frozen=True, slots=True)
class TaskAction:
    """A path below a task, the scope it needs, and the operations of which it performs one."""

    path: str
    scope: ApiScope
    operations: tuple[Operation, ...]
    choose: Chosen


def _only(operation: Operation) -> Chosen:
    return lambda _task, _given: operation


def _retry(task: Task, _given: Mapping[str, Any]) -> Operation:
    """Release a waiting retry, or replay a task that has ended."""
    return tasks.REPLAY if task.status in REPLAYABLE else tasks.RETRY


def _replay(_task: Task, given: Mapping[str, Any]) -> Operation:
    return tasks.REPLAY_EDITED if {"args", "kwargs"} & set(given) else tasks.REPLAY


ACTIONS = (
    TaskAction("cancel", ApiScope.OPERATE, (tasks.CANCEL,), _only(tasks.CANCEL)),
    TaskAction("retry", ApiScope.OPERATE, (tasks.RETRY, tasks.REPLAY), _retry),
    TaskAction("replay", ApiScope.OPERATE, (tasks.REPLAY, tasks.REPLAY_EDITED), _replay),
    TaskAction(
        "force-complete", ApiScope.FORCE, (tasks.FORCE_COMPLETE,), _only(tasks.FORCE_COMPLETE)
    ),
    TaskAction("reschedule", ApiScope.OPERATE, (tasks.RESCHEDULE,), _only(tasks.RESCHEDULE)),
)


class TaskOperationEndpoint(WritingEndpoint):
    """An operation on one task; ``endpoint_of`` derives one class for each action."""

    action: ClassVar[TaskAction]
    body_class: ClassVar[Any]

    def post(self, request: Request, task_id: uuid.UUID) -> Response:
        """Perform the operation and return the task."""
        body = self.body_class(data=self.body(request))
        body.is_valid(raise_exception=True)
        tenant_id, given = self.caller.tenant.pk, body.validated_data

        def act() -> Answer:
            row = task_of(tenant_id, task_id, lock=True)
            operation = self.action.choose(row, given)
            these = tasks_of(tenant_id).filter(pk=task_id)
            if not perform(operation, these, self.caller, given).changed:
                raise refused(row)
            changed = task_of(tenant_id, task_id)
            shown = task_json(changed, self.caller)
            return Answer(200, shown, {"ETag": entity_tag(changed.epoch, shown)})

        def before() -> Mapping[str, Any]:
            return task_json(task_of(tenant_id, task_id), self.caller)

        return self.write(request, act, before)


def endpoint_of(action: TaskAction) -> type[TaskOperationEndpoint]:
    """Return the endpoint of an action."""
    name = "".join(part.title() for part in action.path.split("-"))
    return type(
        f"{name}TaskEndpoint",
        (TaskOperationEndpoint,),
        {
            "action": action,
            "scopes": {"POST": action.scope},
            "body_class": body_of(f"{name}TaskBody", *action.operations),
            "__doc__": str(action.operations[0].help),
        },
    )
