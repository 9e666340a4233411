"""Checks of schedules: next fire time and watermark against the agenda, runs and tasks against
the ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Exists, F, OuterRef, Q

from django_durable_tasks import conf
from django_durable_tasks.choices import FireOutcome, RecurringStatus
from django_durable_tasks.contrib.verify.check import (
    PATIENCE,
    Finding,
    Rows,
    VerifyContext,
    check,
    rows_of,
    shown,
)
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.schedules import ledger, writes
from django_durable_tasks.schedules.ledger import LedgerEntry
from django_durable_tasks.schedules.schedule_cache import Calendars, agenda_of, calendars_of
from django_durable_tasks.schedules.timetables.zones import tzdata_version
from django_durable_tasks.store import tables

_RAN = (FireOutcome.DISPATCHED, FireOutcome.ROLLED)
_COUNTED = 10_000
"""Schedules with more runs are not recounted, because that would read their whole ledger."""
_DAY = timedelta(days=1)
_ADVICE = "Correct it, then run `manage.py durable resume --recurring NAME`."


@check("watermarks", RecurringTask, "recurring", repair="recompute it under the lock of the row")
def wrong_plans(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Is the next run of each schedule the one its timetable gives?

    Schedules whose next fire time or watermark does not match their agenda.
    """
    schedules = list(rows)
    calendars = calendars_of(schedules)
    for row in schedules:
        if row.watermark_at > context.now + timedelta(seconds=PATIENCE):
            right = "not after now: fire times before it would never run"
            yield Finding(row.pk, "watermark_at", row.watermark_at, right)
            continue
        following = None
        if row.status == RecurringStatus.ACTIVE:
            if row.tzdata_version != tzdata_version():
                continue  # the leader recomputes it with its own release of tzdata
            try:
                following = _following(row, calendars)
            except DurableTasksError as broken:
                right = "a timetable that can fire"
                yield Finding(row.pk, "timetable", str(broken), right, _ADVICE, repair="")
                continue
        finding = wrong_next_run(row, following, context.now)
        if finding is not None:
            yield finding


def wrong_next_run(row: RecurringTask, following: datetime | None, now: datetime) -> Finding | None:
    """Return what is wrong with ``next_run_at``, or None. ``following``: the next fire time of the
    agenda of an ACTIVE schedule.

    A schedule that is already due is not checked here: another check reports schedules that do not
    fire. A fire whose task is not registered is postponed by ``conf.unknown_task_delay()``.
    """
    stored, right, why = row.next_run_at, following, "by its agenda"
    if row.status != RecurringStatus.ACTIVE:
        right = row.paused_until if row.status == RecurringStatus.PAUSED else None
        why = f"because it is {row.status}"
    is_due = stored is not None and stored <= now
    if stored == right or (is_due and row.status != RecurringStatus.CANCELLED):
        return None
    if row.status == RecurringStatus.ACTIVE and right is not None and right <= now:
        postponed_until = now + timedelta(seconds=conf.unknown_task_delay())
        if stored is not None and stored <= postponed_until:
            return None
    return Finding(row.pk, "next_run_at", stored, f"{shown(right)}, {why}")


def _following(row: RecurringTask, calendars: Calendars) -> datetime | None:
    processed_until = (
        row.watermark_at if row.ledger_from is None else max(row.watermark_at, row.ledger_from)
    )
    following = agenda_of(row, calendars).next(processed_until)
    return following.at if following else None


@wrong_plans.repaired_by("recomputed")
def _plan(context: VerifyContext, keys: Sequence[Any]) -> None:
    schedules = list(rows_of(RecurringTask).filter(pk__in=keys))
    calendars = calendars_of(schedules)
    for row in schedules:
        row.watermark_at = min(row.watermark_at, context.now)
        if row.status == RecurringStatus.ACTIVE:
            # If no fire time is left, the next tick ends the schedule.
            row.next_run_at = _following(row, calendars) or context.now
        else:
            row.next_run_at = row.paused_until if row.status == RecurringStatus.PAUSED else None
        row.updated_at = context.now
        writes.rewrite(row)


