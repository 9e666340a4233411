"""The definition of a subcommand, its arguments, its exit codes and its output."""

from __future__ import annotations

import dataclasses
import getpass
import inspect
import json
import os
import re
import uuid
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from textwrap import fill
from types import ModuleType
from typing import Any, NoReturn

from django.core.management.base import CommandError
from django.db.models import Model, QuerySet

from django_durable_tasks import conf
from django_durable_tasks.masking import masked
from django_durable_tasks.models import Tenant
from django_durable_tasks.operations import (
    REASON_HELP,
    ArgumentType,
    Operation,
    OperationResult,
    Reason,
)
from django_durable_tasks.store.tables import database

OK, UNHEALTHY, REFUSED = 0, 1, 2
EXIT_CODES = (
    "exit codes:\n"
    "  0  done; `status`: everything is within its thresholds; `health`: healthy or unknown\n"
    "  1  `status` exceeded a threshold, `health` found a node to restart, `sync --check`,\n"
    "     `shadow` or `verify` found something, `check-url` refused the URL, or the database or\n"
    "     broker does not answer\n"
    "  2  wrong usage, no such object, nothing could be changed, or `verify` could not check\n"
)
Options = Mapping[str, Any]


# Output: tables for people, JSON for programs, remarks on stderr ----------------------------------


# Characters of a cell. Longer values are cut, so that a table of ten columns stays readable.
_WIDEST = 80


class Output:
    """The output of a subcommand: ``emit`` and ``report`` write the answer, once, ``note`` writes
    a remark to stderr.
    """

    def __init__(self, command: str, stdout: Any, stderr: Any, *, as_json: bool) -> None:
        self.command, self.as_json = command, as_json
        self.stdout, self.stderr = stdout, stderr

    def emit(self, data: Any, text: str, code: int = OK) -> int:
        """Write the answer: the data as JSON, or the text. Return the exit code."""
        content = json.dumps(data, default=plain, ensure_ascii=False) if self.as_json else text
        # Bytes of Redis that are not UTF-8 are surrogates here, which a UTF-8 stream cannot encode.
        self.stdout.write(content.encode(errors="backslashreplace").decode())
        return code

    def report(self, text: str, code: int = OK, /, **data: Any) -> int:
        """Write what has changed, or would change: the name of the command and the data as JSON, or
        the text. Return the exit code.
        """
        return self.emit({"command": self.command, **data}, text, code)

    def note(self, text: str) -> None:
        """Write a remark to stderr."""
        self.stderr.write(text)

    def note_if_cut(self, rows: Sequence[Any], most: int) -> None:
        """Write a remark if a list has as many rows as it can have."""
        if len(rows) >= most:
            self.note(f"Only the first {most:,} are listed. There may be more.")

    def page(
        self,
        rows: Sequence[Mapping[str, Any]],
        columns: Sequence[str],
        options: Options,
        *,
        nothing: str = "nothing",
        after: str = "--after",
        key: str = "id",
    ) -> int:
        """Write one page of a list, and how to get the next one if the page is full. Return the
        exit code.
        """
        rows = hidden_rows(rows)
        self.emit(rows, table(columns, rows, nothing))
        if len(rows) == options["limit"]:
            last = rows[-1][key]
            last = last.isoformat() if isinstance(last, datetime) else last
            self.note(f"There may be more: add {after} {last}")
        return OK


def plain(value: Any) -> Any:
    """Convert a value that JSON does not support: instants to ISO 8601, durations to seconds,
    dataclasses to objects.
    """
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)


def cell(value: Any) -> str:
    """Return a value as one short line of a table: of an error its first line."""
    if value is None or value == "":
        return "-"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    line = " ".join(str(value).strip().partition("\n")[0].split())
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 3]}..."


def heading(column: str) -> str:
    """Return the name of a column for people."""
    return column.replace("_", " ")


