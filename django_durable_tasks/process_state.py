"""The state of this process: what it has read from the database and keeps between two calls.

There is one ``ProcessState``. A class of state declares no global of its own: ``of(Class)`` returns
the object of this process. A forked child starts with a new state, because threads, locks and
positions of the parent mean nothing there. A test starts with a new one by ``renew``.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any, TypeVar

T = TypeVar("T")
_AT_EXIT, _PATIENCE = 1.0, 10.0


class ProcessState:
    """One object of each class that was requested, created without arguments on first use."""

    def __init__(self) -> None:
        self._values: dict[type[Any], Any] = {}
        self._lock = threading.RLock()

    def of(self, kind: type[T]) -> T:
        """Return the object of this class; thread-safe."""
        found = self._values.get(kind)
        if found is None:
            with self._lock:
                found = self._values.get(kind)
                if found is None:
                    found = self._values[kind] = kind()
        value: T = found
        return value

    def stop(self, patience: float) -> None:
        """Call ``stop(patience)`` (seconds) of each object that has such a method."""
        for value in list(self._values.values()):
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
