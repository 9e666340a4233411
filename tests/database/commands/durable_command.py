"""Call ``manage.py durable`` in a test and return its output and exit code."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from functools import cache
from io import StringIO
from typing import Any

from django.core.management import call_command
from django.core.management.base import CommandError, CommandParser

from django_durable_tasks.management.commands.durable import Command


@cache
def _parser(prog_name: str, subcommand: str) -> CommandParser:
    # It takes ten times as long to create the parser of all subcommands as to run one of them.
    return Command().create_parser(prog_name, subcommand)


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each subcommand by its name."""
    whole = _parser("manage.py", "durable")
    (found,) = (one for one in whole._actions if isinstance(one, argparse._SubParsersAction))
    return found.choices


@dataclass(frozen=True, slots=True)
class Answer:
    """The output of the command on both streams, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The JSON output."""
        return json.loads(self.out)


def durable(*words: object) -> Answer:
    """Run the command and return its answer."""
    out, err = StringIO(), StringIO()
    code = 0
    try:
        command = Command()
        command.create_parser = _parser  # type: ignore[method-assign]
        call_command(command, *map(str, words), stdout=out, stderr=err)
    except CommandError as refused:
        err.write(str(refused))
        code = refused.returncode
    except SystemExit as ended:
        code = int(ended.code or 0)
    return Answer(code, out.getvalue(), err.getvalue())


def json_of(*words: object) -> Any:
    """Run the command, expect it to succeed, and return its JSON output."""
    answer = durable(*words, "--format", "json")
    assert answer.code == 0, answer
    return answer.data
