"""Compares the fire times of the timetables with the ledger and the tasks.

It covers the time from the first tick to the last. A fire is correct if the ledger has an entry,
and, if the entry has a task, this task has one success.
"""

from collections import Counter
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Sum

from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task, TaskExecutionLog

REPLACED = ("CANCELLED", "EXPIRED")
PAGE = 1_000


@dataclass(frozen=True)
class Fires:
    """The figures."""

    jobs: int
    expected: int
    fates: Counter[str]
    leaderless: int
    missing: list[str]
    doubled: list[str]


@dataclass(frozen=True)
class _Books:
    """The data of one job."""

    row: RecurringTask
    lines: list[tuple[datetime, datetime, str, UUID | None]]
    tasks: Counter[datetime]
    successes: Counter[UUID]
    replaced: set[UUID]


def read(leaderless: tuple[datetime, datetime] | None) -> Fires:
    """Read everything from the database; the caller provides the time without a leader."""
    ledger = OccurrenceRecord.objects.order_by()
    jobs = [_books(row) for row in RecurringTask.objects.order_by("name")]
    times = {job.row.name: _expected(job.row) for job in jobs}
    between = leaderless or (jobs[0].row.start_time, jobs[0].row.start_time)
    return Fires(
        jobs=len(jobs),
        expected=sum(map(len, times.values())),
        fates=Counter(dict(ledger.values_list("outcome").annotate(Sum("count")))),
        leaderless=sum(
            between[0] < time < between[1] for fires in times.values() for time in fires
        ),
        missing=[found for job in jobs for found in _missing(job, times[job.row.name])],
        doubled=[found for job in jobs for found in _doubled(job, times[job.row.name])],
    )


def _books(row: RecurringTask) -> _Books:
    lines = OccurrenceRecord.objects.filter(recurring_task=row).order_by("fire_time")
    entries = lines.values_list("fire_time", "last_fire_time", "outcome", "task_id")
    mine = Task.objects.filter(recurring_task=row)
    successes = TaskExecutionLog.objects.filter(task__in=mine, status="SUCCESS")
    return _Books(
        row,
        [(first, last or first, outcome, task_id) for first, last, outcome, task_id in entries],
        Counter(mine.values_list("fire_time", flat=True)),
        Counter(successes.values_list("task_id", flat=True)),
        set(mine.filter(status__in=REPLACED).values_list("pk", flat=True)),
    )


def _expected(row: RecurringTask) -> list[datetime]:
    """Return the fire times up to the last tick, from the timetable and not from the ledger."""
    running = copy(row)
    running.status = "ACTIVE"  # the demo has paused its jobs before
    found, after = list[datetime](), row.start_time
    while page := [fire.nominal for fire in running.next_fire_times(PAGE, after=after)]:
        found += [time for time in page if time <= row.watermark_at]
        after = page[-1]
        if after > row.watermark_at:
            break
    return found


def _missing(job: _Books, times: list[datetime]) -> Iterator[str]:
    for time in times:
        if not any(first <= time <= last for first, last, _, _ in job.lines):
            yield f"{job.row} at {time:%H:%M:%S.%f} is not in the ledger"
    for time, _, outcome, task_id in job.lines:
        if task_id is not None and not job.successes[task_id] and task_id not in job.replaced:
            yield f"{job.row} at {time:%H:%M:%S.%f} was {outcome} and never ran"


def _doubled(job: _Books, times: list[datetime]) -> Iterator[str]:
    wanted = set(times)
    for time in times:
        entries = sum(first <= time <= last for first, last, _, _ in job.lines)
        if entries > 1:
            yield f"{job.row} at {time:%H:%M:%S.%f} has {entries} ledger entries"
    for first, last, _, _ in job.lines:
        if first == last and first not in wanted:
            yield f"{job.row} fired at {first:%H:%M:%S.%f}, which is no fire time"
    yield from (
        f"{job.row} at {time:%H:%M:%S.%f} has {n} tasks" for time, n in job.tasks.items() if n > 1
    )
    yield from (
        f"{job.row}: task {task_id} ran {n} times" for task_id, n in job.successes.items() if n > 1
    )
