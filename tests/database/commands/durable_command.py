"""Call ``manage.py durable`` in a test and return its output and exit code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from io import StringIO
from typing import Any

from django.core.management import call_command
from django.core.management.base import CommandError


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
        call_command("durable", *map(str, words), stdout=out, stderr=err)
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
