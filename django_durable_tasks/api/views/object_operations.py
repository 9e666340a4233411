"""Operations on one object: ``POST <object>/<path>`` performs an operation of the registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.api import problems
from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.lists import entity_tag
from django_durable_tasks.api.problems import Problem
from django_durable_tasks.api.writes import Answer, WritingEndpoint, body_of, perform
from django_durable_tasks.operations.operation import Operation, OperationResult
from django_durable_tasks.tenants.quotas import charge_open_tasks
from django_durable_tasks.tenants.values import ApiScope

Find = Callable[[Caller, Any], Any]
"""Returns the object of this id, of the caller's tenant; raises Problem."""


Prepare = Callable[[Any, Mapping[str, Any], Caller], Mapping[str, Any]]
"""Returns the fields of an operation for an object and a body; raises Problem."""


def _unchanged(_row: Any, given: Mapping[str, Any], _caller: Caller) -> Mapping[str, Any]:
    return given


def _nothing(_result: OperationResult) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A kind of object: how it is found, shown and passed to an operation.

    ``answer`` is the serializer of its answers, for the OpenAPI document.
    ``version`` returns the number for its ETag. ``reads`` is the model that a staff user must be
    permitted to view; ``is_shared`` as that of ApiEndpoint.
    """

    name: str
    reads: str
    answer: Any
    find: Find
    show: Callable[[Any, Caller], dict[str, Any]]
    version: Callable[[Any], int]
    subject: Callable[[Any], Any] = lambda row: row
    is_shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectAction:
    """A path below an object, the scope it needs, and the operations of which it performs one.

    ``choose`` selects the operation by the object and the body; by default it is the first one.
    ``prepare`` checks and completes the fields of the body, which has ``more`` fields than those of
    the operations, and not those of ``without``.
    ``result`` returns further fields of the answer. An operation that changes nothing is refused
    unless ``may_change_nothing`` is set.
    """

    path: str
    scope: ApiScope
    operations: tuple[Operation, ...]
    choose: Callable[[Any, Mapping[str, Any]], Operation] | None = None
    prepare: Prepare = _unchanged
    more: Mapping[str, Any] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    result: Callable[[OperationResult], dict[str, Any]] = _nothing
    may_change_nothing: bool = False


class OperationEndpoint(WritingEndpoint):
    """``endpoint_of`` derives one class for each action."""

    resource: ClassVar[Resource]
    object_action: ClassVar[ObjectAction]
    body_class: ClassVar[Any]

    def post(self, request: Request, **ids: Any) -> Response:
        """Perform the operation and return the object."""
        ((_name, key),) = ids.items()
        valid = self.body_class.valid(self.body(request))
        given, resource, caller = valid, self.resource, self.caller

        def act() -> Answer:
            # Not locked here: the engine locks rows in an order that prevents deadlocks.
            row = resource.find(caller, key)
            action = self.object_action
            operation = action.operations[0] if action.choose is None else action.choose(row, given)
            fields = action.prepare(row, given, caller)
            done = perform(operation, resource.subject(row), caller, fields)
            if not done.changed and not action.may_change_nothing:
                raise refused(row, str(done.message))
            if operation.opens_tasks:
                charge_open_tasks(caller.tenant, done.changed)
            changed = resource.find(caller, key)
            shown = resource.show(changed, caller.without_secrets()) | action.result(done)
            tag = entity_tag(resource.version(changed), shown)
            return Answer(200, shown, {"ETag": tag})

        def before() -> dict[str, Any]:
            return resource.show(resource.find(caller, key), caller.without_secrets())

        return self.write(request, act, before)


def refused(row: Any, message: str = "") -> Problem:
    """Return the problem of an operation that the status of an object does not allow."""
    status = getattr(row, "status", "")
    detail = f"Its status is {status}, which does not allow this operation." if status else message
    return Problem(
        problems.CONFLICT,
        detail or "The state of the object does not allow this operation.",
        more={"object_status": status} if status else {},
    )


def endpoint_of(resource: Resource, action: ObjectAction) -> type[OperationEndpoint]:
    """Return the endpoint of an action."""
    name = "".join(part.title() for part in f"{resource.name}-{action.path}".split("-"))
    body = body_of(f"{name}Body", *action.operations, without=action.without, more=action.more)
    return type(
        f"{name}ApiEndpoint",
        (OperationEndpoint,),
        {
            "resource": resource,
            "object_action": action,
            "operations": action.operations,
            "scopes": {"POST": action.scope},
            "reads": (resource.reads,),
            "permissions": {"POST": tuple(one.permission for one in action.operations)},
            "is_shared": resource.is_shared,
            "body_class": body,
            "bodies": {"POST": body},
            "answers": {"POST": resource.answer},
            "__doc__": str(action.operations[0].help),
        },
    )
