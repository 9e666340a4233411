"""The first five guarantees, checked on the rows once nothing is left to do. Each violation is a
sentence.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from django_durable_tasks.limits import waitlist
from django_durable_tasks.models import (
    DeadLetter,
    EndingEvent,
    Limit,
    OccurrenceRecord,
    Task,
    TaskDependency,
    TaskExecutionLog,
)
from tests.database.dependencies.worker_and_leader import recount

ENDED = ("SUCCESS", "FAILED", "CANCELLED", "SKIPPED", "EXPIRED")
ACCEPTED = ("SUCCESS", "FAILED", "RETRY", "LOST", "CANCELLED")
Row = dict[str, Any]


def broken(undone_starts: int = 0) -> list[str]:
    """Return the violations, or an empty list.

    ``undone_starts``: how many starts of a task may have been undone, which leave no log entry.
    """
    rows: dict[uuid.UUID, Row] = {row["id"]: dict(row) for row in Task.objects.values()}
    return [
        *_lost(rows),
        *_endings(rows, undone_starts),
        *_fires(rows),
        *_dependents(rows),
        *_dead_letters(rows),
        *recount(),
    ]


def _lost(rows: dict[uuid.UUID, Row]) -> Iterator[str]:
    """The first: each task ends in a final status with a reason."""
    for row in rows.values():
        if row["status"] not in ENDED:
            yield f"1: {row['name']} is still {row['status']}"
        elif row["status"] != "SUCCESS" and not row["reason"]:
            yield f"1: {row['name']} is {row['status']} and does not say why"


def _endings(rows: dict[uuid.UUID, Row], undone_starts: int) -> Iterator[str]:
    """The second: one accepted start and one accepted ending per attempt that was not undone."""
    endings: dict[uuid.UUID, list[tuple[int, str]]] = defaultdict(list)
    logs = TaskExecutionLog.objects.filter(status__in=ACCEPTED, attempt_number__gt=0)
    for task_id, attempt, status in logs.values_list("task_id", "attempt_number", "status"):
        endings[task_id].append((attempt, status))
    for row in rows.values():
        attempts = sorted(attempt for attempt, _ in endings[row["id"]])
        numbers = set(range(1, row["attempts"] + 1))
        undone = len(numbers.difference(attempts))
        if undone > undone_starts or sorted([*attempts, *numbers.difference(attempts)]) != sorted(
            numbers
        ):
            yield (
                f"2: {row['name']} was started {row['attempts']} times, and these attempts were"
                f" ended: {attempts}"
            )
        successes = [status for _, status in endings[row["id"]]].count("SUCCESS")
        if successes != (row["status"] == "SUCCESS"):
            yield f"2: {row['name']} is {row['status']} and has succeeded {successes} times"
    for stranger in endings.keys() - rows.keys():
        yield f"2: {stranger} has ended, and there is no such row"


def _fires(rows: dict[uuid.UUID, Row]) -> Iterator[str]:
    """The third: one occurrence per recurring task and fire time, with a ledger entry."""
    created = [
        (row["recurring_task_id"], row["fire_time"])
        for row in rows.values()
        if row["recurring_task_id"]
    ]
    yield from (
        f"3: the fire of {fire} was created {number} times"
        for fire, number in Counter(created).items()
        if number > 1
    )
    lines = OccurrenceRecord.objects.single().filter(task__isnull=False)
    known = {
        (task_id, fire_time) for task_id, fire_time in lines.values_list("task_id", "fire_time")
    }
    ran = {(row["id"], row["fire_time"]) for row in rows.values() if row["recurring_task_id"]}
    yield from (
        f"3: the ledger contains {fire}, which was never created" for _, fire in known - ran
    )
    yield from (f"3: {fire} was created, and is not in the ledger" for _, fire in ran - known)


def _dependents(rows: dict[uuid.UUID, Row]) -> Iterator[str]:
    """The fourth: dependents are released once, when their join is met."""
    if EndingEvent.objects.exists():
        yield f"4: {EndingEvent.objects.count()} endings were not resolved"
    for edge in TaskDependency.objects.exclude(depends_on=None).values(
        "task_id", "depends_on_id", "outcome"
    ):
        below, above = rows[edge["task_id"]], rows[edge["depends_on_id"]]
        if below["started_at"] and not (
            above["completed_at"] and above["completed_at"] <= below["started_at"]
        ):
            yield (
                f"4: {below['step'] or below['name']} was released before"
                f" {above['step'] or above['name']} had ended"
            )
        if edge["outcome"] != above["status"]:
            yield (
                f"4: {below['step']} believes that {above['step']} is {edge['outcome']}: it is"
                f" {above['status']}"
            )


def _dead_letters(rows: dict[uuid.UUID, Row]) -> Iterator[str]:
    """The fifth: exactly one open dead letter per finally failed task, and the traceback of each
    attempt.
    """
    letters = Counter(DeadLetter.objects.filter(resolved_at=None).values_list("task_id", flat=True))
    for row in rows.values():
        if letters[row["id"]] != (row["status"] == "FAILED"):
            yield (
                f"5: {row['name']} is {row['status']} and has {letters[row['id']]} open dead"
                " letters"
            )
    silent = TaskExecutionLog.objects.filter(status__in=("FAILED", "RETRY"), traceback="")
    yield from (
        f"5: attempt {log.attempt_number} of {log.task_id} failed and kept no traceback"
        for log in silent
    )


def exceeded_limits() -> list[str]:
    """Return which concurrency limits are exceeded, and whose usage the engine counts differently.

    True at each moment, also while the tasks of a dead process are still open.
    """
    open_rows = Task.objects.filter(status__in=("QUEUED", "RUNNING"))
    used, counted = Counter[str](), waitlist.count_usage().under_way
    for name, key, weight in open_rows.values_list("name", "limit_key", "weight"):
        used.update({f"task:{name}": weight, f"key:{key}": weight})
    limits = Limit.objects.values_list("scope", "max_concurrency")
    return [
        f"{scope}: at most {most}, {used[scope]} in use, {counted[scope]} counted"
        for scope, most in limits
        if not used[scope] == counted[scope] <= (most or 0)
    ]
