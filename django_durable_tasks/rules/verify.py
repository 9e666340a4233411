"""Rules of ``durable verify``: which values of rows are wrong, and the correct ones. Pure.

A finding contains one row, one field, its value and the correct one. ``repair`` describes what
``durable verify --repair`` does; if it is empty, ``advice`` describes what an operator can do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from django_durable_tasks.choices import DEADLINE, OPEN, RecurringStatus, Status, WorkflowStatus
from django_durable_tasks.models.workflows import COUNTS
from django_durable_tasks.rules.workflows import verdict


class Severity(StrEnum):
    """The severity of a finding."""

    BROKEN = "BROKEN"
    """A guarantee of the engine is violated."""
    LATE = "LATE"
    """A step that should have been done by now is missing."""
    REMARK = "REMARK"
    """The data is consistent, but an operator has to look at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One wrong row; ``key`` is its primary key."""

    check: str
    severity: Severity
    table: str
    key: Any
    field: str
    found: Any
    right: str
    repair: str = ""
    advice: str = ""

    @property
    def text(self) -> str:
        """The finding as a sentence."""
        return (
            f"{self.table} {self.key}: {self.field} is {shown(self.found)}; right is {self.right}."
        )


@dataclass(frozen=True, slots=True)
class WrongField:
    """A wrong field; ``value`` is what a repair writes, if ``safe``."""

    field: str
    found: Any
    right: str
    value: Any = None
    safe: bool = True


def shown(value: Any) -> str:
    """Return a value as text; instants in UTC."""
    if value is None:
        return "empty"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value) if isinstance(value, int | str) and value != "" else repr(value)


# Tasks --------------------------------------------------------------------------------------------


def wrong_marker(
    field: str, marker: str | None, key: str | None, status: str, attempts: int
) -> WrongField | None:
    """Return the error in the marker of an open key (``open_key``, ``open_unique_key``); None if
    there is none.

    A task that has started may have lost its key to a newer one, so only a task that never started
    must have it.
    """
    if Status(status) not in OPEN:
        return (
            None
            if marker is None
            else WrongField(field, marker, f"empty, because the task is {status}")
        )
    if marker == key or (marker is None and attempts > 0):
        return None
    return WrongField(field, marker, f"{shown(key)}, because the task is {status}", key)


def wrong_completion(status: str, completed_at: datetime | None) -> WrongField | None:
    """Return the error in ``completed_at``; None if there is none."""
    is_open = Status(status) in OPEN
    if is_open == (completed_at is None):
        return None
    right = "empty" if is_open else "when it ended"
    return WrongField("completed_at", completed_at, f"{right}, because the task is {status}")


def wrong_attempts(
    attempts: int, *, running: bool, endings: int, distinct: int, highest: int
) -> WrongField | None:
    """Return the contradiction between the log entries of accepted endings and ``attempts``; None
    if they agree.

    ``endings``: how many there are; ``distinct``: of how many attempts; ``highest``: the number of
    the last one. An attempt that ended twice cannot be repaired; a counter that is too low can.
    """
    if endings > distinct:
        return WrongField(
            "attempts",
            attempts,
            f"one ending an attempt, and {distinct} of them ended {endings} times",
            safe=False,
        )
    least = highest + running
    if attempts < least:
        return WrongField(
            "attempts", attempts, f"at least {least}, by the log rows of its endings", least
        )
    return None


# Workflows ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A workflow run and its tasks: its counters, the changes of pending ending events, and the
    number of tasks per status.
    """

    status: str
    total: int
    counted: Mapping[str, int]
    in_events: Mapping[str, int]
    present: Mapping[str, int]
    uncounted_events: int = 0
    cancelled: bool = False
    reason: str = ""

    @property
    def open(self) -> int:
        """How many of its tasks have not ended."""
        return sum(self.present.get(status, 0) for status in OPEN)


def wrong_counts(run: RunFacts) -> list[WrongField]:
    """Return the counters that differ from the tasks, including the changes of pending ending
    events.

    Pruned tasks were counted and no longer exist. For a run with pruned tasks, no counter may be
    lower than the number of existing tasks, and tasks that have not ended must be counted as open.
    """
    if run.status == WorkflowStatus.STARTING:
        return []
    expected = {
        column: run.counted[column] + run.in_events.get(column, 0) for column in COUNTS.values()
    }
    there = {column: run.present.get(status, 0) for status, column in COUNTS.items()}
    if sum(there.values()) + run.open == run.total:
        return [
            _count(run, column, there[column])
            for column in there
            if expected[column] != there[column]
        ]
    wrong = [
        _count(run, column, there[column]) for column in there if expected[column] < there[column]
    ]
    if not wrong and run.total - sum(expected.values()) != run.open:
        right = sum(expected.values()) + run.open
        wrong = [
            WrongField(
                "total",
                run.total,
                f"{right}: {sum(expected.values())} ended and {run.open} open",
                right,
                safe=expected == there,
            )
        ]
    return wrong


def _count(run: RunFacts, column: str, rows: int) -> WrongField:
    right = rows - run.in_events.get(column, 0)
    return WrongField(column, run.counted[column], f"{right}, by a recount of its tasks", right)


def wrong_status(run: RunFacts) -> WrongField | None:
    """Return the error in the status of a run, by its own counters; None if there is none, or if
    ending events are pending.
    """
    if run.uncounted_events or run.status == WorkflowStatus.STARTING:
        return None
    right = verdict(
        run.counted,
        run.total,
        cancelled=run.cancelled,
        overdue=run.cancelled and run.reason == DEADLINE,
    )
    if right == run.status:
        return None
    why = (
        f"{run.open} of its tasks are open"
        if right == WorkflowStatus.RUNNING
        else "all of its tasks have ended"
    )
    return WrongField("status", run.status, f"{right}, because {why}")


# Recurring tasks ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRun:
    """The next due time of a recurring task, and that of its agenda (``following``); instants are
    aware.
    """

    status: str
    now: datetime
    stored: datetime | None
    following: datetime | None = None
    paused_until: datetime | None = None
    put_off: float = 0.0


def wrong_next_run(row: NextRun) -> WrongField | None:
    """Return the error in ``next_run_at``; ``put_off`` is the delay (seconds) of a fire whose task
    is not registered.

    A task that is already due is not checked here: another check reports schedules that do not
    fire.
    """
    right = row.following
    if row.status == RecurringStatus.PAUSED:
        right = row.paused_until
    elif row.status == RecurringStatus.CANCELLED:
        right = None
    if row.stored == right or (
        row.stored is not None and row.stored <= row.now and row.status != "CANCELLED"
    ):
        return None
    late = right is not None and right <= row.now and row.status == RecurringStatus.ACTIVE
    if late and row.stored is not None and row.stored <= row.now + timedelta(seconds=row.put_off):
        return None
    why = f"because it is {row.status}" if row.status != RecurringStatus.ACTIVE else "by its agenda"
    return WrongField("next_run_at", row.stored, f"{shown(right)}, {why}", right)
