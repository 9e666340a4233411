"""H7 and H8: each fire time once and in its window, and no child before its parents."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from tests.chaos.records import History
from tests.processes.windows import Matched, Seen, Window, matched

BROKEN = frozenset({"FAILED", "CANCELLED", "SKIPPED", "EXPIRED"})
EARLY = timedelta(milliseconds=20)
"""The tolerance between two clocks of one machine: the monotonic one of bodies and that of the
database.
"""


def fires_match_their_windows(history: History) -> Iterator[str]:
    """H7: the ledger has each fire time once; there is a run in each target window, and in no other.

    As in Jepsen's test of Chronos the windows are computed from the declared timetables alone, and
    matched one to one.
    """
    for table in history.timetables:
        recorded = Counter(
            round(fire.due, 3)
            for fire in history.fires
            if fire.schedule == table.schedule and fire.task
        )
        wanted = {round(due, 3) for due in table.due()}
        for due in sorted(wanted - recorded.keys()):
            yield f"{table.schedule} never fired for {_text(due)}"
        for due, number in recorded.items():
            if number > 1 or (due not in wanted and due <= table.through):
                yield f"{table.schedule} fired {number} times for {_text(due)}"
    found = observed(history)
    for window in found.missing:
        yield f"no run was seen for {window.name} in its window"
    for run in found.surplus:
        yield f"a run of {run.name} was seen at {run.at.isoformat()}, outside of every window"


def observed(history: History) -> Matched:
    """Match the first run of each fired task with the target windows."""
    due_until = {table.schedule: table.through for table in history.timetables}
    targets = [
        Window(
            f"{table.schedule}/{round(due, 3)}", _moment(due) - EARLY, _moment(due + table.lateness)
        )
        for table in history.timetables
        for due in table.due()
    ]
    first = first_begins(history)
    seen = [
        Seen(f"{fire.schedule}/{round(fire.due, 3)}", _moment(first[fire.task]))
        for fire in history.fires
        if fire.task in first and fire.due <= due_until.get(fire.schedule, 0.0)
    ]
    return matched(targets, seen)


def children_wait_for_their_parents(history: History) -> Iterator[str]:
    """H8: a dependent starts after its upstream tasks succeeded, is skipped only after a failed one,
    and ends.
    """
    begins = first_begins(history)
    successes = {log.task: log.run for log in history.logs if log.status == "SUCCESS"}
    ends = {(mark.task, mark.run): mark.at for mark in history.marks if not mark.begins}
    for edge in history.edges:
        over = ends.get((edge.parent, successes.get(edge.parent) or ""), float("inf"))
        if edge.kind == "MUST_SUCCEED" and begins.get(edge.child, float("inf")) < over:
            yield f"{edge.child} began before its parent {edge.parent} had ended well"
    yield from _stuck_or_skipped(history)


def _stuck_or_skipped(history: History) -> Iterator[str]:
    parents = defaultdict[str, list[str]](list)
    for edge in history.edges:
        if edge.parent in history.rows:
            parents[edge.child].append(history.rows[edge.parent].status)
    for row in history.rows.values():
        if row.status == "BLOCKED":
            yield f"{row.task} still waits"
        if row.status == "SKIPPED" and not BROKEN.intersection(parents[row.task]):
            yield f"{row.task} was skipped, and its parents are {parents[row.task]}"


def first_begins(history: History) -> dict[str, float]:
    """Return when each task first began."""
    found: dict[str, float] = {}
    for mark in history.marks:
        if mark.begins:
            found[mark.task] = min(mark.at, found.get(mark.task, mark.at))
    return found


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _text(seconds: float) -> str:
    return _moment(seconds).isoformat()
