"""Runs the measured processes. Each prints its figures as one JSON object on the last line of its
output.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class Failed(Exception):
    """A measured process failed or took too long."""


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment, with the checkout importable."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def output(command: Sequence[str], given: Mapping[str, Any], seconds: float, **more: str) -> str:
    """Run a process and return its output. Raises Failed."""
    try:
        done = subprocess.run(
            [*command, json.dumps(given)],
            cwd=ROOT,
            env=environment(**more),
            timeout=seconds,
            text=True,
            capture_output=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(command)} took longer than {seconds:g} s") from None
    if done.returncode or not done.stdout.strip():
        raise Failed(f"{' '.join(command)} exited with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def figures(
    command: Sequence[str], given: Mapping[str, Any], seconds: float, **more: str
) -> dict[str, Any]:
    """Run a process and return the JSON object of the last line of its output. Raises Failed."""
    found: dict[str, Any] = json.loads(
        output(command, given, seconds, **more).strip().splitlines()[-1]
    )
    return found


@contextmanager
def running(command: Sequence[str], **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Keep a process running during the block, then terminate it, and kill it after 15 s.

    Its stderr is printed only if the block fails.
    """
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(**more),
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        try:
            yield process
        except Failed:
            said.seek(0)
            print(said.read().decode(errors="replace")[-3000:], file=sys.stderr)
            raise
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until(
    reached: Callable[[], bool],
    *processes: subprocess.Popen[bytes],
    within: float,
    every: float = 0.05,
) -> None:
    """Wait for a condition. Raises Failed on timeout or if one of the processes ends before."""
    deadline = time.monotonic() + within
    while not reached():
        for process in processes:
            if process.poll() is not None:
                raise Failed(
                    f"{process.args!r} exited with {process.returncode} before its work was done"
                )
        if time.monotonic() > deadline:
            raise Failed(f"Not done within {within:g} s")
        time.sleep(every)
