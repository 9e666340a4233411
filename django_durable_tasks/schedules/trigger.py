"""Creates the tasks of due schedules: decides for each fire time, then writes everything in one
transaction.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import Error, IntegrityError
from django.db.models import QuerySet

from django_durable_tasks import conf, ports, process_state
from django_durable_tasks.choices import FireOutcome, RecurringStatus
from django_durable_tasks.dependencies import edges
from django_durable_tasks.dependencies.edges import workflow_runs
from django_durable_tasks.exceptions import EncryptionError, InvalidSchedule, UnknownTask
from django_durable_tasks.limits import overlap
from django_durable_tasks.masking import shortened
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.schedules import ledger, tick_plan
from django_durable_tasks.schedules.misfires import MAX_RUNS, choose
from django_durable_tasks.schedules.schedule_cache import ScheduleRow
from django_durable_tasks.schedules.tick_plan import (
    DueState,
    FirePlan,
    KnownSchedule,
    Tick,
    Windows,
    decide_plan,
    known_schedule,
    queued_if_due,
)
from django_durable_tasks.schedules.timetables.builder import never_fires
from django_durable_tasks.schedules.writes import Move, advance, quarantine, wake
from django_durable_tasks.signals import fires_recorded
from django_durable_tasks.states import endings, inserts
from django_durable_tasks.store import tables
from django_durable_tasks.store.dialects import POSTGRESQL, verb
from django_durable_tasks.store.errors import Isolation, is_unique_violation
from django_durable_tasks.task_values import NewTask

# The schedules that this scheduler cannot fire yet: another release has their task, or another
# process their key. The leader reports them with its heartbeat.


_KEPT = 10.0
"""An entry is dropped this many retry intervals after the last attempt: the schedule was paused,
deleted, or is fired by another leader.
"""


@dataclass(slots=True)
class _Postponed:
    name: str
    error: str
    since: float
    last: float
    number: int


class PostponedSchedules:
    """The postponed schedules of this process; thread-safe."""

    def __init__(self) -> None:
        self._schedules: dict[uuid.UUID, _Postponed] = {}
        self._lock = threading.Lock()

    def add(self, key: uuid.UUID, name: str, error: str) -> None:
        """Record that this schedule could not fire."""
        now = time.monotonic()
        with self._lock:
            schedule = self._schedules.setdefault(key, _Postponed(name, error, now, now, 0))
            schedule.error, schedule.last, schedule.number = error, now, schedule.number + 1

    def remove(self, key: uuid.UUID) -> None:
        """Record that this schedule can fire."""
        if self._schedules:
            with self._lock:
                self._schedules.pop(key, None)

    def failing(self, interval: float) -> list[dict[str, Any]]:
        """Return the schedules as failing parts of a scheduler; ``interval`` (seconds) is the time
        between two attempts.
        """
        now = time.monotonic()
        with self._lock:
            for key, schedule in list(self._schedules.items()):
                if now - schedule.last > _KEPT * interval:
                    del self._schedules[key]
            return [
                {
                    "what": f"recurring task {schedule.name}",
                    "error": schedule.error,
                    "number": schedule.number,
                    "since": round(now - schedule.since, 1),
                }
                for schedule in self._schedules.values()
            ]


# The schedules are locked, the unique key of the ledger decides which fire times are new, and the
# watermark moves in the same transaction. A crash at any statement therefore leaves nothing or
# everything, and two leaders create the task of a fire time once. A schedule that fails is
# quarantined and does not stop the others.


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


class DueSelection(NamedTuple):
    """Which due schedules a batch takes: those to process after ``after`` and up to ``now``, the
    oldest first, at most ``limit``; or only those with the ids ``keys``.
    """

    now: datetime
    limit: int
    after: datetime | None = None
    keys: Sequence[uuid.UUID] | None = None

    def rows(self) -> QuerySet[RecurringTask]:
        """Return the selected schedules, without the postponed ones and without ``limit``."""
        due: QuerySet[RecurringTask] = RecurringTask.objects.using(tables.database()).due(self.now)
        if self.after is not None:
            due = due.filter(next_run_at__gt=self.after)
        return due.exclude(pk__in=_isolation.postponed())


def fire_due(
    now: datetime,
    limit: int,
    term: int | None = None,
    *,
    after: datetime | None = None,
    windows: Windows | None = None,
) -> int:
    """Record all fire times up to ``now`` of at most ``limit`` due schedules; return how many
    tasks were created.

    With ``after``, schedules that became due before it or at it are left to other batches. With
    ``windows``, tasks that are due and within them are published at the commit. A batch
    that cannot be written is repeated schedule by schedule; one that fails alone is quarantined. An
    outage of the database is raised and changes nothing.
    """
    selection, revisions = DueSelection(now, limit, after), dict[uuid.UUID, int]()

    def due() -> list[uuid.UUID]:
        revisions.update(selection.rows().values_list("pk", "revision")[:limit])
        return list(revisions)

    created = _isolation.batch(
        lambda: _fire(selection, term, windows),
        due,
        lambda pk: _fire(DueSelection(now, 1, keys=[pk]), term),
        on_failure=lambda pk, error: quarantine(pk, revisions[pk], error),
    )
    return sum(created)


def _fire(selection: DueSelection, term: int | None, windows: Windows | None = None) -> int:
    """Fire assuming that the ledger has no entry of these fire times; if it has one, repeat and
    read its entries first.
    """
    now, alone = selection.now, selection.keys is not None
    tick = Tick(now, term, alone, windows=windows)
    try:
        created = _tick(tick, selection)
    except _AlreadyRecorded:
        tick = Tick(now, term, alone, recorded=set())
        created = _tick(tick, selection)
    if ports.quotas is not None:
        for tenant_id in sorted(tick.refused):
            most = tick.quotas[tenant_id].limit
            detail = f"open_tasks: the tenant may have {most:,} open tasks."
            ports.quotas.refused(tenant_id, "open_tasks", detail)
    return created


def _tick(tick: Tick, selection: DueSelection) -> int:
    with tables.atomic():
        states = _locked(selection)
        if not states:
            return 0
        plans = _plans(tick, states)
        overlap_keys = {plan.schedule.template.overlap_key for plan in plans if plan.choice.runs}
        tick.opened = overlap.open_runs({key for key in overlap_keys if key is not None})
        tick.keys = _key_owners(plans)
        if tick.recorded is not None:
            tick.recorded |= ledger.recorded(
                {
                    plan.schedule.pk: [run.planned.nominal for run in plan.choice.runs]
                    for plan in plans
                }
            )
        if ports.quotas is not None:
            wanted = Counter[int]()
            for plan in plans:
                wanted[plan.schedule.tenant_id] += len(plan.choice.runs)
            tick.quotas = ports.quotas.admit_open_tasks(+wanted, tick.now)
        for plan in plans:
            decide_plan(tick, plan)
        return _write(tick)


def _locked(selection: DueSelection) -> list[DueState]:
    """Lock selected rows that no other transaction has locked; return their states in primary-key
    order.
    """
    if selection.keys is None:
        return _locked_due(selection)
    return _locked_keys(selection.keys, selection.now)


@verb
def _locked_due(selection: DueSelection) -> list[DueState]:
    keys = selection.rows().values_list("pk", flat=True)[: selection.limit]
    return _locked_keys(list(keys), selection.now)


@_locked_due.on(POSTGRESQL)
def _locked_due_in_one_statement(selection: DueSelection) -> list[DueState]:
    """Lock by the statement that is limited, so that locked rows do not count as found."""
    due = tables.locked_for_change(selection.rows(), skip_locked=True)
    return sorted(map(DueState._make, due.values_list(*DueState._fields)[: selection.limit]))


def _locked_keys(keys: Sequence[uuid.UUID], now: datetime) -> list[DueState]:
    if not keys:
        return []
    # By the primary key alone, as all operations lock schedules: by another index MariaDB would
    # deadlock with them.
    rows = RecurringTask.objects.using(tables.database()).filter(pk__in=keys).order_by("pk")
    these = tables.locked_for_change(rows, skip_locked=True)
    return [
        DueState._make(columns)
        for next_run_at, *columns in these.values_list("next_run_at", *DueState._fields)
        if next_run_at is not None and next_run_at <= now
    ]


_NEWER = "If the task is new, restart this scheduler: its code is older than the schedule."


def _plans(tick: Tick, states: Sequence[DueState]) -> list[FirePlan]:
    due, plans, waiting = tick_plan.read_due(states), list[FirePlan](), list[Move]()
    postponed = process_state.of(PostponedSchedules)
    for state in states:
        is_paused = state.status == RecurringStatus.PAUSED
        pause_ends = is_paused and state.paused_until is not None and state.paused_until <= tick.now
        if state.status != RecurringStatus.ACTIVE and not pause_ends:
            until = state.paused_until if is_paused else None
            waiting.append(Move(state.id, state.revision, until, state.watermark_at))
            continue
        known = due.known.get(state.id)
        if known is not None:
            plans.append(_plan(tick, state, known, state.processed_until()))
            continue
        row = due.rows[state.id]
        try:
            known, watermark = known_schedule(row, due.calendars), state.processed_until()
            if is_paused:
                watermark = _end_pause(tick, row, known, watermark)
            plan = _plan(tick, state, known, watermark)
            if plan.choice.following is None and not plan.choice.runs:
                # A timetable that has ended is valid; one that can never fire is not.
                why = never_fires(
                    row.timetable, zone=row.time_zone, anchor=row.start_time, seed=row.name
                )
                if why or not row.timetable:
                    raise InvalidSchedule(why or "timetable=[] has no part: it never fires.")
            plans.append(plan)
            postponed.remove(row.pk)
        except (UnknownTask, EncryptionError) as error:
            # Another release may have this task, or another process the key. The watermark stays,
            # so the fire times are caught up later.
            text = f"{error} {_NEWER}" if isinstance(error, UnknownTask) else str(error)
            logger.warning("Recurring task %s is postponed: %s", row.name, text)
            postponed.add(row.pk, row.name, text)
            later = tick.now + timedelta(seconds=conf.unknown_task_delay())
            waiting.append(Move(state.id, state.revision, later, state.watermark_at))
        except Error:
            raise  # the transaction is aborted, and the schedule is not the cause
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the schedule stores and shows it
            quarantine(row.pk, row.revision, error)
    if waiting:
        advance(waiting)
    return plans


def _plan(tick: Tick, state: DueState, known: KnownSchedule, watermark: datetime) -> FirePlan:
    choice = choose(known.agenda, watermark, tick.now, known.policy)
    tick.schedules[known.pk] = known
    return FirePlan(known, watermark, state.runs_count, choice)


def _end_pause(tick: Tick, row: ScheduleRow, known: KnownSchedule, watermark: datetime) -> datetime:
    """End a pause and return the new watermark: the fire times during the pause are recorded, later
    ones fire as usual.
    """
    until = max(row.paused_until or tick.now, watermark)
    passed = ledger.paused_range(
        row._replace(watermark_at=watermark), known.agenda, until, tick.term
    )
    tick.entries += [passed] if passed else []
    wake(row.pk, row.revision)
    return until


def _key_owners(plans: Sequence[FirePlan]) -> dict[tuple[int, str | None], Any]:
    """Return the open tasks that own the unique keys of these runs; no statement without keys."""
    keys = {plan.schedule.template.unique_key for plan in plans if plan.choice.runs} - {None}
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
        # MariaDB and SQLite skip a row of a bulk INSERT for any constraint, without an error. A
        # fire time must have either a new entry or an older one.
        unwritten = {task.occurrence for task in tick.new_tasks if task.id not in new}
        times = [fire_time for _, fire_time in unwritten]
        if unwritten - ledger.recorded({schedule: times for schedule, _ in unwritten}):
            raise IntegrityError(
                "The database skipped a ledger insert although no entry of this fire time exists."
            )
    ids = {task.id for task in created}
    _replace([task_id for task_id in tick.replaced if task_id not in ids])
    if created and tick.alone:
        created = [task for task in created if _insert_one(task)]
    elif created:
        inserts.create_many(queued_if_due(created, tick.now, tick.windows))
    _replace([task_id for task_id in tick.replaced if task_id in ids])
    advance(tick.moves if len(created) == len(tick.new_tasks) else _moves_of(tick, created))
    missed = [entry for entry in tick.entries if entry.outcome == FireOutcome.MISSED]
    if missed or tick.late:
        fires_recorded.send(RecurringTask, missed=missed, late=tick.late, schedules=tick.schedules)
    return len(created)


def _replace(stale: Sequence[Any]) -> None:
    if stale:
        these = tables.tasks().filter(pk__in=stale)
        endings.cancel(these, "REPLACED")
        endings.request_cancel(these, "REPLACED")
        edges.request_cancel_runs(workflow_runs().filter(pk__in=stale), "REPLACED")


def _insert_one(task: NewTask) -> bool:
    """Insert one task; if another one acquired one of its keys first, record that in the ledger."""
    try:
        with tables.atomic():
            inserts.create_many([task])
    except IntegrityError as refused:
        if not is_unique_violation(refused):
            raise
        ledger.refuse(*task.occurrence, shortened(str(refused), ledger.REASON_MAX))
        return False
    return True


def _moves_of(tick: Tick, created: Sequence[NewTask]) -> list[Move]:
    """Return the moves if not every task was created: only created ones are counted."""
    ran = Counter(task.recurring_task_id for task in created)
    moves = []
    for move in tick.moves:
        if move.ran > ran[move.pk] and move.reason == MAX_RUNS:
            move = replace(move, status=None, reason="", next_run_at=tick.now)
        moves.append(
            replace(move, ran=ran[move.pk], last_run_at=tick.now if ran[move.pk] else None)
        )
    return moves
