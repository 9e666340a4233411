"""Runs commands concurrently, each in a process group of its own. None survives the calling
process.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Self, TypeVar

from tests.runs import ROOT

T = TypeVar("T")
R = TypeVar("R")

GRACE_SECONDS = 20


class CommandPool:
    """Running commands, as a context manager that ends them. Each thread runs one command after the
    other.
    """

    def __init__(self) -> None:
        self._lock, self._over = Lock(), False
        self._running: set[subprocess.Popen[bytes]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def each(self, number: int, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Call `work` for each item in `number` threads, started in order, and yield the answers as
        they arrive.

        An exception ends the running commands, starts no more, and is raised here.
        """
        with ThreadPoolExecutor(number) as pool:
            try:
                for future in as_completed([pool.submit(work, item) for item in items]):
                    yield future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.end()
                raise

    def code(
        self, command: Sequence[str], environment: Mapping[str, str], limit: float, log: Path | None
    ) -> int | None:
        """Run one command to its end and return its exit code, or None after `limit` seconds. Its
        process group is ended.

        Its output goes to the file ``log``, or otherwise to that of this process.
        """
        with ExitStack() as stack:
            output = stack.enter_context(log.open("wb")) if log else None
            process = self._start(command, environment, output.fileno() if output else None)
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                return None
            finally:
                self._end([process])

    def end(self) -> None:
        """End all running commands, and start no more."""
        with self._lock:
            self._over = True
            running = list(self._running)
        self._end(running)

    def _start(
        self, command: Sequence[str], environment: Mapping[str, str], output: int | None
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._over:
                raise InterruptedError("Nothing more begins.")
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            self._running.add(process)
            return process

    def _end(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        """Interrupt running processes, and kill what a test may have left in their groups."""
        for process in processes:
            if process.poll() is None:
                _signal(process, signal.SIGINT)
        deadline = monotonic() + GRACE_SECONDS
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - monotonic()))
            _signal(process, signal.SIGKILL)
            process.wait()
            with self._lock:
                self._running.discard(process)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
