"""Due recurring tasks give birth to their occurrences: decided first, then written set by set in one transaction.

The row is locked, the ledger's unique key decides what is new, and the watermark moves with them or not at all. So a
crash at any statement leaves nothing or everything, and two leaders give birth to each fire time once. A bad row is set
apart and never stops the others.
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
from django_durable_tasks.exceptions import InvalidSchedule, UnknownTask
from django_durable_tasks.lifecycle import births, ledger, overlap, transitions, workflow_deadlines
from django_durable_tasks.lifecycle.agendas import agenda_of, calendars_of
from django_durable_tasks.lifecycle.deciding import Tick, decide_row, policy_of
from django_durable_tasks.lifecycle.edges import runs
from django_durable_tasks.lifecycle.isolation import Isolation
from django_durable_tasks.lifecycle.pauses import paused_line
from django_durable_tasks.lifecycle.watermarks import Move, advance, quarantine, wake
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.rules.agenda import Agenda
from django_durable_tasks.rules.masking import shortened
from django_durable_tasks.rules.misfires import Choice, choose
from django_durable_tasks.rules.recurring import (
    MAX_RUNS,
    RecurringStatus,
)
from django_durable_tasks.rules.timetables.building import never_fires

logger = logging.getLogger("django_durable_tasks.recurrence")


def head() -> datetime | None:
    """Return when the next recurring row must be looked at; one probe of an index."""
    rows = RecurringTask.objects.using(transitions.database()).filter(next_run_at__isnull=False)
    first: datetime | None = rows.order_by("next_run_at").values_list("next_run_at", flat=True).first()
    return first


class _ToldBefore(Exception):
    """The ledger knew a fire that this tick decided about as if it were new."""


_isolation = Isolation[uuid.UUID]("recurring task")


def fire_due(now: datetime, limit: int, term: int | None = None) -> int:
    """Account for every fire time up to ``now`` of at most so many due rows; return how many tasks were born.

    A batch that cannot be written is tried row by row; a row that cannot be written alone is set apart. An outage is
    raised, and leaves everything as it was.
    """
    revisions: dict[uuid.UUID, int] = {}

    def due() -> list[uuid.UUID]:
        rows = RecurringTask.objects.using(transitions.database()).due(now).exclude(pk__in=_isolation.postponed())
        revisions.update(rows.values_list("pk", "revision")[:limit])
        return list(revisions)

    born = _isolation.batch(
        lambda: _fire(None, now, limit, term), due, lambda pk: _fire([pk], now, 1, term),
        on_failure=lambda pk, error: quarantine(pk, revisions[pk], error),
    )  # fmt: skip
    return sum(born)


def _fire(keys: list[Any] | None, now: datetime, limit: int, term: int | None) -> int:
    """Fire rows as if the ledger knew none of their fires; where it does (rare), once more with what it knows."""
    alone = keys is not None
    try:
        return _tick(Tick(now, term, alone), keys, limit)
    except _ToldBefore:
        return _tick(Tick(now, term, alone, told=set()), keys, limit)


def _tick(tick: Tick, keys: list[Any] | None, limit: int) -> int:
    with transitions.atomic():
        rows = _locked(keys, tick.now, limit)
        if not rows:
            return 0
        plans = _plans(tick, rows)
        tick.opened, tick.keys = overlap.open_runs(_slots(plans)), _holders(plans)
        if tick.told is not None:
            tick.told |= ledger.told({row.pk: [run.planned.nominal for run in choice.runs] for row, choice, _ in plans})
        for row, choice, agenda in plans:
            decide_row(tick, row, choice, agenda)
        return _write(tick)


def _locked(keys: list[Any] | None, now: datetime, limit: int) -> list[RecurringTask]:
    """Lock due rows that no other transaction has locked, and return them in primary-key order."""
    rows, connection = RecurringTask.objects.using(transitions.database()), connections[transitions.database()]
    due = rows.due(now).exclude(pk__in=_isolation.postponed())
    how: dict[str, Any] = {"skip_locked": True, "no_key": connection.features.has_select_for_no_key_update}
    if keys is None and connection.vendor == "postgresql":
        # Locked by the statement that is limited, so that locked rows do not count as found.
        return sorted(due.select_for_update(**how)[:limit], key=lambda row: row.pk)
    found = keys if keys is not None else list(due.values_list("pk", flat=True)[:limit])
    if not found:
        return []
    # By the primary key alone, as every verb locks it: by another index MariaDB would deadlock with them.
    these = rows.filter(pk__in=found).order_by("pk").select_for_update(**how)
    return [row for row in these if row.next_run_at is not None and row.next_run_at <= now]


Plan = tuple[RecurringTask, Choice, Agenda]


def _plans(tick: Tick, rows: Sequence[RecurringTask]) -> list[Plan]:
    calendars, plans, waiting = calendars_of(rows), list[Plan](), list[Move]()
    for row in rows:
        if not _may_fire(row, tick.now):
            waiting.append(Move(row, row.paused_until if row.status == RecurringStatus.PAUSED else None,
                                row.watermark_at))  # fmt: skip
            continue
        try:
            plans.append(_plan(tick, row, agenda_of(row, calendars)))
        except UnknownTask as error:
            # Another release knows it, perhaps: nothing is lost, the catch-up comes later.
            logger.warning("Recurring task %s is postponed: %s", row.name, error)
            later = tick.now + timedelta(seconds=conf.settings().UNKNOWN_TASK_DELAY)
            waiting.append(Move(row, later, row.watermark_at))
        except Error:
            raise  # the transaction is broken, and the row is not to blame
        except Exception as error:  # noqa: BLE001 - one bad row must not stop the others; its error is kept and shown
            quarantine(row.pk, row.revision, error)
    if waiting:
        advance(waiting)
    return plans


def _may_fire(row: RecurringTask, now: datetime) -> bool:
    """Whether the row fires or wakes now; a status that somebody wrote by hand counts as if a verb had set it."""
    if row.status == RecurringStatus.PAUSED:
        return row.paused_until is not None and row.paused_until <= now
    return row.status == RecurringStatus.ACTIVE


def _plan(tick: Tick, row: RecurringTask, agenda: Agenda) -> Plan:
    births.template(row)
    if row.ledger_from is not None:
        # What the ledger has forgotten it has told once, even where the watermark was set back behind it.
        row.watermark_at = max(row.watermark_at, row.ledger_from)
    if row.status == RecurringStatus.PAUSED:
        _wake(tick, row, agenda)
    choice = choose(agenda, row.watermark_at, tick.now, policy_of(row))
    if choice.following is None and not choice.runs:
        _refuse_never(row)
    return row, choice, agenda


def _refuse_never(row: RecurringTask) -> None:
    """Raise InvalidSchedule for a timetable that could never fire; one that has come to its end is no such thing."""
    why = never_fires(row.timetable, zone=row.time_zone, anchor=row.start_time, seed=row.name)
    if why or not row.timetable:
        raise InvalidSchedule(why or "timetable=[] has no part: it never fires.")


def _wake(tick: Tick, row: RecurringTask, agenda: Agenda) -> None:
    """A pause whose end has come: what passed is told, and what came after it is like any other fire."""
    until = max(row.paused_until or tick.now, row.watermark_at)
    told = paused_line(row, agenda, until, tick.term)
    tick.entries += [told] if told else []
    wake(row)
    row.watermark_at = until


def _slots(plans: Sequence[Plan]) -> set[str]:
    wanted = (births.template(row)["overlap_key"] for row, choice, _ in plans if choice.runs)
    return {overlap_key for overlap_key in wanted if overlap_key is not None}


def _holders(plans: Sequence[Plan]) -> dict[tuple[int, str | None], Any]:
    """Return who holds the unique keys that these runs want; no statement where none wants any."""
    keys = {births.template(row)["unique_key"] for row, choice, _ in plans if choice.runs} - {None}
    if not keys:
        return {}
    held = transitions.tasks().filter(open_unique_key__in=keys).values_list("tenant_id", "open_unique_key", "pk")
    return {(tenant, key): task_id for tenant, key, task_id in held}


# All rows ---------------------------------------------------------------------------------------------------------


def _write(tick: Tick) -> int:
    """The ledger first: only what it takes is born, and what it knows already is not."""
    new = ledger.write(tick.entries)
    born = [values for values in tick.births if values["id"] in new]
    if len(born) < len(tick.births):
        if tick.told is None:
            raise _ToldBefore
        _refuse_untold([values for values in tick.births if values["id"] not in new])
    newborn = {values["id"] for values in born}
    _replace([task_id for task_id in tick.replaced if task_id not in newborn])
    if born and tick.alone:
        born = [values for values in born if _bear_alone(values)]
    elif born:
        transitions.create_many(born)
    _replace([task_id for task_id in tick.replaced if task_id in newborn])
    advance(tick.moves if len(born) == len(tick.births) else _moves_of(tick, born))
    return len(born)


def _refuse_untold(unborn: Sequence[dict[str, Any]]) -> None:
    """Raise IntegrityError for a fire that is neither born nor told: some databases hide why they left a line out."""
    wanted = {(values["recurring_task_id"], values["fire_time"]) for values in unborn}
    times = [fire_time for _, fire_time in wanted]
    if wanted - ledger.told({schedule: times for schedule, _ in wanted}):
        raise IntegrityError("The database skipped a ledger insert although no entry of this fire time exists.")


def _replace(stale: Sequence[Any]) -> None:
    if stale:
        these = transitions.tasks().filter(pk__in=stale)
        transitions.cancel(these, "REPLACED")
        transitions.request_cancel(these, "REPLACED")
        workflow_deadlines.call_off(runs().filter(pk__in=stale), "REPLACED")


def _bear_alone(values: dict[str, Any]) -> bool:
    """Insert one task; where somebody was quicker to take one of its keys the ledger says so, and the row goes on."""
    try:
        with transitions.atomic():
            transitions.create_many([values])
    except IntegrityError as refused:
        if not any(word in str(refused).lower() for word in ("unique", "duplicate")):
            raise
        ledger.refuse(values["recurring_task_id"], values["fire_time"], shortened(str(refused), ledger.REASON_MAX))
        return False
    return True


def _moves_of(tick: Tick, born: Sequence[dict[str, Any]]) -> list[Move]:
    """Return the moves as they are when not every birth came about: only what was born is counted."""
    ran = Counter(values["recurring_task_id"] for values in born)
    moves = []
    for move in tick.moves:
        if move.ran > ran[move.row.pk] and move.reason == MAX_RUNS:
            move = replace(move, status=None, reason="", next_run_at=tick.now)
        moves.append(replace(move, ran=ran[move.row.pk], last_run_at=tick.now if ran[move.row.pk] else None))
    return moves
