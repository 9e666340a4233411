"""The ledger's only writer: what became of each fire time. A fire time that is in it is never born again.

The unique key over (recurring task, fire time) decides between all who would give birth to a fire, whoever leads.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Case, DateTimeField, F, UUIDField, Value, When

from django_durable_tasks.lifecycle import transitions
from django_durable_tasks.lifecycle.connections import cursor
from django_durable_tasks.lifecycle.statements import recordset, statement
from django_durable_tasks.models import OccurrenceRecord
from django_durable_tasks.models.occurrence import OccurrenceQuerySet
from django_durable_tasks.rules.recurring import Fate

REASON_MAX = 500
_BULK = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the ledger: a fire time, or with ``last_fire_time`` a range of them."""

    recurring_task_id: uuid.UUID
    tenant_id: int
    fire_time: datetime
    outcome: Fate
    reason: str = ""
    task_id: uuid.UUID | None = None
    effective_at: datetime | None = None
    blocked_by: uuid.UUID | None = None
    request_id: str | None = None
    term: int | None = None
    last_fire_time: datetime | None = None
    count: int = 1
    count_is_exact: bool = True

    @property
    def unique_fire_time(self) -> datetime | None:
        """What the unique key holds; ranges and runs by hand stand outside it."""
        return self.fire_time if self.last_fire_time is None and self.request_id is None else None


def ledger() -> OccurrenceQuerySet:
    """Return the whole ledger, as a question to narrow."""
    questions: OccurrenceQuerySet = OccurrenceRecord.objects.using(transitions.database()).unguarded()
    return questions


def write(entries: Sequence[Entry]) -> set[uuid.UUID]:
    """Write lines whose fire time (or request) has none yet; return the task ids of those that were written.

    Inside the transaction that gives birth to these tasks, and to no others.
    """
    written: set[uuid.UUID] = set()
    for first in range(0, len(entries), _BULK):
        written |= _write(entries[first : first + _BULK])
    return written


_COLUMNS = (
    "recurring_task_id", "tenant_id", "fire_time", "last_fire_time", "count", "count_is_exact", "unique_fire_time",
    "effective_at", "outcome", "reason", "task_id", "blocked_by", "request_id", "term",
)  # fmt: skip


def _line(entry: Entry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in _COLUMNS}


def _write(entries: Sequence[Entry]) -> set[uuid.UUID]:
    sql = statement("ledger")
    if sql is not None:
        with cursor() as hand:
            hand.execute(sql, {"rows": recordset(_line(entry) for entry in entries)})
            return {task_id for (task_id,) in hand.fetchall() if task_id is not None}
    rows = [OccurrenceRecord(**_line(entry)) for entry in entries]
    ledger().bulk_create(rows, ignore_conflicts=True)
    wanted = {entry.task_id for entry in entries if entry.task_id is not None}
    if not wanted:
        return set()
    theirs = ledger().filter(recurring_task__in={entry.recurring_task_id for entry in entries})
    if all(entry.request_id is None for entry in entries):
        theirs = theirs.filter(unique_fire_time__in={entry.fire_time for entry in entries})
    # A line of another birth of the same fire has another task: that one came first.
    return {found for found in theirs.values_list("task_id", flat=True) if found in wanted}


def told(fires: Mapping[uuid.UUID, Sequence[datetime]]) -> set[tuple[uuid.UUID, datetime | None]]:
    """Return which of these fires (recurring task to fire times) have a line; one statement."""
    times = {fire_time for several in fires.values() for fire_time in several}
    lines = ledger().filter(recurring_task__in=fires, unique_fire_time__in=times)
    return set(lines.values_list("recurring_task", "unique_fire_time"))


def refuse(recurring_task_id: uuid.UUID, fire_time: datetime, reason: str) -> None:
    """Say of a fire whose line has been written that its task could not be born."""
    line = ledger().filter(recurring_task=recurring_task_id, unique_fire_time=fire_time)
    line.update(outcome=Fate.FAILED_TO_CREATE, task_id=None, effective_at=None, reason=reason)


def fill(born: Mapping[int, tuple[uuid.UUID, datetime]], outcome: Fate, reason: str) -> int:
    """Give lines that have no task the one that a backfill bears, with its start; return how many had none."""
    empty = ledger().filter(pk__in=list(born), task_id__isnull=True, unique_fire_time=F("fire_time"))
    tasks = Case(*(When(pk=line, then=Value(task, UUIDField())) for line, (task, _) in born.items()))
    starts = Case(*(When(pk=line, then=Value(start, DateTimeField())) for line, (_, start) in born.items()))
    return empty.update(task_id=tasks, effective_at=starts, outcome=outcome, reason=reason[:REASON_MAX])
