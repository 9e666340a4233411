"""Celery's ``self.retry()`` in a run: the limit and the delay are stored with the task."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from celery.exceptions import Retry

from django_durable_tasks import durable_task
from django_durable_tasks.choices import Status
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import DeadLetter, Task
from tests.delivery import deliver
from tests.factories import a_task

pytestmark = pytest.mark.django_db(transaction=True)


def _ask(self: Any, **options: Any) -> None:
    raise self.retry(exc=KeyError("not yet"), **options)


def _task(name: str, **options: Any) -> Any:
    return cast("Any", durable_task)(bind=True, name=f"tests.retry.{name}", **options)(_ask)


PLAIN = _task("plain")
SPACED = _task("spaced", backoff="FIXED", backoff_base=7, jitter=False)
LIMITED = _task("limited", max_attempts=3)
UNLIMITED = _task("unlimited", max_retries=None)


def _run(task: Any, **fields: Any) -> Task:
    """Deliver a message of this task and return the task after the run."""
    row = a_task(Status.QUEUED, name=task.name, **fields)
    with pytest.raises((KeyError, Retry, InvalidOption)):
        deliver(row)
    row.refresh_from_db()
    return row


def _wait(row: Task) -> timedelta:
    ended = row.executions.get().completed_at
    assert isinstance(row.due_at, datetime)
    return timedelta(seconds=round((row.due_at - ended).total_seconds()))


@pytest.mark.parametrize(
    ("task", "options", "wait"),
    [
        (PLAIN, {}, 180),
        (PLAIN, {"countdown": 20}, 20),
        (SPACED, {}, 7),
        (SPACED, {"countdown": 20}, 20),
    ],
)
def test_a_retry_waits_for_its_countdown_or_default_retry_delay_or_the_backoff(
    task: Any, options: dict[str, Any], wait: int
) -> None:
    row = _run(task, kwargs=options)
    assert (row.status, _wait(row)) == (Status.PENDING, timedelta(seconds=wait))


@pytest.mark.parametrize(
    ("task", "given", "failures", "max_attempts", "status"),
    [
        (PLAIN, {}, 2, 4, Status.PENDING),
        (PLAIN, {}, 3, 4, Status.FAILED),
        (PLAIN, {"max_retries": 0}, 0, 1, Status.FAILED),
        (PLAIN, {"max_retries": 8}, 7, 9, Status.PENDING),
        (PLAIN, {"max_retries": 1}, 3, 4, Status.FAILED),
        (LIMITED, {}, 1, 3, Status.PENDING),
        (LIMITED, {}, 2, 3, Status.FAILED),
        (LIMITED, {"max_retries": 8}, 2, 3, Status.FAILED),
        (LIMITED, {"max_retries": 1}, 1, 2, Status.FAILED),
        (UNLIMITED, {}, 500, 1_000, Status.PENDING),
    ],
)
def test_retries_are_limited_by_max_retries_or_by_max_attempts_if_given(
    task: Any, given: dict[str, Any], failures: int, max_attempts: int, status: Status
) -> None:
    before = 1_000 if task is UNLIMITED else 3 if task is LIMITED else 5
    row = _run(task, kwargs=given, failures=failures, max_attempts=before)
    assert (row.status, row.failures, row.max_attempts) == (status, failures + 1, max_attempts)
    letters = list(DeadLetter.objects.filter(open_task=row.pk).values_list("reason", flat=True))
    assert letters == (["EXHAUSTED"] if status == Status.FAILED else [])
    assert row.last_error == "KeyError: 'not yet'"


def test_the_max_attempts_of_a_call_limits_celery_retries() -> None:
    result = PLAIN.using(max_attempts=2, run_at=None).schedule(countdown=0)
    assert (result.max_attempts, result.options) == (2, {"max_attempts": 2})
    row = _run(
        PLAIN, kwargs={"countdown": 0}, failures=1, max_attempts=2, options={"max_attempts": 2}
    )
    assert (row.status, row.reason) == (Status.FAILED, "EXHAUSTED")


@pytest.mark.parametrize("options", [{"args": [1]}, {"kwargs": {"x": 1}}, {"queue": "slow"}])
def test_a_retry_with_unsupported_options_is_refused_once(options: dict[str, Any]) -> None:
    row = _run(PLAIN, kwargs=options)
    assert (row.status, row.reason) == (Status.FAILED, "GAVE_UP")
    assert "return Schedule(...) instead" in row.last_error