def table(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], nothing: str = "nothing"
) -> str:
    """Return rows as a table of these columns; numbers are aligned to the right."""
    if not rows:
        return nothing
    body = [[cell(row[column]) for column in columns] for row in rows]
    heads = [heading(column).upper() for column in columns]
    widths = [max(len(line[at]) for line in [heads, *body]) for at in range(len(columns))]
    numeric = [
        all(isinstance(row[column], int | float | None) for row in rows) for column in columns
    ]

    def laid(line: Sequence[str]) -> str:
        cells = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )
        return "  ".join(cells).rstrip()

    return "\n".join(laid(line) for line in [heads, *body])


def details(facts: Mapping[str, Any], *without: str) -> list[str]:
    """Return a line for each fact that has a value; arguments have one if they are empty, too."""
    return [
        f"{heading(name):>20}  {value if isinstance(value, dict | list) else cell(value)}"
        for name, value in facts.items()
        if name not in without and (value not in (None, "", [], {}) or name in ("args", "kwargs"))
    ]


def hidden(value: Any) -> Any:
    """Return a text or a JSON value with its secrets masked."""
    return masked(value, conf.settings().SECRET_NAMES)


def hidden_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of columns with the secrets in their values masked."""
    return [{name: hidden(value) for name, value in row.items()} for row in rows]


def columns_of(model: type[Model], *without: str) -> list[str]:
    """Return the columns of a table for people, except those that only the engine reads: they are
    not editable.
    """
    return [
        field.attname
        for field in model._meta.concrete_fields
        if (field.editable or field.primary_key) and field.name not in without
    ]


def facts_of(row: Model, *without: str) -> dict[str, Any]:
    """Return the columns of a row with their secrets masked, and its tenant by its slug."""
    facts = {name: hidden(getattr(row, name)) for name in columns_of(type(row), *without)}
    tenant_id = facts.pop("tenant_id", None)
    return facts if tenant_id is None else {**facts, "tenant": row.tenant.slug}  # type: ignore[attr-defined]


# The definition -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcommand:
    """One subcommand of ``manage.py durable``; ``run`` returns an exit code.

    The docstring of ``run`` is its help: a paragraph with what it does, and after the line
    ``Examples:`` one example a line; a line that is indented more continues the one before. A
    subcommand that changes data names its operations, whose titles, help texts and fields it shows.
    """

    name: str
    run: Callable[[Options, Output], int]
    arguments: Sequence[Declaration] = ()
    operations: Sequence[Operation] = ()
    formats: Sequence[str] = ("table", "json")

    @property
    def summary(self) -> str:
        """The paragraph that describes what it does."""
        return " ".join(self._help[0].split())

    @property
    def help_line(self) -> str:
        """Its name and summary, for the help text of the command."""
        return fill(
            self.summary,
            79,
            initial_indent=f"  {self.name:<18}",
            subsequent_indent=" " * 20,
        )

    @property
    def examples(self) -> Sequence[str]:
        """The examples, without the name of the command."""
        lines = re.sub(r"\n {5,}", " ", self._help[2]).splitlines()
        return [line.strip() for line in lines if line.strip()]

    @property
    def _help(self) -> tuple[str, str, str]:
        return (inspect.getdoc(self.run) or "").partition("\n\nExamples:\n")

    def add_to(self, parsers: Any) -> None:
        """Add the parser of its arguments."""
        texts = [f"{operation.title}: {operation.help}" for operation in self.operations]
        examples = "".join(f"  manage.py durable {example}\n" for example in self.examples)
        parser = parsers.add_parser(
            self.name,
            description="\n".join(fill(text, 79) for text in (self.summary, *texts)),
            epilog=f"examples:\n{examples}\n{EXIT_CODES}",
            formatter_class=RawDescriptionHelpFormatter,
            # A prefix that works today would mean another option, or none, tomorrow.
            allow_abbrev=False,
        )
        for declare in self.arguments:
            declare(parser)
        if self.operations:
            add_operations(parser, self.operations)
        parser.add_argument(
            "--format",
            choices=self.formats,
            default=self.formats[0],
            help=f"json writes one object or list. Default: {self.formats[0]}.",
        )


def subcommand(
    *arguments: Declaration,
    operations: Sequence[Operation] = (),
    name: str = "",
    formats: Sequence[str] = ("table", "json"),
) -> Callable[[Callable[[Options, Output], int]], Subcommand]:
    """Decorator: make a function a subcommand; its name is that of the function."""
    return lambda run: Subcommand(
        name=name or run.__name__.replace("_", "-"),
        run=run,
        arguments=arguments,
        operations=operations,
        formats=formats,
    )


OPTIONAL_SUBCOMMANDS: dict[str, Subcommand] = {}
"""The subcommands of optional apps, which follow those of the core in the help text."""


def subcommands_of(*modules: ModuleType) -> dict[str, Subcommand]:
    """Return the subcommands that these modules define, by their names."""
    return {
        value.name: value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Subcommand)
    }


def register_command(*subcommands: Subcommand) -> None:
    """Add subcommands of an optional app to ``manage.py durable``; called in
    ``AppConfig.ready()``.
    """
    OPTIONAL_SUBCOMMANDS.update({subcommand.name: subcommand for subcommand in subcommands})


# What subcommands do ------------------------------------------------------------------------------


def refuse(why: str) -> NoReturn:
    """Write the message and exit with the code for wrong usage."""
    raise CommandError(why, returncode=REFUSED)


def operator() -> str:
    """Return the name of the user of the operating system, the default of ``--by``."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def perform(
    operation: Operation, subject: Any, options: Options, /, **more: Any
) -> OperationResult:
    """Perform an operation with its fields from the options, by the person and for the reason that
    they name. ``more`` are further arguments of its function, and fields that are no options.
    """
    fields = values(options, operation, without=more)
    by, reason = options["by"] or operator(), options["reason"]
    return operation.perform(subject, by=by, reason=reason, **fields, **more)


