"""What a verb of the command is, and what its exit codes mean."""

from __future__ import annotations

import getpass
import os
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from django.core.management.base import CommandError

from django_durable_tasks.management.durable.output import Output

OK, UNHEALTHY, REFUSED = 0, 1, 2
EXIT_CODES = (
    "exit codes:\n"
    "  0  done, and `status` found everything within its thresholds; `alive`: it lives, or nobody could tell\n"
    "  1  `status` found a threshold passed, `alive` a node to restart, `sync --check` or `shadow` a difference,\n"
    "     `verify` a finding, or the database or the broker does not answer\n"
    "  2  wrong usage, no such row, nothing could be changed, or `verify` could not look\n"
)
Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One word of the command: its help, its arguments, and what it does; ``run`` returns an exit code."""

    name: str
    help: str
    examples: tuple[str, ...]
    arguments: Callable[[ArgumentParser], None]
    run: Callable[[Options, Output], int]
    formats: tuple[str, ...] = ("table", "json")

    @property
    def epilog(self) -> str:
        """The examples, as the help shows them."""
        return "examples:\n" + "".join(f"  manage.py durable {example}\n" for example in self.examples)


def refuse(why: str) -> NoReturn:
    """End the command as wrongly used."""
    raise CommandError(why, returncode=REFUSED)


def operator() -> str:
    """Return the name of the user of the operating system, who is written down as the doer."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def add_by_and_reason(
    parser: ArgumentParser, reason: str = "why; it is kept in the rows", *, required: bool = False
) -> None:
    """Declare who does it and why; ``reason`` is the help of ``--reason``."""
    parser.add_argument("--by", help="who does it (default: the user of the operating system)")
    parser.add_argument("--reason", default="", required=required, help=reason)


def by_and_reason(options: Options) -> dict[str, Any]:
    """Return who and why, as the engine takes them."""
    return {"by": options["by"] or operator(), "reason": options["reason"]}


def no_arguments(parser: ArgumentParser) -> None:
    """Take no arguments of its own."""
