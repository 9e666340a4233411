"""Explains in sentences what happened or will happen at a fire time, and why. Pure."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

from django_durable_tasks.choices import FireOutcome, RecurringStatus
from django_durable_tasks.schedules.agenda import PlannedRun, SkippedRange
from django_durable_tasks.schedules.misfires import QUARANTINED, RUN
from django_durable_tasks.tasks.explanations import ago


@dataclass(frozen=True, slots=True)
class FireTime:
    """A planned fire: its fire time, its earliest start (both UTC), and its remarks."""

    nominal: datetime
    effective: datetime
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartedWorkflow:
    """The workflow run that the task of a fire started: its status, and how many of its tasks have
    ended.
    """

    run_id: uuid.UUID
    status: str
    ended: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OccurrenceTask:
    """The task of a fire: its status, and the tasks for which it waits. An empty ``status`` means
    that it was pruned.
    """

    task_id: uuid.UUID
    status: str = ""
    reason: str = ""
    waiting_for_overlap: bool = False
    behind: str = ""
    since: datetime | None = None
    run: StartedWorkflow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FireEntry:
    """A ledger entry; with ``last`` it covers a range."""

    outcome: str
    first: datetime
    last: datetime | None = None
    count: int = 1
    exact: bool = True
    reason: str = ""
    effective: datetime | None = None
    blocked_by: uuid.UUID | None = None
    task: OccurrenceTask | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFacts:
    """The facts about a schedule and the instant ``at``; instants are aware, ``now`` is the
    database's.

    ``planned`` is the current plan for a fire time at this instant. ``before`` and ``after`` are
    the neighbouring fire times. ``runs_then`` is the fire that was rolled or moved to this instant.
    ``lines`` are the ledger entries that cover it, the entry of its own fire time first.
    """

    at: datetime
    now: datetime
    name: str
    task: str
    status: str
    status_reason: str = ""
    status_by: str = ""
    paused_at: datetime | None = None
    paused_until: datetime | None = None
    error: str = ""
    declared_at: datetime
    edited_at: datetime
    watermark: datetime
    ledger_from: datetime | None = None
    next_run_at: datetime | None = None
    lines: tuple[FireEntry, ...] = ()
    planned: PlannedRun | SkippedRange | None = None
    fire: FireTime | None = None
    runs_then: datetime | None = None
    start: datetime | None = None
    end: datetime | None = None
    before: datetime | None = None
    after: datetime | None = None
    known: bool = True
    led: bool = True
    poll: float = 1.0


def account(it: ScheduleFacts) -> str:
    """Return the explanation of the instant: what happened or will happen, and the reason."""
    own = next((entry for entry in it.lines if entry.last is None), None)
    if own is not None:
        return _own(it, own)
    if it.planned is None:
        return _no_fire_time(it)
    if isinstance(it.planned, SkippedRange):
        outcome = "did not run" if it.planned.last <= it.now else "will not run"
        return f"{when(it.at)} {outcome}: {it.planned.reason}."
    if it.planned.at > it.now:
        return _to_come(it, it.planned)
    return _in_range(it) or _without_entry(it, it.planned)


def when(instant: datetime) -> str:
    """Return an instant as text, in UTC."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""


# An entry of this fire time -----------------------------------------------------------------------


def _own(it: ScheduleFacts, entry: FireEntry) -> str:
    at = when(it.at)
    sentences = {
        FireOutcome.DISPATCHED: f"{at} was dispatched{_because(entry.reason)}",
        FireOutcome.ROLLED: f"{at} was rolled and dispatched{_because(entry.reason)}",
        FireOutcome.MANUAL: f"{at} was run by hand{_because(entry.reason)}",
        FireOutcome.SKIPPED_OVERLAP: f"{at} was skipped: {_blocker(entry)} was still open",
        FireOutcome.SKIPPED_QUOTA: f"{at} was skipped by a quota: {entry.reason}",
        FireOutcome.EXPIRED: f"{at} came too late: it expired after {entry.reason}",
        FireOutcome.OVERRIDDEN: f"{at} did not run: {entry.reason}",
        FireOutcome.FAILED_TO_CREATE: f"{at} could not be created: {entry.reason}",
    }
    sentence = sentences.get(
        FireOutcome(entry.outcome), f"{at} did not run: {entry.outcome}{_because(entry.reason)}"
    )
    return f"{sentence}.{_task_of(entry)}"