@check("late-schedules", RecurringTask, "recurring", late=True)
def late(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Is each due schedule processed in time?

    Schedules that have been due for more than PATIENCE seconds under a leader.
    """
    if not context.led or not context.is_steady_for(PATIENCE):
        return
    overdue = rows.exclude(status=RecurringStatus.CANCELLED).filter(
        next_run_at__lt=context.ago(PATIENCE)
    )
    for pk, due in overdue.values_list("pk", "next_run_at"):
        right = "processed when it was due"
        advice = "Look at the leader's log: its job may be stuck or fail."
        yield Finding(pk, "next_run_at", due, right, advice)


@check("occurrence-tasks", OccurrenceRecord, "recurring")
def without_task(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Does the task of each fire time that ran exist?

    Ledger entries of runs that have no task, or whose task was deleted before its retention was
    over.
    """
    kept = [seconds for seconds in conf.retention().values() if seconds is not None]
    retained = Q(created_at__gt=context.ago(min(kept))) if kept else Q()
    missing = retained & ~Exists(tables.tasks().filter(pk=OuterRef("task")))
    entries = rows.filter(outcome__in=(*_RAN, FireOutcome.MANUAL)).filter(
        Q(task__isnull=True) | missing
    )
    for pk, task, fire in entries.values_list("pk", "task_id", "fire_time"):
        right = f"the task of the fire time {fire.isoformat()}"
        advice = "Run `manage.py durable run-now NAME`, if the run is still needed."
        yield Finding(pk, "task", task, right, advice)


@check("occurrence-entries", Task, "recurring")
def without_ledger_entry(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Does each task of a fire time have exactly one ledger entry?

    Tasks of a fire time that has no ledger entry, or whose entry names another task.
    """
    entries = ledger.ledger().filter(recurring_task=OuterRef("recurring_task"))
    scheduled = entries.filter(unique_fire_time=OuterRef("fire_time"))
    by_hand = entries.filter(
        unique_fire_time__isnull=True, fire_time=OuterRef("fire_time"), task=OuterRef("pk")
    )
    schedule = rows_of(RecurringTask).filter(
        Q(ledger_from__isnull=True) | Q(ledger_from__lt=OuterRef("fire_time")),
        pk=OuterRef("recurring_task"),
    )
    kept_from = conf.kept_from("LEDGER", context.now) + _DAY
    queryset = rows.filter(
        Exists(schedule),
        ~Exists(by_hand),
        ~Exists(scheduled.filter(task=OuterRef("pk"))),
        recurring_task__isnull=False,
        fire_time__isnull=False,
        created_at__gt=kept_from,
    ).annotate(other=Exists(scheduled.filter(task__isnull=False)))
    for pk, fire, has_other in queryset.values_list("pk", "fire_time", "other"):
        right = (
            "one ledger entry, but the entry names another task" if has_other else "a ledger entry"
        )
        advice = "The fire time ran twice: check both tasks." if has_other else ""
        yield Finding(
            pk, "fire_time", fire, right, advice, repair="" if has_other else "add a ledger entry"
        )


@without_ledger_entry.repaired_by("entered")
def _add_entries(context: VerifyContext, keys: Sequence[Any]) -> Collection[Any]:
    rows = tables.tasks().filter(pk__in=keys).order_by("pk")
    written = set()
    for row in rows:
        if row.recurring_task_id is None or row.fire_time is None:
            continue
        columns: dict[str, Any] = {
            "outcome": FireOutcome.DISPATCHED,
            "reason": "entered by durable verify",
            "effective_at": row.run_at,
        }
        empty = ledger.ledger().filter(
            recurring_task=row.recurring_task_id, unique_fire_time=row.fire_time
        )
        if empty.filter(task__isnull=True, unique_fire_time=F("fire_time")).update(
            task_id=row.pk, **columns
        ):
            written.add(row.pk)
            continue
        written |= ledger.write(
            [
                LedgerEntry(
                    recurring_task_id=row.recurring_task_id,
                    tenant_id=row.tenant_id,
                    fire_time=row.fire_time,
                    task_id=row.pk,
                    **columns,
                )
            ]
        )
    return written


@check("runs-counts", RecurringTask, "recurring", repair="write the recount under the row's lock")
def miscounted(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Does the run count of each schedule equal that of its ledger?

    Schedules whose run count does not match their complete ledger.
    """
    counted = _counted(rows.filter(ledger_from__isnull=True, runs_count__lte=_COUNTED))
    for pk, (stored, recorded) in counted.items():
        if stored != recorded:
            yield Finding(pk, "runs_count", stored, f"{recorded}, according to its ledger")


def _counted(rows: Rows) -> dict[Any, tuple[int, int]]:
    stored = dict(rows.values_list("pk", "runs_count"))
    entries = ledger.ledger().filter(
        recurring_task__in=list(stored), outcome__in=_RAN, unique_fire_time__isnull=False
    )
    of_runs = entries.exclude(reason__startswith="backfilled").order_by()
    recorded = dict(of_runs.values_list("recurring_task").annotate(number=Count("pk")))
    return {pk: (number, recorded.get(pk, 0)) for pk, number in stored.items()}


@miscounted.repaired_by("recounted")
def _recount(context: VerifyContext, keys: Sequence[Any]) -> None:
    rows = rows_of(RecurringTask).filter(pk__in=keys)
    counted = _counted(rows)
    for row in rows:
        row.runs_count, row.updated_at = counted[row.pk][1], context.now
        writes.rewrite(row)
