"""Records the calls of a process to its database and its broker, point by point, and injects a
fault at one of them.

A session's own settings (``SET``, ``PRAGMA``) are no points, because nothing has been written by
then. Nor are statements of other threads, such as the one that reads the snapshot of queues,
because they come at any time.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from django.db.backends.signals import connection_created

from django_durable_tasks.celery import filesystem
from tests.crash_points import injected_faults

SETTINGS = ("SET ", "PRAGMA ", "/*", "SHOW ", "SELECT @@")
READS = ("SELECT", "BEGIN", "START", "WITH RECURSIVE")
"""How statements begin that write nothing. No recursive statement of the engine writes."""
_PASSED_BY = ("connections", "statements", "guards", "announcing")


@dataclass(frozen=True, slots=True)
class Point:
    """One call: a statement, a COMMIT or a message.

    It ``lasts`` if its effect is durable when it returns. ``within``: a transaction was open whose
    end was not yet known.
    """

    kind: str
    words: str
    place: str
    lasts: bool
    within: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault at a point: by ``kill`` the process dies, by ``drop`` its connection; ``before`` or
    ``after`` the call.
    """

    action: str
    when: str
    number: int


class Tape:
    """Records all calls from now on. At the point of its fault, the fault occurs once."""

    def __init__(self, fault: Fault | None, line: int) -> None:
        self._fault, self._line = fault, line
        self._number, self._deaf = -1, False
        self._thread = threading.get_ident()
        self._connections: list[Any] = []

    def connected(self, sender: Any, connection: Any, **_: Any) -> None:
        """Record a connection that has just been opened."""
        commit = type(connection)._commit
        connection._commit = lambda: self.commit(connection, lambda: commit(connection))
        connection.execute_wrappers.append(
            lambda execute, *words: self.statement(connection, execute, *words)
        )
        self._connections.append(connection)

    def statement(self, wrapper: Any, execute: Callable[..., Any], sql: Any, *rest: Any) -> Any:
        """Execute and record a statement."""
        words = " ".join(str(sql).split())
        if words.startswith(SETTINGS):
            return execute(sql, *rest)
        lasts = not (wrapper.in_atomic_block or words.startswith(READS))
        return self._called("statement", words, lasts, lambda: execute(sql, *rest), wrapper)

    def commit(self, wrapper: Any, commit: Callable[[], Any]) -> Any:
        """Execute and record a COMMIT."""
        return self._called("commit", "COMMIT", True, commit, wrapper)

    def publish(self, put: Callable[[], Any], queue: str) -> Any:
        """Publish and record a message."""
        return self._called("publish", f"message to {queue}", True, put, None)

    def _called(
        self, kind: str, words: str, lasts: bool, call: Callable[[], Any], wrapper: Any
    ) -> Any:
        if self._deaf or threading.get_ident() != self._thread:
            return call()
        self._number += 1
        within = any(connection.in_atomic_block for connection in self._connections)
        point = Point(kind, words[:160], _place(), lasts, within)
        os.write(self._line, f"{json.dumps(asdict(point))}\n".encode())
        fault = self._fault
        if fault is None or fault.number != self._number:
            return call()
        if fault.action == "kill":
            return injected_faults.kill(fault.when, call)
        with self._ignored():
            return injected_faults.drop(fault.when, call, wrapper)

    @contextmanager
    def _ignored(self) -> Iterator[None]:
        self._deaf = True
        try:
            yield
        finally:
            self._deaf = False


def _place() -> str:
    """Return the function of the engine that makes the call, without the ones that every statement
    passes.
    """
    frame: Any = sys._getframe(3)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if "django_durable_tasks" in file.parts and file.stem not in _PASSED_BY:
            return f"{file.stem}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "the caller"


def listen(fault: Fault | None, line: int) -> None:
    """Record all calls of this process on connections that it opens from now on, for the rest of
    its life.
    """
    tape = Tape(fault, line)
    connection_created.connect(tape.connected, weak=False)
    put: Any = filesystem.Channel._put

    def published(channel: Any, queue: str, message: dict[str, Any], **more: Any) -> Any:
        return tape.publish(lambda: put(channel, queue, message, **more), queue)

    setattr(filesystem.Channel, "_put", published)  # noqa: B010 - mypy knows it as a method
