"""The only writer of RecurringTask rows: inserts, changes, the progress of a tick, quarantine, and
recomputed fire times.

Each UPDATE checks the revision that was read. A tick writes only the watermark, the next time
to process the schedule and its run count. It writes the status only when the schedule has
ended by its own conditions.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Case, F, Max, Q, Value, When

from django_durable_tasks import ports
from django_durable_tasks.audit import ENCRYPTED, current_recorder, masked_arguments
from django_durable_tasks.choices import RecurringStatus
from django_durable_tasks.exceptions import (
    DurableTasksError,
    InvalidCalendar,
    InvalidSchedule,
    TransitionRefused,
)
from django_durable_tasks.masking import ERROR_MAX_BYTES, shortened
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.models.fields import (
    DatabaseNow,
    EncryptedJSONField,
    constant,
    stored_columns,
)
from django_durable_tasks.models.schedules import RecurringTaskQuerySet
from django_durable_tasks.schedules.misfires import QUARANTINED
from django_durable_tasks.schedules.schedule_cache import agenda_of, calendars_of, recurring
from django_durable_tasks.schedules.timetables.zones import tzdata_version
from django_durable_tasks.store import tables
from django_durable_tasks.store.dialects import POSTGRESQL, sql, verb
from django_durable_tasks.store.errors import Isolation
from django_durable_tasks.store.postgresql import number_array, time_array, uuid_array

logger = logging.getLogger("django_durable_tasks.recurrence")
_BULK = 200
_BOOKKEEPING = frozenset(
    {
        "id",
        "tenant_id",
        "runs_count",
        "next_run_at",
        "watermark_at",
        "last_run_at",
        "overrides",
        "ledger_from",
        "tzdata_version",
        "revision",
        "declaration",
        "encryption_key",
        "created_at",
        "updated_at",
    }
)


@dataclass(frozen=True, slots=True)
class Move:
    """The progress of one schedule in a tick.

    ``next_run_at`` is when to process it again and ``watermark_at`` the last instant processed.
    ``ran`` is the number of tasks created. ``status`` is set if the schedule has ended.
    """

    pk: uuid.UUID
    revision: int
    next_run_at: datetime | None
    watermark_at: datetime
    ran: int = 0
    last_run_at: datetime | None = None
    status: RecurringStatus | None = None
    reason: str = ""


def insert(row: RecurringTask) -> None:
    """Insert a row. Raises IntegrityError if its name or key is taken."""
    row.encryption_key = stored_columns(row)["encryption_key"]
    recurring().bulk_create([row])
    _audit(row, {})
    _notify_due(row)


def rewrite(row: RecurringTask) -> None:
    """Write all columns of a locked row and increment its revision.

    Raises TransitionRefused if the revision changed since the row was read.
    """
    unchanged = recurring().filter(pk=row.pk, revision=row.revision)
    before = _audited(unchanged.first()) if current_recorder() is not None else {}
    row.revision += 1
    stored = stored_columns(row)
    row.encryption_key = stored["encryption_key"]
    columns = {
        spec.attname: getattr(row, spec.attname)
        for spec in RecurringTask._meta.concrete_fields
        if not isinstance(spec, EncryptedJSONField)
    } | stored
    if not unchanged.update(
        **{name: value for name, value in columns.items() if name not in ("id", "created_at")}
    ):
        raise TransitionRefused(
            f"Recurring task {row.name!r} was changed by another writer; read it again."
        )
    _audit(row, before)
    _notify_due(row)


def _audit(row: RecurringTask, before: dict[str, Any]) -> None:
    entry = current_recorder()
    if entry is not None:
        entry.changed("schedule", row.pk, before, _audited(row), row.tenant_id)


def _audited(row: RecurringTask | None) -> dict[str, Any]:
    """Return the columns for the audit entry, without the bookkeeping, with masked arguments."""
    if row is None:
        return {}
    values = {
        spec.attname: getattr(row, spec.attname)
        for spec in RecurringTask._meta.concrete_fields
        if spec.attname not in _BOOKKEEPING and not isinstance(spec, EncryptedJSONField)
    }
    if row.encryption_key is not None:
        return values | {"args": ENCRYPTED, "kwargs": ENCRYPTED}
    return values | masked_arguments(row.task, row.args, row.kwargs)


def _notify_due(row: RecurringTask) -> None:
    if row.next_run_at is not None:
        ports.due.leader_work(row.next_run_at)


def advance(moves: Sequence[Move]) -> None:
    """Write the moves to locked rows, each only if its revision is the one that was read."""
    if moves:
        _advance(moves)
    for status, reason in {(move.status, move.reason) for move in moves if move.status is not None}:
        ended = [move for move in moves if (move.status, move.reason) == (status, reason)]
        unchanged = reduce(or_, (Q(pk=move.pk, revision=move.revision) for move in ended))
        recurring().active().filter(unchanged).update(
            status=status, status_reason=reason, updated_at=DatabaseNow()
        )


@verb
def _advance(moves: Sequence[Move]) -> None:
    for first in range(0, len(moves), _BULK):
        bulk = moves[first : first + _BULK]
        columns: dict[str, Any] = {
            name: Case(
                *(When(pk=move.pk, then=constant(getattr(move, name))) for move in bulk),
                default=F(name),
            )
            for name in ("next_run_at", "watermark_at")
        }
        ran = [When(pk=move.pk, then=Value(move.ran)) for move in bulk if move.ran]
        last = [
            When(pk=move.pk, then=constant(move.last_run_at)) for move in bulk if move.last_run_at
        ]
        recurring().filter(pk__in=[move.pk for move in bulk]).update(
            **columns,
            runs_count=F("runs_count") + Case(*ran, default=0),
            last_run_at=Case(*last, default=F("last_run_at")),
        )


@_advance.on(POSTGRESQL)
def _advance_in_one_statement(moves: Sequence[Move]) -> None:
    tables.count(
        sql("advance"),
        {
            "id": uuid_array([move.pk for move in moves]),
            "revision": number_array([move.revision for move in moves]),
            "next_run_at": time_array([move.next_run_at for move in moves]),
            "ran": number_array([move.ran for move in moves]),
            "watermark_at": time_array([move.watermark_at for move in moves]),
            "last_run_at": time_array([move.last_run_at for move in moves]),
        },
    )


def quarantine(pk: uuid.UUID, revision: int, error: BaseException) -> None:
    """Pause a schedule that cannot be triggered and store its error, until an operator corrects and
    resumes it.

    If the revision changed since it was read, nothing is written and the schedule is tried again.
    """
    message = shortened(f"{type(error).__name__}: {error}", ERROR_MAX_BYTES)
    logger.error("Recurring task %s is paused, QUARANTINED: %s", pk, message)
    unchanged = {"pk": pk, "revision": revision}
    recurring().filter(**unchanged).exclude(status=RecurringStatus.CANCELLED).update(
        status=RecurringStatus.PAUSED,
        status_reason=QUARANTINED,
        error=message,
        next_run_at=None,
        paused_until=None,
        paused_at=DatabaseNow(),
        updated_at=DatabaseNow(),
    )


def wake(pk: uuid.UUID, revision: int) -> None:
    """Set a paused, locked schedule whose ``paused_until`` has passed to ACTIVE."""
    recurring().paused().filter(pk=pk, revision=revision).update(
        status=RecurringStatus.ACTIVE,
        status_reason="",
        paused_at=None,
        paused_until=None,
        updated_at=DatabaseNow(),
    )


# Recomputes next fire times after a new time zone database or a step of the database's clock.

# Called by the maintenance job ``recompute_fire_times`` and by ``durable dst``.


@dataclass(frozen=True, slots=True)
class ChangedFireTime:
    """A schedule with its stored next fire time and the one that this process computes."""

    row: RecurringTask
    stored: datetime | None
    found: datetime | None


def computed_elsewhere() -> RecurringTaskQuerySet:
    """Return the active schedules whose next fire time was computed with another tzdata release."""
    rows: RecurringTaskQuerySet = recurring().active()
    return (
        rows.filter(next_run_at__isnull=False)
        .exclude(tzdata_version=tzdata_version())
        .order_by("pk")
    )


def moved_fire_times(limit: int) -> list[ChangedFireTime]:
    """Return the schedules whose next fire time changes, among at most ``limit`` computed with
    another release.

    Writes nothing.
    """
    return [
        moved
        for moved in _compared(list(computed_elsewhere()[:limit]))
        if moved.stored != moved.found
    ]


_isolation = Isolation[uuid.UUID]("recurring task")


def recompute_fire_times(limit: int) -> int:
    """Set the next fire time of at most ``limit`` such schedules and log each change; return how
    many were written.

    Schedules that another transaction has locked are left to a later call.
    """

    def recompute(keys: list[uuid.UUID]) -> int:
        with tables.atomic():
            selected = recurring().filter(pk__in=keys).order_by("pk")
            rows = list(selected.select_for_update(skip_locked=True))
            for moved in _compared(rows):
                if moved.stored != moved.found:
                    logger.warning(
                        "tzdata %s changes the next fire time of recurring task %s from %s to %s.",
                        tzdata_version(),
                        moved.row.name,
                        moved.stored,
                        moved.found,
                    )
                moved.row.next_run_at, moved.row.tzdata_version = moved.found, tzdata_version()
                rewrite(moved.row)
        return len(rows)

    return _in_batches(_isolation, computed_elsewhere(), limit, recompute)


def _in_batches(
    isolation: Isolation[uuid.UUID],
    rows: RecurringTaskQuerySet,
    limit: int,
    act: Callable[[list[uuid.UUID]], int],
) -> int:
    """Call ``act`` with at most ``limit`` of these schedules, without the postponed ones."""
    queryset = rows.exclude(pk__in=isolation.postponed())
    keys = list(queryset.values_list("pk", flat=True)[:limit])
    if not keys:
        return 0
    return sum(isolation.batch(lambda: act(keys), lambda: keys, lambda key: act([key])))


def _compared(rows: Sequence[RecurringTask]) -> list[ChangedFireTime]:
    calendars, compared = calendars_of(rows), list[ChangedFireTime]()
    for row in rows:
        computed = row.next_run_at
        try:
            following = agenda_of(row, calendars).next(row.watermark_at)
            computed = following.at if following else computed
        except (InvalidSchedule, InvalidCalendar) as error:
            logger.warning(
                "Could not recompute the next fire time of recurring task %s: %s", row.name, error
            )
        compared.append(ChangedFireTime(row, row.next_run_at, computed))
    return compared


# Schedules that were processed by a database clock which was ahead and was set back.


_clock_isolation = Isolation[uuid.UUID]("recurring task")


def processed_later(now: datetime, tolerance: float) -> RecurringTaskQuerySet:
    """Return the schedules that were processed later than ``now`` plus ``tolerance`` seconds."""
    rows: RecurringTaskQuerySet = recurring().filter(
        watermark_at__gt=now + timedelta(seconds=tolerance)
    )
    return rows.exclude(status=RecurringStatus.CANCELLED).order_by("pk")


def processed_later_by(now: datetime) -> float:
    """Return by how many seconds the last schedule was processed later than ``now``; 0 if none."""
    last = processed_later(now, 0.0).order_by().aggregate(last=Max("watermark_at"))["last"]
    return (last - now).total_seconds() if last else 0.0


def set_back_schedules(now: datetime, tolerance: float, limit: int) -> int:
    """Set the watermark of at most ``limit`` such schedules to ``now``, and their next fire time to
    the one after it; return how many.

    Every fire time before ``now`` has been processed. The ledger has those that were processed too
    early, so its unique key prevents a second task of them. Rows that other transactions have
    locked are skipped.
    """

    def set_back(keys: list[uuid.UUID]) -> int:
        with tables.atomic():
            selected = processed_later(now, 0.0).filter(pk__in=keys)
            rows = list(tables.locked_for_change(selected, skip_locked=True))
            calendars = calendars_of(rows)
            for row in rows:
                row.watermark_at = now
                if row.status == RecurringStatus.ACTIVE:
                    try:
                        following = agenda_of(row, calendars).next(row.watermark_at)
                    except DurableTasksError as error:
                        # The next tick reports what is wrong with the schedule.
                        logger.warning(
                            "Recurring task %s has no next fire time: %s", row.name, error
                        )
                        following = None
                    # If no fire time is left, the next tick ends the schedule.
                    row.next_run_at = now if following is None else following.at
                rewrite(row)
        return len(rows)

    return _in_batches(_clock_isolation, processed_later(now, tolerance), limit, set_back)
