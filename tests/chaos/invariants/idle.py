"""H17 to H20: returned functions, idle workers beside due tasks, errors of our own, and messages of
a backlog.

The functions' own records of their begins and ends decide whether a worker is idle and whether a
function returned, not what the engine recorded.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from django_durable_tasks.choices import Status
from tests.chaos.records import Change, History, Interval, Limit, Worker

IDLE = 20.0
"""How long (seconds) a free process may be idle beside a task that it could run: an interval of
republishing (15 s), a poll and a heartbeat of a node.
"""
MESSAGES = 1.1
"""How many messages each task of a backlog may have if no fault was injected."""
_ABORTED = re.compile(r"run_batch\[[^\]]*\] raised unexpected: (?!WorkerLostError)(.*)")
_FAILED = frozenset({"FAILED", "RETRY"})
_WAITING = frozenset({Status.PENDING.value, Status.QUEUED.value})


def returns_are_successes(history: History) -> Iterator[str]:
    """H17: no run whose function returned is recorded as a failure, and without a fault none of
    them is lost.

    A function with ``atomic=True`` has not succeeded before its transaction is committed. Several
    tasks of a batch are recorded together, so those of a process that was killed are lost.
    """
    returned = {(one.task, one.run): one for one in history.marks if not one.begins and one.good}
    watched, shadow = history.supervision, history.supervision.lease + history.supervision.grace
    for log in history.logs:
        mark, row = returned.get((log.task, log.run or "")), history.rows.get(log.task)
        if mark is None or row is None or row.atomic:
            continue
        if log.status in _FAILED:
            yield (
                f"{log.task} attempt {log.attempt} ({row.name}) returned and is recorded as"
                f" {log.status}"
            )
        if log.status == "LOST" and watched.workers and not row.in_batch:
            # A process without a processor does not renew its leases either.
            pauses = [one for one in watched.delays if _length(one) > watched.lease / 4]
            before = Interval(mark.at - shadow, log.at)
            if not any(_overlap(before, one) for one in (*watched.faults, *pauses)):
                began = history.marks[0].at
                yield (
                    f"{log.task} attempt {log.attempt} ({row.name}) returned at"
                    f" {mark.at - began:.2f} s of the load and was lost at {log.at - began:.2f} s"
                    f" without a fault: {log.error}"
                )


def no_worker_is_idle_beside_due_tasks(history: History) -> Iterator[str]:
    """H18: no worker with a free process starts nothing for longer than 20 s while a task waits in
    its queues that is due, known to it and within its limits.

    Faults with the guaranteed time of fail-over after them do not count, and the time in which the
    suite itself did not get a processor is subtracted.
    """
    watched = history.supervision
    if not watched.workers:
        return
    waits = _waits(history)
    disturbed = _union(
        Interval(fault.began, fault.over + watched.grace) for fault in watched.faults
    )
    full = {limit: _full(history, limit) for limit in watched.limits}
    for worker in watched.workers:
        for free in _free(worker, history):
            if free.over - free.began <= IDLE:
                continue
            found = _longest(history, worker, free, waits, disturbed, full)
            if found is not None:
                piece, tasks = found
                yield (
                    f"worker {worker.group} was idle for {piece.over - piece.began:.0f} s from"
                    f" {piece.began:.1f} on, while {len(tasks)} tasks waited that it could run,"
                    f" such as {tasks[0]} ({history.rows[tasks[0]].name})"
                )


def no_batch_ends_with_an_error(history: History) -> Iterator[str]:
    """H19: no message of a batch ends with an error, whatever the functions of its tasks do."""
    yield from history.supervision.errors


def a_backlog_needs_one_message_a_task(history: History) -> Iterator[str]:
    """H20: without a fault the tasks of a backlog have at most 1.1 messages each."""
    number = history.supervision.backlog_messages
    if number > MESSAGES:
        yield f"the tasks of the backlog had {number:.2f} messages each"


# Intervals ----------------------------------------------------------------------------------------


def _overlap(one: Interval, other: Interval) -> bool:
    return one.began < other.over and other.began < one.over


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return disjoint intervals in chronological order that cover the same time."""
    found = list[Interval]()
    for one in sorted(intervals, key=lambda interval: interval.began):
        if found and one.began <= found[-1].over:
            found[-1] = Interval(found[-1].began, max(found[-1].over, one.over))
        else:
            found.append(one)
    return found


def _without(one: Interval, others: Sequence[Interval]) -> Iterator[Interval]:
    """Yield the pieces of an interval that no other interval covers. ``others`` are disjoint and in
    chronological order.
    """
    began = one.began
    for other in others:
        if other.over <= began:
            continue
        if other.began >= one.over:
            break
        if other.began > began:
            yield Interval(began, other.began)
        began = other.over
    if began < one.over:
        yield Interval(began, one.over)


