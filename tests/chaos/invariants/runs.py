"""H1 to H6: no lost task, no run without a task, no second start or ending, and effects that happen
once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from django_durable_tasks.choices import TERMINAL
from tests.chaos.records import ACCEPTED, Change, History, Mark


def nothing_is_lost(history: History) -> Iterator[str]:
    """H1: every task whose creation was acknowledged has ended, and every other task that exists
    too.
    """
    for one in history.enqueued:
        if one.task not in history.rows:
            yield f"{one.task} ({one.kind}) was acknowledged and is gone"
    for row in history.rows.values():
        if row.status not in TERMINAL:
            yield f"{row.task} is still {row.status}"


def no_ghost_runs(history: History) -> Iterator[str]:
    """H2: a task function starts only in a run that the database accepted, with this attempt number
    and run id.
    """
    accepted = {(change.task, change.attempt, change.run) for change in starts(history)}
    for mark in history.marks:
        if mark.begins and (mark.task, mark.attempt, mark.run) not in accepted:
            yield (
                f"{mark.task} attempt {mark.attempt} began as run {mark.run}, which was never"
                " accepted"
            )


def attempts_are_counted(history: History) -> Iterator[str]:
    """H3: an attempt starts once; starts are numbered 1, 2, 3 without gaps; max_attempts and
    max_crashes are not exceeded.
    """
    begun = Counter((mark.task, mark.attempt) for mark in history.marks if mark.begins)
    for (task, attempt), number in begun.items():
        if number > 1:
            yield f"{task} attempt {attempt} began {number} times"
    numbers = defaultdict[str, list[int]](list)
    for change in starts(history):
        numbers[change.task].append(change.attempt)
    for task, found in numbers.items():
        if found != list(range(1, len(found) + 1)):
            yield f"{task} was started as attempts {found}"
    for row in history.rows.values():
        if row.failures > row.max_attempts or row.crashes > row.max_crashes:
            yield (
                f"{row.task} failed {row.failures} and crashed {row.crashes} times, over its"
                " budgets"
            )


def endings_are_single(history: History) -> Iterator[str]:
    """H4: an attempt has at most one accepted ending; SUCCESS means exactly one, by a run whose
    function returned.
    """
    endings = Counter((log.task, log.attempt) for log in history.logs if log.status in ACCEPTED)
    for (task, attempt), number in endings.items():
        if number > 1:
            yield f"{task} attempt {attempt} has {number} accepted endings"
    yield from _successes(history)


def _successes(history: History) -> Iterator[str]:
    returned = {(mark.task, mark.run) for mark in history.marks if not mark.begins and mark.good}
    successes = [log for log in history.logs if log.status == "SUCCESS"]
    number = Counter(log.task for log in successes)
    for row in history.rows.values():
        if number[row.task] != int(row.status == "SUCCESS"):
            yield f"{row.task} is {row.status} and has {number[row.task]} accepted successes"
    silent = {row.task for row in history.rows.values() if not row.marked}
    for log in successes:
        if log.task not in silent and (log.task, log.run) not in returned:
            yield f"{log.task} succeeded by run {log.run}, whose body never returned"


def overlaps_are_told(history: History) -> Iterator[str]:
    """H5: two runs of a task overlap only if the earlier attempt lost its lease."""
    lost = {(log.task, log.attempt) for log in history.logs if log.status == "LOST"}
    for task, earlier, later in overlapping(history):
        if (task, earlier) not in lost:
            yield (
                f"{task} attempts {earlier} and {later} ran at once, and attempt {earlier} was not"
                " lost"
            )


def effects_happen_once(history: History) -> Iterator[str]:
    """H6: the writes of an atomic task exist once if it succeeded, and not at all otherwise."""
    written = Counter(history.effects)
    for row in history.rows.values():
        wanted = int(row.status == "SUCCESS") if row.atomic else 0
        if written[row.task] != wanted:
            yield f"{row.task} is {row.status} and its effect happened {written[row.task]} times"
    for task in written.keys() - history.rows.keys():
        yield f"{task} does not exist and has an effect"
    # Of the items of a loop in atomic batches, those of finished batches exist after a failure too.
    items = Counter(history.items)
    for (task, item), number in items.items():
        if number > 1:
            yield f"item {item} of {task} was done {number} times"
    for row in history.rows.values():
        done = sum((row.task, item) in items for item in range(row.items))
        if row.status == "SUCCESS" and done != row.items:
            yield f"{row.task} is SUCCESS and has done {done} of its {row.items} items"


# Queries that the figures use too -----------------------------------------------------------------


def starts(history: History) -> Iterator[Change]:
    """Return the accepted starts."""
    return (
        change for change in history.changes if change.new == "RUNNING" and change.old != "RUNNING"
    )


def overlapping(history: History) -> Iterator[tuple[str, int, int]]:
    """Return the task and the numbers of two attempts that ran at once, the lower first.

    A process that was frozen between its start and its body begins the lower one when the higher
    one already runs.
    """
    ends = {(mark.task, mark.run): mark.at for mark in history.marks if not mark.begins}
    begun = defaultdict[str, list[Mark]](list)
    for mark in history.marks:
        if mark.begins:
            begun[mark.task].append(mark)
    for task, marks in begun.items():
        ordered = sorted(marks, key=lambda mark: mark.at)
        for earlier, later in pairwise(ordered):
            if ends.get((task, earlier.run), float("inf")) > later.at:
                yield task, min(earlier.attempt, later.attempt), max(earlier.attempt, later.attempt)
