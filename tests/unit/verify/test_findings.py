"""The rules of verification, from facts only: markers, counts of runs, next fires, attempts; and
the text of a finding.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.choices import OPEN, Status
from django_durable_tasks.contrib.verify.check import (
    Finding,
    NextRun,
    RunFacts,
    Severity,
    shown,
    wrong_attempts,
    wrong_completion,
    wrong_counts,
    wrong_marker,
    wrong_next_run,
    wrong_status,
)
from django_durable_tasks.models.workflows import COUNTS
from django_durable_tasks.workflows.builder import verdict

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def _at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_a_finding_reads_as_a_sentence_of_row_field_value_and_correction() -> None:
    finding = Finding(
        check="c",
        severity=Severity.BROKEN,
        table="task",
        key=7,
        field="due_at",
        found=NOW,
        right="later",
    )
    assert finding.text == "task 7: due_at is 2026-11-21T12:00:00Z; right is later."


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "empty"),
        ("", "''"),
        (0, "0"),
        ("x", "x"),
        (NOW, "2026-11-21T12:00:00Z"),
        ([1], "[1]"),
    ],
)
def test_the_text_distinguishes_null_and_an_empty_string(value: object, text: str) -> None:
    assert shown(value) == text


# Tasks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", Status)
def test_only_open_tasks_have_a_marker(status: Status) -> None:
    assert wrong_marker("open_key", "k" if status in OPEN else None, "k", status, 0) is None
    assert wrong_marker("open_key", None, None, status, 0) is None
    assert (wrong_marker("open_key", "k", "k", status, 0) is None) == (status in OPEN)


def test_only_a_task_that_never_started_must_have_its_key() -> None:
    wrong = wrong_marker("open_key", None, "k", "PENDING", 0)
    assert wrong is not None
    assert (wrong.value, wrong.right) == ("k", "k, because the task is PENDING")
    assert wrong_marker("open_key", None, "k", "PENDING", 1) is None
    assert wrong_marker("open_key", "other", "k", "PENDING", 1) is not None


@pytest.mark.parametrize("status", Status)
def test_ended_tasks_have_an_end_time_and_open_ones_do_not(status: Status) -> None:
    assert (wrong_completion(status, None) is None) == (status in OPEN)
    assert (wrong_completion(status, NOW) is None) == (status not in OPEN)


@pytest.mark.parametrize(
    ("attempts", "running", "endings", "distinct", "highest", "right"),
    [
        (2, False, 2, 2, 2, None),
        (3, True, 2, 2, 2, None),
        (2, True, 2, 2, 2, 3),
        (1, False, 2, 2, 2, 2),
        (9, False, 1, 1, 1, None),
    ],
)
def test_attempts_are_at_least_those_of_the_log(
    attempts: int, running: bool, endings: int, distinct: int, highest: int, right: int | None
) -> None:
    wrong = wrong_attempts(
        attempts, running=running, endings=endings, distinct=distinct, highest=highest
    )
    assert (wrong.value if wrong else None) == right


def test_an_attempt_that_ended_twice_cannot_be_repaired() -> None:
    wrong = wrong_attempts(2, running=False, endings=2, distinct=1, highest=1)
    assert wrong is not None
    assert not wrong.safe


# Workflows ----------------------------------------------------------------------------------------


def _run(**given: Any) -> RunFacts:
    counted = {**dict.fromkeys(COUNTS.values(), 0), **given.pop("counted", {})}
    values: dict[str, Any] = {"status": "RUNNING", "total": 2, "in_events": {}, "present": {}}
    return RunFacts(**{**values, **given}, counted=counted)


_numbers = st.dictionaries(st.sampled_from(list(Status)), st.integers(0, 4))


@given(_numbers, st.dictionaries(st.sampled_from(list(COUNTS)), st.integers(-2, 4)), st.booleans())
def test_the_counts_of_a_run_must_equal_its_tasks(
    present: dict[Status, int], noted: dict[str, int], cancelled: bool
) -> None:
    ended = {column: present.get(Status(status), 0) for status, column in COUNTS.items()}
    by_note = {COUNTS[status]: number for status, number in noted.items()}
    counted = {column: number - by_note.get(column, 0) for column, number in ended.items()}
    total = sum(present.values())
    right = _run(present=present, in_events=by_note, counted=counted, total=total)
    assert wrong_counts(right) == []
    for column, number in counted.items():
        wrong = wrong_counts(
            _run(present=present, in_events=by_note, counted=counted | {column: 99}, total=total)
        )
        assert [(one.field, one.value) for one in wrong] == [(column, number)]
    stands = verdict(ended, total, cancelled=cancelled, overdue=False)
    judged = _run(status=stands, present=present, counted=ended, total=total, cancelled=cancelled)
    assert wrong_status(judged) is None


def test_a_run_whose_ended_tasks_were_pruned_is_right() -> None:
    assert wrong_counts(_run(status="SUCCESS", counted={"succeeded": 2})) == []
    assert wrong_counts(_run(counted={"succeeded": 1}, present={Status.PENDING: 1})) == []


def test_a_pruned_run_counts_no_less_than_its_tasks() -> None:
    [wrong] = wrong_counts(
        _run(total=5, counted={"succeeded": 1}, present={Status.SUCCESS: 2, Status.PENDING: 1})
    )
    assert (wrong.field, wrong.value) == ("succeeded", 2)


def test_a_total_is_repaired_only_if_the_counts_prove_it() -> None:
    [wrong] = wrong_counts(
        _run(total=3, counted={"succeeded": 1}, present={Status.SUCCESS: 1, Status.PENDING: 1})
    )
    assert (wrong.field, wrong.value, wrong.safe) == ("total", 2, True)
    [wrong] = wrong_counts(
        _run(total=4, counted={"succeeded": 2}, present={Status.SUCCESS: 1, Status.PENDING: 1})
    )
    assert (wrong.field, wrong.safe) == ("total", False)


def test_a_start_in_progress_and_a_run_with_ending_events_are_not_checked() -> None:
    assert wrong_counts(_run(status="STARTING", present={Status.BLOCKED: 1})) == []
    assert wrong_status(_run(status="STARTING", counted={"succeeded": 2})) is None
    assert wrong_status(_run(counted={"succeeded": 2}, uncounted_events=1)) is None
    wrong = wrong_status(_run(counted={"succeeded": 2}))
    assert wrong is not None
    assert wrong.right == "SUCCESS, because all of its tasks have ended"


# Recurring tasks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "stored", "following", "paused_until", "right"),
    [
        ("ACTIVE", 60, 60, None, True),
        ("ACTIVE", 90, 60, None, False),
        ("ACTIVE", 30, 60, None, False),
        ("ACTIVE", None, 60, None, False),
        ("ACTIVE", -5, -60, None, True),
        ("ACTIVE", 20, -60, None, True),
        ("ACTIVE", 40, -60, None, False),
        ("ACTIVE", 0, None, None, True),
        ("ACTIVE", 60, None, None, False),
        ("PAUSED", None, 60, None, True),
        ("PAUSED", 60, None, 60, True),
        ("PAUSED", 60, 60, None, False),
        ("CANCELLED", None, 60, None, True),
        ("CANCELLED", -60, None, None, False),
    ],
)
def test_the_next_fire_is_the_scheduled_one_or_due_or_postponed(
    status: str,
    stored: float | None,
    following: float | None,
    paused_until: float | None,
    right: bool,
) -> None:
    times = [
        None if seconds is None else _at(seconds) for seconds in (stored, following, paused_until)
    ]
    row = NextRun(
        status=status,
        now=NOW,
        stored=times[0],
        following=times[1],
        paused_until=times[2],
        put_off=30,
    )
    assert (wrong_next_run(row) is None) == right
