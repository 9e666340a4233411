"""Every `manage.py durable` and `manage.py run_scheduler` command on a page can be parsed, and
every program of the Makefile starts.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from django.core.management.base import CommandError, CommandParser

from django_durable_tasks.management.commands import durable, run_scheduler
from tests.documentation.pages import blocks, name_of, pages
from tests.runs import ROOT

_COMMANDS = {"durable": durable.Command, "run_scheduler": run_scheduler.Command}
_LINE = re.compile(r"manage\.py (durable|run_scheduler)\b(.*)")
_INLINE = re.compile(r"`(?:python )?manage\.py (durable|run_scheduler)\b([^`]*)`")
_AFTER = re.compile(r"\s+([|&;>#\\]|\s{2,}).*")
_PROGRAM = re.compile(r"^\t@.*python -m ((?:tests|benchmarks)[.a-z_]*) \$\(ARGS\)", re.MULTILINE)
_STAND_INS = {"VERB", "NAME", "...", "ID", "RUN", "TASK", "QUEUE"}


def _shown(page: Path) -> Iterator[tuple[str, str]]:
    for block in blocks(page):
        if block.language in ("sh", "console", "shell", "bash", "text", ""):
            yield from (
                (found[1], found[2])
                for line in block.text.splitlines()
                if (found := _LINE.search(line))
            )
    yield from (
        (found[1], found[2]) for found in _INLINE.finditer(page.read_text(encoding="utf-8"))
    )


def _words(command: str, rest: str) -> list[str] | None:
    """Return the words after the command, or None for a line that shows only its syntax."""
    words = shlex.split(_AFTER.sub("", rest), comments=True)
    stand_in = _STAND_INS.intersection(words) or (command == "durable" and len(words) < 1)
    return None if stand_in or "--help" in words else words


@cache
def _parser(command: str) -> CommandParser:
    parser = _COMMANDS[command]().create_parser("manage.py", command)
    parser.called_from_command_line = False
    return parser


@pytest.mark.parametrize(
    "page", [page for page in pages() if "manage.py" in page.read_text()], ids=name_of
)
def test_every_command_of_a_page_can_be_parsed(page: Path) -> None:
    for command, rest in _shown(page):
        words = _words(command, rest)
        if words is None:
            continue
        try:
            _parser(command).parse_args(words)
        except (CommandError, SystemExit) as refused:
            raise AssertionError(f"{name_of(page)} shows {rest.strip()!r}: {refused}") from refused


_PROGRAMS = _PROGRAM.findall((ROOT / "Makefile").read_text(encoding="utf-8"))


def test_the_makefile_starts_several_programs() -> None:
    assert {"tests", "tests.chaos", "benchmarks.bench"} <= set(_PROGRAMS)


@pytest.mark.parametrize("program", _PROGRAMS)
def test_every_program_of_the_makefile_starts_with_nothing_exported(program: str) -> None:
    exported = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("TEST_", "DJANGO_", "CELERY_", "PYTEST_", "PYTHONPATH"))
    }
    done = subprocess.run(
        [sys.executable, "-m", program, "--help"],
        cwd=ROOT,
        env=exported,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
