"""The rules of verification that need no table: counts of runs, next fires, the text of a finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.verify.check import Finding, shown
from django_durable_tasks.contrib.verify.schedules import wrong_next_run
from django_durable_tasks.contrib.verify.workflows import RunFacts, wrong_counts, wrong_status
from django_durable_tasks.models import RecurringTask, WorkflowRun
from django_durable_tasks.models.workflows import COUNTS
from django_durable_tasks.workflows.builder import verdict

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def _at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_a_finding_reads_as_a_sentence_of_row_field_value_and_correction() -> None:
    finding = Finding(7, "due_at", NOW, "later", table="task")
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


# Workflows ----------------------------------------------------------------------------------------


def _facts(
    present: Mapping[Any, int] | None = None,
    events: Sequence[tuple[int, str, int]] = (),
    /,
    **columns: Any,
) -> RunFacts:
    zero = dict.fromkeys(COUNTS.values(), 0)
    run = WorkflowRun(**{"status": "RUNNING", "total": 2, **zero, **columns})
    return RunFacts(run, present or {}, events)


_numbers = st.dictionaries(st.sampled_from(list(Status)), st.integers(0, 4))


@given(_numbers, st.dictionaries(st.sampled_from(list(COUNTS)), st.integers(-2, 4)), st.booleans())
def test_the_counts_of_a_run_must_equal_its_tasks(
    present: dict[Status, int], deltas: dict[str, int], cancelled: bool
) -> None:
    ended = {column: present.get(Status(status), 0) for status, column in COUNTS.items()}
    events = [(0, status, delta) for status, delta in deltas.items()]
    counted = {column: ended[column] - deltas.get(status, 0) for status, column in COUNTS.items()}
    total = sum(present.values())
    assert wrong_counts(_facts(present, events, total=total, **counted)) == []
    for column, number in counted.items():
        wrong = wrong_counts(_facts(present, events, total=total, **{**counted, column: 99}))
        assert [(finding.field, finding.value) for finding in wrong] == [(column, number)]
    status = verdict(ended, total, cancelled=cancelled, overdue=False)
    cancel_requested_at = NOW if cancelled else None
    facts = _facts(
        present, total=total, status=status, cancel_requested_at=cancel_requested_at, **ended
    )
    assert wrong_status(facts) is None


@pytest.mark.parametrize(
    ("columns", "present", "wrong"),
    [
        # All tasks, or the ended ones, were pruned.
        ({"status": "SUCCESS", "succeeded": 2}, {}, []),
        ({"succeeded": 1}, {Status.PENDING: 1}, []),
        # No counter is lower than the number of existing tasks.
        (
            {"total": 5, "succeeded": 1},
            {Status.SUCCESS: 2, Status.PENDING: 1},
            [("succeeded", 2, None)],
        ),
        # A total is repaired only if the counts prove it.
        (
            {"total": 3, "succeeded": 1},
            {Status.SUCCESS: 1, Status.PENDING: 1},
            [("total", 2, None)],
        ),
        (
            {"total": 4, "succeeded": 2},
            {Status.SUCCESS: 1, Status.PENDING: 1},
            [("total", None, "")],
        ),
        # A start in progress is not checked.
        ({"status": "STARTING"}, {Status.BLOCKED: 1}, []),
    ],
)
def test_counts_of_a_run_with_missing_tasks(
    columns: dict[str, Any], present: dict[str, int], wrong: list[tuple[Any, ...]]
) -> None:
    findings = wrong_counts(_facts(present, **columns))
    assert [(finding.field, finding.value, finding.repair) for finding in findings] == wrong


def test_the_status_of_a_start_and_of_a_run_with_ending_events_is_not_checked() -> None:
    assert wrong_status(_facts(status="STARTING", succeeded=2)) is None
    assert wrong_status(_facts({}, [(1, "SUCCESS", 1)], succeeded=2)) is None
    wrong = wrong_status(_facts(succeeded=2))
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
    row = RecurringTask(status=status, next_run_at=times[0], paused_until=times[2])
    assert (wrong_next_run(row, times[1], NOW) is None) == right
