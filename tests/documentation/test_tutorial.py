"""The tutorial, executed: its files are written, its commands and shell sessions run, in an empty
folder.
"""

from __future__ import annotations

import codeop
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.documentation.pages import DOCS, Block, blocks
from tests.runs import ROOT

PAGE = DOCS / "tutorials" / "first_durable_task.md"
_GOES_ON = ("python manage.py run_scheduler", "celery ")
_IS_DONE = ("python3 -m venv", ". .venv/bin/activate", "pip install")
_FILE = re.compile(r"# (?P<path>[\w/]+\.py)(?P<at_the_end>, at the end)?\n")
PATIENCE = 90


class Reader:
    """Executes the page with three terminals."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, dict[str, subprocess.Popen[bytes]]()
        ours = ("TEST_", "DJANGO_", "CELERY_", "PYTEST_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        tools = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
        self.environment = {**kept, "PATH": tools, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}

    def follow(self, block: Block) -> None:
        """Do what a block describes: write the file, run the commands, or type into the shell."""
        if block.language == "console":
            for line in block.text.splitlines():
                self._command(line)
        elif (file := _FILE.match(block.text)) is not None:
            path = self.folder / file["path"]
            before = path.read_text() if file["at_the_end"] else ""
            path.write_text(before + block.text)
        else:
            self._type(block)

    def _type(self, block: Block) -> None:
        """Type a block into the shell, line by line, at a terminal."""
        terminal, shell_side = os.openpty()
        shell = subprocess.Popen(
            ["python", "manage.py", "shell", "-i", "python"],
            cwd=self.folder,
            env={**self.environment, "TERM": "dumb"},
            stdin=shell_side,
            stdout=shell_side,
            stderr=shell_side,
            start_new_session=True,
        )
        self.started[f"line {block.line}"] = shell
        os.close(shell_side)
        for line in [*block.text.splitlines(), "print('typed', 'to the end')", "exit()"]:
            os.write(terminal, f"{line}\n".encode())
        said = _all_of(terminal)
        output = self._log().read_text(errors="replace")[-3000:] if self._log().exists() else ""
        assert shell.wait(PATIENCE) == 0, said
        assert "typed to the end" in said, f"line {block.line}:\n{said}\n{output}"
        assert "Traceback" not in said, f"line {block.line}:\n{said}\n{output}"
        assert "SyntaxError" not in said, f"line {block.line}:\n{said}"

    def _command(self, line: str) -> None:
        if line.startswith(_IS_DONE):
            return
        if not line.startswith(_GOES_ON):
            self._run(["sh", "-c", line], line)
            return
        if line in self.started:
            self.started[line].wait(PATIENCE)  # started again, because the page has killed it
        with self._log().open("ab") as log:
            self.started[line] = subprocess.Popen(
                ["sh", "-c", f"exec {line}"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _run(self, command: list[str], name: str) -> None:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        output = self._log().read_text(errors="replace")[-3000:] if self._log().exists() else ""
        assert done.returncode == 0, f"{name}:\n{done.stdout}\n{done.stderr}\n{output}"

    def _log(self) -> Path:
        return self.folder / "started.log"

    def close(self) -> None:
        """End the remaining processes."""
        for process in self.started.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _all_of(terminal: int) -> str:
    """Read a terminal until its program has ended. Linux reports that by an error."""
    said, deadline = b"", time.monotonic() + PATIENCE
    with suppress(OSError):
        while (left := deadline - time.monotonic()) > 0 and select.select([terminal], [], [], left)[
            0
        ]:
            piece = os.read(terminal, 65_536)
            if not piece:
                break
            said += piece
    os.close(terminal)
    return said.decode(errors="replace")


def _shell_blocks() -> list[Block]:
    return [
        one for one in blocks(PAGE) if one.language == "python" and _FILE.match(one.text) is None
    ]


@pytest.mark.parametrize("block", _shell_blocks(), ids=lambda block: f"line {block.line}")
def test_a_block_for_the_shell_can_be_typed_line_by_line(block: Block) -> None:
    typed: list[str] = []
    for line in block.text.splitlines():
        typed.append(line)
        if codeop.compile_command("\n".join(typed), "<console>", "single") is not None:
            typed.clear()
    assert typed == []


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """Return a reader with an empty folder, and close the terminals at the end."""
    reader = Reader(tmp_path)
    yield reader
    reader.close()


@pytest.mark.timeout(300)
def test_the_tutorial_runs(reader: Reader) -> None:
    for block in blocks(PAGE):
        reader.follow(block)
