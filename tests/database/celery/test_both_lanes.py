"""Whatever a task does, it ends in a batch as it does by its message, and affects itself only."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import current_app

from django_durable_tasks.celery import batch_runs
from django_durable_tasks.celery.live_runs import process_runs
from django_durable_tasks.choices import Status
from django_durable_tasks.models import Task
from tests.delivery import trace, trace_batches
from tests.factories import QUEUE, a_task
from tests.project import observed
from tests.repetitions import repetitions

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start with the first size of batches, with no events, and with a loader that may raise."""
    monkeypatch.setattr(batch_runs, "_sizes", batch_runs.BatchSizes())
    observed.seen.clear()

    def on_task_init(task_id: str, task: Any) -> None:
        row = Task.objects.filter(pk=task_id.partition(".")[0]).first() if "-" in task_id else None
        if row is not None and row.args[:1] == ["loader"]:
            raise LookupError("loader raises")

    monkeypatch.setattr(current_app.loader, "on_task_init", on_task_init)


def _end(row: Task) -> tuple[Any, ...]:
    row.refresh_from_db()
    logs = [log.status for log in row.executions.order_by("pk")]
    error = row.last_error.replace(observed.together.name, observed.alone.name)
    return row.status, row.reason, row.attempts, row.failures, row.crashes, error, logs


def _events(row: Task) -> list[tuple[str, str]]:
    found = [(event, detail) for task, event, detail in observed.seen if task == str(row.pk)]
    name = observed.together.name
    return [(event, detail.replace(name, observed.alone.name)) for event, detail in found]


@contextmanager
def _all_ends() -> Iterator[None]:
    yield
    assert not process_runs.leases._runs
    fenced = Task.objects.running()
    assert all(row.args == ["is fenced"] for row in fenced)


_RAISING = {"on_success", "on_failure", "on_retry", "after_return", "loader"}
"""Celery calls the hooks again, or does not call the rest, after one of these raised."""


@pytest.mark.parametrize("seed", range(repetitions(8)))
def test_a_task_ends_in_a_batch_as_by_its_message_and_affects_itself_only(seed: int) -> None:
    draw = random.Random(seed)
    kinds = [*draw.sample(observed.KINDS, 12), *["succeeds"] * 12]
    draw.shuffle(kinds)
    alone = [a_task(Status.QUEUED, name=observed.alone.name, args=[kind]) for kind in kinds]
    together = [a_task(name=observed.together.name, args=[kind], in_batch=True) for kind in kinds]
    with _all_ends():
        for row in alone:
            trace(row)
        trace_batches(observed.together.name, QUEUE)
    for kind, one, other in zip(kinds, alone, together, strict=True):
        expected, found = _end(one), _end(other)
        assert found == expected, kind
        assert found[2] == 1, kind
        if kind not in _RAISING:
            assert _events(other) == _events(one), kind


@pytest.mark.parametrize("kind", observed.KINDS)
def test_a_task_without_hooks_ends_alone_too(kind: str) -> None:
    rows = [
        a_task(name=observed.unhooked.name, args=[one], in_batch=True)
        for one in ("succeeds", kind, "succeeds")
    ]
    with _all_ends():
        trace_batches(observed.unhooked.name, QUEUE)
    ends = [_end(row) for row in rows]
    assert [end[:3] for end in ends[::2]] == [(Status.SUCCESS, "", 1)] * 2
    assert ends[1][2] == 1


def test_what_stands_around_a_batch_message_fails_attempts_of_its_tasks_until_none_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def on_task_init(task_id: str, task: Any) -> None:
        raise LookupError("loader raises")

    monkeypatch.setattr(current_app.loader, "on_task_init", on_task_init)
    rows = [
        a_task(name=observed.together.name, args=["succeeds"], in_batch=True) for _ in range(15)
    ]
    with _all_ends():
        trace_batches(observed.together.name, QUEUE)
    for row in rows:
        status, _, attempts, failures, _, error, logs = _end(row)
        assert (status, attempts, failures, logs) == (Status.PENDING, 1, 1, ["RETRY"])
        assert error == "LookupError: loader raises"
