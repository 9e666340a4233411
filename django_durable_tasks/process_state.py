"""The state of this process: what it has read from the database and keeps between two calls.

There is one ``ProcessState``. A class of state declares no global of its own: ``of(Class)`` returns
the object of this process. A forked child starts with a new state, because threads, locks and
positions of the parent mean nothing there. A test starts with a new one by ``renew``.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_AT_EXIT, _PATIENCE = 1.0, 10.0


class ProcessState:
    """One object of each class that was requested, created without arguments on first use."""

    def __init__(self) -> None:
        self._values: dict[type[Any], Any] = {}
        self._lock = threading.RLock()
        self._is_stopped = False

    def of(self, kind: type[T]) -> T:
        """Return the object of this class; thread-safe."""
        found = self._values.get(kind)
        if found is None:
            with self._lock:
                found = self._values.get(kind)
                if found is None:
                    found = self._values[kind] = kind()
                    if self._is_stopped and hasattr(found, "stop"):
                        found.stop(0)  # or a thread of it would outlive the state
        value: T = found
        return value

    def stop(self, patience: float) -> None:
        """Call ``stop(patience)`` (seconds) of each object that has such a method."""
        with self._lock:
            self._is_stopped = True
            values = list(self._values.values())
        for value in values:
            if hasattr(value, "stop"):
                value.stop(patience)


_current = ProcessState()


def of(kind: type[T]) -> T:
    """Return the object of this class in this process."""
    return _current.of(kind)


def renew() -> None:
    """Stop the threads of the current state and start with a new one."""
    _current.stop(_PATIENCE)
    _start_empty()


def _start_empty() -> None:
    global _current
    _current = ProcessState()


def _stop() -> None:
    _current.stop(_AT_EXIT)


os.register_at_fork(after_in_child=_start_empty)
atexit.register(_stop)


# State that a daemon thread reads again periodically while it is used.
#
# A caller never waits for the thread. The thread starts with the first ``ask`` and ends when
# ``ask`` was not called for ``KEPT_FOR`` seconds, or with the process. After a fork the child must
# create new objects, because the parent's thread does not exist there.


logger = logging.getLogger("django_durable_tasks.limits")
KEPT_FOR = 60.0


class Refresher:
    """Calls ``refresh`` every ``every`` seconds while ``ask`` is called within ``KEPT_FOR`` s."""

    def __init__(self, name: str, refresh: Callable[[], None], every: float) -> None:
        self._name, self._refresh, self._every = name, refresh, every
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._last_use = float("-inf")

    @property
    def runs(self) -> bool:
        """Return whether the thread runs."""
        return self._thread is not None

    def ask(self) -> None:
        """Keep the thread running, or start it. Costs one assignment while the thread runs."""
        self._last_use = time.monotonic()
        if self._thread is None:
            self._start()

    def stop(self, patience: float) -> None:
        """Stop the thread and wait at most ``patience`` seconds for its end.

        The object cannot be used afterwards.
        """
        self._stopping.set()
        thread = self._thread
        if thread is not None:
            thread.join(patience)

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None or self._stopping.is_set():
                return
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The interpreter is shutting down, or the system cannot create more threads.
                # Callers continue without the thread.
                logger.debug("Could not start a thread for %s.", self._name)
                return
            self._thread = thread

    def _run(self) -> None:
        try:
            while time.monotonic() - self._last_use < KEPT_FOR:
                self._refresh()
                if self._stopping.wait(self._every):
                    return
        except Exception:
            logger.exception("Thread %s failed; the next call restarts it.", self._name)
        finally:
            with self._lock:
                self._thread = None


# A child process that ends with the process that started it.
#
# The parent keeps the write end of a pipe, and the child waits for the end of the file at the read
# end. The system closes the pipe when the parent dies, even by SIGKILL. No process id is compared.


# The file descriptor of the read end, for a child that a parent supervises.
PARENT_PIPE = "DURABLE_TASKS_PARENT_PIPE"


def end_with_parent() -> None:
    """Send SIGTERM to this process when its parent has ended. Without a supervising parent nothing
    happens.
    """
    descriptor = os.environ.pop(PARENT_PIPE, "")
    if descriptor.isdecimal():
        os.set_inheritable(int(descriptor), False)

        def wait_for_end() -> None:
            os.read(int(descriptor), 1)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait_for_end, name="durable-parent", daemon=True).start()
