"""Each invariant holds for a good history and detects each way to break it. A checker that cannot
fail proves nothing.
"""

import dataclasses

import pytest

from tests.chaos.records import (
    Calm,
    Change,
    Edge,
    Enqueued,
    Fire,
    History,
    Interval,
    Log,
    Mark,
    Row,
    Selection,
    Supervision,
    Term,
    Timetable,
    Worker,
)
from tests.chaos.verdict import INVARIANTS, histories_of, meaning, violations
from tests.unit.chaos.histories import (
    CALLBACK,
    COUNTED,
    DIGEST,
    GOOD,
    MESSAGE,
    but,
    counting,
    plus,
    with_other,
    with_row,
    without_mark,
)


def _path_of(task: str, *changes: Change) -> History:
    return but(changes=(*(change for change in GOOD.changes if change.task != task), *changes))


def _with_status(task: str, status: str) -> tuple[Log, ...]:
    """Return the log of the good history with another ending of the successful run of a task."""
    return tuple(
        dataclasses.replace(log, status=status, at=20.0)
        if log.task == task and log.status == "SUCCESS"
        else log
        for log in GOOD.logs
    )


SUPERVISED = Supervision(workers=(Worker(1, 2, frozenset({"default"}), 0.0, 200.0),), lease=60.0)

