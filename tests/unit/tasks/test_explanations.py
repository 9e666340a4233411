"""Explanations of a task's status: every cause is named, the most severe first, and every status
has one.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_durable_tasks.choices import Status
from django_durable_tasks.tasks.explanations import (
    Level,
    OutstandingMessage,
    TaskSituation,
    ago,
    explain,
)

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)


def _in(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


IN_BATCH = {"due_at": _in(-5), "in_batch": True}


def _explained(status: str, **facts: Any) -> str:
    sound: dict[str, Any] = {"queue": "mail", "schedulers": 1, "workers": 1, "max_attempts": 5}
    situation = TaskSituation(now=NOW, status=status, **{**sound, **facts})
    return " ".join(sentence.text for sentence in explain(situation))


@pytest.mark.parametrize(
    ("status", "facts", "expected"),
    [
        ("PENDING", {"due_at": _in(600)}, "It is not due yet: in 10 min."),
        (
            "PENDING",
            {"due_at": _in(600), "attempts": 1, "failures": 1},
            "The next attempt is not due yet: in 10 min.",
        ),
        ("PENDING", {"due_at": _in(600), "failures": 2}, "It failed 2 of 5 times."),
        (
            "PENDING",
            IN_BATCH,
            "waits for a batch: a worker starts it together with others. No batch message is outstanding",
        ),
        (
            "PENDING",
            {**IN_BATCH, "batch_message": OutstandingMessage(_in(9), 3)},
            "A batch message was published and waits for a free worker process.",
        ),
        (
            "PENDING",
            {**IN_BATCH, "batch_message": OutstandingMessage(_in(-1), 1)},
            "The batch message was published once and no worker received it",
        ),
        (
            "PENDING",
            {**IN_BATCH, "batch_message": OutstandingMessage(_in(60), 4)},
            "the workers are busy, or the broker lost it. A scheduler publishes it again in 60 s.",
        ),
        (
            "PENDING",
            {**IN_BATCH, "batch_message": OutstandingMessage(_in(7), 0)},
            "no task of this name. A scheduler publishes the next one in 7 s.",
        ),
        ("PENDING", {"due_at": _in(60), "in_batch": True}, "It is not due yet: in 60 s."),
        (
            "PENDING",
            {"due_at": _in(-5), "alone_after_crash": True},
            "Its worker died during a batch, so it runs alone",
        ),
        (
            "QUEUED",
            {"publish_count": 1, "alone_after_crash": True},
            "Its worker died during a batch, so it runs alone",
        ),
        (
            "PENDING",
            {"due_at": _in(9e9), "in_batch": True, "limited": "It waits for key:acme."},
            "It waits for key:acme.",
        ),
        ("PENDING", {"due_at": _in(5), "failures": 2, "crashes": 1}, "and its worker died 1 times"),
        (
            "PENDING",
            {"due_at": _in(9e9), "held": True},
            "It waits until the earlier runs with its overlap key have ended",
        ),
        ("PENDING", {"due_at": _in(-90)}, "It is due since 90 s and waits for its turn"),
        ("PENDING", {"due_at": _in(0)}, "It is due now and waits for its turn"),
        ("BLOCKED", {"unresolved": 1}, "It waits for 1 other task or person."),
        ("BLOCKED", {"unresolved": 2}, "It waits for 2 other tasks or people."),
        ("PENDING", {"due_at": _in(-90), "schedulers": 0}, "No scheduler is alive"),
        ("PENDING", {"due_at": _in(-90), "workers": 0}, "No live worker listens on queue mail"),
        ("PENDING", {"due_at": _in(-90), "known": False}, "No durable task of that name is"),
        ("PENDING", {"due_at": _in(-90), "expires_at": _in(30)}, "Expires in 30 s"),
        ("PENDING", {"due_at": _in(-90), "expires_at": _in(-30)}, "Expired 30 s ago"),
        ("QUEUED", {"publish_count": 1}, "waits for a free worker"),
        (
            "QUEUED",
            {"publish_count": 4},
            "published 4 times and no worker started it: the workers are busy",
        ),
        ("QUEUED", {"publish_count": 4, "schedulers": 0}, "No scheduler is alive to publish it"),
        (
            "QUEUED",
            {"paused": True, "paused_by": "ann", "pause_reason": "fire"},
            "was paused by ann (fire)",
        ),
        (
            "RUNNING",
            {"started_at": _in(-30), "attempts": 2, "lease_until": _in(30)},
            "It runs since 30 s, try 2.",
        ),
        ("RUNNING", {"lease_until": _in(-30)}, "the lease expired 30 s ago"),
        (
            "RUNNING",
            {"lease_until": _in(-30), "schedulers": 0},
            "No scheduler is alive to retry it",
        ),
        ("RUNNING", {"overdue": True}, "longer than its expected duration"),
        ("RUNNING", {"cancel_requested": True}, "Cancellation was requested"),
        ("FAILED", {"reason": "EXHAUSTED"}, "all of its attempts have been made"),
        ("FAILED", {"reason": "ORPHANED"}, "forbids another run"),
        ("FAILED", {"reason": "something new"}, "It failed: something new."),
        ("CANCELLED", {"reason": "CANCELLED by ann"}, "It was cancelled: CANCELLED by ann."),
        ("SKIPPED", {}, "It was skipped."),
        ("EXPIRED", {"reason": "EXPIRED"}, "no worker started it before its expires_at."),
        ("SUCCESS", {}, "It is done."),
        ("SUCCESS", {"reason": "completed by ann"}, "It is done: completed by ann."),
    ],
)
def test_the_cause_is_named(status: str, facts: dict[str, Any], expected: str) -> None:
    assert expected in _explained(status, **facts)


@pytest.mark.parametrize("status", list(Status))
def test_every_status_has_an_explanation(status: Status) -> None:
    assert explain(TaskSituation(now=NOW, status=status, queue="mail"))


def test_the_most_severe_cause_comes_first() -> None:
    sentences = explain(
        TaskSituation(
            now=NOW, status="PENDING", queue="mail", due_at=_in(-5), paused=True, failures=1
        )
    )
    levels = [sentence.level for sentence in sentences]
    assert levels == sorted(levels, key=[Level.TROUBLE, Level.WAIT, Level.FINE].index)
    assert levels[0] is Level.TROUBLE


def test_a_healthy_task_has_no_trouble() -> None:
    sound: dict[str, dict[str, Any]] = {
        "PENDING": {"due_at": _in(5)},
        "QUEUED": {"publish_count": 1},
        "RUNNING": {},
    }
    for status, facts in sound.items():
        situation = TaskSituation(
            now=NOW, status=status, queue="mail", schedulers=1, workers=1, **facts
        )
        assert all(sentence.level is not Level.TROUBLE for sentence in explain(situation))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (-45, "45 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7_199, "119 min"),
        (7_200, "2 h"),
        (12_000, "3 h 20 min"),
        (172_800, "2 d"),
    ],
)
def test_a_duration_is_readable(seconds: float, text: str) -> None:
    assert ago(seconds) == text
