"""The figures of a history: counts that must be zero, counts that must not, and durations."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from django_durable_tasks.choices import TERMINAL
from tests.chaos.invariants.metrics import first_counts
from tests.chaos.invariants.order import observed
from tests.chaos.invariants.runs import no_ghost_runs, overlapping, starts
from tests.chaos.records import ACCEPTED, History

KILLS, REPLIES_LOST, COMMITS_CUT = "kills", "replies lost", "replies to COMMIT lost"
GARBAGE, REMOVED = "unreadable values in Redis", "unreadable entries removed"
QUEUES, POOLED = "queues", "transactions through PgBouncer"
_COLUMNS = (KILLS, REPLIES_LOST, COMMITS_CUT, GARBAGE, REMOVED, QUEUES, POOLED, "baseline")


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the run: start, end, and after how many seconds everything due had been started."""

    name: str
    number: int
    began: float
    over: float
    recovery: float = 0.0
    what: str = ""


def figures(
    history: History,
    windows: Sequence[Window],
    entries: Sequence[Mapping[str, Any]],
    notes: Mapping[str, int],
    dropped: int,
) -> dict[str, Any]:
    """Return all figures as plain values. ``entries`` are the records of the load, ``dropped``
    counts refused messages.
    """
    return {
        "tasks": len(history.rows),
        "runs": sum(1 for _ in starts(history)),
        "faults": sum(1 for window in windows if window.number),
        "kills": notes.get(KILLS, 0),
        "replies_lost": notes.get(REPLIES_LOST, 0),
        "commits_cut": notes.get(COMMITS_CUT, 0),
        "garbage": notes.get(GARBAGE, 0),
        "garbage_removed": notes.get(REMOVED, 0),
        "queues": notes.get(QUEUES, 0),
        "pooled_transactions": notes.get(POOLED, 0),
        "lost": _lost(history),
        "accepted_twice": _accepted_twice(history),
        "ghost_runs": sum(1 for _ in no_ghost_runs(history)),
        "effects_twice": sum(1 for number in Counter(history.effects).values() if number > 1),
        "executed_more_than_once": len(_executed_again(history)),
        "overlapping_runs": sum(1 for _ in overlapping(history)),
        "fenced_endings": sum(1 for log in history.logs if log.status == "FENCED"),
        "ignored_messages": dropped,
        "attempts_lost": sum(1 for log in history.logs if log.status == "LOST"),
        "retried": sum(1 for log in history.logs if log.status == "RETRY"),
        "dead_letters": len(history.open_letters),
        "terms": len({term.term for term in history.terms}),
        "refused_calls": sum(1 for line in entries if "refused" in line),
        "enqueue_ms": _resolve(
            [line["took"] for line in entries if "task" in line and "took" in line], 1000.0
        ),
        **_of_receiver(history),
        "counted_again": _counted_again(history),
        "batched": sum(1 for change in starts(history) if change.old == "PENDING"),
        **_of_fires(history),
        "longest_gap": longest_gap(history, windows),
        "throughput": {
            name: rate(history, stretch) for name, stretch in _stretches(windows).items()
        },
        "windows": [_shown(history, window) for window in windows],
        "statuses": dict(Counter(row.status for row in history.rows.values())),
        "notes": {name: number for name, number in notes.items() if name not in _COLUMNS},
    }


def _lost(history: History) -> int:
    gone = {one.task for one in history.enqueued} - history.rows.keys()
    return len(gone) + sum(1 for row in history.rows.values() if row.status not in TERMINAL)


def _accepted_twice(history: History) -> int:
    endings = Counter((log.task, log.attempt) for log in history.logs if log.status in ACCEPTED)
    successes = Counter(log.task for log in history.logs if log.status == "SUCCESS")
    return sum(number > 1 for number in [*endings.values(), *successes.values()])


def _executed_again(history: History) -> set[str]:
    """Return tasks whose body ran again although it had not requested a retry, as at-least-once
    execution allows.
    """
    asked = {(log.task, log.attempt) for log in history.logs if log.status == "RETRY"}
    begun = Counter(
        mark.task
        for mark in history.marks
        if mark.begins and (mark.task, mark.attempt) not in asked
    )
    return {task for task, number in begun.items() if number > 1}


def of_past_terms(history: History) -> int:
    """Count fires that a leader wrote when another one was leader already. The ledger makes them
    harmless.
    """
    began: dict[int, float] = {}
    for term in history.terms:
        began.setdefault(term.term, term.at)
    return sum(
        fire.term is not None and began.get(fire.term + 1, float("inf")) < fire.at
        for fire in history.fires
    )


def _of_receiver(history: History) -> dict[str, int]:
    accepted = Counter(one.message for one in history.requests if 200 <= one.answer < 300)
    messages = {one.message: one for one in history.requests if one.message in accepted}
    return {
        "callbacks": sum(not one.setting for one in messages.values()),
        "notifications": sum(bool(one.setting) for one in messages.values()),
        "requests_refused": len(history.requests) - accepted.total(),
        "requests_repeated": accepted.total() - len(accepted),
    }


def _counted_again(history: History) -> int:
    """Count the created tasks that the first count of their minute, made by a scheduler, did not
    contain.
    """
    minutes = [row.minute for row in history.rows.values()]
    until = history.creations.until
    first = sum(number for (minute, *_), number in first_counts(history).items() if minute < until)
    return sum(minute < until for minute in minutes) - first


def _of_fires(history: History) -> dict[str, Any]:
    found = observed(history)
    return {
        "fires": sum(len(table.due()) for table in history.timetables),
        "fires_of_past_terms": of_past_terms(history),
        "fires_missing": len(found.missing),
        "fires_doubled": len(found.surplus),
        "fire_lag_ms": _resolve(found.lags(), 1000.0, offset=-0.02),
        "longest_gap_of_fires": round(
            max(
                (
                    later - earlier
                    for earlier, later in pairwise(
                        sorted(fire.at for fire in history.fires if fire.task)
                    )
                ),
                default=0.0,
            ),
            2,
        ),
    }


def longest_gap(history: History, windows: Sequence[Window]) -> float:
    """Return the longest time (seconds) without an accepted start under load."""
    if not windows:
        return 0.0
    first, last = windows[0].began, windows[-1].over
    times = [change.at for change in starts(history) if first <= change.at <= last]
    return round(
        max((later - earlier for earlier, later in pairwise(sorted(times))), default=0.0), 2
    )


def _stretches(windows: Sequence[Window]) -> dict[str, tuple[float, float]]:
    faults = [window for window in windows if window.number]
    found = {window.name: (window.began, window.over) for window in windows if not window.number}
    if faults:
        found["during"] = (faults[0].began, faults[-1].over + faults[-1].recovery)
    return {name: found[name] for name in ("before", "during", "after") if name in found}


def rate(history: History, stretch: tuple[float, float]) -> float:
    """Return how many successes per second were accepted in a part of the run."""
    first, last = stretch
    done = sum(
        1 for change in history.changes if change.new == "SUCCESS" and first <= change.at < last
    )
    return round(done / (last - first), 1) if last > first else 0.0


def _shown(history: History, window: Window) -> dict[str, Any]:
    return {
        **dataclasses.asdict(window),
        "seconds": round(window.over - window.began, 1),
        "recovery": round(window.recovery, 2),
        "rate": rate(history, (window.began, window.over)),
    }


def _resolve(values: Iterable[float], scale: float, offset: float = 0.0) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {}
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {
        name: round((ordered[min(len(ordered) - 1, int(share * len(ordered)))] + offset) * scale, 1)
        for name, share in shares.items()
    }
