"""The command line arguments of operations, created from the fields in the registry."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Collection
from typing import Any

from django_durable_tasks.management.durable.schedule_arguments import moment
from django_durable_tasks.management.durable.selectors import count, json_of, task_id
from django_durable_tasks.management.durable.subcommand import Options
from django_durable_tasks.operations.operation import (
    REASON_HELP,
    Argument,
    ArgumentType,
    Operation,
    Reason,
)


def add_operations(
    parser: ArgumentParser, *operations: Operation, without: Collection[str] = ()
) -> None:
    """Declare the fields of the operations except ``without``, then ``--by`` and ``--reason``.
    ``--dry-run`` and ``--yes`` are added if an operation has a dry run or requires a confirmation.
    """
    known = set(without)
    for operation in operations:
        for field in operation.fields:
            if field.name not in known:
                known.add(field.name)
                _add_field(parser, field)
    parser.add_argument("--by", help="Who does it. Default: the user of the operating system.")
    required = all(operation.reason == Reason.REQUIRED for operation in operations)
    parser.add_argument("--reason", default="", required=required, help=str(REASON_HELP))
    if any(one.dry_run or one.target.is_queryset for one in operations):
        parser.add_argument(
            "--dry-run", action="store_true", help="Show what would change and change nothing."
        )
    if any(operation.confirm for operation in operations):
        parser.add_argument(
            "--yes",
            action="store_true",
            help="Confirm. Required if it would change more than the objects that you name.",
        )


def values(options: Options, operation: Operation) -> dict[str, Any]:
    """Return the values of the operation's fields as its keyword arguments."""
    return {field.name: options[field.name] for field in operation.fields}


def _add_field(parser: ArgumentParser, field: Argument) -> None:
    option = f"--{field.name.replace('_', '-')}"
    text = str(field.help or field.label)
    if field.kind == ArgumentType.FLAG:
        parser.add_argument(option, action="store_true", help=text)
        return
    how: dict[str, Any] = {"help": text}
    if field.choices:
        how["choices"] = [str(value) for value, _label in field.choices if value]
    else:
        how["type"] = _readers(field, option)
    if field.metavar:
        how["metavar"] = field.metavar
    if field.positional:
        parser.add_argument(field.name, **how)
        return
    if field.default is not None:
        how |= {"default": field.default, "help": f"{text} Default: {field.default}."}
    # Django reserves ``args`` among the options of a command.
    dest = f"new_{field.name}" if field.name in ("args", "kwargs") else field.name
    parser.add_argument(option, dest=dest, required=field.required, **how)


def _readers(field: Argument, option: str) -> Callable[[str], Any]:
    readers: dict[ArgumentType, Callable[[str], Any]] = {
        ArgumentType.TEXT: str,
        ArgumentType.INSTANT: moment,
        ArgumentType.INTEGER: count if field.minimum else int,
        ArgumentType.SECONDS: float,
        ArgumentType.JSON_LIST: json_of(list, option),
        ArgumentType.JSON_OBJECT: json_of(dict, option),
        ArgumentType.TASK_ID: task_id,
        ArgumentType.REQUEST_ID: str,
    }
    return readers[field.kind]
