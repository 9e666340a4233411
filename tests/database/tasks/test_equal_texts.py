"""Two texts are one key, name or queue only if they are the same characters, on every database."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from django_durable_tasks.cluster import queues
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.limits import operator_limits
from django_durable_tasks.models import Calendar, Limit, QueueControl, RecurringTask, Task
from django_durable_tasks.workflows import Workflow
from tests.project import tasks
from tests.repetitions import repetitions

pytestmark = pytest.mark.django_db
LATER = datetime(2100, 1, 1, tzinfo=UTC)
# What a collation, a normal form or a mapping of case regards as equal to another text.
PARTS = st.one_of(
    st.sampled_from(
        [*"aAäÄeéÉßẞＡıİIKſsµμΣσςΩ😀😁👍か가ｶカⅷ²2１-_.:/%\\'\"", "ss", "SS", "ﬁ", "fi", "viii"]
    ),
    st.sampled_from([*"\u0301\u0308\ufe0f\u200d\u200b\u00ad \u00a0\u3000\t\n\0\ud800"]),
    st.characters(),
)
TEXTS = st.lists(PARTS, min_size=1, max_size=6).map("".join)
CHANGES: dict[str, Callable[[str], str]] = {
    "the same": str,
    "upper case": str.upper,
    "lower case": str.lower,
    "folded": str.casefold,
    "trailing blank": lambda text: f"{text} ",
    "leading blank": lambda text: f" {text}",
    "NUL": lambda text: f"{text}\0",
    "accent": lambda text: f"{text}\u0301",
    "variation selector": lambda text: f"{text}\ufe0f",
    "zero width": lambda text: f"{text}\u200b",
    "longest": lambda text: (text * 200)[:200],
    "too long": lambda text: (text * 201)[:201],
    "NFC": lambda text: unicodedata.normalize("NFC", text),
    "NFD": lambda text: unicodedata.normalize("NFD", text),
    "NFKC": lambda text: unicodedata.normalize("NFKC", text),
}
PAIRS = st.one_of(
    st.tuples(TEXTS, st.sampled_from(sorted(CHANGES))).map(
        lambda drawn: (drawn[0], CHANGES[drawn[1]](drawn[0]))
    ),
    st.tuples(TEXTS, TEXTS),
)


def _scheduled(**options: Any) -> Any:
    return tasks.echo.using(run_at=LATER, **options).schedule().pk


def _workflow(text: str) -> Any:
    workflow = Workflow("equal-texts")
    workflow.add(tasks.noop)
    return workflow.start(run_at=LATER, key=text).pk


def _limit(text: str) -> Any:
    operator_limits.set_limit(f"key:{text}", max_concurrency=1, rate=None, burst=None, by="anna")
    return Limit.objects.count()


def _queue(text: str) -> Any:
    queues.pause(text, by="anna")
    return QueueControl.objects.count()


# Each returns the same for the second text only if it names the same object.
CALLS: dict[str, Callable[[str], Any]] = {
    "idempotency_key": lambda text: _scheduled(idempotency_key=text),
    "key": lambda text: _scheduled(key=text),
    "unique": lambda text: tasks.unique.using(run_at=LATER).schedule(text).pk,
    "recurring task": lambda text: (
        RecurringTask.objects.upsert(name=text, task=tasks.noop, interval=3600).pk
    ),
    "calendar": lambda text: Calendar.objects.upsert(text).pk,
    "workflow": _workflow,
    "limit": _limit,
    "queue": _queue,
}


def _accepted(call: Callable[[str], Any], text: str) -> Any:
    """Return the result of a call, or the exception with which it refuses the text."""
    try:
        with transaction.atomic():
            return call(text)
    except InvalidOption as refused:
        return refused


@examples(
    max_examples=repetitions(200, least=40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.sampled_from(sorted(CALLS)), PAIRS)
@example("key", ("C/X", "c/x"))
@example("idempotency_key", ("qé1", "qe1"))
@example("unique", ("a", "a "))
@example("recurring task", ("straße", "strasse"))
@example("calendar", ("😀", "😁"))
def test_two_texts_are_one_only_if_they_are_equal(
    db: None, kind: str, pair: tuple[str, str]
) -> None:
    with transaction.atomic():
        first, second = (_accepted(CALLS[kind], text) for text in pair)
        transaction.set_rollback(True)
    if not any(isinstance(result, InvalidOption) for result in (first, second)):
        assert (first == second) == (pair[0] == pair[1]), (kind, pair)


@examples(
    max_examples=repetitions(60, least=20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(PAIRS)
@example(("C/X", "c/x"))
def test_a_task_is_cancelled_and_moved_by_its_own_key_only(db: None, pair: tuple[str, str]) -> None:
    first, second = pair
    with transaction.atomic():
        if isinstance(_accepted(lambda text: _scheduled(key=text), first), InvalidOption):
            return
        moved = _accepted(lambda text: Task.objects.reschedule(text, LATER), second)
        cancelled = _accepted(Task.objects.cancel, second)
        transaction.set_rollback(True)
    if not isinstance(cancelled, InvalidOption):
        assert moved == cancelled == (first == second), pair
