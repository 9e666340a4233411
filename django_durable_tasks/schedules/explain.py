"""Explains the fire times of a schedule, and previews those of a draft.

Reads the schedule, the ledger and its tasks, and writes nothing. Called by the managers of
RecurringTask, the admin and the command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from django_durable_tasks import conf, registry
from django_durable_tasks.choices import FireOutcome, RecurringStatus
from django_durable_tasks.dependencies.edges import workflow_runs
from django_durable_tasks.exceptions import InvalidCalendar, InvalidSchedule
from django_durable_tasks.limits import overlap
from django_durable_tasks.models import (
    DEFAULT_TENANT_ID,
    OccurrenceRecord,
    RecurringTask,
    SchedulerLease,
)
from django_durable_tasks.models.cluster import lease_name
from django_durable_tasks.option_values import checked_count, instant
from django_durable_tasks.schedules import ledger, lifecycle, trigger
from django_durable_tasks.schedules.agenda import Agenda, PlannedRun, SkippedRange
from django_durable_tasks.schedules.lifecycle import not_a_fire_time, utc
from django_durable_tasks.schedules.misfires import QUARANTINED, RUN, effective, named
from django_durable_tasks.schedules.schedule_cache import agenda_of, check, readable, recurring
from django_durable_tasks.schedules.timetables.types import TICK
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks.explanations import ago

MOST_FIRES = 10_000
_MAX_ENTRIES = 20


@dataclass(frozen=True, slots=True)
class FireTime:
    """A planned fire: its fire time, its earliest start (both UTC), and its remarks."""

    nominal: datetime
    effective: datetime
    remarks: tuple[str, ...] = ()


@readable
def next_fire_times(
    row: RecurringTask, number: int = 5, *, after: datetime | None = None
) -> list[FireTime]:
    """Return at most ``number`` fire times after ``after`` (aware, default now), with jitter.

    Returns an empty list if the schedule has ended or is paused without an end. If it is paused
    until an instant, the fire times after that instant are returned. Raises InvalidOption if
    ``number`` is not between 1 and 10,000.
    """
    checked_count("number", number, 1, MOST_FIRES)
    start = database_now() if after is None else instant("after", after).astimezone(UTC)
    if row.status == RecurringStatus.PAUSED and row.paused_until is None:
        return []
    return upcoming(row, number, start)


def upcoming(row: RecurringTask, number: int, now: datetime) -> list[FireTime]:
    """Return at most ``number`` fire times after ``now``.

    For a paused schedule, returns the fire times that it would have if it were resumed. An ended
    schedule has none.
    """
    if row.status == RecurringStatus.CANCELLED:
        return []
    limit = number if row.max_runs is None else min(number, max(0, row.max_runs - row.runs_count))
    after = max(now, row.paused_until) if row.paused_until else now
    return list(islice(fires(row, agenda_of(row), after), limit))


def fires(row: RecurringTask, agenda: Agenda, after: datetime) -> Iterator[FireTime]:
    """Yield the fire times of a saved or unsaved row after ``after``, with jitter; its status is
    ignored.
    """
    check(row)
    planned = agenda.next(after)
    while planned is not None:
        following = agenda.next(planned.at)
        next_at = following.at if following else None
        starts = effective(planned, next_at, str(row.pk), row.jitter, row.jitter_percent)
        yield FireTime(planned.nominal, starts, planned.remarks)
        planned = following


# The explanation of an instant --------------------------------------------------------------------


def explain(row: RecurringTask, at: datetime) -> str:
    """Describe the outcome, or the expected outcome, of the fire time at ``at`` (aware) and its
    reason.

    An instant in whole seconds refers to the only fire time within that second.
    """
    registry.load_for(row.task)
    when, schedule = instant("at", at).astimezone(UTC), recurring().get(pk=row.pk)
    try:
        return _explanation(schedule, lifecycle.meant_fire_time(schedule, when))
    except (InvalidSchedule, InvalidCalendar) as broken:
        return f"{schedule.name} cannot fire at all: {broken}"


@readable
def _explanation(row: RecurringTask, at: datetime) -> str:
    check(row)
    agenda, now = agenda_of(row), database_now()
    # The entry of this fire time is the first, then ranges from the newest, then a manual run.
    ledger_entries = ledger.ledger().filter(recurring_task=row.pk)
    entries = [
        *ledger_entries.covering(at)[:_MAX_ENTRIES],
        *ledger_entries.filter(fire_time=at, request_id__isnull=False)[:1],
    ]
    entry_of_run = next((entry for entry in entries if entry.last_fire_time is None), None)
    if entry_of_run is not None:
        return _recorded(entry_of_run)
    planned = agenda.at_nominal(at)
    if planned is None:
        text = not_a_fire_time(row, agenda, at)
        meets = agenda.next(at - TICK)
        if meets is not None and meets.at <= lifecycle.end_of(at):
            text += f" The fire time {utc(meets.nominal)} was put there: ask about that one."
        if at <= row.updated_at and row.updated_at > row.created_at:
            edited = utc(row.updated_at)
            text += f" It was changed at {edited}; the explanation uses the present schedule."
        return text
    if isinstance(planned, SkippedRange):
        outcome = "did not run" if planned.last <= now else "will not run"
        return f"{utc(at)} {outcome}: {planned.reason}."
    if planned.at > now:
        nominal = utc(planned.nominal)
        if row.status == RecurringStatus.CANCELLED:
            return f"{nominal} will not run: the schedule has ended{_because(row.status_reason)}."
        if row.status == RecurringStatus.PAUSED and not (
            row.paused_until and row.paused_until < planned.at
        ):
            return f"{nominal} will not run unless the schedule is resumed before: {_paused(row)}."
        starts = next(fires(row, agenda, planned.at - TICK)).effective
        jitter = ", by its jitter" if starts != planned.at else ""
        late = f" at {utc(starts)}{jitter}" if starts != planned.nominal else ""
        remarks = f" ({'; '.join(planned.remarks)})" if planned.remarks else ""
        wait = ago((starts - now).total_seconds())
        return f"{nominal} will run{late}, in {wait}{remarks}.{_unregistered(row)}"
    for entry in entries:
        if entry.outcome not in (FireOutcome.MISSED, FireOutcome.PAUSED):
            continue
        among = ""
        if entry.count > 1 and entry.last_fire_time is not None:
            number = f"{'' if entry.count_is_exact else 'at least '}{entry.count}"
            first, last = utc(entry.fire_time), utc(entry.last_fire_time)
            among = f", one of {number} fire times from {first} to {last}"
        if entry.outcome == FireOutcome.PAUSED:
            return f"{utc(at)} did not run: the schedule was paused{_because(entry.reason)}{among}."
        return f"{utc(at)} was missed{among}: {_MISSED.get(entry.reason, entry.reason)}."
    # There is no entry of this fire time in the past.
    if row.ledger_from is not None and planned.nominal <= row.ledger_from:
        return f"{utc(at)} is not after {utc(row.ledger_from)}: its ledger entry has been deleted."
    if planned.at > row.watermark_at:
        if row.status == RecurringStatus.CANCELLED:
            return f"{utc(at)} did not run: the schedule had ended{_because(row.status_reason)}."
        if row.status == RecurringStatus.PAUSED:
            return f"{utc(at)} did not run: {_paused(row)}."
        return _due(row, planned, now)
    if planned.nominal <= row.created_at:
        return (
            f"{utc(at)} did not run: the schedule did not exist before {utc(row.created_at)}."
            " A backfill can run it."
        )
    return (
        f"{utc(at)} did not run: the schedule was changed at {utc(row.updated_at)}, and an edit"
        " never fires for a time in the past. A backfill can run it."
    )


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""


def _recorded(entry: OccurrenceRecord) -> str:
    """Explain a fire time by its own entry, and what became of its task."""
    because = _because(entry.reason)
    blocker = (
        f"{RUN} {entry.blocked_by} of an earlier fire"
        if entry.reason.startswith(RUN)
        else f"task {entry.blocked_by} of an earlier run"
    )
    outcome = {
        FireOutcome.DISPATCHED: f"was dispatched{because}",
        FireOutcome.ROLLED: f"was rolled and dispatched{because}",
        FireOutcome.MANUAL: f"was run by hand{because}",
        FireOutcome.SKIPPED_OVERLAP: f"was skipped: {blocker} was still open",
        FireOutcome.SKIPPED_QUOTA: f"was skipped by a quota: {entry.reason}",
        FireOutcome.EXPIRED: f"came too late: it expired after {entry.reason}",
        FireOutcome.OVERRIDDEN: f"did not run: {entry.reason}",
        FireOutcome.FAILED_TO_CREATE: f"could not be created: {entry.reason}",
    }.get(FireOutcome(entry.outcome), f"did not run: {entry.outcome}{because}")
    sentence = f"{utc(entry.fire_time)} {outcome}."
    if entry.task_id is None:
        return sentence
    task = tables.tasks().filter(pk=entry.task_id).first()
    if task is None:
        return f"{sentence} It was task {entry.task_id}, which is no longer kept."
    if task.is_waiting:
        first = overlap.open_runs([task.overlap_key])[task.overlap_key][:1]
        behind = "".join(
            f" behind {named(first, run.task_id)}" for run in first if run.task_id != task.pk
        )
        return f"{sentence} Its task {task.pk} is held{behind} until its overlap key is free."
    moment = task.completed_at or task.started_at
    since = f" since {utc(moment)}" if moment else ""
    sentence += f" Its task {task.pk} is {task.status}{since}{_because(task.reason)}."
    run = (
        workflow_runs()
        .filter(
            recurring_task=entry.recurring_task_id, fire_time=task.fire_time, parent__isnull=True
        )
        .order_by("-pk")
        .first()
    )
    if run is None:
        return sentence
    return (
        f"{sentence} It started {RUN} {run.pk}, which is {run.status}: {run.ended} of {run.total}"
        " tasks have ended."
    )


_MISSED = {
    "COALESCED": "RUN_ONE_NOW ran the last of them only",
    "SKIP_MISSED": "SKIP_MISSED runs none of them",
    "CATCHUP_WINDOW": "they lie further back than catchup_window",
    "MAX_CATCHUP_RUNS": "max_catchup_runs were caught up, and these were older",
}


def _unregistered(row: RecurringTask) -> str:
    if registry.find(row.task) is not None:
        return ""
    return f" No durable task {row.task} is registered in this process."


def _paused(row: RecurringTask) -> str:
    if row.status_reason == QUARANTINED:
        return f"it could not be triggered and is paused (QUARANTINED): {row.error}"
    since = f" since {utc(row.paused_at)}" if row.paused_at else ""
    by = f" by {row.status_by}" if row.status_by else ""
    until = f" until {utc(row.paused_until)}" if row.paused_until else ""
    return f"it is paused{since}{by}{until}{_because(row.status_reason)}"


def _due(row: RecurringTask, planned: PlannedRun, now: datetime) -> str:
    at, late = utc(planned.nominal), (now - planned.at).total_seconds()
    since = f"since {ago(late)}" if late >= 1 else "now"
    leases = SchedulerLease.objects.using(tables.database())
    if not leases.filter(name=lease_name(), expires_at__gt=now).exists():
        return f"{at} is due {since}, and no scheduler leads: run `manage.py run_scheduler`."
    if row.next_run_at is not None and row.next_run_at > now:
        again = utc(row.next_run_at)
        return (
            f"{at} is due {since}; the schedule is looked at again at {again}.{_unregistered(row)}"
        )
    slow = " The leader is behind." if late > 2 * conf.settings().POLL else ""
    return f"{at} is due {since}: the leader's next round triggers it.{slow}"


# The preview of a draft ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Preview:
    """The row as it would be saved, the time of the preview (UTC), and the fire times after it."""

    row: RecurringTask
    now: datetime
    fires: list[FireTime]


def preview(
    *,
    name: str,
    task: Any,
    tenant: Any = None,
    paused: bool = False,
    number: int = 10,
    **options: Any,
) -> Preview:
    """Return the schedule that ``upsert`` would save with these arguments, and its next ``number``
    fire times.

    Raises the same errors as ``upsert``: InvalidSchedule, InvalidOption, InvalidArguments and
    UnknownTask.
    """
    tenant_id = DEFAULT_TENANT_ID if tenant is None else getattr(tenant, "pk", tenant)
    values = lifecycle.checked_columns(name, task, options, may_never_fire=paused)
    now = database_now()
    row = recurring().filter(tenant_id=tenant_id, name=name).first()
    if row is None:
        row = lifecycle.drafted(name, tenant_id, values, now)
    for column, value in values.items():
        setattr(row, column, value)
    trigger.template_of(row)
    return Preview(row, now, list(islice(fires(row, agenda_of(row), now), number)))