BROKEN: list[tuple[str, str, History]] = [
    ("H1", "an acknowledged row is gone", plus(enqueued=Enqueued("vanished", "plain"))),
    ("H1", "a row never ends", with_row(Row("child", "RUNNING", 1))),
    ("H1", "an unknown task never ends", with_row(Row("extra", "QUEUED"))),
    ("H2", "a run without a start", plus(marks=Mark("child", 2, "ghost", True, 30.0))),
    ("H2", "a run under another's id", plus(marks=Mark("child", 1, "p1", True, 30.0))),
    ("H3", "an attempt begins twice", plus(marks=Mark("child", 1, "c1", True, 30.0))),
    (
        "H3",
        "a hole in the attempts",
        _path_of("twice", Change("twice", "QUEUED", "RUNNING", 1, 2, 2, "t1")),
    ),
    ("H3", "a budget overdrawn by failures", with_row(Row("hopeless", "FAILED", 6, failures=6))),
    ("H3", "a budget overdrawn by crashes", with_row(Row("hopeless", "FAILED", 4, crashes=4))),
    ("H4", "two accepted endings of an attempt", plus(logs=Log("child", 1, "RETRY", "c1"))),
    ("H4", "two successes", plus(logs=Log("twice", 3, "SUCCESS", "t3"))),
    ("H4", "a success that the row does not know", with_row(Row("child", "FAILED", 1, failures=5))),
    ("H4", "a success without a log entry", with_row(Row("hopeless", "SUCCESS", 1))),
    ("H4", "a success whose body never returned", without_mark("child", begins=False)),
    (
        "H5",
        "two runs at once, and the first was not lost",
        but(logs=tuple(log for log in GOOD.logs if log.status != "LOST")),
    ),
    ("H6", "an effect twice", but(effects=("parent", "parent"))),
    ("H6", "an effect never", but(effects=())),
    (
        "H6",
        "an effect of a body that did not succeed",
        with_row(Row("parent", "CANCELLED", atomic=True)),
    ),
    ("H6", "an effect of nothing", but(effects=("parent", "nothing"))),
    ("H6", "an item twice", but(items=(("parent", 1), ("parent", 1)))),
    ("H6", "an item never", with_row(Row("parent", "SUCCESS", atomic=True, items=2))),
    ("H7", "a fire missed", but(timetables=(Timetable("table", 100.0, 2.0, 102.0),))),
    ("H7", "a fire doubled", plus(fires=Fire("table", 100.0, "again", 2))),
    ("H7", "a fire at no time of the timetable", plus(fires=Fire("table", 100.7, "fired", 2))),
    (
        "H7",
        "a fire that ran too late",
        but(timetables=(Timetable("table", 100.0, 2.0, 101.0, lateness=0.1),)),
    ),
    ("H7", "a fire that ran too early", plus(marks=Mark("fired", 1, "f0", True, 99.0))),
    ("H7", "a fire that never ran", without_mark("fired", begins=True)),
    ("H8", "a child before its parent's end", plus(marks=Mark("child", 1, "c0", True, 10.5))),
    ("H8", "a child of a parent that never ended", but(edges=(Edge("hopeless", "child"),))),
    ("H8", "a child that waits for ever", with_row(Row("hopeless", "BLOCKED"))),
    ("H8", "a child skipped under a good parent", with_row(Row("child", "SKIPPED"))),
    ("H9", "FAILED without a dead letter", with_row(Row("hopeless", "FAILED", 5, failures=5))),
    ("H9", "two open dead letters", but(open_letters=("child", "child"))),
    ("H9", "a dead letter of a success", but(open_letters=("child",))),
    ("H9", "a dead letter of nothing", but(open_letters=("nothing",))),
    (
        "H9",
        "given up too early",
        with_row(Row("hopeless", "FAILED", 1, failures=1, reason="EXHAUSTED")),
    ),
    (
        "H10",
        "a move that the table does not have",
        _path_of("hopeless", Change("hopeless", None, "SUCCESS", 0, 0)),
    ),
    (
        "H10",
        "a way back from an end",
        plus(changes=Change("child", "SUCCESS", "RUNNING", 3, 4, 2, "c2")),
    ),
    (
        "H10",
        "a move that keeps the epoch",
        plus(changes=Change("child", "SUCCESS", "PENDING", 3, 3)),
    ),
    (
        "H10",
        "an epoch that rises for nothing",
        plus(changes=Change("child", "SUCCESS", "SUCCESS", 3, 4)),
    ),
    ("H10", "an epoch that falls", plus(changes=Change("child", "SUCCESS", "PENDING", 3, 2))),
    ("H10", "a task created twice", plus(changes=Change("child", None, "QUEUED", 0, 1))),
    ("H10", "a row deleted", plus(changes=Change("child", "SUCCESS", None, 3, 3))),
    ("H10", "a move from where it did not stand", but(changes=GOOD.changes[1:])),
    ("H10", "a row that moved unseen", with_row(Row("child", "CANCELLED"))),
    (
        "H11",
        "a term before the one before is over",
        but(terms=(Term(1, "a", 9.0, 1.0), Term(2, "b", 12.0, 8.0))),
    ),
    ("H11", "one term of two holders", plus(terms=Term(2, "c", 13.0, 9.0))),
    (
        "H11",
        "terms of another office",
        but(terms=(Term(1, "a", 9.0, 1.0, "north"), *GOOD.terms, Term(2, "b", 12.0, 8.0, "north"))),
    ),
    ("H11", "a term that falls", plus(terms=Term(1, "a", 20.0, 15.0))),
    ("H11", "a fire in a term without an owner", but(fires=(Fire("table", 100.0, "fired", 9),))),
    ("H12", "an alarm left over", but(calm=Calm(overdue=1))),
    ("H12", "a session asleep in a transaction", but(calm=Calm(asleep_in_transactions=1))),
    ("H12", "connections that were never closed", but(calm=Calm(connections=11, baseline=10))),
    ("H12", "messages left over", but(calm=Calm(messages=1))),
    ("H12", "messages never acknowledged", but(calm=Calm(unacknowledged=1))),
    ("H13", "a callback that never arrived", but(requests=(MESSAGE, DIGEST))),
    (
        "H13",
        "a callback that was refused only",
        but(requests=(dataclasses.replace(CALLBACK, answer=503), MESSAGE, DIGEST)),
    ),
    (
        "H13",
        "a callback that got no answer only",
        but(requests=(dataclasses.replace(CALLBACK, answer=0), MESSAGE, DIGEST)),
    ),
    (
        "H13",
        "a request with a wrong signature",
        plus(requests=dataclasses.replace(CALLBACK, valid=False)),
    ),
    (
        "H13",
        "a callback with another idempotency key",
        but(requests=(dataclasses.replace(CALLBACK, key="other"), MESSAGE, DIGEST)),
    ),
    ("H13", "more requests than attempts", plus(requests=CALLBACK)),
    ("H13", "a request of no task", plus(requests=dataclasses.replace(CALLBACK, task="nothing"))),
    (
        "H13",
        "a callback that ended without being delivered",
        with_other("callback", status="FAILED"),
    ),
    ("H14", "a selected event that was never sent", but(requests=(CALLBACK, DIGEST))),
    (
        "H14",
        "a selected event that was refused only",
        but(requests=(CALLBACK, dataclasses.replace(MESSAGE, answer=500), DIGEST)),
    ),
    (
        "H14",
        "a selected event that was sent to another setting",
        but(requests=(CALLBACK, dataclasses.replace(MESSAGE, setting="other"), DIGEST)),
    ),
    (
        "H14",
        "two messages about one event",
        plus(requests=dataclasses.replace(MESSAGE, message="m3", key="m3")),
    ),
    (
        "H14",
        "a message about another ending",
        but(
            requests=(
                *GOOD.requests,
                dataclasses.replace(MESSAGE, message="m3", events=(("task.succeeded", "twice"),)),
            )
        ),
    ),
    (
        "H14",
        "a message about a failure that was none",
        but(selections=(Selection("single", "selected", "FAILED", "task.failed"),)),
    ),
    ("H14", "a digest that counts too few", but(requests=(CALLBACK, MESSAGE))),
    (
        "H14",
        "a digest that counts too many",
        but(requests=(CALLBACK, MESSAGE, dataclasses.replace(DIGEST, total=2))),
    ),
    ("H14", "a delivery that failed for good", with_other("delivery", status="FAILED")),
    ("H14", "an event without a delivery", but(undelivered_events=1)),
    ("H15", "a total that is too small", counting({("ATTEMPT", "default", "", "SUCCESS"): (2, 2)})),
    ("H15", "a total that is too large", counting({("ATTEMPT", "default", "", "LOST"): (2, 2)})),
    (
        "H15",
        "a total of attempts that did not occur",
        counting({("ATTEMPT", "default", "", "RETRY"): (1, 1)}),
    ),
    (
        "H15",
        "a total under another queue",
        but(
            counted={
                **{key: number for key, number in COUNTED.items() if key[0] != "ENDED"},
                ("ENDED", "other", "", "CANCELLED"): (1, 1),
            }
        ),
    ),
    (
        "H15",
        "an ending without an attempt that is not counted",
        but(counted={key: number for key, number in COUNTED.items() if key[0] != "ENDED"}),
    ),
    (
        "H15",
        "minutes that differ from their total",
        counting({("ATTEMPT", "default", "", "SUCCESS"): (3, 2)}),
    ),
    (
        "H16",
        "a batched task that is gone",
        but(rows={task: row for task, row in GOOD.rows.items() if task != "batched"}),
    ),
    ("H16", "a batched task that failed with another one", with_other("batched", status="FAILED")),
    ("H16", "a batched task accepted twice", plus(logs=Log("batched", 2, "SUCCESS", "b2"))),
    (
        "H16",
        "a batched task that succeeded without its function",
        without_mark("batched", begins=False),
    ),
    (
        "H17",
        "a returned function that is recorded as a retry",
        but(logs=_with_status("child", "RETRY")),
    ),
    (
        "H17",
        "a returned function that is recorded as a failure",
        but(logs=_with_status("child", "FAILED")),
    ),
    (
        "H17",
        "a returned function whose run is lost without a fault",
        but(logs=_with_status("child", "LOST"), supervision=SUPERVISED),
    ),
    (
        "H18",
        "a free process beside a task that is never started",
        dataclasses.replace(
            plus(changes=Change("hopeless", None, "QUEUED", 0, 1, at=100.0)), supervision=SUPERVISED
        ),
    ),
    ("H19", "a batch that ends with an error", but(supervision=Supervision(errors=("w: error",)))),
    (
        "H20",
        "two messages for each task of a backlog",
        but(supervision=Supervision(backlog_messages=2.0)),
    ),
]