def filtered(queryset: QuerySet[Any], options: Options, lookups: Mapping[str, str]) -> Any:
    """Return the rows that match the options that are given, by the lookup of each option."""
    return queryset.filter(
        **{
            lookup: options[name]
            for name, lookup in lookups.items()
            if options.get(name) is not None
        }
    )


def tenant_named(slug: str) -> Tenant:
    """Return the tenant with this slug; refuses if there is none."""
    tenants = Tenant.objects.using(database()).filter(slug=slug)
    return tenants.first() or refuse(f"There is no tenant {slug!r}.")


# Command line arguments: the types of their values, and those that follow from operations.


Declaration = Callable[[ArgumentParser], Any]
"""Adds arguments to a parser, or to a group of one."""
# Years. An instant outside of them is a typing error; later ones cannot be converted to all zones.
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
    if text.isdecimal():
        return int(text)
    try:
        return task_id(text)
    except ArgumentTypeError:
        raise ArgumentTypeError(
            f"{text!r} is neither the id of a task (a UUID) nor the number of a dead letter"
        ) from None


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
        if field.name in {action.dest for action in parser._actions}:
            continue
        option = f"--{field.name.replace('_', '-')}"
        described: dict[str, Any] = {"help": str(field.help or field.label)}
        if field.kind == ArgumentType.FLAG:
            parser.add_argument(option, action="store_true", **described)
            continue
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
            continue
        if field.default is not None:
            described["default"] = field.default
            described["help"] += f" Default: {field.default}."
        dest = _RESERVED.get(field.name, field.name)
        parser.add_argument(option, dest=dest, required=field.required, **described)
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


def values(
    options: Mapping[str, Any], operation: Operation, without: Container[str] = ()
) -> dict[str, Any]:
    """Return the values of the operation's fields as its keyword arguments."""
    return {
        field.name: options[_RESERVED.get(field.name, field.name)]
        for field in operation.fields
        if field.name not in without
    }
