"""The definition of a subcommand, and its exit codes."""

from __future__ import annotations

import getpass
import os
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from textwrap import fill
from typing import Any, NoReturn

from django.core.management.base import CommandError

from django_durable_tasks.management.durable.output import Output
from django_durable_tasks.operations.operation import Operation

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