def test_a_returned_function_may_be_lost_by_a_fault_and_an_atomic_one_may_fail() -> None:
    lost = but(
        logs=_with_status("child", "LOST"),
        supervision=dataclasses.replace(SUPERVISED, faults=(Interval(5.0, 6.0, "killed"),)),
    )
    assert violations(lost)["H17"] == []
    paused = dataclasses.replace(SUPERVISED, delays=(Interval(2.0, 20.0, "late"),))
    assert violations(but(logs=lost.logs, supervision=paused))["H17"] == []
    assert violations(but(logs=_with_status("parent", "RETRY")))["H17"] == []
    batched = but(logs=_with_status("batched", "LOST"), supervision=SUPERVISED)
    assert violations(batched)["H17"] == []


def test_a_backlog_with_a_message_for_each_task_is_good() -> None:
    assert violations(but(supervision=Supervision(backlog_messages=1.05)))["H20"] == []


def test_a_good_history_violates_nothing() -> None:
    assert violations(GOOD) == {name: [] for name in INVARIANTS}


@pytest.mark.parametrize(
    ("name", "history"),
    [(name, history) for name, _, history in BROKEN],
    ids=[what for _, what, _ in BROKEN],
)
def test_a_broken_history_is_detected(name: str, history: History) -> None:
    assert violations(history)[name]


