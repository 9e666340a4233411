"""Explains the fire times of a schedule, and previews those of a draft."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.choices import RecurringStatus
from django_durable_tasks.dependencies.edges import workflow_runs
from django_durable_tasks.exceptions import InvalidCalendar, InvalidSchedule
from django_durable_tasks.limits import overlap
from django_durable_tasks.models import (
    DEFAULT_TENANT_ID,
    OccurrenceRecord,
    RecurringTask,
    SchedulerLease,
    Task,
)
from django_durable_tasks.models.cluster import lease_name
from django_durable_tasks.option_values import checked_count, checked_key, checked_name, instant
from django_durable_tasks.schedules import ledger, lifecycle, tick_plan
from django_durable_tasks.schedules.agenda import Agenda, PlannedRun
from django_durable_tasks.schedules.explanations import (
    FireEntry,
    FireTime,
    OccurrenceTask,
    ScheduleFacts,
    StartedWorkflow,
    account,
)
from django_durable_tasks.schedules.lifecycle import recurring
from django_durable_tasks.schedules.misfires import effective, named
from django_durable_tasks.schedules.options import KINDS, columns
from django_durable_tasks.schedules.schedule_cache import agenda_of, check, readable
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import database_now

# Explains the fire times of a schedule, past and future, from its row, the ledger and its tasks.
#
# Writes nothing. Called by the managers of RecurringTask, the admin and the command line.


MOST_FIRES = 10_000
_MAX_ENTRIES = 20
_INSTANT = timedelta(microseconds=1)


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
    if row.status == RecurringStatus.CANCELLED or (
        row.status == RecurringStatus.PAUSED and row.paused_until is None
    ):
        return []
    if row.status == RecurringStatus.PAUSED and row.paused_until is not None:
        start = max(start, row.paused_until)
    left = number if row.max_runs is None else min(number, max(0, row.max_runs - row.runs_count))
    return list(islice(fires(row, agenda_of(row), start), left))


def fires(row: RecurringTask, agenda: Agenda, after: datetime) -> Iterator[FireTime]:
    """Yield the fire times of a saved or unsaved row after ``after``, with jitter; its status is
    ignored.
    """
    check(row)
    planned = agenda.next(after)
    while planned is not None:
        following = agenda.next(planned.at)
        yield _fire(row, planned, following)
        planned = following


def _fire(row: RecurringTask, planned: PlannedRun, following: PlannedRun | None) -> FireTime:
    next_at = following.at if following else None
    starts = effective(planned, next_at, str(row.pk), row.jitter, row.jitter_percent)
    return FireTime(planned.nominal, starts, planned.remarks)


def explain(row: RecurringTask, at: datetime) -> str:
    """Describe the outcome, or the expected outcome, of the fire time at ``at`` (aware) and its
    reason.

    An instant in whole seconds refers to the only fire time within that second.
    """
    registry.load_for(row.task)
    when, found = instant("at", at).astimezone(UTC), recurring().get(pk=row.pk)
    try:
        return account(_facts(found, lifecycle.meant_fire_time(found, when)))
    except (InvalidSchedule, InvalidCalendar) as broken:
        return f"{found.name} cannot fire at all: {broken}"


@readable
def _facts(row: RecurringTask, when: datetime) -> ScheduleFacts:
    check(row)
    agenda, now = agenda_of(row), database_now()
    before, after, planned = agenda.previous(when), agenda.next(when), agenda.at_nominal(when)
    meets = agenda.next(when - _INSTANT)
    starts_then = meets is not None and meets.at <= lifecycle.end_of(when)
    lease = SchedulerLease.objects.using(tables.database()).filter(
        name=lease_name(), expires_at__gt=now
    )
    return ScheduleFacts(
        at=when,
        now=now,
        name=row.name,
        task=row.task,
        status=row.status,
        status_reason=row.status_reason,
        status_by=row.status_by,
        paused_at=row.paused_at,
        paused_until=row.paused_until,
        error=row.error,
        declared_at=row.created_at,
        edited_at=row.updated_at,
        watermark=row.watermark_at,
        ledger_from=row.ledger_from,
        next_run_at=row.next_run_at,
        lines=_ledger_lines(row, when),
        planned=planned,
        fire=_fire(row, planned, agenda.next(planned.at))
        if isinstance(planned, PlannedRun)
        else None,
        runs_then=meets.nominal if meets and starts_then else None,
        start=row.start_time,
        end=row.end_time,
        before=before.nominal if before else None,
        after=after.nominal if after else None,
        known=registry.find(row.task) is not None,
        led=lease.exists(),
        poll=conf.settings().POLL,
    )


def _ledger_lines(row: RecurringTask, when: datetime) -> tuple[FireEntry, ...]:
    """Return the ledger entries of this instant: its own entry, then ranges from the newest, then a
    manual run.
    """
    entries = ledger.ledger().filter(recurring_task=row.pk)
    found = list(entries.covering(when)[:_MAX_ENTRIES])
    found += entries.filter(fire_time=when, request_id__isnull=False)[:1]
    return tuple(
        FireEntry(
            outcome=entry.outcome,
            first=entry.fire_time,
            last=entry.last_fire_time,
            count=entry.count,
            exact=entry.count_is_exact,
            reason=entry.reason,
            effective=entry.effective_at,
            blocked_by=entry.blocked_by,
            task=_task_of(entry),
        )
        for entry in found
    )


def _task_of(entry: OccurrenceRecord) -> OccurrenceTask | None:
    if entry.task_id is None:
        return None
    task = tables.tasks().filter(pk=entry.task_id).first()
    if task is None:
        return OccurrenceTask(task_id=entry.task_id)
    since = task.completed_at or task.started_at
    first = overlap.open_runs([task.overlap_key])[task.overlap_key][:1] if task.is_waiting else []
    behind = next((named(first, one.task_id) for one in first if one.task_id != task.pk), "")
    return OccurrenceTask(
        task_id=task.pk,
        status=task.status,
        reason=task.reason,
        waiting_for_overlap=task.is_waiting,
        behind=behind,
        since=since,
        run=_run_of(task),
    )


def _run_of(task: Task) -> StartedWorkflow | None:
    """Return the newest workflow run that this task started, or None."""
    started = workflow_runs().filter(
        recurring_task=task.recurring_task_id, fire_time=task.fire_time
    )
    row = (
        started.filter(parent__isnull=True).order_by("-pk").first()
        if task.recurring_task_id
        else None
    )
    return None if row is None else StartedWorkflow(row.pk, row.status, row.ended, row.total)


# Shows the schedule that ``upsert`` would save, and the next fire times of schedules.
#
# Validates as ``upsert`` does and writes nothing. Called by the admin and the command line.


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
    **given: Any,
) -> Preview:
    """Return the schedule that ``upsert`` would save with these arguments, and its next ``number``
    fire times.

    Raises the same errors as ``upsert``: InvalidSchedule, InvalidOption, InvalidArguments and
    UnknownTask.
    """
    tenant_id = DEFAULT_TENANT_ID if tenant is None else getattr(tenant, "pk", tenant)
    checked_key("name", name)
    values = columns(name, given, may_never_fire=paused) | {
        "task": checked_name("task", getattr(task, "name", task))
    }
    now = database_now()
    row = recurring().filter(tenant_id=tenant_id, name=name).first()
    if row is None:
        row = RecurringTask(
            tenant_id=tenant_id, name=name, start_time=now, time_zone=ports.schedule_zone()
        )
    for column, value in values.items():
        setattr(row, column, value)
    if not row.timetable:
        raise InvalidSchedule(f"Recurring task {name!r} needs one of {', '.join(KINDS)}.")
    tick_plan.template_of(row)
    return Preview(row, now, list(islice(fires(row, agenda_of(row), now), number)))


def upcoming(row: RecurringTask, number: int, now: datetime) -> list[FireTime]:
    """Return at most ``number`` fire times after ``now``.

    For a paused schedule, returns the fire times that it would have if it were resumed. An ended
    schedule has none.
    """
    if row.status == RecurringStatus.CANCELLED:
        return []
    left = number if row.max_runs is None else min(number, max(0, row.max_runs - row.runs_count))
    after = max(now, row.paused_until) if row.paused_until else now
    return list(islice(fires(row, agenda_of(row), after), left))
