"""Runs past fire times that have no run, in the requested order and concurrency.

The unique key of the ledger applies: a fire time whose entry has a task is never created again. The
watermark and ``runs_count`` do not change.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from django.db import IntegrityError
from django.db.models import Case, Value, When

from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.dependencies.edges import runs
from django_durable_tasks.engine.limits import overlap
from django_durable_tasks.engine.recurring import fire_times, ledger, occurrence_tasks
from django_durable_tasks.engine.recurring.schedule_cache import agenda_of, fire_times_of
from django_durable_tasks.engine.recurring.schedules import locked, recurring
from django_durable_tasks.engine.tasks import dead_letters
from django_durable_tasks.exceptions import InvalidOption, TransitionRefused, UniqueConflict
from django_durable_tasks.models import OccurrenceOverride, OccurrenceRecord, RecurringTask
from django_durable_tasks.models.task_queries import NEVER
from django_durable_tasks.rules.recurring.backfill import Deed, Report, Reprocess, Step, Told, step
from django_durable_tasks.rules.recurring.effective import Action, Planned, Stretch
from django_durable_tasks.rules.recurring.explain import no_fires_within, not_a_fire_time
from django_durable_tasks.rules.recurring.overlaps import Verdict
from django_durable_tasks.rules.recurring.policies import CatchUpOrder, Fate
from django_durable_tasks.rules.tasks.comments import comment
from django_durable_tasks.rules.tasks.durations import instant
from django_durable_tasks.rules.tasks.new_task import NewTask
from django_durable_tasks.rules.tasks.options import checked_count

LIMIT, MOST = 1_000, 10_000
_BULK = 500
_INSTANT = timedelta(microseconds=1)
T = TypeVar("T")


def backfill(
    row: RecurringTask,
    start: datetime,
    end: datetime,
    *,
    dry_run: bool = False,
    reprocess: str = "NONE",
    concurrency: int = 1,
    order: str = "OLDEST",
    limit: int = LIMIT,
    by: str = "",
    reason: str = "",
) -> Report:
    """Run the fire times of [start, end] (aware; by the schedule as it is now) that have no run;
    return the steps.

    An ``end`` of whole seconds includes the only fire time within that second. ``reprocess`` FAILED
    or ALL also replays the tasks that failed, or all that have ended. It does not create second
    ones. A fire time that started a workflow is replayed under ALL only, after the workflow has
    ended, and starts it again as a second run with its own id. Failed tasks inside a run are
    replayed there. At most ``concurrency`` of the tasks run at a time, in addition to the
    schedule's own runs, OLDEST or NEWEST first. Raises InvalidOption for a range that ends in the
    future, begins before the ledger's retention or has more than ``limit`` fire times (1 to
    10,000), and UniqueConflict if the task's unique key allows only one. Nothing is written then.
    """
    first, last = instant("start", start).astimezone(UTC), instant("end", end).astimezone(UTC)
    wish, way = _word("reprocess", reprocess, Reprocess), _word("order", order, CatchUpOrder)
    checked_count("concurrency", concurrency, 1, MOST)
    checked_count("limit", limit, 1, MOST)
    with tables.atomic():
        now = database_now()
        found = recurring().get(pk=row.pk) if dry_run else locked(row)
        _refuse(found, first, last, now)
        last = min(now, max(last, fire_times.meant(found, last)))
        fires = _fire_times(found, first, last, limit)
        lines = _lines(found, first, last)
        steps = _steps(found, fires, lines, wish)
        if not dry_run:
            ordered = steps if way == CatchUpOrder.OLDEST else steps[::-1]
            done = _Backfill(found, now, concurrency, by, reason).carry_out(ordered, lines)
            steps = sorted(done, key=lambda one: one.fire_time)
        remark = _remark(found, first, last, any_fires=bool(steps))
    return Report(start=first, end=last, dry_run=dry_run, steps=tuple(steps), remark=remark)


def _remark(row: RecurringTask, start: datetime, end: datetime, *, any_fires: bool) -> str:
    """Return why the range, or a part of it, has no fire time; empty if nothing needs an
    explanation.
    """
    if start < row.start_time:
        first = agenda_of(row).next(row.start_time - _INSTANT) if end < row.start_time else None
        return not_a_fire_time(
            row.name, start, (row.start_time, None), (None, first.nominal if first else None)
        )
    if row.end_time is not None and end > row.end_time:
        return not_a_fire_time(row.name, end, (None, row.end_time), (None, None))
    if any_fires:
        return ""
    times = fire_times_of(row)
    near = [one.nominal if one else None for one in (times.previous(start), times.next(end))]
    return no_fires_within(row.name, (start, end), (near[0], near[1]))


def _word(option: str, value: str, words: Any) -> Any:
    if value not in set(words):
        raise InvalidOption(f"{option}={value!r}: give one of {', '.join(words)}.")
    return words(value)


def _refuse(row: RecurringTask, start: datetime, end: datetime, now: datetime) -> None:
    if end < start:
        raise InvalidOption(f"end={end.isoformat()} is before start={start.isoformat()}.")
    if end > now:
        raise InvalidOption(
            f"end={end.isoformat()} is after now, {now.isoformat()}: what is to come runs by"
            " itself."
        )
    if row.ledger_from is not None and start < row.ledger_from:
        raise InvalidOption(
            f"start={start.isoformat()}: the ledger of {row.name!r} is kept from"
            f" {row.ledger_from.isoformat()} on; what ran before is not known."
        )


def _fire_times(row: RecurringTask, start: datetime, end: datetime, limit: int) -> list[datetime]:
    """Return all fire times of the range, including those excluded by calendars and those that an
    operator added.
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


