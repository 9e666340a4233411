"""H15: the metrics equal a recount of the tables, and created tasks are counted at the first
count of their minute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from django_durable_tasks.choices import TERMINAL
from django_durable_tasks.contrib.metrics.series import DELAYS, MINUTE
from tests.chaos.invariants.runs import starts
from tests.chaos.records import History, Series

_FIRST, _SECOND = (MINUTE.total_seconds() + delay.total_seconds() for delay in DELAYS[:2])
"""Seconds from the beginning of a minute to its first count, and to the second one."""
_Minute = tuple[float, str, str]


def metrics_equal_a_recount(history: History) -> Iterator[str]:
    """H15: the totals of created tasks, attempts, endings without an attempt and fire times equal a
    recount by queue, task and status, the minutes of each add up to its total, and the first count
    of a minute contains each task that had started by then.
    """
    if not history.has_metrics:
        return
    recount = _recounted(history)
    for series in sorted(recount.keys() | history.counted.keys()):
        total, minutes = history.counted.get(series, (0, 0))
        if total != recount[series]:
            yield f"{' '.join(series)}: {total} were counted of {recount[series]}"
        if minutes != total:
            yield f"{' '.join(series)}: its minutes have {minutes} of {total}"
    first, started = first_counts(history), _started_in_time(history)
    for minute, queue, name in sorted(started):
        found, wanted = first[minute, queue, name], started[minute, queue, name]
        if found < wanted:
            yield (
                f"CREATED {queue} {name}: the first count of minute {minute:.0f} has {found} tasks,"
                f" and {wanted} had started"
            )


def _recounted(history: History) -> Counter[Series]:
    """Count tasks, log entries, ledger entries, and the changes to a final status of tasks that
    were not running.
    """
    found = Counter[Series]()
    for row in history.rows.values():
        found["CREATED", row.queue, row.name, ""] += 1
    for fire in history.fires:
        found["OCCURRENCE", "", "", fire.outcome] += fire.count
    for log in history.logs:
        if task := history.rows.get(log.task):
            found["ATTEMPT", task.queue, task.name, log.status] += 1
    for change in history.changes:
        task = history.rows.get(change.task)
        if task and change.old not in (None, "RUNNING", change.new) and change.new in TERMINAL:
            found["ENDED", task.queue, task.name, str(change.new)] += 1
    return found


def first_counts(history: History) -> Counter[_Minute]:
    """Return what the metrics said about each minute before it was counted again."""
    found = Counter[_Minute]()
    for count in history.creations.counts:
        if count.at < min(count.minute + _SECOND, history.creations.repeated_at):
            found[count.minute, count.queue, count.name] = count.number
    return found


def _started_in_time(history: History) -> Counter[_Minute]:
    """Count the tasks of each minute that had started when the minute was due to be counted. A
    started task was committed before, whichever transaction created it.
    """
    in_time = set[str]()
    for change in starts(history):
        row = history.rows.get(change.task)
        if row and row.minute < history.creations.until and change.at <= row.minute + _FIRST:
            in_time.add(row.task)
    rows = (history.rows[task] for task in in_time)
    return Counter((row.minute, row.queue, row.name) for row in rows)
