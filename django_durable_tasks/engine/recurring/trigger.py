"""Creates the tasks of due schedules: decides for each fire time, then writes everything in one
transaction.

The schedules are locked, the unique key of the ledger decides which fire times are new, and the
watermark moves in the same transaction. A crash at any statement therefore leaves nothing or
everything, and two leaders create the task of a fire time once. A schedule that fails is
quarantined and does not stop the others.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.db import Error, IntegrityError, connections

from django_durable_tasks import conf
from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.isolation import Isolation
from django_durable_tasks.engine.dependencies import run_tree
from django_durable_tasks.engine.dependencies.edges import runs
from django_durable_tasks.engine.limits import overlap
from django_durable_tasks.engine.recurring import fire_events, ledger, occurrence_tasks
from django_durable_tasks.engine.recurring.schedule_cache import agenda_of, calendars_of
from django_durable_tasks.engine.recurring.tick_plan import Tick, decide_row, policy_of
from django_durable_tasks.engine.recurring.writes import Move, advance, quarantine, wake
from django_durable_tasks.exceptions import EncryptionError, InvalidSchedule, UnknownTask
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.rules.recurring.effective import Agenda
from django_durable_tasks.rules.recurring.misfires import Choice, choose
from django_durable_tasks.rules.recurring.policies import MAX_RUNS, RecurringStatus
from django_durable_tasks.rules.recurring.timetables.builder import never_fires
from django_durable_tasks.rules.tasks.masking import shortened
from django_durable_tasks.rules.tasks.new_task import NewTask

logger = logging.getLogger("django_durable_tasks.recurrence")


def head() -> datetime | None:
    """Return when the next schedule is due; one index lookup."""
    rows = RecurringTask.objects.using(tables.database()).filter(next_run_at__isnull=False)
    first: datetime | None = (
        rows.order_by("next_run_at").values_list("next_run_at", flat=True).first()
    )
    return first


class _AlreadyRecorded(Exception):
    """The ledger has an entry of a fire time that this tick considered new."""


_isolation = Isolation[uuid.UUID]("recurring task")


def fire_due(now: datetime, limit: int, term: int | None = None) -> int:
    """Record all fire times up to ``now`` of at most ``limit`` due schedules; return how many
    tasks were created.

    A batch that cannot be written is repeated schedule by schedule; one that fails alone is
    quarantined. An outage of the database is raised and changes nothing.
    """
    revisions: dict[uuid.UUID, int] = {}

    def due() -> list[uuid.UUID]:
        rows = (
            RecurringTask.objects.using(tables.database())
            .due(now)
            .exclude(pk__in=_isolation.postponed())
        )
        revisions.update(rows.values_list("pk", "revision")[:limit])
        return list(revisions)

    created = _isolation.batch(
        lambda: _fire(None, now, limit, term),
        due,
        lambda pk: _fire([pk], now, 1, term),
        on_failure=lambda pk, error: quarantine(pk, revisions[pk], error),
    )
    return sum(created)


def _fire(keys: list[Any] | None, now: datetime, limit: int, term: int | None) -> int:
    """Fire assuming that the ledger has no entry of these fire times; if it has one, repeat and
    read its entries first.
    """
    alone = keys is not None
    try:
        return _tick(Tick(now, term, alone), keys, limit)
    except _AlreadyRecorded:
        return _tick(Tick(now, term, alone, recorded=set()), keys, limit)


def _tick(tick: Tick, keys: list[Any] | None, limit: int) -> int:
    with tables.atomic():
        rows = _locked(keys, tick.now, limit)
        if not rows:
            return 0
        plans = _plans(tick, rows)
        tick.opened, tick.keys = overlap.open_runs(_overlap_keys(plans)), _key_owners(plans)
        if tick.recorded is not None:
            tick.recorded |= ledger.recorded(
                {row.pk: [run.planned.nominal for run in choice.runs] for row, choice, _ in plans}
            )
        for row, choice, agenda in plans:
            decide_row(tick, row, choice, agenda)
        return _write(tick)


def _locked(keys: list[Any] | None, now: datetime, limit: int) -> list[RecurringTask]:
    """Lock due rows that no other transaction has locked, and return them in primary-key order."""
    rows, connection = (
        RecurringTask.objects.using(tables.database()),
        connections[tables.database()],
    )
    due = rows.due(now).exclude(pk__in=_isolation.postponed())
    lock_options: dict[str, Any] = {
        "skip_locked": True,
        "no_key": connection.features.has_select_for_no_key_update,
    }
    if keys is None and connection.vendor == "postgresql":
        # Locked by the statement that is limited, so that locked rows do not count as found.
        return sorted(due.select_for_update(**lock_options)[:limit], key=lambda row: row.pk)
    found = keys if keys is not None else list(due.values_list("pk", flat=True)[:limit])
    if not found:
        return []
    # By the primary key alone, as all operations lock schedules: by another index MariaDB would
    # deadlock with them.
    these = rows.filter(pk__in=found).order_by("pk").select_for_update(**lock_options)
    return [row for row in these if row.next_run_at is not None and row.next_run_at <= now]


Plan = tuple[RecurringTask, Choice, Agenda]


def _plans(tick: Tick, rows: Sequence[RecurringTask]) -> list[Plan]:
    calendars, plans, waiting = calendars_of(rows), list[Plan](), list[Move]()
    for row in rows:
        if not _may_fire(row, tick.now):
            waiting.append(
                Move(
                    row,
                    row.paused_until if row.status == RecurringStatus.PAUSED else None,
                    row.watermark_at,
                )
            )
            continue
        try:
            plans.append(_plan(tick, row, agenda_of(row, calendars)))
        except (UnknownTask, EncryptionError) as error:
            # Another release may have this task, or another process the key. The watermark stays,
            # so the fire times are caught up later.
            logger.warning("Recurring task %s is postponed: %s", row.name, error)
            later = tick.now + timedelta(seconds=conf.settings().UNKNOWN_TASK_DELAY)
            waiting.append(Move(row, later, row.watermark_at))
        except Error:
            raise  # the transaction is aborted, and the schedule is not the cause
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the schedule stores and shows it
            quarantine(row.pk, row.revision, error)
    if waiting:
        advance(waiting)
    return plans


def _may_fire(row: RecurringTask, now: datetime) -> bool:
    """Return whether the schedule fires now, or its pause ends now."""
    if row.status == RecurringStatus.PAUSED:
        return row.paused_until is not None and row.paused_until <= now
    return row.status == RecurringStatus.ACTIVE


def _plan(tick: Tick, row: RecurringTask, agenda: Agenda) -> Plan:
    occurrence_tasks.template(row)
    if row.ledger_from is not None:
        # Entries before this were pruned: their fire times must not fire again, even if the
        # watermark was set back behind them.
        row.watermark_at = max(row.watermark_at, row.ledger_from)
    if row.status == RecurringStatus.PAUSED:
        _end_pause(tick, row, agenda)
    choice = choose(agenda, row.watermark_at, tick.now, policy_of(row))
    if choice.following is None and not choice.runs:
        _refuse_never(row)
    return row, choice, agenda


def _refuse_never(row: RecurringTask) -> None:
    """Raise InvalidSchedule if the timetable can never fire; one that has ended is valid."""
    why = never_fires(row.timetable, zone=row.time_zone, anchor=row.start_time, seed=row.name)
    if why or not row.timetable:
        raise InvalidSchedule(why or "timetable=[] has no part: it never fires.")


def _end_pause(tick: Tick, row: RecurringTask, agenda: Agenda) -> None:
    """End a pause: the fire times during it are recorded, later ones fire as usual."""
    until = max(row.paused_until or tick.now, row.watermark_at)
    passed = ledger.paused_range(row, agenda, until, tick.term)
    tick.entries += [passed] if passed else []
    wake(row)
    row.watermark_at = until


def _overlap_keys(plans: Sequence[Plan]) -> set[str]:
    keys = (occurrence_tasks.template(row).overlap_key for row, choice, _ in plans if choice.runs)
    return {overlap_key for overlap_key in keys if overlap_key is not None}


def _key_owners(plans: Sequence[Plan]) -> dict[tuple[int, str | None], Any]:
    """Return the open tasks that own the unique keys of these runs; no statement without keys."""
    keys = {
        occurrence_tasks.template(row).unique_key for row, choice, _ in plans if choice.runs
    } - {None}
    if not keys:
        return {}
    owners = (
        tables.tasks()
        .filter(open_unique_key__in=keys)
        .values_list("tenant_id", "open_unique_key", "pk")
    )
    return {(tenant, key): task_id for tenant, key, task_id in owners}


# Writes -------------------------------------------------------------------------------------------


def _write(tick: Tick) -> int:
    """Write the ledger first: only tasks whose entry was inserted are created."""
    new = ledger.write(tick.entries)
    created = [task for task in tick.new_tasks if task.id in new]
    if len(created) < len(tick.new_tasks):
        if tick.recorded is None:
            raise _AlreadyRecorded
        _refuse_unrecorded([task for task in tick.new_tasks if task.id not in new])
    ids = {task.id for task in created}
    _replace([task_id for task_id in tick.replaced if task_id not in ids])
    if created and tick.alone:
        created = [task for task in created if _insert_one(task)]
    elif created:
        transitions.create_many(created)
    _replace([task_id for task_id in tick.replaced if task_id in ids])
    advance(tick.moves if len(created) == len(tick.new_tasks) else _moves_of(tick, created))
    fire_events.capture_fires(tick)
    return len(created)


def _refuse_unrecorded(refused: Sequence[NewTask]) -> None:
    """Raise IntegrityError if a fire time has neither a new entry nor an older one.

    MariaDB and SQLite skip a row of a bulk INSERT for any constraint, without an error.
    """
    wanted = {task.occurrence for task in refused}
    times = [fire_time for _, fire_time in wanted]
    if wanted - ledger.recorded({schedule: times for schedule, _ in wanted}):
        raise IntegrityError(
            "The database skipped a ledger insert although no entry of this fire time exists."
        )


def _replace(stale: Sequence[Any]) -> None:
    if stale:
        these = tables.tasks().filter(pk__in=stale)
        transitions.cancel(these, "REPLACED")
        transitions.request_cancel(these, "REPLACED")
        run_tree.request_cancel_runs(runs().filter(pk__in=stale), "REPLACED")


def _insert_one(task: NewTask) -> bool:
    """Insert one task; if another one acquired one of its keys first, record that in the ledger."""
    try:
        with tables.atomic():
            transitions.create_many([task])
    except IntegrityError as refused:
        if not any(word in str(refused).lower() for word in ("unique", "duplicate")):
            raise
        ledger.refuse(*task.occurrence, shortened(str(refused), ledger.REASON_MAX))
        return False
    return True


def _moves_of(tick: Tick, created: Sequence[NewTask]) -> list[Move]:
    """Return the moves if not every task was created: only created ones are counted."""
    ran = Counter(task.recurring_task_id for task in created)
    moves = []
    for move in tick.moves:
        if move.ran > ran[move.row.pk] and move.reason == MAX_RUNS:
            move = replace(move, status=None, reason="", next_run_at=tick.now)
        moves.append(
            replace(move, ran=ran[move.row.pk], last_run_at=tick.now if ran[move.row.pk] else None)
        )
    return moves
