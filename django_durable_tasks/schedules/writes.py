"""The only writer of RecurringTask rows: inserts, changes, the progress of a tick and
quarantine.

Each UPDATE checks the revision that was read. A tick writes only the watermark, the next time
to process the schedule and its run count. It writes the status only when the schedule has
ended by its own conditions.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Case, F, Q, Value, When

from django_durable_tasks import ports
from django_durable_tasks.audit import ENCRYPTED, current_recorder, masked_arguments
from django_durable_tasks.choices import RecurringStatus
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.masking import ERROR_MAX_BYTES, shortened
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.models.encrypted_json import EncryptedJSONField, stored_columns
from django_durable_tasks.models.fields import DatabaseNow, constant
from django_durable_tasks.schedules.misfires import QUARANTINED
from django_durable_tasks.store import tables
from django_durable_tasks.store.dialects import POSTGRESQL, verb
from django_durable_tasks.store.postgresql import number_array, time_array, uuid_array
from django_durable_tasks.store.statements import sql

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
    RecurringTask.objects.using(tables.database()).unguarded().bulk_create([row])
    _audit(row, {})
    _notify_due(row)


def rewrite(row: RecurringTask) -> None:
    """Write all columns of a locked row and increment its revision.

    Raises TransitionRefused if the revision changed since the row was read.
    """
    unchanged = (
        RecurringTask.objects.using(tables.database())
        .unguarded()
        .filter(pk=row.pk, revision=row.revision)
    )
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
        RecurringTask.objects.using(tables.database()).unguarded().active().filter(
            unchanged
        ).update(status=status, status_reason=reason, updated_at=DatabaseNow())


@verb
def _advance(moves: Sequence[Move]) -> None:
    for first in range(0, len(moves), _BULK):
        part = moves[first : first + _BULK]
        columns: dict[str, Any] = {
            name: Case(
                *(When(pk=move.pk, then=constant(getattr(move, name))) for move in part),
                default=F(name),
            )
            for name in ("next_run_at", "watermark_at")
        }
        ran = [When(pk=move.pk, then=Value(move.ran)) for move in part if move.ran]
        last = [
            When(pk=move.pk, then=constant(move.last_run_at)) for move in part if move.last_run_at
        ]
        RecurringTask.objects.using(tables.database()).unguarded().filter(
            pk__in=[move.pk for move in part]
        ).update(
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
    RecurringTask.objects.using(tables.database()).unguarded().filter(**unchanged).exclude(
        status=RecurringStatus.CANCELLED
    ).update(
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
    RecurringTask.objects.using(tables.database()).unguarded().paused().filter(
        pk=pk, revision=revision
    ).update(
        status=RecurringStatus.ACTIVE,
        status_reason="",
        paused_at=None,
        paused_until=None,
        updated_at=DatabaseNow(),
    )