def _blocker(entry: FireEntry) -> str:
    if entry.reason.startswith(RUN):
        return f"{RUN} {entry.blocked_by} of an earlier fire"
    return f"task {entry.blocked_by} of an earlier run"


def _task_of(entry: FireEntry) -> str:
    task = entry.task
    if task is None:
        return ""
    if not task.status:
        return f" It was task {task.task_id}, which is no longer kept."
    if task.waiting_for_overlap:
        behind = f" behind {task.behind}" if task.behind else ""
        return f" Its task {task.task_id} is held{behind} until its overlap key is free."
    since = f" since {when(task.since)}" if task.since else ""
    return (
        f" Its task {task.task_id} is {task.status}{since}{_because(task.reason)}.{_run(task.run)}"
    )


def _run(run: StartedWorkflow | None) -> str:
    if run is None:
        return ""
    return (
        f" It started {RUN} {run.run_id}, which is {run.status}: {run.ended} of {run.total} tasks"
        " have ended."
    )


# An entry of a range ------------------------------------------------------------------------------


def _in_range(it: ScheduleFacts) -> str:
    entry = next(
        (one for one in it.lines if one.outcome in (FireOutcome.MISSED, FireOutcome.PAUSED)), None
    )
    if entry is None or entry.last is None:
        return ""
    number = f"{'' if entry.exact else 'at least '}{entry.count}"
    among = (
        f", one of {number} fire times from {when(entry.first)} to {when(entry.last)}"
        if entry.count > 1
        else ""
    )
    if entry.outcome == FireOutcome.PAUSED:
        return f"{when(it.at)} did not run: the schedule was paused{_because(entry.reason)}{among}."
    return f"{when(it.at)} was missed{among}: {_MISSED.get(entry.reason, entry.reason)}."


_MISSED = {
    "COALESCED": "RUN_ONE_NOW ran the last of them only",
    "SKIP_MISSED": "SKIP_MISSED runs none of them",
    "CATCHUP_WINDOW": "they lie further back than catchup_window",
    "MAX_CATCHUP_RUNS": "max_catchup_runs were caught up, and these were older",
}


# No entry -----------------------------------------------------------------------------------------


def not_a_fire_time(
    name: str,
    at: datetime,
    bounds: tuple[datetime | None, datetime | None],
    around: tuple[datetime | None, datetime | None],
) -> str:
    """Return why a schedule has no fire time at this instant; ``around``: the neighbouring fire
    times.
    """
    (start, end), (before, after) = bounds, around
    if start is not None and at < start:
        first = f" The first fire time is {when(after)}." if after else ""
        return (
            f"{when(at)} is before the start of {name}, {when(start)}: nothing fires before"
            f" it.{first}"
        )
    if end is not None and at > end:
        last = f" The last fire time is {when(before)}." if before else ""
        return f"{when(at)} is after the end of {name}, {when(end)}: nothing fires after it.{last}"
    return f"{when(at)} is no fire time of {name}: {_near(around, 'it')}."


def no_fires_within(
    name: str, stretch: tuple[datetime, datetime], around: tuple[datetime | None, datetime | None]
) -> str:
    """Return that a schedule has no fire time from the first to the last instant, with the
    neighbouring fire times.
    """
    return (
        f"{name} has no fire time from {when(stretch[0])} to {when(stretch[1])}:"
        f" {_near(around, 'them')}."
    )


