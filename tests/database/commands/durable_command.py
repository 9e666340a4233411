"""``manage.py durable`` as a test calls it: what it wrote, and its exit code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from io import StringIO
from typing import Any

from django.core.management import call_command
from django.core.management.base import CommandError


@dataclass(frozen=True, slots=True)
class Answer:
    """What the command wrote on both streams, and the exit code that a shell would see."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> Any:
        """The JSON that it wrote."""
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


def told(*words: object) -> Any:
    """Run the command, expect it to succeed, and return its JSON."""
    answer = durable(*words, "--format", "json")
    assert answer.code == 0, answer
    return answer.told
