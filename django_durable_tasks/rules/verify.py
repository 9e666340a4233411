"""What a look at the tables may find, and what is right instead. Pure: facts in, findings out.

A finding names one row, one field, the value that stands there and what is right. ``repair`` says
what ``durable verify --repair`` does about it; where it is empty the finding is for people, and
``advice`` says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from django_durable_tasks.rules.recurring.policies import RecurringStatus
from django_durable_tasks.rules.states import OPEN, Status
from django_durable_tasks.rules.workflows.plan import COUNTS, DEADLINE, WorkflowStatus, verdict

VERIFY_TASK = "django_durable_tasks.verify"
"""The registered name of the built-in task that verifies; under it, it is scheduled too."""


class Severity(StrEnum):
    """How bad it is."""

    BROKEN = "BROKEN"
    """What the engine promises does not hold."""
    LATE = "LATE"
    """What should have been done by now is not done."""
    REMARK = "REMARK"
    """It is as it should be, and a person has to look at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One row that is not as it should be; ``key`` is its primary key."""

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
class Wrong:
    """A field that is not as it should be; ``value`` is what a repair writes, if ``safe``."""

    field: str
    found: Any
    right: str
    value: Any = None
    safe: bool = True


def shown(value: Any) -> str:
    """Return a value as a sentence shows it; instants in UTC."""
    if value is None:
        return "empty"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value) if isinstance(value, int | str) and value != "" else repr(value)


# Tasks --------------------------------------------------------------------------------------------


def wrong_marker(
    field: str, marker: str | None, key: str | None, status: str, attempts: int
) -> Wrong | None:
    """Return what is wrong with the marker of an open key (``open_key``, ``open_unique_key``), None
    where nothing is.

    A row that has started may have given its key up to a newer one, so that only one which never
    started must hold it.
    """
    if Status(status) not in OPEN:
        return (
            None if marker is None else Wrong(field, marker, f"empty, because the task is {status}")
        )
    if marker == key or (marker is None and attempts > 0):
        return None
    return Wrong(field, marker, f"{shown(key)}, because the task is {status}", key)


def wrong_completion(status: str, completed_at: datetime | None) -> Wrong | None:
    """Return what is wrong with ``completed_at``, None where nothing is."""
    is_open = Status(status) in OPEN
    if is_open == (completed_at is None):
        return None
    right = "empty" if is_open else "when it ended"
    return Wrong("completed_at", completed_at, f"{right}, because the task is {status}")


def wrong_attempts(
    attempts: int, *, running: bool, endings: int, distinct: int, highest: int
) -> Wrong | None:
    """Return what the log rows of accepted endings say against ``attempts``, None where they agree.

    ``endings``: how many there are; ``distinct``: of how many attempts; ``highest``: the number of
    the last one. An attempt that ended twice cannot be mended, a counter that fell can.
    """
    if endings > distinct:
        return Wrong(
            "attempts",
            attempts,
            f"one ending an attempt, and {distinct} of them ended {endings} times",
            safe=False,
        )
    least = highest + running
    if attempts < least:
        return Wrong(
            "attempts", attempts, f"at least {least}, by the log rows of its endings", least
        )
    return None


# Workflows ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A run of a workflow beside its rows: what it counts, what notes will add, how many rows stand
    where.
    """

    status: str
    total: int
    counted: Mapping[str, int]
    noted: Mapping[str, int]
    present: Mapping[str, int]
    notes: int = 0
    cancelled: bool = False
    reason: str = ""

    @property
    def open(self) -> int:
        """How many of its rows have not ended."""
        return sum(self.present.get(status, 0) for status in OPEN)


def wrong_counts(run: RunFacts) -> list[Wrong]:
    """Return which counters differ from the rows; a counter of which notes are waiting is judged as
    it will be.

    Rows that were pruned are counted and no longer there: of a run that misses some, nothing may be
    counted less than what stands there, and what is not ended is open.
    """
    if run.status == WorkflowStatus.STARTING:
        return []
    told = {column: run.counted[column] + run.noted.get(column, 0) for column in COUNTS.values()}
    there = {column: run.present.get(status, 0) for status, column in COUNTS.items()}
    if sum(there.values()) + run.open == run.total:
        return [
            _count(run, column, there[column]) for column in there if told[column] != there[column]
        ]
    wrong = [_count(run, column, there[column]) for column in there if told[column] < there[column]]
    if not wrong and run.total - sum(told.values()) != run.open:
        right = sum(told.values()) + run.open
        wrong = [
            Wrong(
                "total",
                run.total,
                f"{right}: {sum(told.values())} ended and {run.open} open",
                right,
                safe=told == there,
            )
        ]
    return wrong


def _count(run: RunFacts, column: str, rows: int) -> Wrong:
    right = rows - run.noted.get(column, 0)
    return Wrong(column, run.counted[column], f"{right}, by a recount of its tasks", right)


def wrong_status(run: RunFacts) -> Wrong | None:
    """Return what is wrong with where a run stands, by its own counts; None where nothing is, or
    notes are waiting.
    """
    if run.notes or run.status == WorkflowStatus.STARTING:
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
    return Wrong("status", run.status, f"{right}, because {why}")


# Recurring tasks ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRun:
    """When a recurring task is to be looked at, and what its agenda says (``following``); instants
    are aware.
    """

    status: str
    now: datetime
    stored: datetime | None
    following: datetime | None = None
    paused_until: datetime | None = None
    put_off: float = 0.0


def wrong_next_run(row: NextRun) -> Wrong | None:
    """Return what is wrong with ``next_run_at``; ``put_off`` is how long (seconds) an unknown task
    puts a fire off.

    A row that is due is looked at anyway, whenever its next fire is: whether somebody does is
    another question.
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
    return Wrong("next_run_at", row.stored, f"{shown(right)}, {why}", right)
