"""The status after an ending: every kind of ending with every budget, and a cancel request."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.choices import LogStatus, Status
from django_durable_tasks.states.machine import (
    TRANSITIONS,
    Budgets,
    EndingKind,
    Outcome,
    decide,
    fingerprint,
)


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

ASKED = {"cancel_requested": True}
CANCELLED = (Status.CANCELLED, LogStatus.CANCELLED)
FAILED, RETRIED = (Status.FAILED, LogStatus.FAILED), (Status.PENDING, LogStatus.RETRY)
SUCCEEDED = (Status.SUCCESS, LogStatus.SUCCESS)
LOST, DEAD = (Status.PENDING, LogStatus.LOST), (Status.FAILED, LogStatus.LOST)
STOPPED = (Status.CANCELLED, LogStatus.LOST)
TABLE: list[tuple[EndingKind, dict[str, Any], dict[str, Any], tuple[Status, LogStatus], str]] = [
    (EndingKind.SUCCEEDED, {}, {}, SUCCEEDED, ""),
    (EndingKind.SUCCEEDED, {}, ASKED, SUCCEEDED, ""),
    (EndingKind.FAILED, {}, {}, RETRIED, ""),
    (EndingKind.FAILED, {}, {"failures": 1}, RETRIED, ""),
    (EndingKind.FAILED, {}, {"failures": 2}, FAILED, "EXHAUSTED"),
    (EndingKind.FAILED, {}, {"max_attempts": 1}, FAILED, "EXHAUSTED"),
    (EndingKind.FAILED, {"retryable": False}, {}, FAILED, "GAVE_UP"),
    (EndingKind.FAILED, {}, ASKED, CANCELLED, "CANCELLED"),
    (EndingKind.RETRY_ASKED, {}, {}, RETRIED, ""),
    (EndingKind.RETRY_ASKED, {}, {"failures": 2}, FAILED, "EXHAUSTED"),
    (EndingKind.RETRY_ASKED, {}, ASKED, CANCELLED, "CANCELLED"),
    # The function passed its own limit of attempts, which overrides that of the task.
    (EndingKind.RETRY_ASKED, {"max_attempts": 2}, {"failures": 1}, FAILED, "EXHAUSTED"),
    (EndingKind.RETRY_ASKED, {"max_attempts": 4}, {"failures": 2}, RETRIED, ""),
    (EndingKind.REJECTED, {"retryable": False}, {}, FAILED, "REJECTED"),
    (EndingKind.REJECTED, {"retryable": True}, {}, RETRIED, ""),
    (EndingKind.IGNORED, {}, {}, CANCELLED, "IGNORED"),
    (EndingKind.REVOKED, {}, {}, CANCELLED, "REVOKED"),
    (EndingKind.CRASHED, {}, {}, LOST, ""),
    (EndingKind.CRASHED, {}, {"failures": 9}, LOST, ""),
    (EndingKind.CRASHED, {}, {"crashes": 2}, DEAD, "CRASHED"),
    (EndingKind.CRASHED, {}, {"on_orphan": "DEAD_LETTER"}, DEAD, "ORPHANED"),
    (EndingKind.CRASHED, {}, {**ASKED, "crashes": 2}, STOPPED, "CANCELLED"),
]


@pytest.mark.parametrize(("kind", "outcome", "row", "statuses", "reason"), TABLE)
def test_an_ending_leads_to_the_status_of_the_table(
    kind: EndingKind,
    outcome: dict[str, Any],
    row: dict[str, Any],
    statuses: tuple[Status, LogStatus],
    reason: str,
) -> None:
    verdict = decide(Outcome(kind=kind, **outcome), _budgets(**row))
    assert ((verdict.status, verdict.log), verdict.reason) == (statuses, reason)


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
