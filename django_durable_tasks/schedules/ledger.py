"""The ledger, which records the outcome of each fire time once, and its retention."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any

from django.db.models import Case, Exists, F, OuterRef, UUIDField, Value, When
from django.db.models.functions import Coalesce, Greatest

from django_durable_tasks import conf
from django_durable_tasks.choices import FireOutcome, RecurringStatus
from django_durable_tasks.dependencies.edges import workflow_runs
from django_durable_tasks.models import OccurrenceRecord
from django_durable_tasks.models.fields import constant
from django_durable_tasks.models.schedules import OccurrenceQuerySet
from django_durable_tasks.schedules.agenda import Agenda, SkippedRange
from django_durable_tasks.schedules.misfires import skipped
from django_durable_tasks.schedules.options import API
from django_durable_tasks.schedules.schedule_cache import AnySchedule, recurring
from django_durable_tasks.schedules.timetables.types import TICK
from django_durable_tasks.store import tables
from django_durable_tasks.store.dialects import POSTGRESQL, sql, verb
from django_durable_tasks.store.errors import Isolation
from django_durable_tasks.store.postgresql import number_array, text_array, time_array, uuid_array

# The unique key over (recurring task, fire time) decides which of several processes creates the
# task of a fire time. This is also true if two schedulers are leader.


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


@verb
def _write(entries: Sequence[LedgerEntry]) -> set[uuid.UUID]:
    rows = [
        OccurrenceRecord(**{name: getattr(entry, name) for name in _COLUMNS}) for entry in entries
    ]
    ledger().bulk_create(rows, ignore_conflicts=True)
    task_ids = {entry.task_id for entry in entries if entry.task_id is not None}
    if not task_ids:
        return set()
    stored = ledger().filter(recurring_task__in={entry.recurring_task_id for entry in entries})
    if all(entry.request_id is None for entry in entries):
        stored = stored.filter(unique_fire_time__in={entry.fire_time for entry in entries})
    # An entry with another task was inserted first by another transaction.
    return {task_id for task_id in stored.values_list("task_id", flat=True) if task_id in task_ids}


@_write.on(POSTGRESQL)
def _write_in_one_statement(entries: Sequence[LedgerEntry]) -> set[uuid.UUID]:
    columns = {name: array(map(attrgetter(name), entries)) for name, array in _COLUMNS.items()}
    return {task_id for (task_id,) in tables.read(sql("ledger"), columns) if task_id is not None}


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


def entry_of_range(
    recurring_task_id: uuid.UUID, tenant_id: int, fires: SkippedRange, term: int | None
) -> LedgerEntry:
    """Return the entry of fire times that do not run."""
    return LedgerEntry(
        recurring_task_id=recurring_task_id,
        tenant_id=tenant_id,
        fire_time=fires.first,
        last_fire_time=fires.last,
        count=fires.count,
        count_is_exact=fires.exact,
        outcome=FireOutcome(fires.outcome),
        reason=fires.reason[:REASON_MAX],
        term=term,
    )


def paused_range(
    row: AnySchedule, agenda: Agenda, after: datetime, until: datetime, term: int | None = None
) -> LedgerEntry | None:
    """Return the entry of the fire times in (after, until] of a paused schedule, or None."""
    first, last = agenda.next(after), agenda.previous(until + TICK)
    if first is None or last is None or first.at > until:
        return None
    reason = f"{row.status_reason or 'paused'}{f' by {row.status_by}' if row.status_by else ''}"
    passed = skipped(agenda, first, last, after, reason, FireOutcome.PAUSED)
    return entry_of_range(row.pk, row.tenant_id, passed, term)


# Deletes ledger entries and ended recurring tasks of the HTTP API whose retention is over.


_ENDED_KEPT = timedelta(days=30)
"""How long an ended recurring task of a client is shown; as long as a bulk operation."""
_entries = Isolation[int]("ledger entry")


def prune_ledger(now: datetime, limit: int) -> int:
    """Delete the expired entries among the ``limit`` oldest of the ledger; return how many were
    deleted.

    ``ledger_from`` of each schedule is set to the last deleted fire time, so that a backfill does
    not repeat it. Entries of a schedule that another transaction has locked are skipped.
    """
    cutoff = conf.kept_from("LEDGER", now)
    locked = set[uuid.UUID]()
    forget = partial(_forget, cutoff=cutoff, locked=locked)
    while True:
        before = len(locked)
        oldest = (
            ledger().exclude(pk__in=_entries.postponed()).exclude(recurring_task__in=sorted(locked))
        )
        page = list(oldest.order_by("pk").values_list("pk", flat=True)[:limit])
        if not page:
            return 0
        deleted = sum(_entries.batch(partial(forget, page), page.copy, lambda pk: forget([pk])))
        if deleted or len(locked) == before:
            return deleted


def _forget(page: list[int], cutoff: datetime, locked: set[uuid.UUID]) -> int:
    """Delete those of these entries that are older than ``cutoff``.

    Add the schedules that another transaction has locked to ``locked``.
    """
    with tables.atomic():
        expired = ledger().filter(pk__in=page, created_at__lt=cutoff)
        deleted_rows = list(
            expired.order_by("pk").values_list(
                "pk", "recurring_task", "fire_time", "last_fire_time"
            )
        )
        schedules = recurring().filter(pk__in={entry[1] for entry in deleted_rows})
        acquired = set(
            schedules.order_by("pk")
            .select_for_update(skip_locked=True)
            .values_list("pk", flat=True)
        )
        locked |= set(schedules.values_list("pk", flat=True)) - acquired
        deleted_rows = [entry for entry in deleted_rows if entry[1] not in locked]
        forgotten: dict[uuid.UUID, datetime] = {}
        for _, schedule, first, last in deleted_rows:
            forgotten[schedule] = max(last or first, forgotten.get(schedule, first))
        if forgotten:
            # Each schedule has its own limit: another schedule may still need entries of the same
            # time.
            last_forgotten = Case(
                *(
                    When(pk=pk, then=constant(last_deleted))
                    for pk, last_deleted in forgotten.items()
                )
            )
            schedules.filter(pk__in=forgotten).update(
                ledger_from=Greatest(Coalesce("ledger_from", last_forgotten), last_forgotten)
            )
            ledger().filter(pk__in=[entry[0] for entry in deleted_rows]).delete()
    return len(deleted_rows)


def prune_ended(now: datetime, limit: int) -> int:
    """Delete at most ``limit`` recurring tasks that the HTTP API created, that have ended, and of
    which no task and no ledger entry is kept; return how many.

    A tenant could otherwise create and cancel recurring tasks without end. Those of other sources
    are kept, because code that declares or creates them again must not revive them.
    """
    rows = recurring()
    cutoff = now - _ENDED_KEPT
    ended = rows.filter(source=API, status=RecurringStatus.CANCELLED, updated_at__lt=cutoff)
    unused = ended.exclude(
        Exists(ledger().filter(recurring_task=OuterRef("pk")))
        | Exists(tables.tasks().filter(recurring_task=OuterRef("pk")))
        | Exists(workflow_runs().filter(recurring_task=OuterRef("pk")))
    )
    page = list(unused.order_by("updated_at").values_list("pk", flat=True)[:limit])
    if not page:
        return 0
    with tables.atomic():
        locked = ended.filter(pk__in=page).order_by("pk").select_for_update(skip_locked=True)
        keys = list(locked.values_list("pk", flat=True))
        rows.filter(pk__in=keys).delete()
    return len(keys)
