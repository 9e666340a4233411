"""Skips, moves and adds single future fire times of a schedule, and removes such overrides.

Called by the managers of RecurringTask.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.engine.audit.recorder import recorded
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.recurring import fire_times, ledger
from django_durable_tasks.engine.recurring.schedule_cache import agenda_of
from django_durable_tasks.engine.recurring.schedules import keep, locked, refuse_ended
from django_durable_tasks.exceptions import InvalidSchedule, TransitionRefused
from django_durable_tasks.models import OccurrenceOverride, RecurringTask
from django_durable_tasks.rules.recurring.effective import Action, PlannedRun
from django_durable_tasks.rules.recurring.explain import not_a_fire_time
from django_durable_tasks.rules.recurring.policies import RecurringStatus
from django_durable_tasks.rules.tasks.durations import instant

_MOST = 1_000
"""The overrides of a schedule. Each of its ticks reads them all."""


def override(
    row: RecurringTask,
    fire_time: datetime,
    action: str,
    *,
    move_to: datetime | None = None,
    reason: str = "",
    by: str = "",
) -> OccurrenceOverride:
    """SKIP a fire time, MOVE it to ``move_to``, or ADD one; replaces an earlier override of the
    same fire time.

    Instants are aware. For SKIP and MOVE, a ``fire_time`` in whole seconds refers to the only fire
    time within that second. Raises TransitionRefused if the fire time has passed or the schedule
    has ended. Raises InvalidSchedule if SKIP or MOVE refers to no fire time, or ADD to an existing
    one.
    """
    when, target = instant("fire_time", fire_time).astimezone(UTC), None
    if action not in set(Action):
        raise InvalidSchedule(f"action={action!r}: give SKIP, MOVE or ADD.")
    if (action == Action.MOVE) != (move_to is not None):
        raise InvalidSchedule("move_to goes with MOVE, and MOVE with move_to.")
    if move_to is not None:
        target = instant("move_to", move_to).astimezone(UTC)
    with recorded("schedule.override", by=by, reason=reason) as entry:
        entry.subject("schedule", row.pk, row.tenant_id)
        now, found = database_now(), locked(row)
        refuse_ended(found, "overridden")
        when = when if action == Action.ADD else fire_times.meant(found, when)
        _overrides(found).filter(fire_time=when).delete()
        _check(found, when, target, Action(action), now)
        _make_room(found, now)
        created = OccurrenceOverride(
            recurring_task=found,
            fire_time=when,
            action=action,
            move_to=target,
            reason=reason[:200],
            by=by[:200],
        )
        _overrides(found).bulk_create([created])
        entry.detail(override=[action, when, target])
        _replan(row, found, now)
    return created


def withdraw(row: RecurringTask, fire_time: datetime, *, by: str = "", reason: str = "") -> bool:
    """Delete the override of a fire time; return False if there is none.

    Raises TransitionRefused if the fire time has passed.
    """
    when = instant("fire_time", fire_time).astimezone(UTC)
    with recorded("schedule.remove_override", by=by, reason=reason) as entry:
        entry.subject("schedule", row.pk, row.tenant_id)
        now, found = database_now(), locked(row)
        refuse_ended(found, "overridden")
        when = fire_times.meant(found, when)
        existing = _overrides(found).filter(fire_time=when).first()
        if existing is None:
            return False
        _refuse_past(found, when, now, "fire_time")
        _overrides(found).filter(pk=existing.pk).delete()
        entry.detail(removed_override=[existing.action, when, existing.move_to])
        _refuse_recorded(found, when)
        _replan(row, found, now)
    return True


def _make_room(row: RecurringTask, now: datetime) -> None:
    """Delete overrides that are older than the ledger if the schedule has the most that it may
    have. Raises TransitionRefused if it still has.
    """
    if _overrides(row).count() < _MOST:
        return
    kept_from = now - timedelta(seconds=conf.settings().LEDGER_RETENTION)
    past = _overrides(row).filter(fire_time__lt=kept_from)
    past.exclude(move_to__gte=kept_from).delete()
    if _overrides(row).count() >= _MOST:
        raise TransitionRefused(
            f"Recurring task {row.name!r} has {_MOST:,} overrides, the most that are allowed:"
            " remove one first."
        )


def _overrides(row: RecurringTask) -> Any:
    return (
        OccurrenceOverride.objects.using(tables.database())
        .unguarded()
        .filter(recurring_task=row.pk)
    )


def _check(
    row: RecurringTask, when: datetime, target: datetime | None, action: Action, now: datetime
) -> None:
    """Raise an error if a fire time has passed, does not exist (SKIP, MOVE) or exists already
    (ADD).
    """
    _refuse_past(row, when, now, "fire_time")
    if target is not None:
        _refuse_past(row, target, now, "move_to")
    _refuse_recorded(row, when)
    agenda = agenda_of(row)
    existing = agenda.at_nominal(when)
    if action == Action.ADD and existing is not None:
        raise InvalidSchedule(
            f"fire_time={when.isoformat()} is a fire time of {row.name!r} already."
        )
    if action != Action.ADD and existing is None:
        before, after = (
            one.nominal if one else None for one in (agenda.previous(when), agenda.next(when))
        )
        explanation = not_a_fire_time(
            row.name, when, (row.start_time, row.end_time), (before, after)
        )
        raise InvalidSchedule(f"fire_time={when.isoformat()}: {explanation}")
    if isinstance(existing, PlannedRun) and existing.at <= row.watermark_at:
        raise TransitionRefused(
            f"fire_time={when.isoformat()} of {row.name!r} has run, at {existing.at.isoformat()}."
        )


def _refuse_past(row: RecurringTask, when: datetime, now: datetime, field: str) -> None:
    through = max(now, row.watermark_at)
    if when <= through:
        raise TransitionRefused(
            f"{field}={when.isoformat()} is past: fire times up to {through.isoformat()} are"
            " decided. For a run of a past fire time use backfill()."
        )


def _refuse_recorded(row: RecurringTask, when: datetime) -> None:
    """Raise TransitionRefused if the fire time has an entry: if rolled or moved, it may have run
    before its time.
    """
    entry = ledger.ledger().filter(recurring_task=row.pk, unique_fire_time=when).first()
    if entry is not None:
        raise TransitionRefused(
            f"fire_time={when.isoformat()} of {row.name!r} is already in the ledger:"
            f" {entry.outcome}."
        )


def _replan(row: RecurringTask, found: RecurringTask, now: datetime) -> None:
    if found.status == RecurringStatus.ACTIVE:
        following = agenda_of(found).next(found.watermark_at)
        # If no fire time is left, the next tick records the skipped ones and ends the schedule.
        found.next_run_at = following.at if following else now
    keep(row, found, now)
