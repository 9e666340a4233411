"""Performs the operations of the registry for a request: the body's fields are the operation's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.fields import (
    KEY_LENGTH,
    Body,
    Flag,
    Id,
    Instant,
    Integer,
    JsonList,
    JsonObject,
    OneOf,
    Seconds,
    Text,
)
from django_durable_tasks.operations.operation import (
    REASON_HELP,
    Argument,
    ArgumentType,
    Operation,
    OperationResult,
    Reason,
)

_REASON_MAX = 500
_FIELDS: Mapping[ArgumentType, Any] = {
    ArgumentType.TEXT: lambda **options: Text(max_length=KEY_LENGTH, **options),
    ArgumentType.REQUEST_ID: lambda **options: Text(max_length=KEY_LENGTH, **options),
    ArgumentType.INSTANT: Instant,
    ArgumentType.INTEGER: Integer,
    ArgumentType.SECONDS: Seconds,
    ArgumentType.FLAG: Flag,
    ArgumentType.JSON_LIST: JsonList,
    ArgumentType.JSON_OBJECT: JsonObject,
    ArgumentType.TASK_ID: Id,
}


def body_of(
    name: str,
    *operations: Operation,
    without: Collection[str] = (),
    more: Mapping[str, Any] | None = None,
) -> type[Body]:
    """Return the serializer of a body with ``reason``, the fields of these operations except
    ``without``, and ``more`` fields.
    """
    required = all(one.reason == Reason.REQUIRED for one in operations)
    fields: dict[str, Any] = {
        "reason": Text(
            required=required,
            allow_blank=not required,
            max_length=_REASON_MAX,
            help_text=str(REASON_HELP),
        )
    }
    for operation in operations:
        if operation.modes:
            names = [str(mode.name) for mode in operation.modes]
            fields["mode"] = OneOf(choices=names, default=names[0])
        for argument in operation.fields:
            if argument.name not in without:
                fields[argument.name] = _field(argument)
    return type(name, (Body,), {**fields, **(more or {}), "__doc__": str(operations[0].help)})


def _field(argument: Argument) -> Any:
    options: dict[str, Any] = {
        "required": argument.required and argument.default is None,
        "help_text": str(argument.help or argument.label),
    }
    if argument.minimum is not None:
        options["min_value"] = argument.minimum
    if argument.choices:
        return OneOf(choices=[str(value) for value, _label in argument.choices], **options)
    return _FIELDS[argument.kind](**options)


def _default(argument: Argument) -> Any:
    return False if argument.kind == ArgumentType.FLAG else argument.default


def perform(
    operation: Operation, subject: Any, caller: Caller, given: Mapping[str, Any]
) -> OperationResult:
    """Perform the operation with the validated fields of a body; raises DurableTasksError, or
    Problem if a staff user lacks its permission.

    A field that the request leaves out gets the default of the registry.
    """
    caller.require_permission(operation.permission)
    fields = {
        argument.name: given.get(argument.name, _default(argument)) for argument in operation.fields
    }
    if operation.modes:
        fields["mode"] = given.get("mode", operation.modes[0].name)
    return operation.perform(subject, by=caller.name, reason=given.get("reason", ""), **fields)