def _lines(row: RecurringTask, start: datetime, end: datetime) -> dict[datetime, OccurrenceRecord]:
    found = ledger.ledger().filter(recurring_task=row.pk, unique_fire_time__range=(start, end))
    return {line.fire_time: line for line in found}


def _steps(
    row: RecurringTask,
    fires: Sequence[datetime],
    lines: dict[datetime, OccurrenceRecord],
    reprocess: Reprocess,
) -> list[Step]:
    status: dict[uuid.UUID, str] = {}
    for ids in _bulks([line.task_id for line in lines.values() if line.task_id is not None]):
        status |= dict(tables.tasks().filter(pk__in=ids).values_list("pk", "status"))
    agenda, steps, started = agenda_of(row), list[Step](), _started(row, fires)
    for fire_time in fires:
        line, today = lines.get(fire_time), agenda.at_nominal(fire_time)
        known = status.get(line.task_id, "") if line and line.task_id else ""
        recorded = Told(line.outcome, line.task_id, known, started.get(fire_time)) if line else None
        steps.append(
            step(fire_time, today if isinstance(today, Stretch) else None, recorded, reprocess)
        )
    return steps


def _started(
    row: RecurringTask, fires: Sequence[datetime]
) -> dict[datetime | None, tuple[uuid.UUID, str]]:
    """Return the newest workflow run that each of these fire times started, with its status."""
    if not fires:
        return {}
    these = runs().filter(
        recurring_task=row.pk, parent__isnull=True, fire_time__range=(fires[0], fires[-1])
    )
    found = these.order_by("pk").values_list("fire_time", "pk", "status")
    return {fire_time: (key, status) for fire_time, key, status in found}


def _bulks(several: Sequence[T]) -> Iterator[Sequence[T]]:
    return (several[first : first + _BULK] for first in range(0, len(several), _BULK))