def _near(around: tuple[datetime | None, datetime | None], what: str) -> str:
    words = zip(("before", "after"), around, strict=True)
    return (
        " and ".join(f"{word} {what} comes {when(one)}" for word, one in words if one)
        or "it has none"
    )


def _no_fire_time(it: ScheduleFacts) -> str:
    text = not_a_fire_time(it.name, it.at, (it.start, it.end), (it.before, it.after))
    if it.runs_then is not None:
        text += f" The fire time {when(it.runs_then)} was put there: ask about that one."
    if it.at <= it.edited_at and it.edited_at > it.declared_at:
        text += (
            f" It was changed at {when(it.edited_at)}; the explanation uses the present schedule."
        )
    return text


def _to_come(it: ScheduleFacts, planned: PlannedRun) -> str:
    at = when(it.at)
    if it.status == RecurringStatus.CANCELLED:
        return f"{at} will not run: the schedule has ended{_because(it.status_reason)}."
    if it.status == RecurringStatus.PAUSED and not (
        it.paused_until and it.paused_until < planned.at
    ):
        return f"{at} will not run unless the schedule is resumed before: {_paused(it)}."
    fire = it.fire or FireTime(planned.nominal, planned.at)
    jitter = ", by its jitter" if fire.effective != planned.at else ""
    late = f" at {when(fire.effective)}{jitter}" if fire.effective != it.at else ""
    remarks = f" ({'; '.join(fire.remarks)})" if fire.remarks else ""
    unknown = "" if it.known else f" No durable task {it.task} is registered in this process."
    wait = ago((fire.effective - it.now).total_seconds())
    return f"{at} will run{late}, in {wait}{remarks}.{unknown}"


def _paused(it: ScheduleFacts) -> str:
    if it.status_reason == QUARANTINED:
        return f"it could not be triggered and is paused (QUARANTINED): {it.error}"
    since = f" since {when(it.paused_at)}" if it.paused_at else ""
    by = f" by {it.status_by}" if it.status_by else ""
    until = f" until {when(it.paused_until)}" if it.paused_until else ""
    return f"it is paused{since}{by}{until}{_because(it.status_reason)}"


def _without_entry(it: ScheduleFacts, planned: PlannedRun) -> str:
    """Explain a fire time in the past that has no ledger entry."""
    at = when(it.at)
    if it.ledger_from is not None and it.at <= it.ledger_from:
        last = when(it.ledger_from)
        return f"{at} is not after {last}: its ledger entry has been deleted."
    if planned.at > it.watermark:
        return _not_processed(it, planned)
    if it.at <= it.declared_at:
        return (
            f"{at} did not run: the schedule did not exist before {when(it.declared_at)}."
            " backfill() can run it."
        )
    return (
        f"{at} did not run: the schedule was changed at {when(it.edited_at)}, and an edit never"
        " fires for a time in the past. backfill() can run it."
    )


def _not_processed(it: ScheduleFacts, planned: PlannedRun) -> str:
    if it.status == RecurringStatus.CANCELLED:
        return f"{when(it.at)} did not run: the schedule had ended{_because(it.status_reason)}."
    if it.status == RecurringStatus.PAUSED:
        return f"{when(it.at)} did not run: {_paused(it)}."
    return _due(it, planned)


def _due(it: ScheduleFacts, planned: PlannedRun) -> str:
    at, late = when(it.at), (it.now - planned.at).total_seconds()
    since = f"since {ago(late)}" if late >= 1 else "now"
    if not it.led:
        return f"{at} is due {since}, and no scheduler leads: run `manage.py run_scheduler`."
    if it.next_run_at is not None and it.next_run_at > it.now:
        return (
            f"{at} is due {since}; the schedule is looked at again at {when(it.next_run_at)}."
            + ("" if it.known else f" No durable task {it.task} is registered in this process.")
        )
    slow = " The leader is behind." if late > 2 * it.poll else ""
    return f"{at} is due {since}: the leader's next round triggers it.{slow}"