def _free(worker: Worker, history: History) -> Iterator[Interval]:
    """Yield the periods in which a worker has a free process and no function begins."""
    marks = [mark for mark in history.marks if mark.group == worker.group]
    runs = {(mark.task, mark.run) for mark in marks}
    ended = {(mark.task, mark.run) for mark in marks if not mark.begins}
    events = [(mark.at, mark.begins) for mark in marks]
    # A function without an end was killed. Its process counts as busy until the run is lost.
    events += [
        (log.at, False)
        for log in history.logs
        if log.status == "LOST" and (log.task, log.run or "") in runs - ended
    ]
    busy, since = 0, worker.began
    for at, begins in sorted(events):
        if begins:
            if busy < worker.slots:
                yield Interval(since, min(at, worker.over))
            busy, since = busy + 1, at
        else:
            since = at if busy == worker.slots else since
            busy -= 1
    if busy < worker.slots and since < worker.over:
        yield Interval(since, worker.over)


def _waits(history: History) -> dict[str, list[tuple[str, Interval]]]:
    """Return by queue when each task was due and had not been started."""
    found = defaultdict[str, list[tuple[str, Interval]]](list)
    since: dict[str, float] = {}

    def end(change: Change) -> None:
        row = history.rows.get(change.task)
        began = since.pop(change.task, None)
        if row is not None and began is not None and change.at > began:
            found[row.queue].append((change.task, Interval(began, change.at)))

    for change in history.changes:
        if change.new not in _WAITING:
            end(change)
        elif change.old not in _WAITING:
            published = change.new == Status.QUEUED or change.due is None
            since[change.task] = change.at if published else max(change.at, change.due or 0.0)
    for task, began in since.items():
        if (row := history.rows.get(task)) is not None:
            found[row.queue].append((task, Interval(began, float("inf"))))
    for waits in found.values():
        waits.sort(key=lambda one: one[1].began)
    return found


def _full(history: History, limit: Limit) -> list[Interval]:
    """Return the periods in which as many tasks run as a limit allows."""
    number, began, found = 0, 0.0, list[Interval]()
    for change in sorted(history.changes, key=lambda one: one.at):
        row = history.rows.get(change.task)
        if row is None or (limit.name and row.name != limit.name):
            continue
        was_full = number >= limit.number
        number += (change.new == Status.RUNNING) - (change.old == Status.RUNNING)
        if number >= limit.number and not was_full:
            began = change.at
        if was_full and number < limit.number:
            found.append(Interval(began, change.at))
    if number >= limit.number:
        found.append(Interval(began, float("inf")))
    return found


def _longest(
    history: History,
    worker: Worker,
    free: Interval,
    waits: dict[str, list[tuple[str, Interval]]],
    disturbed: Sequence[Interval],
    full: dict[Limit, list[Interval]],
) -> tuple[Interval, list[str]] | None:
    """Return the longest period of a free process beside a task that it could run, with the tasks
    that waited during all of it; None if none is too long.
    """
    longest: Interval | None = None
    undisturbed = [piece for piece in _without(free, disturbed) if _length(piece) > IDLE]
    if not undisturbed:
        return None
    closed = dict[str, list[Interval]]()
    candidates = list[tuple[str, Interval]]()
    for task, wait in (one for queue in sorted(worker.queues) for one in waits.get(queue, ())):
        name = history.rows[task].name
        if name in worker.unknown or not _overlap(wait, free):
            continue
        if name not in closed:
            limits = [periods for limit, periods in full.items() if limit.name in ("", name)]
            closed[name] = _union(period for periods in limits for period in periods)
        for piece in undisturbed:
            common = Interval(max(piece.began, wait.began), min(piece.over, wait.over))
            for part in _without(common, closed[name]):
                if _length(part) > IDLE + _delay(history, part):
                    candidates.append((task, part))
                    if longest is None or _length(part) > _length(longest):
                        longest = part
    if longest is None:
        return None
    tasks = [
        task
        for task, part in candidates
        if part.began <= longest.over - IDLE and part.over >= longest.over - IDLE / 2
    ]
    return longest, list(dict.fromkeys(tasks))


def _length(one: Interval) -> float:
    return one.over - one.began


def _delay(history: History, during: Interval) -> float:
    """Return how many seconds of a period the suite's own heartbeat was late."""
    delays = history.supervision.delays
    first = bisect_left([one.over for one in delays], during.began)
    last = bisect_right([one.began for one in delays], during.over)
    return sum(
        min(one.over, during.over) - max(one.began, during.began)
        for one in delays[first:last]
        if _overlap(one, during)
    )


def errors_of_batches(log: str) -> list[str]:
    """Return the errors with which messages of batches ended, from the log of a worker. A killed
    child is none.
    """
    return _ABORTED.findall(log)


def late_beats(beats: Sequence[float], every: float) -> tuple[Interval, ...]:
    """Return the periods in which a heartbeat of this period was late: from when it was expected
    until it came.
    """
    return tuple(
        Interval(earlier + every, later, "late")
        for earlier, later in pairwise(beats)
        if later - earlier > 2 * every
    )
