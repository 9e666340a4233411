"""What ``durable dev`` prints: output of its processes, tasks that start and end, why tasks wait.

Tasks are read from the database, not from the output of the worker, so that tasks that other
workers run are shown too.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TextIO

from django.apps import apps
from django.db import Error
from django.urls import NoReverseMatch, reverse

from django_durable_tasks.celery import inspect
from django_durable_tasks.choices import LogStatus, Status
from django_durable_tasks.command.subcommand import cell, hidden
from django_durable_tasks.models import Node, NodeKind, Task, TaskExecutionLog
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.errors import is_unmigrated, reason_of
from django_durable_tasks.store.tables import database
from django_durable_tasks.tasks.explanations import Level

# Lines ------------------------------------------------------------------------------------------


_COLOURS = {
    "scheduler": "35",
    "worker": "36",
    "web": "34",
    "dev": "1",
    "good": "32",
    "bad": "31",
    "wait": "33",
    "faint": "2",
}
"""The colours of ANSI terminals by what a line or a part of it is about."""
_NAME_WIDTH = 9


class Lines:
    """Writes lines with the time and the name of the process; thread-safe. Colours are left out if
    the output is not a terminal, or if ``NO_COLOR`` is set (https://no-color.org).
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lock = stream, threading.Lock()
        self._coloured = stream.isatty() and not os.environ.get("NO_COLOR")

    def coloured(self, text: str, colour: str) -> str:
        """Return the text in this colour."""
        return f"\033[{_COLOURS[colour]}m{text}\033[0m" if self._coloured else text

    def write(self, name: str, text: str, colour: str = "") -> None:
        """Write each line of the text after the time and the name."""
        now = self.coloured(time.strftime("%H:%M:%S"), "faint")
        head = self.coloured(name.ljust(_NAME_WIDTH), name if name in _COLOURS else "dev")
        with self._lock:
            for line in text.splitlines():
                coloured_line = self.coloured(line, colour) if colour else line
                self._stream.write(f"{now} {head} {coloured_line}\n")
            self._stream.flush()


# Tasks ------------------------------------------------------------------------------------------


# Entries of the log that are read again, because a transaction may commit an entry with a smaller
# number after one with a larger number.
_READ_AGAIN = 50
# At most this many endings, starts and waiting tasks are read at a time.
_PER_READ = 200
# At most this many waiting tasks are explained at a time; an explanation takes some statements.
_EXPLAINED = 3
# A task that has waited for less than this since it was created or changed needs no explanation.
_WAITS_SINCE = timedelta(seconds=2)
# Seconds between two reads of the waiting tasks.
_READ_WAITING_EVERY = 2.0
_OUTCOMES = {
    LogStatus.SUCCESS: ("succeeded", "good"),
    LogStatus.RETRY: ("failed", "bad"),
    LogStatus.FAILED: ("failed", "bad"),
    LogStatus.LOST: ("was interrupted", "wait"),
    LogStatus.CANCELLED: ("was cancelled", "wait"),
    LogStatus.FENCED: ("ended too late, its result is ignored", "wait"),
    LogStatus.DUPLICATE: ("was not started twice", "faint"),
}
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class _Seen:
    task_id: uuid.UUID
    attempt: int


class Report:
    """Prints what has happened since the last call of ``poll``, which never raises an error of the
    database. ``address`` is that of the development server, for links.
    """

    def __init__(self, lines: Lines, address: str | None) -> None:
        self._lines, self._address = lines, address
        self._last_entry: int | None = None
        self._entries: set[int] = set()
        self._started: set[_Seen] = set()
        self._explained: dict[uuid.UUID, str] = {}
        self._read_waiting_at = 0.0
        self._ready: set[uuid.UUID] = set()
        self._has_worker = False
        self._failing = False

    def poll(self, nodes: Callable[[Node], bool]) -> None:
        """Print what is new. ``nodes`` selects the nodes whose start is printed."""
        try:
            self._nodes(nodes)
            self._starts()
            self._endings()
            # While the worker starts, each task would be said to wait for one.
            if self._has_worker and time.monotonic() >= self._read_waiting_at:
                self._waiting()
                self._read_waiting_at = time.monotonic() + _READ_WAITING_EVERY
            self._failing = False
        except Error as error:
            if not self._failing:
                text = reason_of(error) if is_unmigrated(error) else f"The database: {error}"
                self._lines.write("dev", text, "bad")
            self._failing = True

    def _nodes(self, selected: Callable[[Node], bool]) -> None:
        for node in Node.objects.using(database()).alive().exclude(pk__in=self._ready):
            self._ready.add(node.pk)
            if selected(node):
                self._has_worker |= node.kind == NodeKind.WORKER
                name = NodeKind(node.kind).lower()
                queues = f" for {', '.join(node.queues)}" if node.kind == NodeKind.WORKER else ""
                slots = f", {node.concurrency} at a time" if node.concurrency else ""
                self._lines.write(name, f"is ready{queues}{slots}", "good")

    def _starts(self) -> None:
        running = Task.objects.using(database()).running().order_by("-started_at")
        rows = list(running[:_PER_READ])
        now = {_Seen(row.pk, row.attempts) for row in rows}
        for row in reversed(rows):
            if _Seen(row.pk, row.attempts) not in self._started:
                self._lines.write("worker", f"{_title(row)} started{_attempt(row.attempts)}")
        self._started = now

    def _endings(self) -> None:
        log = TaskExecutionLog.objects.using(database()).order_by("id")
        if self._last_entry is None:
            self._last_entry = log.values_list("id", flat=True).last() or 0
            self._entries = set(
                log.filter(id__gt=self._last_entry - _READ_AGAIN).values_list("id", flat=True)
            )
        rows = log.filter(id__gt=self._last_entry - _READ_AGAIN).select_related("task")
        for entry in rows[: _PER_READ + _READ_AGAIN]:
            if entry.pk not in self._entries:
                self._ended(entry)
            self._entries.add(entry.pk)
            self._last_entry = max(self._last_entry, entry.pk)
        self._entries = {pk for pk in self._entries if pk > self._last_entry - _READ_AGAIN}

    def _ended(self, entry: TaskExecutionLog) -> None:
        verb, colour = _OUTCOMES[LogStatus(entry.status)]
        task = entry.task
        took = "" if entry.duration is None else f" after {_duration(entry.duration)}"
        text = f"{_title(task)} {verb}{took}{_attempt(entry.attempt_number)}"
        if entry.error_message and entry.status != LogStatus.SUCCESS:
            text = f"{text}: {cell(hidden(entry.error_message))}"
        if entry.status in (LogStatus.RETRY, LogStatus.LOST) and task.due_at is not None:
            wait = (task.due_at - database_now()).total_seconds()
            text += f" Next attempt {f'in {_duration(wait)}' if wait > 0 else 'now'}."
        self._lines.write("worker", text, colour)
        if entry.status == LogStatus.FAILED:
            link = self._link(task)
            if link is not None:
                self._lines.write("worker", f"  {link}", "bad")
            self._lines.write(
                "worker", f"  manage.py durable replay {task.pk} runs it again.", "faint"
            )

    def _link(self, task: Task) -> str | None:
        """Return the page of the task in the admin, or None if the project has no admin."""
        if not apps.is_installed("django.contrib.admin"):
            return None
        try:
            path = reverse(f"admin:{Task._meta.app_label}_task_change", args=[task.pk])
        except NoReverseMatch:
            return None
        except Exception as error:  # noqa: BLE001 - the import of the URLs runs code of the project
            return f"The URLs cannot be imported: {type(error).__name__}: {error}"
        return path if self._address is None else f"http://{self._address}{path}"

    def _waiting(self) -> None:
        """Explain tasks that wait, each once, and again if the reason changes."""
        before = database_now() - _WAITS_SINCE
        statuses = (Status.BLOCKED, Status.PENDING, Status.QUEUED)
        waiting = Task.objects.using(database()).filter(status__in=statuses, updated_at__lt=before)
        rows = list(waiting.order_by("-id")[:_PER_READ])
        kept = {row.pk for row in rows}
        self._explained = {pk: text for pk, text in self._explained.items() if pk in kept}
        explained = 0
        for row in rows:
            state = f"{row.status} {row.epoch}"
            is_known = self._explained.get(row.pk, "").startswith(state)
            is_late = row.due_at is not None and row.due_at < before
            if explained >= _EXPLAINED or (is_known and not is_late):
                continue
            explained += 1
            sentence = inspect.sentences(row)[0]
            text = f"{state} {_NUMBERS.sub('', sentence.text)}"
            if self._explained.get(row.pk) != text and not self._is_repeated(text):
                colour = "bad" if sentence.level == Level.TROUBLE else "wait"
                self._lines.write("worker", f"{_title(row)} waits: {sentence.text}", colour)
            self._explained[row.pk] = text

    def _is_repeated(self, text: str) -> bool:
        """Return whether the same reason was printed for another task that still waits."""
        reason = text.partition(" ")[2].partition(" ")[2]
        return any(explained.endswith(f" {reason}") for explained in self._explained.values())


def _title(task: Any) -> str:
    return f"{task.name} {task.pk}"


def _attempt(number: int) -> str:
    return f", attempt {number}" if number > 1 else ""


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