class _Backfill:
    """A backfill in progress: its overlap keys, and what its transaction writes."""

    def __init__(
        self, row: RecurringTask, now: datetime, concurrency: int, by: str, reason: str
    ) -> None:
        self.row, self.now, self.by, self.reason = row, now, by, reason
        self._slots = [f"backfill:{row.pk}:{number}" for number in range(concurrency)]
        self._taken = {
            overlap_key for overlap_key, tasks in overlap.open_runs(self._slots).items() if tasks
        }

    def carry_out(
        self, steps: Sequence[Step], lines: dict[datetime, OccurrenceRecord]
    ) -> list[Step]:
        """Create and replay the tasks of the steps in their order; return the steps with the ids of
        the tasks.
        """
        places = self._places([one for one in steps if one.deed != Deed.UNCHANGED])
        born = {
            one.fire_time: self._new_task(one, places[one.fire_time])
            for one in steps
            if one.deed == Deed.CREATED
        }
        new = self._write(born, lines)
        self._bear([task for task in born.values() if task.id in new])
        self._replay([one for one in steps if one.deed == Deed.REPLAYED], places)
        return [
            (
                Step(one.fire_time, one.deed, one.why, born[one.fire_time].id)
                if one.fire_time in born
                else one
            )
            for one in steps
        ]

    def _places(self, steps: Sequence[Step]) -> dict[datetime, dict[str, Any]]:
        """Return the overlap key of each task; all but the first task of a free key wait."""
        return {
            one.fire_time: place for one, place in zip(steps, self._next_places(), strict=False)
        }

    def _next_places(self) -> Iterator[dict[str, Any]]:
        number = 0
        while True:
            overlap_key, run_at = (
                self._slots[number % len(self._slots)],
                self.now + number * _INSTANT,
            )
            yield {
                "overlap_key": overlap_key,
                "run_at": run_at,
                "due_at": NEVER if overlap_key in self._taken else run_at,
            }
            self._taken.add(overlap_key)
            number += 1

    def _new_task(self, one: Step, place: dict[str, Any]) -> NewTask:
        planned = Planned(one.fire_time, one.fire_time)
        verdict = Verdict(runs=True)
        task = occurrence_tasks.occurrence_task(self.row, planned, place["run_at"], verdict)
        return task._replace(**place)

    def _write(
        self, born: dict[datetime, NewTask], lines: dict[datetime, OccurrenceRecord]
    ) -> set[Any]:
        """Write the ledger first: an entry without a task gets one, a fire time without an entry
        gets an entry.
        """
        reason = comment("backfilled", self.by, self.reason)
        entries, empty = [], {}
        for fire_time, task in born.items():
            line, planned = lines.get(fire_time), Planned(fire_time, fire_time)
            if line is None:
                entries.append(
                    occurrence_tasks.line(
                        self.row, planned, Fate.DISPATCHED, term=None, task=task, reason=reason
                    )
                )
            else:
                empty[line.pk] = (task.id, task.run_at or self.now)
        for some in _bulks(list(empty.items())):
            # All writers of ledger entries lock the row of the schedule first, so no other process
            # can have been faster.
            if ledger.fill(dict(some), Fate.DISPATCHED, reason) < len(some):
                raise TransitionRefused(
                    f"The ledger of {self.row.name!r} changed under the backfill; try again."
                )
        return {task_id for task_id, _ in empty.values()} | ledger.write(entries)

    def _bear(self, tasks: Sequence[NewTask]) -> None:
        try:
            transitions.create_many(tasks)
        except IntegrityError as taken:
            raise UniqueConflict(
                f"{self.row.task} may be open once (its option unique): backfill one fire time at a"
                " time, when none is."
            ) from taken

    def _replay(self, steps: Sequence[Step], places: dict[datetime, dict[str, Any]]) -> None:
        for some in _bulks(steps):
            by_task = {one.task_id: places[one.fire_time] for one in some}
            these = tables.tasks().filter(pk__in=list(by_task))
            dead_letters.replay(these, by=self.by, reason=self.reason or "backfill")
            transitions.replay(these, "rerun")
            transitions.edit(these, run_at=_each(by_task, "run_at"))
            transitions.edit(
                these, overlap_key=_each(by_task, "overlap_key"), due_at=_each(by_task, "due_at")
            )


def _each(by_task: Mapping[uuid.UUID | None, Mapping[str, Any]], name: str) -> Case:
    return Case(*(When(pk=task_id, then=Value(place[name])) for task_id, place in by_task.items()))
