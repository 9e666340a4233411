"""Keeps in memory what a tick needs of each schedule and only an edit changes.

A tick reads the few columns that change from fire to fire, and all columns only of schedules that
this process does not know in their current revision.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from sys import intern
from typing import NamedTuple

from django_durable_tasks import process_state
from django_durable_tasks.engine.recurring import occurrence_tasks
from django_durable_tasks.engine.recurring.schedule_cache import (
    Calendars,
    Version,
    agenda_of,
    calendars_of,
    named_calendars,
)
from django_durable_tasks.engine.recurring.schedule_rows import (
    AnySchedule,
    ScheduleRow,
    read_rows,
)
from django_durable_tasks.rules.recurring.effective import Agenda
from django_durable_tasks.rules.recurring.misfires import Policy
from django_durable_tasks.rules.recurring.policies import (
    CatchUp,
    CatchUpOrder,
    Overlap,
    RecurringStatus,
)
from django_durable_tasks.rules.tasks.new_task import NewTask

_MAX_SCHEDULES = 100_000
"""The number of schedules that a process keeps. Each takes about 1.1 kB."""


class DueState(NamedTuple):
    """The columns of a due schedule that change without an edit, in the order in which a tick
    reads them. ``revision`` identifies the others.
    """

    id: uuid.UUID
    revision: int
    status: str
    watermark_at: datetime
    runs_count: int
    ledger_from: datetime | None
    paused_until: datetime | None

    def processed_until(self) -> datetime:
        """Return the watermark, after which fire times are due.

        Entries before ``ledger_from`` were pruned: their fire times must not fire again, even if
        the watermark was set back behind them.
        """
        if self.ledger_from is None:
            return self.watermark_at
        return max(self.watermark_at, self.ledger_from)


class KnownSchedule(NamedTuple):
    """The values of a schedule that only an edit of it or of its calendars changes."""

    pk: uuid.UUID
    revision: int
    name: str
    task: str
    queue: str
    tenant_id: int
    calendars: tuple[str, ...]
    versions: tuple[Version, ...]
    agenda: Agenda
    template: NewTask
    policy: Policy
    overlap: Overlap
    max_runs: int | None
    expires_in: float | None
    jitter: float
    jitter_percent: float


class KnownSchedules:
    """The schedules that this process knows, by id. Beyond the maximum the one that was not used
    for the longest time is removed.
    """

    def __init__(self) -> None:
        # A dict would search its removed entries for the first one at each removal.
        self._by_id: OrderedDict[uuid.UUID, KnownSchedule] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, state: DueState) -> KnownSchedule | None:
        """Return the schedule if it is known in this revision; None if all columns must be read.

        A paused schedule is always read, because the reason of its pause is recorded.
        """
        known = self._by_id.get(state.id)
        if known is None or known.revision != state.revision:
            return None
        if state.status != RecurringStatus.ACTIVE:
            return None
        self._by_id[state.id] = known  # another thread may have removed it
        self._by_id.move_to_end(state.id)
        return known

    def keep(self, schedule: KnownSchedule) -> None:
        """Keep this revision instead of an earlier one."""
        self._by_id[schedule.pk] = schedule
        self._by_id.move_to_end(schedule.pk)
        if len(self._by_id) > _MAX_SCHEDULES:
            self._by_id.popitem(last=False)


class DueSchedules(NamedTuple):
    """The due schedules of a tick: those that are known, and the rows of the others."""

    known: dict[uuid.UUID, KnownSchedule]
    rows: dict[uuid.UUID, ScheduleRow]
    calendars: Calendars


def read(states: Sequence[DueState]) -> DueSchedules:
    """Read what is not known of these locked schedules; at most three statements."""
    kept = process_state.of(KnownSchedules)
    known = {state.id: found for state in states if (found := kept.get(state)) is not None}
    rows = read_rows([state.id for state in states if state.id not in known])
    names = {name for one in known.values() for name in one.calendars}
    calendars = calendars_of(list(rows.values()), names)
    stale = [pk for pk, one in known.items() if one.versions != _versions(one, calendars)]
    if stale:
        rows |= read_rows(stale)
        known = {pk: one for pk, one in known.items() if pk not in rows}
        calendars = calendars_of(list(rows.values()))
    return DueSchedules(known, rows, calendars)


def _versions(known: KnownSchedule, calendars: Calendars) -> tuple[Version | None, ...]:
    return tuple(calendars.get((known.tenant_id, name)) for name in known.calendars)


def known_schedule(row: ScheduleRow, calendars: Calendars) -> KnownSchedule:
    """Return the values of a row that was read, and keep them for the next ticks.

    Raises what a corrupted row causes, and UnknownTask or EncryptionError.
    """
    template = occurrence_tasks.template(row)
    known = KnownSchedule(
        pk=row.pk,
        revision=row.revision,
        name=row.name,
        task=template.name,
        queue=intern(row.queue),
        tenant_id=row.tenant_id,
        calendars=tuple(row.calendars),
        versions=named_calendars(row, calendars),
        agenda=agenda_of(row, calendars),
        template=template,
        policy=policy_of(row),
        overlap=Overlap(row.overlap),
        max_runs=row.max_runs,
        expires_in=row.expires_in,
        jitter=row.jitter,
        jitter_percent=row.jitter_percent,
    )
    process_state.of(KnownSchedules).keep(known)
    return known


def policy_of(row: AnySchedule) -> Policy:
    """Return the schedule's policy for missed fire times."""
    return _policy(
        row.catch_up_mode,
        row.misfire_grace,
        row.catchup_window,
        row.max_catchup_runs,
        row.catchup_order,
        row.catchup_pace,
    )


@lru_cache(maxsize=1_000)
def _policy(
    catch_up: str, grace: float, window: float | None, max_runs: int, order: str, pace: float
) -> Policy:
    return Policy(
        catch_up=CatchUp(catch_up),
        grace=grace,
        window=window,
        max_runs=max_runs,
        order=CatchUpOrder(order),
        pace=pace,
    )
