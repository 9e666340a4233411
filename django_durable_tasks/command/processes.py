"""Child processes of a management command: started, watched, stopped together, and their output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

from django.utils.autoreload import DJANGO_AUTORELOAD_ENV, get_child_arguments

from django_durable_tasks.celery import inspect
from django_durable_tasks.celery.prepared_messages import configured_queues
from django_durable_tasks.process_state import PARENT_PIPE

# Seconds between two looks at the processes while they are stopped.
_LOOK_INTERVAL = 0.1
# Seconds that a killed process may need until the system has ended it.
_AFTER_KILL = 10.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def manage(*arguments: str) -> list[str]:
    """Return the command line of a management command, run as this process was."""
    count = len(sys.argv) - 1
    child_arguments = get_child_arguments()
    return [*(child_arguments[:-count] if count else child_arguments), *arguments]


def celery_worker(*options: str, quiet: bool = False) -> list[str]:
    """Return the command line of a Celery worker of this project that consumes the queues of the
    settings and of all tasks. ``quiet``: without Celery's banner.
    """
    inspect.load_tasks()
    # A comma would divide the name.
    queues = ",".join(sorted(queue for queue in configured_queues() if "," not in queue))
    return [
        *(sys.executable, *(f"-W{option}" for option in sys.warnoptions)),
        *("-m", "celery", *(["-q"] if quiet else []), "-A", "django_durable_tasks"),
        *("worker", "-Q", queues, *options),
    ]


class Child:
    """One child process in the process group of this one. It ends if this process dies.

    ``defers_interrupts``: Ctrl-C does not reach the process until it unblocks SIGINT, so that it
    prints no traceback if it has not installed a handler yet. Only for one that SIGTERM stops.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        on_line: Callable[[str, str], None] | None = None,
        environment: Mapping[str, str] | None = None,
        defers_interrupts: bool = False,
    ) -> None:
        self.name, self._closed = name, False
        read_end, self._pipe = os.pipe()
        captured: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if on_line else {}
        # The child inherits the mask of blocked signals.
        blocked = signal.pthread_sigmask(
            signal.SIG_BLOCK, [signal.SIGINT] if defers_interrupts else []
        )
        try:
            self._process = subprocess.Popen(
                arguments,
                env={**_environment(), **(environment or {}), PARENT_PIPE: str(read_end)},
                pass_fds=[read_end],
                **captured,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(read_end)
        self._reader: threading.Thread | None = None
        if on_line is not None and self._process.stdout is not None:
            self._reader = threading.Thread(
                target=self._read, args=(self._process.stdout, on_line), daemon=True
            )
            self._reader.start()

    def _read(self, output: IO[bytes], on_line: Callable[[str, str], None]) -> None:
        for line in output:
            on_line(self.name, line.decode(errors="replace").rstrip("\r\n"))

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, negative after a signal; None while it runs."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process has not ended."""
        self._process.send_signal(number)

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the process; return whether it has ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Kill the process if it still runs, and read the rest of its output. May be repeated."""
        if self._closed:
            return
        self._closed = True
        if self.code is None:
            self._process.kill()
        self.wait(_AFTER_KILL)
        os.close(self._pipe)
        if self._reader is not None:
            # A grandchild that survives may keep the pipe open.
            self._reader.join(timeout=1.0)


def _environment() -> dict[str, str]:
    """Return the environment of children: modules are found where this process finds them."""
    environment = {name: text for name, text in os.environ.items() if name != DJANGO_AUTORELOAD_ENV}
    script, is_module = Path(sys.argv[0]), getattr(sys.modules["__main__"], "__spec__", None)
    # With `python -m django` the script is in Django's own folder, whose `http` is not Python's.
    if is_module is None and script.suffix == ".py" and script.exists():
        python_path = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(script.resolve().parent), *([python_path] if python_path else [])]
        )
    return {**environment, "PYTHONUNBUFFERED": "1"}


class StopRequests:
    """The signals to stop that this process has received."""

    def __init__(self) -> None:
        self._received: list[int] = []
        # A handler must not take a lock that the interrupted code may hold.
        self._wake = SimpleQueue[None]()

    def __bool__(self) -> bool:
        return bool(self._received)

    @property
    def interrupts(self) -> int:
        """How often Ctrl-C was pressed. The terminal sends SIGINT to the parent of this process
        too, which then sends SIGTERM.
        """
        return self._received.count(signal.SIGINT)

    def wait(self, seconds: float) -> bool:
        """Wait until a signal arrives, at most this long; return whether one has arrived."""
        if not self._received:
            try:
                self._wake.get(timeout=seconds)
            except Empty:
                return False
        return bool(self._received)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._received.append(number)
        self._wake.put(None)

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle SIGINT, SIGTERM and SIGHUP within the block."""
        before = {number: signal.signal(number, self._on_signal) for number in _STOP_SIGNALS}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)  # see Child.defers_interrupts
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def stop(
    children: Sequence[Child], grace: float, requests: StopRequests | None = None
) -> list[Child]:
    """Send SIGTERM to the children and wait for their ends; return those that still run after
    ``grace`` seconds, or when Ctrl-C was pressed once more.
    """
    for child in children:
        child.send(signal.SIGTERM)
    began = time.monotonic()
    running = [child for child in children if child.code is None]
    while running and time.monotonic() - began < grace:
        if requests is not None and requests.interrupts > 1:
            break
        running[0].wait(_LOOK_INTERVAL)
        running = [child for child in running if child.code is None]
    return running
