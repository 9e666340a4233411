"""Durable tasks of the scenarios. Their exception is distinguishable from unexpected ones."""

from __future__ import annotations

from typing import Any
from unittest import mock

from django.contrib.auth.models import Group

from django_durable_tasks import Schedule, durable_task
from django_durable_tasks.celery import batch_runs
from tests.factories import QUEUE

OPTIONS: dict[str, Any] = {
    "queue": QUEUE,
    "backoff": "FIXED",
    "backoff_base": 60,
    "jitter": False,
    "max_crashes": 9,
}


class ExpectedFailure(Exception):
    """The exception of the failing bodies."""


@durable_task(**OPTIONS)
def well(number: int = 0) -> int:
    """Return the number."""
    return number


@durable_task(**OPTIONS, max_attempts=2)
def ill(number: int = 0) -> None:
    """Raise; there are two attempts."""
    raise ExpectedFailure(f"body {number}")


@durable_task(**OPTIONS, max_attempts=1)
def hopeless(number: int = 0) -> None:
    """Raise; there is no second attempt."""
    raise ExpectedFailure(f"body {number}")


@durable_task(**OPTIONS)
def onward(number: int) -> Any:
    """Return two follow-ups."""
    return [Schedule(well, (number + more,)) for more in (1, 2)]


@durable_task(**OPTIONS, atomic=True)
def atomically(name: str) -> Any:
    """Write a row that is committed with the success."""
    Group.objects.create(name=name)
    return name


@durable_task(**OPTIONS, bind=True)
def in_steps(self: Any) -> Any:
    """Write a row in an atomic step, two in an atomic loop, and one in another step. Their names
    are unique, so that a repetition after its COMMIT fails in each attempt.
    """

    def write(name: str) -> str:
        return str(Group.objects.create(name=name).name)

    self.durable.step("before", write, "before", atomic=True)
    for number in self.durable.iterate([1, 2], step="rows", batch=1, atomic=True):
        write(f"row {number}")
    return self.durable.step("after", write, "after", atomic=True)


@durable_task(**OPTIONS, bind=True)
def growing(self: Any) -> None:
    """Add two tasks to the workflow, one after the other."""
    growth = self.durable.workflow
    growth.add(well, 2, after=growth.add(well, 1, step="first"), step="second")


@durable_task(**OPTIONS, bind=True, max_attempts=1)
def ill_at_first(self: Any) -> None:
    """Raise until it is replayed."""
    if not Group.objects.filter(name="healed").exists():
        raise ExpectedFailure("not healed")


@durable_task(**OPTIONS, unique="{task}:{0}", unique_for=3600)
def seldom(subject: str) -> str:
    """Do nothing for an hour after a success for the same subject."""
    return subject


@durable_task(**OPTIONS, unique="{task}:{0}")
def single(subject: str) -> str:
    """Be open at most once per subject."""
    return subject


@durable_task(**OPTIONS, batch=2)
def small(number: int = 0) -> int:
    """Return the number; at most two tasks start together."""
    return number


@durable_task(**OPTIONS, batch=4, max_attempts=1)
def mixed(number: int) -> int:
    """Raise if the number is 1. Be slow if it is 2: do what the thread of batches does then."""
    if number == 1:
        raise ExpectedFailure(f"body {number}")
    if number == 2:
        with (
            mock.patch.object(batch_runs, "SLOW", -1.0),
            mock.patch.object(batch_runs, "GROUP_AGE", -1.0),
        ):
            for batch in list(batch_runs.batch_thread._batches):
                batch.act_beside()
    return number
