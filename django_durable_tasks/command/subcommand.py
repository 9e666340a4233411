"""The definition of a subcommand, its exit codes and its output."""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from textwrap import fill
from typing import Any, NoReturn

from django.core.management.base import CommandError

from django_durable_tasks import conf
from django_durable_tasks.masking import masked, masked_text
from django_durable_tasks.operations.operation import Operation

# Output of the subcommands: tables for people, JSON for programs, remarks on stderr.


_WIDEST = 80


class Output:
    """The output of a subcommand: ``emit`` writes the answer once, ``note`` writes a remark to
    stderr.
    """

    def __init__(self, stdout: Any, stderr: Any, *, as_json: bool) -> None:
        self.stdout, self.stderr, self.as_json = stdout, stderr, as_json

    def emit(self, data: Any, text: str) -> None:
        """Write the answer: the data as JSON, or the text."""
        content = json.dumps(data, default=plain, ensure_ascii=False) if self.as_json else text
        # Bytes of Redis that are not UTF-8 are surrogates here, which a UTF-8 stream cannot encode.
        self.stdout.write(content.encode(errors="backslashreplace").decode())

    def note(self, text: str) -> None:
        """Write a remark to stderr."""
        self.stderr.write(text)


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
    """Return a value as one short line of a table."""
    if value is None or value == "":
        return "-"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    line = " ".join(str(value).split())
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 3]}..."


def table(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], nothing: str = "nothing"
) -> str:
    """Return rows as a table of these columns; numbers are aligned to the right."""
    if not rows:
        return nothing
    body = [[cell(row[column]) for column in columns] for row in rows]
    heads = [column.replace("_", " ").upper() for column in columns]
    widths = [max(len(line[at]) for line in [heads, *body]) for at in range(len(columns))]
    numeric = [
        all(isinstance(row[column], int | float | None) for row in rows) for column in columns
    ]

    def laid(line: Sequence[str]) -> str:
        parts = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )
        return "  ".join(parts).rstrip()

    return "\n".join(laid(line) for line in [heads, *body])


def hidden(value: Any) -> Any:
    """Return a JSON value with its secrets masked."""
    return masked(value, conf.settings().SECRET_NAMES)


def clean(text: str) -> str:
    """Return a text with its secrets masked."""
    return masked_text(text, conf.settings().SECRET_NAMES)


def first_line(text: str) -> str:
    """Return the first line of an error, masked."""
    return clean(text).partition("\n")[0]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcommand:
    """One subcommand of ``manage.py durable``; ``run`` returns an exit code.

    A subcommand that changes data names its operations, whose titles and help texts it shows.
    ``summary`` is the help text of a subcommand that only reads.
    """

    name: str
    examples: tuple[str, ...]
    arguments: Callable[[ArgumentParser], None]
    run: Callable[[Options, Output], int]
    operations: tuple[Operation, ...] = ()
    summary: str = ""
    formats: tuple[str, ...] = ("table", "json")

    @property
    def help(self) -> str:
        """The summary in the list of subcommands."""
        titles = [str(operation.title) for operation in self.operations]
        lowered = [f"{title[0].lower()}{title[1:]}" for title in titles]
        return "; ".join(part for part in (", ".join(lowered), self.summary) if part)

    @property
    def description(self) -> str:
        """The paragraphs above the arguments in the help of the subcommand."""
        summary = f"{self.summary[0].upper()}{self.summary[1:]}." if self.summary else ""
        parts = [f"{operation.title}: {operation.help}" for operation in self.operations]
        return "\n".join(fill(part, 79) for part in (summary, *parts) if part)

    @property
    def epilog(self) -> str:
        """The examples in the help of the subcommand."""
        return "examples:\n" + "".join(
            f"  manage.py durable {example}\n" for example in self.examples
        )


OPTIONAL_SUBCOMMANDS: dict[str, Subcommand] = {}
"""The subcommands of optional apps, which follow those of the core in the help text."""


def register_command(*subcommands: Subcommand) -> None:
    """Add subcommands of an optional app to ``manage.py durable``; called in
    ``AppConfig.ready()``.
    """
    OPTIONAL_SUBCOMMANDS.update({one.name: one for one in subcommands})


def refuse(why: str) -> NoReturn:
    """Write the message and exit with the code for wrong usage."""
    raise CommandError(why, returncode=REFUSED)


def operator() -> str:
    """Return the name of the user of the operating system, the default of ``--by``."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def by_and_reason(options: Options) -> dict[str, Any]:
    """Return the keyword arguments ``by`` and ``reason`` of an operation."""
    return {"by": options["by"] or operator(), "reason": options["reason"]}


def no_arguments(parser: ArgumentParser) -> None:
    """Declare no arguments."""