def test_each_invariant_has_a_history_that_breaks_it_and_a_description() -> None:
    assert {name for name, *_ in BROKEN} == INVARIANTS.keys()
    assert all(meaning(name) for name in INVARIANTS)


def test_a_late_run_is_not_hidden_by_an_early_one() -> None:
    """Two windows and two runs, both in the first. Comparing counts would not detect it."""
    table = Timetable("table", 100.0, 50.0, 151.0, lateness=10.0)
    fires = (Fire("table", 100.0, "fired", 2), Fire("table", 150.0, "second", 2))
    marks = (*GOOD.marks, Mark("second", 1, "s1", True, 101.0))
    assert len(violations(but(timetables=(table,), fires=fires, marks=marks))["H7"]) == 2


def test_a_lost_run_whose_process_was_paused_before_its_body_may_start_after_the_next_one() -> None:
    woken = tuple(
        Mark("twice", 1, "t1", True, 20.5) if mark.run == "t1" else mark for mark in GOOD.marks
    )
    assert violations(but(marks=woken))["H5"] == []


@pytest.mark.parametrize(("raised", "is_legal"), [(1, True), (2, False)])
def test_the_epoch_of_a_waiting_task_rises_by_one_if_an_operator_made_it_due(
    raised: int, is_legal: bool
) -> None:
    steps = (
        Change("twice", None, "PENDING", 0, 0),
        Change("twice", "PENDING", "PENDING", 0, raised),
        Change("twice", "PENDING", "QUEUED", raised, raised + 1),
        Change("twice", "QUEUED", "RUNNING", raised + 1, raised + 2, 1, "t1"),
        Change("twice", "RUNNING", "SUCCESS", raised + 2, raised + 3, 1, "t1"),
    )
    history = _path_of("twice", *steps)
    assert violations(history)["H10"]
    retried = dataclasses.replace(history, retried=frozenset({"twice"}))
    assert (violations(retried)["H10"] == []) is is_legal


def test_the_events_of_a_violated_task_are_reported() -> None:
    broken = with_row(Row("child", "RUNNING", 1))
    entries = histories_of(broken, violations(broken)["H1"])
    assert set(entries) == {"child"}
    assert len(entries["child"]) == 1 + 4 + 1 + 2
