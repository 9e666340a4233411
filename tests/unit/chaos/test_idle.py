"""A worker that is idle beside a task that it could run is detected, and every reason that excuses
it is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.invariants.idle import (
    IDLE,
    _union,
    _without,
    errors_of_batches,
    late_beats,
    no_worker_is_idle_beside_due_tasks,
)
from tests.chaos.records import (
    Change,
    History,
    Interval,
    Limit,
    Log,
    Mark,
    Row,
    Supervision,
    Worker,
)

GROUP = 7


def _waits(task: str, began: float, over: float, *, run: str = "") -> tuple[Change, ...]:
    """Return the changes of a task that waits in this period and is then started."""
    created = Change(task, None, "PENDING", 0, 0, at=began - 50, due=began)
    queued = Change(task, "PENDING", "QUEUED", 0, 1, at=began)
    return (created, queued, Change(task, "QUEUED", "RUNNING", 1, 2, 1, run or f"r-{task}", over))


def _ran(task: str, began: float, over: float | None, group: int = GROUP) -> list[Mark]:
    begin = Mark(task, 1, f"r-{task}", True, began, group=group)
    ends = [] if over is None else [Mark(task, 1, f"r-{task}", False, over, group=group)]
    return [begin, *ends]


def _worker(**changes: object) -> Worker:
    return dataclasses.replace(Worker(GROUP, 2, frozenset({"default"}), 0.0, 300.0), **changes)  # type: ignore[arg-type]


def _history(
    changes: Sequence[Change],
    marks: Sequence[Mark] = (),
    *,
    workers: Sequence[Worker] = (),
    logs: Sequence[Log] = (),
    **watched: object,
) -> History:
    tasks = {change.task for change in changes}
    return History(
        changes=tuple(sorted(changes, key=lambda one: one.at)),
        marks=tuple(marks),
        logs=tuple(logs),
        rows={task: Row(task, "SUCCESS", name=task.partition("-")[0]) for task in tasks},
        supervision=Supervision(
            workers=tuple(workers or [_worker()]),
            **watched,  # type: ignore[arg-type]
        ),
    )


STALLED = _waits("work", 100.0, 160.0)


def _found(history: History) -> list[str]:
    return list(no_worker_is_idle_beside_due_tasks(history))


def test_a_worker_that_starts_nothing_beside_a_due_task_is_reported_with_the_task() -> None:
    (text,) = _found(_history(STALLED))
    assert "worker 7 was idle for 60 s from 100.0 on, while 1 tasks waited" in text
    assert "such as work (work)" in text


def test_a_worker_with_one_free_process_of_two_is_idle() -> None:
    assert _found(_history([*STALLED, *_waits("long", 1.0, 2.0)], _ran("long", 2.0, 290.0)))


def test_a_batch_that_sleeps_is_reported() -> None:
    """Tasks of batches are started from PENDING."""
    changes = [
        Change("batched", None, "PENDING", 0, 0, at=100.0, due=100.0),
        Change("batched", "PENDING", "RUNNING", 0, 1, 1, "b", 160.0),
    ]
    assert _found(_history(changes))


def test_a_task_that_waits_for_a_limit_with_room_is_reported() -> None:
    changes = [Change("work", None, "PENDING", 0, 0, at=100.0, due=None)]
    assert _found(_history(changes, limits=(Limit(2),)))


def test_tasks_that_are_returned_and_published_again_wait_all_the_time() -> None:
    to_and_fro = [
        Change("work", None, "QUEUED", 0, 1, at=100.0, due=115.0),
        Change("work", "QUEUED", "PENDING", 1, 2, at=110.0, due=140.0),
        Change("work", "PENDING", "QUEUED", 2, 3, at=140.0, due=155.0),
        Change("work", "QUEUED", "RUNNING", 3, 4, 1, "w", 150.0),
    ]
    assert _found(_history(to_and_fro))


def test_a_queue_that_never_runs_until_the_end_is_reported() -> None:
    never = [Change("work", None, "QUEUED", 0, 1, at=250.0, due=265.0)]
    assert _found(_history(never))


EXCUSES: dict[str, History] = {
    "it is started within 20 s": _history(_waits("work", 100.0, 119.0)),
    "it is not due": _history([Change("work", None, "PENDING", 0, 0, at=100.0, due=999.0)]),
    "it is started before": _history([*_waits("work", 100.0, 110.0), *_waits("other", 1.0, 2.0)]),
    "all processes are busy": _history(
        [*STALLED, *_waits("a", 1.0, 2.0), *_waits("b", 1.0, 2.0)],
        [*_ran("a", 90.0, 161.0), *_ran("b", 90.0, 161.0)],
    ),
    "another function begins meanwhile": _history(
        [*STALLED, *_waits("a", 1.0, 2.0), *_waits("b", 1.0, 2.0)],
        [*_ran("a", 119.0, 119.1), *_ran("b", 138.0, 138.1), *_ran("work", 157.0, 158.0)],
    ),
    "the worker serves another queue": _history(
        STALLED, workers=[_worker(queues=frozenset({"other"}))]
    ),
    "the worker does not know the name": _history(
        STALLED, workers=[_worker(unknown=frozenset({"work"}))]
    ),
    "the worker was not there": _history(STALLED, workers=[_worker(over=110.0)]),
    "a fault": _history(STALLED, faults=(Interval(95.0, 130.0),), grace=15.0),
    "the time of fail-over": _history(STALLED, faults=(Interval(90.0, 91.0),), grace=60.0),
    "the suite had no processor": _history(STALLED, delays=(Interval(100.0, 145.0),)),
    "the limit of all names is full": _history(
        [*STALLED, *_waits("other", 1.0, 2.0)], limits=(Limit(1),)
    ),
    "the limit of the name is full": _history(
        [*STALLED, *_waits("work-2", 1.0, 2.0)], limits=(Limit(1, "work"),)
    ),
    "the killed function is not yet lost": _history(
        [*STALLED, *_waits("a", 1.0, 2.0)],
        _ran("a", 99.0, None),
        workers=[_worker(slots=1)],
        logs=[Log("a", 1, "LOST", "r-a", 150.0)],
    ),
}


@pytest.mark.parametrize("reason", EXCUSES)
def test_a_worker_with_an_excuse_is_not_reported(reason: str) -> None:
    assert _found(EXCUSES[reason]) == []


def test_an_excuse_does_not_hide_what_comes_after_it() -> None:
    assert _found(_history(STALLED, faults=(Interval(95.0, 110.0),), grace=15.0))
    assert _found(_history(STALLED, delays=(Interval(100.0, 120.0),)))
    assert _found(_history([*STALLED, *_waits("other", 1.0, 2.0)], limits=(Limit(2),)))


def test_a_run_without_a_campaign_is_not_judged() -> None:
    history = dataclasses.replace(_history(STALLED), supervision=Supervision())
    assert _found(history) == []


def test_the_longest_of_several_waits_is_reported_once() -> None:
    changes = [change for number in range(5) for change in _waits(f"work-{number}", 100.0, 160.0)]
    (text,) = _found(_history(changes))
    assert "while 5 tasks waited" in text


def test_only_late_heartbeats_are_delays() -> None:
    assert late_beats([0.0, 0.5, 1.0, 1.9, 5.9, 6.4], 0.5) == (Interval(2.4, 5.9, "late"),)


def test_a_batch_that_ended_with_an_error_is_found_in_a_log_and_a_killed_one_is_not() -> None:
    line = "Task django_durable_tasks.run_batch[x.1] raised unexpected: "
    log = f"{line}AttributeError('no')\n{line}WorkerLostError('killed')\n"
    assert errors_of_batches(log) == ["AttributeError('no')"]


_INTERVALS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 20)).map(
        lambda pair: Interval(float(pair[0]), float(pair[0] + pair[1]))
    ),
    max_size=8,
)


@given(_INTERVALS, st.integers(0, 40), st.integers(1, 40))
def test_the_rest_of_an_interval_is_what_no_other_covers(
    others: list[Interval], began: int, length: int
) -> None:
    whole = Interval(float(began), float(began + length))
    rest = list(_without(whole, _union(others)))
    for second in range(began, began + length):
        moment = second + 0.5
        covered = any(one.began <= moment < one.over for one in others)
        assert covered != any(one.began <= moment < one.over for one in rest)


@given(st.floats(0.0, 100.0), st.floats(0.5, 200.0), st.floats(0.0, 100.0), st.floats(0.5, 200.0))
def test_a_stall_is_reported_exactly_if_worker_and_task_wait_together_for_too_long(
    began: float, length: float, free: float, idle: float
) -> None:
    """A drawn wait beside a drawn period of a worker."""
    worker = _worker(began=free, over=free + idle)
    common = min(began + length, free + idle) - max(began, free)
    if abs(common - IDLE) < 0.001:
        return
    found = _found(_history(_waits("work", began, began + length), workers=[worker]))
    assert bool(found) == (common > IDLE)
