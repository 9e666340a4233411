"""Output of the subcommands: tables for people, JSON for programs, remarks on stderr."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.rules.tasks.masking import masked, masked_text

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
