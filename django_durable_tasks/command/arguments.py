"""Command line arguments: the types of their values, and those that follow from operations."""

from __future__ import annotations

import json
import re
import uuid
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Container, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django_durable_tasks.operations.operation import (
    REASON_HELP,
    Argument,
    ArgumentType,
    Operation,
    Reason,
)

Declaration = Callable[[ArgumentParser], Any]
"""Adds arguments to a parser, or to a group of one."""
# Years. An instant outside of them is a mistake, and later ones cannot be converted to every zone.
_FIRST_YEAR, _LAST_YEAR = 1900, 2500
# Django reserves ``args`` among the options of a command.
_RESERVED = {"args": "new_args", "kwargs": "new_kwargs"}


def argument(*names: str, **described: Any) -> Declaration:
    """Return the declaration of an argument, described as for ``ArgumentParser.add_argument``."""
    return lambda parser: parser.add_argument(*names, **described)


def one_of(*declarations: Declaration, required: bool = False) -> Declaration:
    """Return the declaration of arguments of which at most one may be given."""

    def declare(parser: ArgumentParser) -> None:
        group: Any = parser.add_mutually_exclusive_group(required=required)
        for declaration in declarations:
            declaration(group)

    return declare


# Types of values ----------------------------------------------------------------------------------


def moment(text: str) -> datetime:
    """Read an instant in ISO 8601 with its offset."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is no instant; write it as 2026-03-07T00:00:00Z"
        ) from None
    if instant.tzinfo is None:
        raise ArgumentTypeError(
            f"{text!r} has no offset; write it as {instant.isoformat()}Z, or with +01:00"
        )
    if not _FIRST_YEAR <= instant.year <= _LAST_YEAR:
        raise ArgumentTypeError(f"{text!r} is not within the years {_FIRST_YEAR} to {_LAST_YEAR}")
    return instant.astimezone(UTC)


def task_id(text: str) -> uuid.UUID:
    """Read the id of a task."""
    try:
        return uuid.UUID(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not the id of a task (a UUID)") from None


def letter_id(text: str) -> uuid.UUID | int:
    """Read the id of a task or the number of a dead letter."""
    return int(text) if text.isdecimal() else task_id(text)


def count(text: str) -> int:
    """Read a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def weekdays(text: str) -> list[int]:
    """Read ISO weekdays, separated by commas."""
    if not re.fullmatch(r"[1-7](,[1-7])*", text):
        raise ArgumentTypeError(f"{text!r} are not weekdays: write them as 1,2,3,4,5 (1 is Monday)")
    return [int(day) for day in text.split(",")]


def _json_of(kind: type, option: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ArgumentTypeError(f"{option} is not JSON: {error}") from error
        if not isinstance(value, kind):
            raise ArgumentTypeError(f"{option} takes a JSON {'list' if kind is list else 'object'}")
        return value

    return read


# Arguments of operations --------------------------------------------------------------------------


def add_operations(parser: ArgumentParser, operations: Sequence[Operation]) -> None:
    """Declare the fields of the operations that the parser does not have yet, then ``--by`` and
    ``--reason``. ``--dry-run`` and ``--yes`` are added if an operation has a dry run or requires a
    confirmation.
    """
    for field in (field for operation in operations for field in operation.fields):
        if field.name not in {action.dest for action in parser._actions}:
            _add_field(parser, field)
    parser.add_argument("--by", help="Who does it. Default: the user of the operating system.")
    required = all(operation.reason == Reason.REQUIRED for operation in operations)
    parser.add_argument("--reason", default="", required=required, help=str(REASON_HELP))
    if any(operation.dry_run or operation.target.is_queryset for operation in operations):
        parser.add_argument(
            "--dry-run", action="store_true", help="Show what would change and change nothing."
        )
    if any(operation.confirm for operation in operations):
        parser.add_argument(
            "--yes",
            action="store_true",
            help="Confirm. Required if it would change more than the objects that you name.",
        )


def _add_field(parser: ArgumentParser, field: Argument) -> None:
    option = f"--{field.name.replace('_', '-')}"
    described: dict[str, Any] = {"help": str(field.help or field.label)}
    if field.kind == ArgumentType.FLAG:
        parser.add_argument(option, action="store_true", **described)
        return
    if field.choices:
        described["choices"] = [str(value) for value, _label in field.choices if value]
    else:
        types: dict[ArgumentType, Callable[[str], Any]] = {
            ArgumentType.INSTANT: moment,
            ArgumentType.INTEGER: count if field.minimum else int,
            ArgumentType.SECONDS: float,
            ArgumentType.JSON_LIST: _json_of(list, option),
            ArgumentType.JSON_OBJECT: _json_of(dict, option),
            ArgumentType.TASK_ID: task_id,
        }
        described["type"] = types.get(field.kind, str)
    if field.metavar:
        described["metavar"] = field.metavar
    if field.positional:
        parser.add_argument(field.name, **described)
        return
    if field.default is not None:
        described["default"] = field.default
        described["help"] += f" Default: {field.default}."
    dest = _RESERVED.get(field.name, field.name)
    parser.add_argument(option, dest=dest, required=field.required, **described)


def values(
    options: Mapping[str, Any], operation: Operation, without: Container[str] = ()
) -> dict[str, Any]:
    """Return the values of the operation's fields as its keyword arguments."""
    return {
        field.name: options[_RESERVED.get(field.name, field.name)]
        for field in operation.fields
        if field.name not in without
    }
