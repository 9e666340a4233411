"""One process group per program, so that a worker is killed with its children."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
# Celery's prefork pool waits half a minute for a child that did not report before SIGTERM.
STOPPING = 45.0


class Interrupted(Exception):
    """Ctrl-C was pressed, or the terminal was closed."""


class Patience:
    """Waits that end at once when the process receives a signal; a second signal calls
    `on_second_signal`.
    """

    def __init__(self) -> None:
        self.on_second_signal: Callable[[], None] | None = None
        self._requested = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if (
                number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
            ):  # ignored by nohup
                signal.signal(number, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        if self._requested.is_set() and self.on_second_signal is not None:
            self.on_second_signal()
        self._requested.set()

    def pause(self, seconds: float) -> None:
        """Wait; raises Interrupted."""
        if self._requested.wait(seconds):
            raise Interrupted

    def until(self, condition: Callable[[], bool], within: float) -> bool:
        """Wait for a condition and return whether it became true in time (seconds); raises
        Interrupted.
        """
        deadline = time.monotonic() + within
        while not condition():
            if time.monotonic() > deadline:
                return False
            self.pause(0.05)
        return True


def _end_with_parent() -> None:
    """Make the kernel send SIGTERM to this process when its parent ends, even by SIGKILL."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class Program:
    """A process with its children; its output goes to a log file."""

    def __init__(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], logs: Path
    ) -> None:
        self.name, self.log, self.killed = name, logs / f"{name}.log", False
        logs.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=PROJECT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - there is one thread
            )

    @property
    def pid(self) -> int:
        """The first process of the group."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the first process runs."""
        return self.process.poll() is None

    def signal_group(self, number: signal.Signals) -> bool:
        """Send a signal to the remaining processes of the group; return whether there were any."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)
            return True
        return False

    def kill(self) -> None:
        """End the whole group by SIGKILL and reap its first process."""
        self.killed = True
        self.signal_group(signal.SIGKILL)
        self.process.wait(STOPPING)

    def ask_to_stop(self) -> None:
        """Send SIGTERM: finish the running tasks, then end."""
        if self.alive:
            self.process.send_signal(signal.SIGTERM)

    def wait_stopped(self, until: float) -> str:
        """Wait until the monotonic time for the end, then use force; return the problem, empty if
        there is none.
        """
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, until - time.monotonic()))
        ended = not self.alive
        if self.signal_group(signal.SIGKILL) and ended and not self.killed:
            return f"{self.name} left children behind"
        self.process.wait(STOPPING)
        return "" if ended else f"{self.name} did not stop and was killed"


def free_port(wish: int = 0) -> int:
    """Return the requested port of 127.0.0.1 if it is free, otherwise another free one."""
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", wish))
        except OSError:
            listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def listens(port: int) -> bool:
    """Return whether a server responds on this port of 127.0.0.1."""
    with socket.socket() as caller:
        caller.settimeout(1)
        return caller.connect_ex(("127.0.0.1", port)) == 0
