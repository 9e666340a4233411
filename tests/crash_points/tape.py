"""The tape: what a process tells its database and its broker, one point after the other, and what
befalls it at one.

A session's own settings (``SET``, ``PRAGMA``) are no points: whoever dies there has told nothing
yet. Nor are statements of other threads, such as the one that reads the state of queues: they come
at any time.
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

from django_durable_tasks.celery.transports import filesystem
from tests.crash_points import blows

SETTINGS = ("SET ", "PRAGMA ", "/*", "SHOW ", "SELECT @@")
_PASSED_BY = ("connections", "statements", "guards", "announcing")


@dataclass(frozen=True, slots=True)
class Point:
    """One thing told: a statement, a COMMIT or a message.

    It ``lasts`` when it stands once it is told; ``within``: a transaction was open, of whose end
    nobody knew yet.
    """

    kind: str
    words: str
    place: str
    lasts: bool
    within: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at a point: by ``kill`` the process dies, by ``drop`` its connection; ``before``
    or ``after``.
    """

    blow: str
    when: str
    number: int


class Tape:
    """Hears what is told from now on; at the point of its fault the blow falls, once."""

    def __init__(self, fault: Fault | None, line: int) -> None:
        self._fault, self._line = fault, line
        self._number, self._deaf = -1, False
        self._thread = threading.get_ident()
        self._connections: list[Any] = []

    def connected(self, sender: Any, connection: Any, **_: Any) -> None:
        """Hear a connection that was opened just now."""
        commit = type(connection)._commit
        connection._commit = lambda: self.commit(connection, lambda: commit(connection))
        connection.execute_wrappers.append(
            lambda execute, *words: self.statement(connection, execute, *words)
        )
        self._connections.append(connection)

    def statement(self, wrapper: Any, execute: Callable[..., Any], sql: Any, *rest: Any) -> Any:
        """Tell a statement."""
        words = " ".join(str(sql).split())
        if words.startswith(SETTINGS):
            return execute(sql, *rest)
        lasts = not (wrapper.in_atomic_block or words.startswith(("SELECT", "BEGIN", "START")))
        return self._told("statement", words, lasts, lambda: execute(sql, *rest), wrapper)

    def commit(self, wrapper: Any, commit: Callable[[], Any]) -> Any:
        """Tell a COMMIT."""
        return self._told("commit", "COMMIT", True, commit, wrapper)

    def publish(self, put: Callable[[], Any], queue: str) -> Any:
        """Tell the broker a message."""
        return self._told("publish", f"message to {queue}", True, put, None)

    def _told(
        self, kind: str, words: str, lasts: bool, tell: Callable[[], Any], wrapper: Any
    ) -> Any:
        if self._deaf or threading.get_ident() != self._thread:
            return tell()
        self._number += 1
        within = any(connection.in_atomic_block for connection in self._connections)
        point = Point(kind, words[:160], _place(), lasts, within)
        os.write(self._line, f"{json.dumps(asdict(point))}\n".encode())
        fault = self._fault
        if fault is None or fault.number != self._number:
            return tell()
        if fault.blow == "kill":
            return blows.kill(fault.when, tell)
        with self._unheard():
            return blows.drop(fault.when, tell, wrapper)

    @contextmanager
    def _unheard(self) -> Iterator[None]:
        self._deaf = True
        try:
            yield
        finally:
            self._deaf = False


def _place() -> str:
    """Return the function of the engine that tells it, past those that every statement goes
    through.
    """
    frame: Any = sys._getframe(3)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if "django_durable_tasks" in file.parts and file.stem not in _PASSED_BY:
            return f"{file.stem}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "the caller"


def listen(fault: Fault | None, line: int) -> None:
    """Hear everything that this process tells on connections that it opens from now on, for the
    rest of its life.
    """
    tape = Tape(fault, line)
    connection_created.connect(tape.connected, weak=False)
    put: Any = filesystem.Channel._put

    def told(channel: Any, queue: str, message: dict[str, Any], **more: Any) -> Any:
        return tape.publish(lambda: put(channel, queue, message, **more), queue)

    setattr(filesystem.Channel, "_put", told)  # noqa: B010 - mypy knows it as a method
