"""The only writer of the ledger, which records the outcome of each fire time once.

The unique key over (recurring task, fire time) decides which of several processes creates the task
of a fire time. This is also true if two schedulers are leader.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

from django.db.models import Case, F, UUIDField, Value, When

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.arrays import (
    number_array,
    text_array,
    time_array,
    uuid_array,
)
from django_durable_tasks.engine.db.statements import statement
from django_durable_tasks.engine.recurring.schedule_rows import AnySchedule
from django_durable_tasks.models import OccurrenceRecord
from django_durable_tasks.models.instants import constant
from django_durable_tasks.models.occurrence import OccurrenceQuerySet
from django_durable_tasks.rules.recurring.effective import Agenda
from django_durable_tasks.rules.recurring.policies import FireOutcome

REASON_MAX = 500
_BULK = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One entry of the ledger: a fire time, or with ``last_fire_time`` a range of them."""

    recurring_task_id: uuid.UUID
    tenant_id: int
    fire_time: datetime
    outcome: FireOutcome
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
        """The value of the unique key; None for ranges and manual runs, which the key does not
        cover.
        """
        return self.fire_time if self.last_fire_time is None and self.request_id is None else None


def ledger() -> OccurrenceQuerySet:
    """Return a queryset of all ledger entries."""
    entries: OccurrenceQuerySet = OccurrenceRecord.objects.using(tables.database()).unguarded()
    return entries


def write(entries: Sequence[LedgerEntry]) -> set[uuid.UUID]:
    """Insert the entries whose fire time or request has no entry yet.

    Return the task ids of the inserted entries. Call it in the transaction that creates exactly
    these tasks.
    """
    written: set[uuid.UUID] = set()
    for first in range(0, len(entries), _BULK):
        written |= _write(entries[first : first + _BULK])
    return written


_COLUMNS: dict[str, Callable[[Iterable[Any]], str]] = {
    "recurring_task_id": uuid_array,
    "tenant_id": number_array,
    "fire_time": time_array,
    "last_fire_time": time_array,
    "count": number_array,
    "count_is_exact": number_array,
    "unique_fire_time": time_array,
    "effective_at": time_array,
    "outcome": text_array,
    "reason": text_array,
    "task_id": uuid_array,
    "blocked_by": uuid_array,
    "request_id": text_array,
    "term": number_array,
}


def _write(entries: Sequence[LedgerEntry]) -> set[uuid.UUID]:
    sql = statement("ledger")
    if sql is not None:
        columns = {name: array(map(attrgetter(name), entries)) for name, array in _COLUMNS.items()}
        return {task_id for (task_id,) in tables.read(sql, columns) if task_id is not None}
    rows = [
        OccurrenceRecord(**{name: getattr(entry, name) for name in _COLUMNS}) for entry in entries
    ]
    ledger().bulk_create(rows, ignore_conflicts=True)
    wanted = {entry.task_id for entry in entries if entry.task_id is not None}
    if not wanted:
        return set()
    stored = ledger().filter(recurring_task__in={entry.recurring_task_id for entry in entries})
    if all(entry.request_id is None for entry in entries):
        stored = stored.filter(unique_fire_time__in={entry.fire_time for entry in entries})
    # An entry with another task was inserted first by another transaction.
    return {found for found in stored.values_list("task_id", flat=True) if found in wanted}


def recorded(
    fires: Mapping[uuid.UUID, Sequence[datetime]],
) -> set[tuple[uuid.UUID, datetime | None]]:
    """Return the fire times among ``fires`` that have an entry; executes one statement."""
    times = {fire_time for several in fires.values() for fire_time in several}
    entries = ledger().filter(recurring_task__in=fires, unique_fire_time__in=times)
    return set(entries.values_list("recurring_task", "unique_fire_time"))


def refuse(recurring_task_id: uuid.UUID, fire_time: datetime, reason: str) -> None:
    """Record that the task of a fire time could not be created, in the entry inserted for it."""
    entry = ledger().filter(recurring_task=recurring_task_id, unique_fire_time=fire_time)
    entry.update(
        outcome=FireOutcome.FAILED_TO_CREATE, task_id=None, effective_at=None, reason=reason
    )


def fill(tasks: Mapping[int, tuple[uuid.UUID, datetime]], outcome: FireOutcome, reason: str) -> int:
    """Set the task and start of the entries (by id) that have no task; return the number of entries
    changed.
    """
    empty = ledger().filter(
        pk__in=list(tasks), task_id__isnull=True, unique_fire_time=F("fire_time")
    )
    ids = Case(
        *(When(pk=entry, then=Value(task, UUIDField())) for entry, (task, _) in tasks.items())
    )
    starts = Case(*(When(pk=entry, then=constant(at)) for entry, (_, at) in tasks.items()))
    return empty.update(
        task_id=ids, effective_at=starts, outcome=outcome, reason=reason[:REASON_MAX]
    )


_INSTANT = timedelta(microseconds=1)


def paused_range(
    row: AnySchedule, agenda: Agenda, until: datetime, term: int | None = None
) -> LedgerEntry | None:
    """Return the entry of the fire times from the watermark to ``until``, or None."""
    first, last = agenda.next(row.watermark_at), agenda.previous(until + _INSTANT)
    if first is None or last is None or first.at > until:
        return None
    begin, end = sorted((first.nominal, last.nominal))  # rolling can reverse two fire times
    counted = agenda.count(row.watermark_at, until)
    by = f" by {row.status_by}" if row.status_by else ""
    return LedgerEntry(
        recurring_task_id=row.pk,
        tenant_id=row.tenant_id,
        fire_time=begin,
        last_fire_time=end,
        count=counted.number,
        count_is_exact=counted.exact,
        outcome=FireOutcome.PAUSED,
        term=term,
        reason=f"{row.status_reason or 'paused'}{by}"[:REASON_MAX],
    )
