"""The figures count what their names say, and a run without any fenced ending proves nothing."""

import dataclasses
from typing import Any

import pytest

from tests.chaos.__main__ import failures
from tests.chaos.figures import Window, figures, longest_gap, of_past_terms
from tests.chaos.records import Change, Fire, History, Log, Mark
from tests.chaos.report import BEGIN, END, PAGE, RUN, rendered, section, taken, write
from tests.chaos.verdict import INVARIANTS
from tests.unit.chaos.histories import CALLBACK, GOOD, MESSAGE, but

WINDOWS = (
    Window("before", 0, 0.0, 10.0),
    Window("leader-killed", 5, 10.0, 20.0, 1.5, "The leader is killed"),
    Window("after", 0, 21.5, 30.0),
)


# Figures of which each number but 0 fails the run.
NEVER = ("lost", "accepted_twice", "ghost_runs", "effects_twice", "fires_missing")


def _found(history: History) -> dict[str, Any]:
    return figures(history, WINDOWS, [], {}, 0)


def _result(**changes: Any) -> dict[str, Any]:
    calls: list[dict[str, Any]] = [{"task": "child", "took": 0.002}, {"refused": "Error"}]
    found = figures(GOOD, WINDOWS, calls, {"kills": 3}, 4)
    broken = {name: {"number": 0, "first": []} for name in INVARIANTS}
    return {
        "broker": "redis",
        "seed": "1",
        "servers": ["Redis 7"],
        **found,
        "violations": broken,
        **changes,
    }


def test_a_good_history_has_nothing_lost_and_nothing_run_twice() -> None:
    result = _result()
    none = (*NEVER, "fires_doubled")
    assert {name: result[name] for name in none} == dict.fromkeys(none, 0)
    counted = {"tasks": 9, "runs": 9, "faults": 1, "kills": 3, "refused_calls": 1}
    counted |= {"fenced_endings": 1, "ignored_messages": 4, "attempts_lost": 1, "terms": 2}
    assert {name: result[name] for name in counted} == counted


def test_requests_are_counted_by_what_the_receiver_answered() -> None:
    names = ("callbacks", "notifications", "requests_refused", "requests_repeated")
    assert [_result()[name] for name in names] == [1, 2, 0, 0]
    refused = dataclasses.replace(CALLBACK, answer=503)
    silent = dataclasses.replace(MESSAGE, message="m3", answer=0)
    changed = but(requests=(*GOOD.requests, refused, silent, CALLBACK))
    found = _found(changed)
    assert [found[name] for name in names] == [1, 2, 2, 1]


def test_tasks_that_started_in_a_batch_are_counted() -> None:
    taken = Change("batched", "PENDING", "RUNNING", 0, 1, 1, "b1")
    assert _result()["batched"] == 0
    assert _found(but(changes=(*GOOD.changes, taken)))["batched"] == 1


def test_a_body_that_ran_again_without_a_request_is_counted_and_a_requested_one_is_not() -> None:
    assert _result()["executed_more_than_once"] == 1
    asked = but(logs=(*GOOD.logs, Log("twice", 1, "RETRY", "t1")))
    assert _found(asked)["executed_more_than_once"] == 0


def test_two_accepted_endings_are_counted() -> None:
    doubled = but(logs=(*GOOD.logs, Log("child", 1, "LOST", "c1")))
    assert _found(doubled)["accepted_twice"] == 1


def test_overlapping_runs_are_counted() -> None:
    marks = (*GOOD.marks, Mark("child", 2, "c2", True, 12.5))
    assert _found(but(marks=marks))["overlapping_runs"] == _result()["overlapping_runs"] + 1


def test_a_fire_written_by_a_former_leader_is_counted() -> None:
    assert of_past_terms(GOOD) == 0
    assert of_past_terms(but(fires=(Fire("table", 100.0, "fired", 1, 8.5),))) == 1


def test_the_longest_gap_is_between_two_starts_under_load() -> None:
    changes = tuple(
        Change("a", "QUEUED", "RUNNING", 1, 2, 1, "r", at) for at in (-90.0, 1.0, 3.0, 9.5, 99.0)
    )
    assert longest_gap(but(changes=changes), WINDOWS) == 6.5


def test_throughput_is_reported_before_during_and_after() -> None:
    changes = tuple(
        Change("a", "RUNNING", "SUCCESS", 2, 3, 1, "r", at) for at in (1.0, 2.0, 15.0, 22.0)
    )
    assert _found(but(changes=changes))["throughput"] == {
        "before": 0.2,
        "during": 0.1,
        "after": 0.1,
    }


def test_a_run_without_a_fenced_ending_or_a_dropped_message_fails() -> None:
    assert failures([_result()]) == []
    assert failures([_result(fenced_endings=0)])
    assert failures([_result(ignored_messages=0)])
    assert failures([_result(ignored_messages=0)], tried=False) == []


@pytest.mark.parametrize("name", NEVER)
def test_a_run_with_a_lost_or_duplicated_task_fails(name: str) -> None:
    assert failures([_result(**{name: 1})])


def test_a_violated_invariant_fails_the_run() -> None:
    broken = {name: {"number": 0, "first": []} for name in INVARIANTS}
    broken["H10"] = {"number": 1, "first": ["a row went backwards"]}
    assert failures([_result(violations=broken)]) == [
        "1 on postgresql and redis: H10: a row went backwards"
    ]


def test_the_report_is_written_between_its_markers_and_as_json(tmp_path: Any) -> None:
    page = tmp_path / "guarantees.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    answer = {
        "seed": "s",
        "seconds": 600.0,
        "results": [_result()],
        "facts": {"taken": "then", "machine": "here", "versions": "these"},
    }
    write(page, answer)
    text = page.read_text()
    assert text == f"before\n{BEGIN}\n\n{rendered(answer)}\n\n{END}\nafter\n"
    assert "The leader is killed" in text
    assert taken(page) == answer


def test_a_page_without_markers_is_refused(tmp_path: Any) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(ValueError, match="no place"):
        write(
            page,
            {
                "seed": "s",
                "seconds": 1.0,
                "results": [],
                "facts": dict.fromkeys(("taken", "machine", "versions"), ""),
            },
        )


def test_the_published_report_equals_its_json_and_has_no_violations() -> None:
    answer = taken(PAGE)
    assert section(PAGE) == (RUN if answer is None else rendered(answer)), (
        "python -m tests.chaos.report"
    )
    if answer is not None:
        assert failures(answer["results"]) == []
