"""Runs of a schedule outside its fire times: run now, and backfill."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from django.db import IntegrityError, transaction
from django.db.models import Case, Value, When
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.audit import comment, current_actor, recorded
from django_durable_tasks.choices import (
    OPEN,
    OPEN_RUN,
    Action,
    CatchUpOrder,
    FireOutcome,
    Overlap,
    Status,
)
from django_durable_tasks.dependencies import edges
from django_durable_tasks.dependencies.edges import workflow_runs
from django_durable_tasks.exceptions import InvalidOption, TransitionRefused, UniqueConflict
from django_durable_tasks.limits import overlap
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.operations import Argument, ArgumentType, Target, as_text, operation
from django_durable_tasks.option_values import checked_count, checked_key, instant, one_of
from django_durable_tasks.schedules import ledger, lifecycle, schedule_cache, trigger
from django_durable_tasks.schedules.agenda import PlannedRun, SkippedRange
from django_durable_tasks.schedules.ledger import LedgerEntry
from django_durable_tasks.schedules.misfires import OverlapDecision, decide
from django_durable_tasks.schedules.timetables.types import TICK, walk
from django_durable_tasks.states import claims, endings, inserts
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import NewTask
from django_durable_tasks.tasks import operator_actions
from django_durable_tasks.tasks.enqueue import may_publish_at_once

# Creates a manual run of a schedule, once per ``request_id``.
#
# Start and end of the schedule, its pauses and its fire times do not apply. Called by
# ``RecurringTask.trigger_now``.


REQUEST_MAX = 150


@operation(
    Target.SCHEDULE,
    name="run_now",
    title=_("Run schedule now"),
    help=_(
        "It runs once in addition to its timetable, also if it is paused. The run is recorded as"
        " MANUAL and not counted for max_runs, and the next fire time stays as it is."
    ),
    permission="trigger_recurringtask",
    opens_tasks=True,
    statuses=lifecycle.NOT_ENDED,
    counted="created",
    done=lambda task, **_arguments: gettext("Created task %s.") % task.pk,
)
def trigger_now(
    row: RecurringTask,
    *,
    request_id: Annotated[
        str | None,
        Argument(
            _("Request id"),
            _("A name for this run. Two calls with the same name run once."),
            kind=ArgumentType.REQUEST_ID,
            metavar="ID",
        ),
    ] = None,
) -> Task:
    """Create a run that starts now and return its Task; a repeated ``request_id`` (at most 150
    characters) returns the same task.

    The watermark and ``runs_count`` do not change, and a pause does not delay the run. The overlap
    policy applies. With SKIP or QUEUE_* the task waits until the open runs have ended. With
    CANCEL_RUNNING or REPLACE_PENDING the open runs are cancelled as the policy requires. Raises
    TransitionRefused if the schedule has ended or the task of the request was deleted, and
    UniqueConflict if an open task has its unique key.
    """
    registry.load_for(row.task)
    if request_id is None:
        request_id = uuid.uuid4().hex
    elif len(checked_key("request_id", request_id)) > REQUEST_MAX:
        raise InvalidOption(
            f"request_id has {len(request_id)} characters, at most {REQUEST_MAX} are allowed."
        )
    actor = current_actor()
    try:
        with recorded("schedule.run_now") as entry:
            entry.subject("schedule", row.pk, row.tenant_id)
            now, schedule = database_now(), lifecycle.locked(row)
            lifecycle.refuse_ended(schedule, "triggered")
            existing = (
                ledger.ledger().filter(recurring_task=schedule.pk, request_id=request_id).first()
            )
            task_id = existing.task_id if existing else None
            if task_id is None:
                task_id = _create(schedule, now, request_id, comment("", actor.by, actor.reason))
                entry.detail(task=task_id, request_id=request_id)
    except IntegrityError as taken:
        raise UniqueConflict(
            f"Recurring task {row.name!r} cannot run now: an open task has its unique key."
        ) from taken
    task: Task | None = tables.tasks().filter(pk=task_id).first()
    if task is None:
        raise TransitionRefused(
            f"request_id={request_id!r} ran as task {task_id}, which is no longer kept."
        )
    return task


@schedule_cache.readable
def _create(row: RecurringTask, now: datetime, request_id: str, reason: str) -> uuid.UUID:
    template, planned = trigger.template_of(row), PlannedRun(now, now)
    overlap_key = template.overlap_key
    opened = overlap.open_runs([overlap_key])[overlap_key] if overlap_key is not None else []
    # An operator requested this run, so it waits where the run of a fire time would be skipped.
    verdict = decide(Overlap(row.overlap), opened, caught_up=True)
    operator_actions.cancel_with(tables.tasks().filter(pk__in=verdict.replaces), "REPLACED")
    edges.request_cancel_runs(workflow_runs().filter(pk__in=verdict.replaces), "REPLACED")
    key = f"{row.pk}/request/{request_id}"
    task = trigger.occurrence_task(template, planned, now, verdict, key)
    publishes = not verdict.held and may_publish_at_once(task, None)
    if publishes:
        due_at = now + timedelta(seconds=conf.settings().REPUBLISH_AFTER)
        task = task._replace(status=Status.QUEUED, epoch=1, publish_count=1, due_at=due_at)
    entry = trigger.ledger_entry(
        template,
        planned,
        FireOutcome.MANUAL,
        term=None,
        task=task,
        request_id=request_id,
        reason=reason,
        blocked_by=verdict.blocked_by,
    )
    ledger.write([entry])
    inserts.create_many([task])

    def publish() -> None:
        # The overlap key is checked after the commit, as in every claim.
        queued = claims.claimed_tasks(tables.tasks().queued().filter(pk=task.id))
        ports.publish(claims.messages_for(overlap.admitted(queued)))

    if publishes:
        transaction.on_commit(publish, using=tables.database(), robust=True)
    return task.id


# Creates the missing runs of past fire times, in a given order and with limited concurrency.
#
# The unique key of the ledger still applies: a fire time whose entry has a task gets no second
# one. The watermark and ``runs_count`` do not change. Called by ``RecurringTask.backfill``, the
# admin and the command line.


LIMIT, MOST = 1_000, 10_000
_BULK = 500
T = TypeVar("T")


class Reprocess(StrEnum):
    """Which tasks of the range run again: none, the failed ones, or all that have ended (as in
    Airflow).
    """

    NONE = "NONE"
    FAILED = "FAILED"
    ALL = "ALL"


class BackfillAction(StrEnum):
    """The action for a fire time."""

    CREATED = "CREATED"
    REPLAYED = "REPLAYED"
    UNCHANGED = "UNCHANGED"


@dataclass(frozen=True, slots=True)
class BackfillStep:
    """The action for one fire time (UTC), its reason, and the task that it changes."""

    fire_time: datetime
    action: BackfillAction
    why: str
    task_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillReport:
    """What a backfill of [start, end] did, or with ``dry_run`` would do, for each fire time.

    ``remark`` explains why the range, or a part of it, has no fire time.
    """

    start: datetime
    end: datetime
    dry_run: bool
    steps: tuple[BackfillStep, ...]
    remark: str = ""

    def of(self, action: BackfillAction) -> tuple[BackfillStep, ...]:
        """Return the steps of this kind."""
        return tuple(step for step in self.steps if step.action == action)

    @property
    def created(self) -> int:
        """How many fire times got a new task."""
        return len(self.of(BackfillAction.CREATED))

    @property
    def replayed(self) -> int:
        """How many tasks run again."""
        return len(self.of(BackfillAction.REPLAYED))

    @property
    def left(self) -> int:
        """How many fire times are left unchanged."""
        return len(self.of(BackfillAction.UNCHANGED))


def _backfilled(report: BackfillReport, **_arguments: Any) -> str:
    counts = (
        ngettext("Created %d task", "Created %d tasks", report.created) % report.created,
        ngettext("replayed %d task", "replayed %d tasks", report.replayed) % report.replayed,
        ngettext("left %d fire time unchanged", "left %d fire times unchanged", report.left)
        % report.left,
    )
    return f"{', '.join(counts)}. {report.remark}".strip()


@operation(
    Target.SCHEDULE,
    title=_("Backfill schedule"),
    help=_(
        "Runs fire times of the past that have no run. A fire time that has run is not run twice."
        " The timetable continues in parallel."
    ),
    permission="trigger_recurringtask",
    opens_tasks=True,
    statuses=lifecycle.NOT_ENDED,
    counted=lambda report: {"created": report.created, "replayed": report.replayed},
    done=_backfilled,
)
def backfill(
    row: RecurringTask,
    start: Annotated[
        datetime, Argument(_("Start"), lifecycle.INSTANT_HELP, positional=True, metavar="FROM")
    ],
    end: Annotated[
        datetime,
        Argument(_("End"), _("Included, and not in the future."), positional=True, metavar="TO"),
    ],
    *,
    dry_run: bool = False,
    reprocess: Annotated[
        str,
        Argument(
            _("Fire times that have run"),
            _("Whether tasks of the range are replayed."),
            choices=(
                (Reprocess.NONE, _("leave them unchanged")),
                (Reprocess.FAILED, _("replay failed tasks")),
                (Reprocess.ALL, _("replay all ended tasks")),
            ),
        ),
    ] = Reprocess.NONE,
    concurrency: Annotated[
        int, Argument(_("Concurrency"), _("How many tasks run at the same time."), minimum=1)
    ] = 1,
    order: Annotated[
        str,
        Argument(
            _("Order"),
            _("Which fire times run first."),
            choices=tuple((order.value, order.value) for order in CatchUpOrder),
        ),
    ] = CatchUpOrder.OLDEST,
    limit: Annotated[
        int, Argument(_("Limit"), _("Refuse a range with more fire times."), minimum=1)
    ] = LIMIT,
) -> BackfillReport:
    """Run the fire times in [start, end] (aware) of the current timetable that have no run; return
    a report.

    An ``end`` in whole seconds includes the only fire time within that second. With ``reprocess``
    FAILED or ALL the failed, or all ended, tasks are replayed as well, without creating new tasks.
    A fire time that started a workflow is repeated only with ALL and only if that workflow has
    ended; it then starts a second workflow run with its own id. At most ``concurrency`` of these
    tasks run at a time, in addition to the schedule's own runs. ``order`` is OLDEST or NEWEST
    first.

    Raises InvalidOption if the range ends in the future, starts before the ledger, or contains more
    than ``limit`` (1 to 10,000) fire times, and UniqueConflict if the task's unique key is in use.
    After an error nothing is written.
    """
    registry.load_for(row.task)
    first, last = instant("start", start).astimezone(UTC), instant("end", end).astimezone(UTC)
    mode = one_of("reprocess", reprocess, Reprocess)
    direction = one_of("order", order, CatchUpOrder)
    checked_count("concurrency", concurrency, 1, MOST)
    checked_count("limit", limit, 1, MOST)
    with recorded("schedule.backfill") as entry:
        entry.subject("schedule", row.pk, row.tenant_id)
        now = database_now()
        schedule = schedule_cache.recurring().get(pk=row.pk) if dry_run else lifecycle.locked(row)
        _refuse(schedule, first, last, now)
        last = min(now, max(last, lifecycle.meant_fire_time(schedule, last)))
        fires = _fire_times(schedule, first, last, limit)
        recorded_fires = ledger.ledger().filter(
            recurring_task=schedule.pk, unique_fire_time__range=(first, last)
        )
        entries = {record.fire_time: record for record in recorded_fires}
        steps = _steps(schedule, fires, entries, mode)
        if not dry_run:
            ordered = steps if direction == CatchUpOrder.OLDEST else steps[::-1]
            done = _carry_out(schedule, now, concurrency, ordered, entries)
            steps = sorted(done, key=lambda step: step.fire_time)
            # Nothing is recorded if no task was created or replayed.
            changed = Counter(
                step.action.lower() for step in steps if step.action != BackfillAction.UNCHANGED
            )
            entry.detail(**({"range": [first, last], **changed} if changed else {}))
        remark = _remark(schedule, first, last, any_fires=bool(steps))
    return BackfillReport(start=first, end=last, dry_run=dry_run, steps=tuple(steps), remark=remark)


def _remark(row: RecurringTask, start: datetime, end: datetime, *, any_fires: bool) -> str:
    """Return why the range, or a part of it, contains no fire time; empty if no explanation is
    needed.
    """
    if start < row.start_time:
        return lifecycle.not_a_fire_time(row, schedule_cache.agenda_of(row), start)
    if row.end_time is not None and end > row.end_time:
        return lifecycle.not_a_fire_time(row, schedule_cache.agenda_of(row), end)
    if any_fires:
        return ""
    times = schedule_cache.fire_times_of(row)
    near = lifecycle.neighbours(times.previous(start), times.next(end), "them")
    return (
        f"{row.name} has no fire time from {lifecycle.utc(start)} to {lifecycle.utc(end)}: {near}."
    )


def _refuse(row: RecurringTask, start: datetime, end: datetime, now: datetime) -> None:
    if end < start:
        raise InvalidOption(
            f"end={end.isoformat()} is before start={start.isoformat()}.", option="end"
        )
    if end > now:
        raise InvalidOption(
            f"end={as_text(end)} is after now, {as_text(now)}. Later fire times run by themselves.",
            option="end",
        )
    if row.ledger_from is not None and start <= row.ledger_from:
        raise InvalidOption(
            f"start={start.isoformat()}: the ledger of {row.name!r} is kept after"
            f" {row.ledger_from.isoformat()}; give a later start, because earlier runs are"
            " unknown.",
            option="start",
        )


def _fire_times(row: RecurringTask, start: datetime, end: datetime, limit: int) -> list[datetime]:
    """Return all fire times of the range, also those that a calendar or an override removes, and
    added ones.
    """
    first = max(start, row.start_time)
    last = end if row.end_time is None else min(end, row.end_time)
    fire_times = {
        override.fire_time
        for override in schedule_cache.overrides_of(row)
        if override.action == Action.ADD and start <= override.fire_time <= end
    }
    for fire in walk(schedule_cache.fire_times_of(row), first - TICK, last):
        fire_times.add(fire.nominal)
        if len(fire_times) > limit:
            raise InvalidOption(
                f"There are more than {limit} fire times from {start.isoformat()} to"
                f" {end.isoformat()}: give a shorter range, or a higher limit."
            )
    return sorted(fire_times)


def _steps(
    row: RecurringTask,
    fires: Sequence[datetime],
    entries: Mapping[datetime, OccurrenceRecord],
    reprocess: Reprocess,
) -> list[BackfillStep]:
    """Return the action for each fire time and its reason."""
    if not fires:
        return []
    statuses: dict[uuid.UUID, str] = {}
    for ids in _bulks([entry.task_id for entry in entries.values() if entry.task_id is not None]):
        statuses |= dict(tables.tasks().filter(pk__in=ids).values_list("pk", "status"))
    started = workflow_runs().filter(
        recurring_task=row.pk, parent__isnull=True, fire_time__range=(fires[0], fires[-1])
    )
    newest_runs = {
        fire_time: (pk, status)
        for fire_time, pk, status in started.order_by("pk").values_list("fire_time", "pk", "status")
    }
    agenda, steps = schedule_cache.agenda_of(row), list[BackfillStep]()
    for fire_time in fires:
        entry, planned = entries.get(fire_time), agenda.at_nominal(fire_time)
        if entry is None or entry.task_id is None:
            if isinstance(planned, SkippedRange):
                steps.append(BackfillStep(fire_time, BackfillAction.UNCHANGED, planned.reason))
            else:
                why = f"was {entry.outcome}" if entry else "had no run"
                steps.append(BackfillStep(fire_time, BackfillAction.CREATED, why))
            continue
        status = statuses.get(entry.task_id, "")
        run_id, run_status = newest_runs.get(fire_time, (None, ""))
        action = BackfillAction.UNCHANGED
        if not status:
            why = "it ran; its task is no longer kept"
        elif run_id is not None and (run_status in OPEN_RUN or reprocess != Reprocess.ALL):
            why = f"its workflow run {run_id} is {run_status}"
        elif (reprocess == Reprocess.FAILED and status == Status.FAILED) or (
            reprocess == Reprocess.ALL and status not in OPEN
        ):
            action, why = BackfillAction.REPLAYED, f"was {status}"
        else:
            why = f"its task is {status}"
        steps.append(BackfillStep(fire_time, action, why, entry.task_id))
    return steps


def _bulks(several: Sequence[T]) -> Iterator[Sequence[T]]:
    return (several[first : first + _BULK] for first in range(0, len(several), _BULK))


def _carry_out(
    row: RecurringTask,
    now: datetime,
    concurrency: int,
    steps: Sequence[BackfillStep],
    entries: Mapping[datetime, OccurrenceRecord],
) -> list[BackfillStep]:
    """Create and replay the tasks of these steps in order; return the steps with their task ids."""
    template, actor = trigger.template_of(row), current_actor()
    # Each task gets one of ``concurrency`` overlap keys. All but the first task of a free key wait.
    overlap_keys = [f"backfill:{row.pk}:{number}" for number in range(concurrency)]
    taken = {key for key, tasks in overlap.open_runs(overlap_keys).items() if tasks}
    places: dict[datetime, dict[str, Any]] = {}
    for number, step in enumerate(
        step for step in steps if step.action != BackfillAction.UNCHANGED
    ):
        overlap_key, run_at = overlap_keys[number % concurrency], now + number * TICK
        due_at = NEVER if overlap_key in taken else run_at
        places[step.fire_time] = {"overlap_key": overlap_key, "run_at": run_at, "due_at": due_at}
        taken.add(overlap_key)

    reason = comment("backfilled", actor.by, actor.reason)
    created: dict[datetime, NewTask] = {}
    missing: list[LedgerEntry] = []
    empty: dict[int, tuple[uuid.UUID, datetime]] = {}
    for step in steps:
        if step.action != BackfillAction.CREATED:
            continue
        planned, place = PlannedRun(step.fire_time, step.fire_time), places[step.fire_time]
        task = trigger.occurrence_task(
            template, planned, place["run_at"], OverlapDecision(runs=True)
        )._replace(**place, in_batch=False)
        created[step.fire_time] = task
        entry = entries.get(step.fire_time)
        if entry is None:
            missing.append(
                trigger.ledger_entry(
                    template, planned, FireOutcome.DISPATCHED, term=None, task=task, reason=reason
                )
            )
        else:
            empty[entry.pk] = (task.id, place["run_at"])
    for filled in _bulks(list(empty.items())):
        # Every writer of entries of fire times locks the schedule first, as this transaction
        # does, so no entry can have got a task since it was read.
        if ledger.fill(dict(filled), FireOutcome.DISPATCHED, reason) < len(filled):
            raise TransitionRefused(
                f"The ledger of {row.name!r} changed under the backfill; try again."
            )
    written = {task_id for task_id, _ in empty.values()} | ledger.write(missing)
    try:
        inserts.create_many([task for task in created.values() if task.id in written])
    except IntegrityError as taken_key:
        raise UniqueConflict(
            f"{row.task} may be open once (its option unique): backfill one fire time at a time,"
            " when none is."
        ) from taken_key

    for bulk in _bulks([step for step in steps if step.action == BackfillAction.REPLAYED]):
        by_task = {step.task_id: places[step.fire_time] for step in bulk}
        queryset = tables.tasks().filter(pk__in=list(by_task))
        operator_actions.replay(queryset, reason=actor.reason or "backfill")
        endings.replay(queryset, "rerun")
        columns: dict[str, Any] = {
            name: Case(*(When(pk=pk, then=Value(place[name])) for pk, place in by_task.items()))
            for name in ("run_at", "overlap_key", "due_at")
        }
        inserts.edit(queryset, run_at=columns.pop("run_at"))
        inserts.edit(queryset, **columns)
    return [
        replace(step, task_id=created[step.fire_time].id) if step.fire_time in created else step
        for step in steps
    ]
