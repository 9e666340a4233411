"""Runs of a schedule outside its fire times: run now, and backfill."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

from django.db import IntegrityError, transaction
from django.db.models import Case, Value, When
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.audit import current_actor, recorded
from django_durable_tasks.choices import Action, CatchUpOrder, FireOutcome, Overlap, Status
from django_durable_tasks.dependencies import edges
from django_durable_tasks.dependencies.edges import workflow_runs
from django_durable_tasks.exceptions import InvalidOption, TransitionRefused, UniqueConflict
from django_durable_tasks.limits import overlap
from django_durable_tasks.models import OccurrenceOverride, OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.operations.operation import (
    Argument,
    ArgumentType,
    OperationResult,
    Target,
    operation,
)
from django_durable_tasks.option_values import checked_count, checked_key, instant
from django_durable_tasks.schedules import ledger, lifecycle, tick_plan
from django_durable_tasks.schedules.agenda import PlannedRun, SkippedRange
from django_durable_tasks.schedules.lifecycle import (
    locked,
    neighbours,
    not_a_fire_time,
    recurring,
    refuse_ended,
    utc,
)
from django_durable_tasks.schedules.misfires import (
    BackfillAction,
    BackfillReport,
    BackfillStep,
    OverlapDecision,
    RecordedFire,
    Reprocess,
    decide,
    step,
)
from django_durable_tasks.schedules.schedule_cache import agenda_of, fire_times_of, readable
from django_durable_tasks.states import transitions
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import NewTask
from django_durable_tasks.tasks import operator_actions
from django_durable_tasks.tasks.enqueue import may_publish_at_once
from django_durable_tasks.tasks.explanations import comment

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
    done=lambda task, **_told: gettext("Created task %s.") % task.pk,
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
    request = uuid.uuid4().hex if request_id is None else _checked(request_id)
    actor = current_actor()
    try:
        with recorded("schedule.run_now") as entry:
            entry.subject("schedule", row.pk, row.tenant_id)
            now, found = database_now(), locked(row)
            refuse_ended(found, "triggered")
            known = ledger.ledger().filter(recurring_task=found.pk, request_id=request).first()
            task_id = known.task_id if known else None
            if task_id is None:
                task_id = _create(found, now, request, comment("", actor.by, actor.reason))
                entry.detail(task=task_id, request_id=request)
    except IntegrityError as taken:
        raise UniqueConflict(
            f"Recurring task {row.name!r} cannot run now: an open task has its unique key."
        ) from taken
    task: Task | None = tables.tasks().filter(pk=task_id).first()
    if task is None:
        raise TransitionRefused(
            f"request_id={request!r} ran as task {task_id}, which is no longer kept."
        )
    return task


def _checked(request_id: str) -> str:
    if len(checked_key("request_id", request_id)) > REQUEST_MAX:
        raise InvalidOption(
            f"request_id has {len(request_id)} characters, at most {REQUEST_MAX} are allowed."
        )
    return request_id


@readable
def _create(row: RecurringTask, now: datetime, request: str, reason: str) -> uuid.UUID:
    shared, planned = tick_plan.template_of(row), PlannedRun(now, now)
    overlap_key = shared.overlap_key
    opened = overlap.open_runs([overlap_key])[overlap_key] if overlap_key is not None else []
    # An operator requested this run, so it waits where the run of a fire time would be skipped.
    verdict = decide(Overlap(row.overlap), opened, caught_up=True)
    operator_actions.cancel_with(tables.tasks().filter(pk__in=verdict.replaces), "REPLACED")
    edges.request_cancel_runs(workflow_runs().filter(pk__in=verdict.replaces), "REPLACED")
    new = tick_plan.occurrence_task(
        shared, planned, now, verdict, tick_plan.request_key(row.pk, request)
    )
    new = _queued_if_possible(new, verdict, now)
    ledger.write(
        [
            tick_plan.ledger_entry(
                shared,
                planned,
                FireOutcome.MANUAL,
                term=None,
                task=new,
                request_id=request,
                reason=reason,
                blocked_by=verdict.blocked_by,
            )
        ]
    )
    transitions.create_many([new])
    if new.status == Status.QUEUED:
        _publish_after_commit(new.id)
    return new.id


def _publish_after_commit(task_id: uuid.UUID) -> None:
    # A function, because Django names a robust hook that fails by its ``__qualname__``, which a
    # partial lacks.
    def publish() -> None:
        _publish(task_id)

    transaction.on_commit(publish, using=tables.database(), robust=True)


def _queued_if_possible(new: NewTask, verdict: OverlapDecision, now: datetime) -> NewTask:
    """Return the task as QUEUED if it may be published at commit, unchanged if it has to wait."""
    if verdict.held or not may_publish_at_once(new, None):
        return new
    due_at = now + timedelta(seconds=conf.settings().REPUBLISH_AFTER)
    return new._replace(status=Status.QUEUED, epoch=1, publish_count=1, due_at=due_at)


def _publish(task_id: uuid.UUID) -> None:
    """Publish a task that was inserted as QUEUED, if its overlap key is free. This is checked after
    the commit, as in every claim.
    """
    claimed = transitions.claimed_tasks(tables.tasks().queued().filter(pk=task_id))
    ports.publish(transitions.messages_for(overlap.admitted(claimed)))


# Creates the missing runs of past fire times, in a given order and with limited concurrency.
#
# The unique key of the ledger still applies: a fire time whose entry has a task gets no second
# one. The watermark and ``runs_count`` do not change. Called by ``RecurringTask.backfill``, the
# admin and the command line.


LIMIT, MOST = 1_000, 10_000
_BULK = 500
_INSTANT = timedelta(microseconds=1)
T = TypeVar("T")


def _backfilled(report: BackfillReport, **_told: Any) -> str:
    parts = (
        ngettext("Created %d task", "Created %d tasks", report.created) % report.created,
        ngettext("replayed %d task", "replayed %d tasks", report.replayed) % report.replayed,
        ngettext("left %d fire time unchanged", "left %d fire times unchanged", report.left)
        % report.left,
    )
    return f"{', '.join(parts)}. {report.remark}".strip()


def refuse_nothing(outcome: OperationResult) -> None:
    """Raise TransitionRefused if a backfill has created and replayed no task."""
    if not outcome.changed:
        raise TransitionRefused(gettext("Nothing was changed. %s") % outcome.message)


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
    mode, direction = (
        _choice("reprocess", reprocess, Reprocess),
        _choice("order", order, CatchUpOrder),
    )
    checked_count("concurrency", concurrency, 1, MOST)
    checked_count("limit", limit, 1, MOST)
    with recorded("schedule.backfill") as entry:
        entry.subject("schedule", row.pk, row.tenant_id)
        now = database_now()
        found = recurring().get(pk=row.pk) if dry_run else locked(row)
        _refuse(found, first, last, now)
        last = min(now, max(last, lifecycle.meant_fire_time(found, last)))
        fires = _fire_times(found, first, last, limit)
        entries = _entries_of(found, first, last)
        steps = _steps(found, fires, entries, mode)
        if not dry_run:
            ordered = steps if direction == CatchUpOrder.OLDEST else steps[::-1]
            done = _Backfill(found, now, concurrency).carry_out(ordered, entries)
            steps = sorted(done, key=lambda one: one.fire_time)
            entry.detail(**_detail(first, last, steps))
        remark = _remark(found, first, last, any_fires=bool(steps))
    return BackfillReport(start=first, end=last, dry_run=dry_run, steps=tuple(steps), remark=remark)


def _detail(first: datetime, last: datetime, steps: Sequence[BackfillStep]) -> dict[str, Any]:
    """Return what the audit entry contains; nothing if no task was created or replayed."""
    done = Counter(one.action.lower() for one in steps if one.action != BackfillAction.UNCHANGED)
    return {"range": [first, last], **done} if done else {}


def _remark(row: RecurringTask, start: datetime, end: datetime, *, any_fires: bool) -> str:
    """Return why the range, or a part of it, contains no fire time; empty if no explanation is
    needed.
    """
    if start < row.start_time:
        return not_a_fire_time(row, agenda_of(row), start)
    if row.end_time is not None and end > row.end_time:
        return not_a_fire_time(row, agenda_of(row), end)
    if any_fires:
        return ""
    times = fire_times_of(row)
    near = neighbours(times.previous(start), times.next(end), "them")
    return f"{row.name} has no fire time from {utc(start)} to {utc(end)}: {near}."


def _choice(option: str, value: str, choices: Any) -> Any:
    if value not in set(choices):
        raise InvalidOption(f"{option}={value!r}: give one of {', '.join(choices)}.")
    return choices(value)


def _refuse(row: RecurringTask, start: datetime, end: datetime, now: datetime) -> None:
    if end < start:
        raise InvalidOption(f"end={end.isoformat()} is before start={start.isoformat()}.")
    if end > now:
        raise InvalidOption(
            f"end={end.isoformat()} is after now, {now.isoformat()}: what is to come runs by"
            " itself."
        )
    if row.ledger_from is not None and start <= row.ledger_from:
        raise InvalidOption(
            f"start={start.isoformat()}: the ledger of {row.name!r} is kept after"
            f" {row.ledger_from.isoformat()}; give a later start, because earlier runs are unknown."
        )


def _fire_times(row: RecurringTask, start: datetime, end: datetime, limit: int) -> list[datetime]:
    """Return all fire times of the range, also those that a calendar or an override removes, and
    added ones.
    """
    times = fire_times_of(row)
    first, last = (
        max(start, row.start_time),
        end if row.end_time is None else min(end, row.end_time),
    )
    added = OccurrenceOverride.objects.using(tables.database()).filter(
        recurring_task=row.pk, action=Action.ADD, fire_time__range=(start, end)
    )
    found = set(added.values_list("fire_time", flat=True))
    fire = times.next(first - _INSTANT)
    while fire is not None and fire.nominal <= last:
        found.add(fire.nominal)
        if len(found) > limit:
            raise InvalidOption(
                f"There are more than {limit} fire times from {start.isoformat()} to"
                f" {end.isoformat()}: give a shorter range, or a higher limit."
            )
        fire = times.next(fire.nominal)
    return sorted(found)


def _entries_of(
    row: RecurringTask, start: datetime, end: datetime
) -> dict[datetime, OccurrenceRecord]:
    found = ledger.ledger().filter(recurring_task=row.pk, unique_fire_time__range=(start, end))
    return {entry.fire_time: entry for entry in found}


def _steps(
    row: RecurringTask,
    fires: Sequence[datetime],
    entries: dict[datetime, OccurrenceRecord],
    reprocess: Reprocess,
) -> list[BackfillStep]:
    status: dict[uuid.UUID, str] = {}
    for ids in _bulks([entry.task_id for entry in entries.values() if entry.task_id is not None]):
        status |= dict(tables.tasks().filter(pk__in=ids).values_list("pk", "status"))
    agenda, steps, started = agenda_of(row), list[BackfillStep](), _started(row, fires)
    for fire_time in fires:
        entry, today = entries.get(fire_time), agenda.at_nominal(fire_time)
        known = status.get(entry.task_id, "") if entry and entry.task_id else ""
        recorded = (
            RecordedFire(entry.outcome, entry.task_id, known, started.get(fire_time))
            if entry
            else None
        )
        steps.append(
            step(fire_time, today if isinstance(today, SkippedRange) else None, recorded, reprocess)
        )
    return steps


def _started(
    row: RecurringTask, fires: Sequence[datetime]
) -> dict[datetime | None, tuple[uuid.UUID, str]]:
    """Return the id and status of the newest workflow run that each of these fire times started."""
    if not fires:
        return {}
    these = workflow_runs().filter(
        recurring_task=row.pk, parent__isnull=True, fire_time__range=(fires[0], fires[-1])
    )
    found = these.order_by("pk").values_list("fire_time", "pk", "status")
    return {fire_time: (key, status) for fire_time, key, status in found}


def _bulks(several: Sequence[T]) -> Iterator[Sequence[T]]:
    return (several[first : first + _BULK] for first in range(0, len(several), _BULK))


class _Backfill:
    """The overlap keys of one backfill, and the writes of its transaction."""

    def __init__(self, row: RecurringTask, now: datetime, concurrency: int) -> None:
        self.row, self.now, self.actor = row, now, current_actor()
        self.template = tick_plan.template_of(row)
        self._overlap_keys = [f"backfill:{row.pk}:{number}" for number in range(concurrency)]
        self._taken = {
            overlap_key
            for overlap_key, tasks in overlap.open_runs(self._overlap_keys).items()
            if tasks
        }

    def carry_out(
        self, steps: Sequence[BackfillStep], entries: dict[datetime, OccurrenceRecord]
    ) -> list[BackfillStep]:
        """Create and replay the tasks of these steps in order; return the steps with their task
        ids.
        """
        places = self._places([one for one in steps if one.action != BackfillAction.UNCHANGED])
        created = {
            one.fire_time: self._new_task(one, places[one.fire_time])
            for one in steps
            if one.action == BackfillAction.CREATED
        }
        new = self._write(created, entries)
        self._create([task for task in created.values() if task.id in new])
        self._replay([one for one in steps if one.action == BackfillAction.REPLAYED], places)
        return [
            (
                BackfillStep(one.fire_time, one.action, one.why, created[one.fire_time].id)
                if one.fire_time in created
                else one
            )
            for one in steps
        ]

    def _places(self, steps: Sequence[BackfillStep]) -> dict[datetime, dict[str, Any]]:
        """Return the overlap key of each task; all but the first task of a free key wait."""
        return {
            one.fire_time: place for one, place in zip(steps, self._next_places(), strict=False)
        }

    def _next_places(self) -> Iterator[dict[str, Any]]:
        number = 0
        while True:
            overlap_key, run_at = (
                self._overlap_keys[number % len(self._overlap_keys)],
                self.now + number * _INSTANT,
            )
            yield {
                "overlap_key": overlap_key,
                "run_at": run_at,
                "due_at": NEVER if overlap_key in self._taken else run_at,
            }
            self._taken.add(overlap_key)
            number += 1

    def _new_task(self, one: BackfillStep, place: dict[str, Any]) -> NewTask:
        planned = PlannedRun(one.fire_time, one.fire_time)
        verdict = OverlapDecision(runs=True)
        task = tick_plan.occurrence_task(self.template, planned, place["run_at"], verdict)
        return task._replace(**place, in_batch=False)

    def _write(
        self, created: dict[datetime, NewTask], known: dict[datetime, OccurrenceRecord]
    ) -> set[Any]:
        """Write the ledger: set the task of entries that have none, and insert missing entries.

        Return the ids of the tasks to create.
        """
        reason = comment("backfilled", self.actor.by, self.actor.reason)
        entries, empty = [], {}
        for fire_time, task in created.items():
            entry, planned = known.get(fire_time), PlannedRun(fire_time, fire_time)
            if entry is None:
                entries.append(
                    tick_plan.ledger_entry(
                        self.template,
                        planned,
                        FireOutcome.DISPATCHED,
                        term=None,
                        task=task,
                        reason=reason,
                    )
                )
            else:
                empty[entry.pk] = (task.id, task.run_at or self.now)
        for some in _bulks(list(empty.items())):
            # Every writer of entries of fire times locks the schedule first, as this transaction
            # does, so no entry can have got a task since it was read.
            if ledger.fill(dict(some), FireOutcome.DISPATCHED, reason) < len(some):
                raise TransitionRefused(
                    f"The ledger of {self.row.name!r} changed under the backfill; try again."
                )
        return {task_id for task_id, _ in empty.values()} | ledger.write(entries)

    def _create(self, created: Sequence[NewTask]) -> None:
        try:
            transitions.create_many(created)
        except IntegrityError as taken:
            raise UniqueConflict(
                f"{self.row.task} may be open once (its option unique): backfill one fire time at a"
                " time, when none is."
            ) from taken

    def _replay(
        self, steps: Sequence[BackfillStep], places: dict[datetime, dict[str, Any]]
    ) -> None:
        for some in _bulks(steps):
            by_task = {one.task_id: places[one.fire_time] for one in some}
            these = tables.tasks().filter(pk__in=list(by_task))
            operator_actions.replay(these, reason=self.actor.reason or "backfill")
            transitions.replay(these, "rerun")
            transitions.edit(these, run_at=_each(by_task, "run_at"))
            transitions.edit(
                these, overlap_key=_each(by_task, "overlap_key"), due_at=_each(by_task, "due_at")
            )


def _each(by_task: Mapping[uuid.UUID | None, Mapping[str, Any]], name: str) -> Case:
    return Case(*(When(pk=task_id, then=Value(place[name])) for task_id, place in by_task.items()))
