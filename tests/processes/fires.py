"""Schedules of process tests: the expected fire times, those in the ledger, and the runs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.schedules.schedule_cache import agenda_from
from django_durable_tasks.schedules.trigger import idempotency_key
from django_durable_tasks.store.clock import database_now
from tests.database.recurring.schedules import begin
from tests.processes.rows import ENDED
from tests.processes.windows import Matched, matched, noted, windows
from tests.project import bodies
from tests.waiting import until

LATENESS = timedelta(minutes=15)


def declared(name: str, notebook: Path, *, ago: float = 0, **given: Any) -> RecurringTask:
    """Declare a schedule whose bodies record their starts, as if it had been declared `ago` seconds
    ago.
    """
    row = RecurringTask.objects.upsert(
        name=name, task=bodies.note_start, args=[str(notebook)], **given
    )
    return (
        begin(row, database_now().replace(microsecond=0) - timedelta(seconds=ago)) if ago else row
    )


def reloaded(row: RecurringTask) -> RecurringTask:
    """Return the row, read again."""
    found: RecurringTask = RecurringTask.objects.get(pk=row.pk)
    return found


def expected(row: RecurringTask, after: datetime, through: datetime) -> list[datetime]:
    """Return the fire times in (after, through] from the timetable alone."""
    agenda, found = agenda_from(row, None), list[datetime]()
    while (planned := agenda.next(after)) is not None and planned.at <= through:
        found.append(planned.nominal)
        after = planned.at
    return found


def dispatched(row: RecurringTask) -> list[datetime]:
    """Return the fire times with a task in the ledger, each as often as it occurs."""
    lines = OccurrenceRecord.objects.filter(recurring_task=row, task_id__isnull=False)
    return list(lines.order_by("fire_time").values_list("fire_time", flat=True))


def recorded(row: RecurringTask, times: Iterable[datetime]) -> dict[datetime, int]:
    """Count how often the ledger contains each of these fire times, in separate entries and in
    ranges.
    """
    lines = OccurrenceRecord.objects.filter(recurring_task=row).values_list(
        "fire_time", "last_fire_time"
    )
    spans = [(first, last or first) for first, last in lines]
    return {time: sum(first <= time <= last for first, last in spans) for time in times}


def advanced(rows: Iterable[RecurringTask], seconds: float = 3) -> None:
    """Wait until the ledger of every schedule reaches `seconds` further than now."""
    before = {row.pk: reloaded(row).watermark_at for row in rows}

    def further() -> bool:
        now = dict(RecurringTask.objects.filter(pk__in=before).values_list("pk", "watermark_at"))
        return all(now[pk] >= at + timedelta(seconds=seconds) for pk, at in before.items())

    until(further, within=40, message="every schedule fires")


def all_ended(within: float = 90) -> None:
    """Wait until every task has ended. Raises AssertionError with the open ones and the database's
    time.
    """
    left = list[dict[str, Any]]()

    def nothing_left() -> bool:
        rows = Task.objects.exclude(status__in=ENDED).order_by("pk").values()
        left[:] = [dict(row) for row in rows[:5]]
        return not left

    try:
        until(nothing_left, within=within, message="all tasks have ended")
    except AssertionError as error:
        details = [
            {name: value for name, value in row.items() if value not in (None, "", 0, {}, [])}
            for row in left
        ]
        raise AssertionError(f"{error}; at {database_now()} these are open: {details}") from None


def silenced(rows: Iterable[RecurringTask]) -> list[RecurringTask]:
    """Pause the schedules, wait until all their tasks have ended, and return the schedules."""
    found = list(rows)
    for row in found:
        row.pause("the end of the test")
    all_ended()
    return [reloaded(row) for row in found]


def ran(rows: Iterable[RecurringTask], notebook: Path) -> Matched:
    """Match the runs recorded by bodies with the dispatched fire times of the ledger."""
    targets = [
        window
        for row in rows
        for time in dispatched(row)
        for window in windows(_key(row, time), [time], LATENESS)
    ]
    return matched(targets, noted(notebook))


def _key(row: RecurringTask, time: datetime) -> str:
    return idempotency_key(row.pk, time.astimezone(UTC))
