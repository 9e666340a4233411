"""Declared schedules: merges a declaration in code or settings into a row that an operator may have
changed since.

A three-way merge like that of ``kubectl apply``: of the last declaration, the present declaration,
and the row. A change of the declaration wins. A value that only the operator changed stays. A
column that is no longer declared returns to its default, unless the operator has set it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypedDict

CODE, SETTINGS, BEAT, API = "code", "settings", "beat", "api"
"""Where a row is declared (``RecurringTask.source``); an empty text means that an operator, or code
that calls ``upsert``, has created it.
"""
UNDECLARED = "UNDECLARED"
"""The status reason of a schedule that was paused or ended because its declaration was removed."""


class SyncAction(StrEnum):
    """The action of a sync for one row."""

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
    """The columns to write, and the declared columns that keep an operator's value."""

    changes: dict[str, Any]
    edited: tuple[str, ...]


def kept(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns in their JSON form: instants in ISO 8601 (UTC), tuples as lists."""
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
    """Return the changes of a row by its declaration; all columns in the form of ``kept``.

    ``before`` is the last declaration; None applies the whole declaration.
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
