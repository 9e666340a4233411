"""Operations on one object: ``POST <object>/<operation>`` performs an operation of the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.contrib.api import fields, problems
from django_durable_tasks.contrib.api.access import ApiScope
from django_durable_tasks.contrib.api.authentication import Caller
from django_durable_tasks.contrib.api.idempotent_requests import StoredAnswer
from django_durable_tasks.contrib.api.problems import Problem
from django_durable_tasks.contrib.api.quotas import charge_open_tasks
from django_durable_tasks.contrib.api.serializers import Body
from django_durable_tasks.contrib.api.views import ApiViewSet, endpoint
from django_durable_tasks.operations import (
    OPERATIONS,
    REASON_HELP,
    Argument,
    ArgumentType,
    Operation,
    OperationResult,
    Reason,
    Target,
)

# Characters of the columns with reasons.
REASON_MAX = 500
_FIELDS: Mapping[ArgumentType, Any] = {
    ArgumentType.TEXT: fields.Text,
    ArgumentType.REQUEST_ID: fields.Text,
    ArgumentType.INSTANT: fields.Instant,
    ArgumentType.INTEGER: fields.Integer,
    ArgumentType.SECONDS: fields.Seconds,
    ArgumentType.FLAG: fields.Flag,
    ArgumentType.JSON_LIST: fields.JsonList,
    ArgumentType.JSON_OBJECT: fields.JsonObject,
    ArgumentType.TASK_ID: fields.Id,
}


def reason_field(*, required: bool = False) -> fields.Text:
    """Return the field ``reason`` of a body."""
    return fields.Text(
        required=required,
        allow_blank=not required,
        max_length=REASON_MAX,
        help_text=str(REASON_HELP),
    )


def body_of(name: str, operation: Operation, more: Mapping[str, Any] | None = None) -> type[Body]:
    """Return the serializer of a body with ``reason``, the fields of the operation, and ``more``
    fields.
    """
    members: dict[str, Any] = {"reason": reason_field(required=operation.reason == Reason.REQUIRED)}
    if operation.modes:
        names = [str(mode.name) for mode in operation.modes]
        members["mode"] = fields.OneOf(choices=names, default=names[0])
    members |= {argument.name: _field(argument) for argument in operation.fields}
    return type(name, (Body,), {**members, **(more or {}), "__doc__": str(operation.help)})


def _field(argument: Argument) -> Any:
    options: dict[str, Any] = {
        "required": argument.required and argument.default is None,
        "help_text": str(argument.help or argument.label),
    }
    if argument.choices:
        return fields.OneOf(choices=[str(value) for value, _label in argument.choices], **options)
    if argument.minimum is not None:
        options["min_value"] = argument.minimum
    field = _FIELDS[argument.kind]
    if field is fields.Text:
        options["max_length"] = fields.KEY_LENGTH
    return field(**options)


def perform(
    operation: Operation, subject: Any, caller: Caller, data: Mapping[str, Any]
) -> OperationResult:
    """Perform the operation with the validated fields of a body; raises DurableTasksError, or
    Problem if a staff user lacks its permission.

    A field that the request leaves out gets the default of the registry.
    """
    caller.require_permission(operation.permission)
    values = {
        argument.name: data.get(
            argument.name, False if argument.kind == ArgumentType.FLAG else argument.default
        )
        for argument in operation.fields
    }
    if operation.modes:
        values["mode"] = data.get("mode", operation.modes[0].name)
    return operation.perform(subject, by=caller.name, reason=data.get("reason", ""), **values)


def refused(row: Any, message: str = "") -> Problem:
    """Return the problem of an operation that the status of an object does not allow."""
    status = getattr(row, "status", "")
    detail = f"Its status is {status}, which does not allow this operation." if status else message
    return Problem(
        problems.CONFLICT,
        detail or "The state of the object does not allow this operation.",
        more={"object_status": status} if status else {},
    )


class OperationsMixin(ApiViewSet):
    """Has a route for each operation of the registry on ``targets``, but those that other methods
    perform (``performed``).

    ``operates`` is the scope that they need, unless ``scopes`` has another one; ``paths`` has the
    last part of an address that is not the name of the operation. ``alternatives``: the operations
    that ``chosen`` selects instead of one, by the object and the body. ``more`` fields of bodies
    are read by ``prepared``. An operation that changes nothing is refused unless
    ``may_change_nothing`` is set. ``operation_answer`` has the fields of ``result``.
    """

    targets: ClassVar[tuple[Target, ...]] = ()
    performed: ClassVar[tuple[Operation, ...]] = ()
    operates: ClassVar[ApiScope] = ApiScope.OPERATE
    scopes: ClassVar[Mapping[str, ApiScope]] = {}
    paths: ClassVar[Mapping[str, str]] = {}
    alternatives: ClassVar[Mapping[Operation, tuple[Operation, ...]]] = {}
    more: ClassVar[Mapping[Operation, Mapping[str, Any]]] = {}
    may_change_nothing: ClassVar[bool] = False
    operation_answer: ClassVar[Any] = None

    def chosen(self, operation: Operation, row: Any, data: Mapping[str, Any]) -> Operation:
        """Return the operation that is performed on this object."""
        return operation

    def prepared(self, operation: Operation, row: Any, data: dict[str, Any]) -> Mapping[str, Any]:
        """Check and complete the fields of a body; raises Problem."""
        return data

    def subject(self, operation: Operation, row: Any) -> Any:
        """Return what the operation is applied to."""
        return self.rows().filter(pk=row.pk) if operation.target.is_queryset else row

    def result(self, done: OperationResult) -> dict[str, Any]:
        """Return further fields of the answer."""
        return {}

    def operate(self, operation: Operation) -> Response:
        """Perform the operation and return the object."""
        data = self.valid()

        def act() -> StoredAnswer:
            # Not locked here: the engine locks rows in an order that prevents deadlocks.
            row = self.find()
            chosen = self.chosen(operation, row, data)
            prepared = self.prepared(operation, row, data)
            done = perform(chosen, self.subject(chosen, row), self.caller, prepared)
            if not done.changed and not self.may_change_nothing:
                raise refused(row, str(done.message))
            if chosen.opens_tasks:
                charge_open_tasks(self.caller.tenant, done.changed)
            changed = self.find()
            shown = self.show(changed, self.caller.without_secrets()) | self.result(done)
            return StoredAnswer(200, shown, {"ETag": self.tag_of(changed, shown)})

        return self.write(act, self.before)


def add_operations(viewset: type[OperationsMixin]) -> None:
    """Add the routes of the operations on the objects of a viewset."""
    for operation in OPERATIONS.values():
        offered = operation.target in viewset.targets and not operation.not_in_api
        if offered and operation not in viewset.performed:
            name = f"operation_{operation.name}"
            setattr(viewset, name, _action(viewset, operation, name))


def _action(viewset: type[OperationsMixin], operation: Operation, name: str) -> Any:
    path = viewset.paths.get(operation.name, operation.name.replace("_", "-"))
    words = "".join(word.title() for word in path.split("-"))

    def post(self: Any, request: Request, **ids: Any) -> Response:
        response: Response = self.operate(operation)
        return response

    post.__name__, post.__doc__ = name, str(operation.help)
    return endpoint(
        path,
        method="post",
        id=f"{words[0].lower()}{words[1:]}{viewset.singular}",
        summary=str(operation.title),
        scope=viewset.scopes.get(operation.name, viewset.operates),
        operations=(operation, *viewset.alternatives.get(operation, ())),
        body=body_of(f"{viewset.singular}{words}Body", operation, viewset.more.get(operation)),
        answer=viewset.operation_answer,
    )(post)
