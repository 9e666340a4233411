"""Declared schedules: what code or settings say, merged into a row that an operator may have
changed since.

A three-way merge, as ``kubectl apply`` does it: what was declared last, what is declared now, how
the row stands. A change of the declaration wins; what only the operator changed stays; what is no
longer declared goes back to its default, unless the operator has given it a value of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypedDict

CODE, SETTINGS, BEAT = "code", "settings", "beat"
"""Who declares a row (``RecurringTask.source``); an empty text is nobody: it was made by hand."""
UNDECLARED = "UNDECLARED"
"""The status reason of a schedule that was paused or ended because nobody declares it any more."""


class Act(StrEnum):
    """What a sync does to one row."""

    CREATE = "CREATE"
    CHANGE = "CHANGE"
    ADOPT = "ADOPT"
    REVIVE = "REVIVE"
    PAUSE = "PAUSE"
    CANCEL = "CANCEL"
    CLASH = "CLASH"
    REFUSE = "REFUSE"


class ScheduleOptions(TypedDict, total=False):
    """The keywords of ``@recurring``, those of ``RecurringTask.objects.upsert`` without name and
    task.
    """

    interval: float | timedelta
    cron: str | Sequence[str]
    seconds: str
    rrule: str | Sequence[str]
    solar: str
    latitude: float
    longitude: float
    offset: float | timedelta
    at: Sequence[datetime | str]
    every: str
    count: int
    day: str | int
    month: int
    time: str
    parts: Sequence[Mapping[str, Any]]
    timezone: Any
    dst_gap: str
    dst_overlap: str
    calendar: str | Sequence[str]
    roll: str
    start_time: datetime
    end_time: datetime | None
    max_runs: int | None
    jitter: float | timedelta | str
    expires_in: float | timedelta | None
    catch_up_mode: str
    misfire_grace: float | timedelta
    catchup_window: float | timedelta | None
    max_catchup_runs: int
    catchup_order: str
    catchup_pace: float | timedelta
    overlap: str
    overlap_key: str
    priority: int | None
    queue: str
    description: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    idempotency_key: str | None


@dataclass(frozen=True, slots=True)
class Merge:
    """The columns to write, and the declared columns in which an operator's own value stays."""

    changes: dict[str, Any]
    edited: tuple[str, ...]


def kept(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns as JSON keeps them: instants in ISO 8601 (UTC), tuples as lists."""
    return {column: _plain(value) for column, value in values.items()}


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat()
        case Mapping():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case str():
            return str(value)
    return value


def merged(
    row: Mapping[str, Any],
    before: Mapping[str, Any] | None,
    declared: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> Merge:
    """Return what a declaration changes in a row; all columns as ``kept`` gives them.

    ``before`` is what was declared last; None takes the whole declaration over.
    """
    last = before or {}
    differing = {column: value for column, value in declared.items() if row[column] != value}
    edited = tuple(
        column for column, value in differing.items() if column in last and last[column] == value
    )
    changes = {column: value for column, value in differing.items() if column not in edited}
    for column, value in last.items():
        if (
            column not in declared
            and column in defaults
            and row[column] == value != defaults[column]
        ):
            changes[column] = defaults[column]
    return Merge(changes, edited)
