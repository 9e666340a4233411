"""The status after an ending: every kind of ending with every budget, and a cancel request."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.choices import LogStatus, Status
from django_durable_tasks.states.decisions import Budgets, EndingKind, Outcome, decide, fingerprint
from django_durable_tasks.states.machine import TRANSITIONS


def _budgets(**given: Any) -> Budgets:
    plain = {"failures": 0, "max_attempts": 3, "crashes": 0, "max_crashes": 3, "on_orphan": "RETRY"}
    return Budgets(**{**plain, "cancel_requested": False, **given})


budgets = st.builds(
    Budgets,
    failures=st.integers(0, 5),
    max_attempts=st.integers(1, 5),
    crashes=st.integers(0, 5),
    max_crashes=st.integers(1, 5),
    on_orphan=st.sampled_from(["RETRY", "DEAD_LETTER"]),
    cancel_requested=st.booleans(),
)
outcomes = st.builds(Outcome, kind=st.sampled_from(EndingKind), retryable=st.booleans())

TABLE = [
    (EndingKind.SUCCEEDED, {}, {}, Status.SUCCESS, LogStatus.SUCCESS, ""),
    (EndingKind.SUCCEEDED, {}, {"cancel_requested": True}, Status.SUCCESS, LogStatus.SUCCESS, ""),
    (EndingKind.FAILED, {}, {}, Status.PENDING, LogStatus.RETRY, ""),
    (EndingKind.FAILED, {}, {"failures": 1}, Status.PENDING, LogStatus.RETRY, ""),
    (EndingKind.FAILED, {}, {"failures": 2}, Status.FAILED, LogStatus.FAILED, "EXHAUSTED"),
    (EndingKind.FAILED, {}, {"max_attempts": 1}, Status.FAILED, LogStatus.FAILED, "EXHAUSTED"),
    (EndingKind.FAILED, {"retryable": False}, {}, Status.FAILED, LogStatus.FAILED, "GAVE_UP"),
    (
        EndingKind.FAILED,
        {},
        {"cancel_requested": True},
        Status.CANCELLED,
        LogStatus.CANCELLED,
        "CANCELLED",
    ),
    (EndingKind.RETRY_ASKED, {}, {}, Status.PENDING, LogStatus.RETRY, ""),
    (EndingKind.RETRY_ASKED, {}, {"failures": 2}, Status.FAILED, LogStatus.FAILED, "EXHAUSTED"),
    (
        EndingKind.RETRY_ASKED,
        {},
        {"cancel_requested": True},
        Status.CANCELLED,
        LogStatus.CANCELLED,
        "CANCELLED",
    ),
    (EndingKind.REJECTED, {"retryable": False}, {}, Status.FAILED, LogStatus.FAILED, "REJECTED"),
    (EndingKind.REJECTED, {"retryable": True}, {}, Status.PENDING, LogStatus.RETRY, ""),
    (EndingKind.IGNORED, {}, {}, Status.CANCELLED, LogStatus.CANCELLED, "IGNORED"),
    (EndingKind.REVOKED, {}, {}, Status.CANCELLED, LogStatus.CANCELLED, "REVOKED"),
    (EndingKind.CRASHED, {}, {}, Status.PENDING, LogStatus.LOST, ""),
    (EndingKind.CRASHED, {}, {"crashes": 2}, Status.FAILED, LogStatus.LOST, "CRASHED"),
    (EndingKind.CRASHED, {}, {"failures": 9}, Status.PENDING, LogStatus.LOST, ""),
    (
        EndingKind.CRASHED,
        {},
        {"on_orphan": "DEAD_LETTER"},
        Status.FAILED,
        LogStatus.LOST,
        "ORPHANED",
    ),
    (
        EndingKind.CRASHED,
        {},
        {"cancel_requested": True, "crashes": 2},
        Status.CANCELLED,
        LogStatus.LOST,
        "CANCELLED",
    ),
]


@pytest.mark.parametrize(("kind", "outcome", "row", "status", "log", "reason"), TABLE)
def test_an_ending_leads_to_the_status_of_the_table(
    kind: EndingKind,
    outcome: dict[str, Any],
    row: dict[str, Any],
    status: Status,
    log: LogStatus,
    reason: str,
) -> None:
    verdict = decide(Outcome(kind=kind, **outcome), _budgets(**row))
    assert (verdict.status, verdict.log, verdict.reason) == (status, log, reason)


@pytest.mark.parametrize(
    ("limit", "status"), [(1, Status.FAILED), (2, Status.FAILED), (3, Status.PENDING)]
)
def test_a_limit_set_by_the_body_overrides_that_of_the_task(limit: int, status: Status) -> None:
    verdict = decide(
        Outcome(kind=EndingKind.RETRY_ASKED, max_attempts=limit),
        _budgets(failures=1, max_attempts=2),
    )
    assert (verdict.status, verdict.reason) == (
        status,
        "EXHAUSTED" if status == Status.FAILED else "",
    )


@given(outcomes, budgets)
def test_every_verdict_is_a_transition_of_the_state_machine(outcome: Outcome, row: Budgets) -> None:
    verdict = decide(outcome, row)
    move = TRANSITIONS[verdict.transition]
    assert Status.RUNNING in move.sources
    assert verdict.status in move.targets


@given(outcomes, budgets)
def test_a_failure_and_a_crash_never_use_the_same_budget(outcome: Outcome, row: Budgets) -> None:
    verdict = decide(outcome, row)
    assert verdict.failed + verdict.crashed <= 1
    assert bool(verdict.crashed) == (outcome.kind is EndingKind.CRASHED)


@given(outcomes, budgets)
def test_a_finally_failed_or_cancelled_task_has_a_reason(outcome: Outcome, row: Budgets) -> None:
    verdict = decide(outcome, row)
    assert bool(verdict.reason) == (verdict.status in (Status.FAILED, Status.CANCELLED))


@given(budgets)
def test_exactly_max_attempts_failures_are_allowed(row: Budgets) -> None:
    again = decide(Outcome(kind=EndingKind.FAILED), row).log == LogStatus.RETRY
    assert again == (row.failures + 1 < row.max_attempts and not row.cancel_requested)


def test_the_fingerprint_is_the_same_for_the_same_kind_of_error() -> None:
    same = ["user 17 is gone", "user 4242 is gone", "user 17 is gone\nmore lines"]
    assert len({fingerprint("job", "Gone", text) for text in same}) == 1
    ids = (
        ["at 0x7fAB", "at 0x00"],
        ["id 0191c2f0-1111-7222-8333-444455556666", "id ffffffff-ffff-4fff-bfff-ffffffffffff"],
    )
    assert all(len({fingerprint("job", "Gone", text) for text in pair}) == 1 for pair in ids)


def test_the_fingerprint_differs_by_task_type_and_text() -> None:
    parts = itertools.product(("job", "other"), ("Gone", "Broken"), ("away", "lost"))
    assert len({fingerprint(*part) for part in parts}) == 8


@given(st.text(), st.text(), st.text(st.characters()))
def test_a_fingerprint_is_sixteen_hex_digits_whatever_the_text(
    name: str, kind: str, text: str
) -> None:
    assert len(bytes.fromhex(fingerprint(name, kind, text))) == 8
