"""Durable tasks that record when they begin and end, in a file that survives every fault of the
database.

Timestamps come from the monotonic clock, relative to a wall clock time that the whole run shares,
because the wall clocks of some processes are wrong on purpose.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from celery.exceptions import Ignore, Reject
from django.db import connection

from django_durable_tasks import Retry, durable_task
from django_durable_tasks.celery.live_runs import process_runs
from django_durable_tasks.celery.task import DurableTask
from tests.chaos.configuration import VARIABLE, Configuration
from tests.project.coroutines import pause
from tests.waiting import until

CONFIGURATION = Configuration.of(os.environ.get(VARIABLE) or Configuration().as_text())
ROLES_THAT_KNOW = ("stage", "old release")
"""The roles of the processes that have the removed function: the one that created its tasks, and
the workers of the old release, which come back at the end.
"""
ITEMS = 10
"""The items of a loop."""
LEDGER, ORIGIN = "CHAOS_LEDGER", "CHAOS_ORIGIN"
FAST: dict[str, Any] = {"backoff": "FIXED", "backoff_base": 0.2, "max_crashes": 50}


class Unlucky(Exception):
    """The attempt fails on purpose."""


def now() -> float:
    """Return the time in seconds, whatever this process's wall clock shows."""
    return float(os.environ[ORIGIN]) + time.monotonic()


def write(line: dict[str, Any]) -> None:
    """Append one line atomically."""
    file = os.open(os.environ[LEDGER], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    try:
        os.write(file, f"{json.dumps(line)}\n".encode())
    finally:
        os.close(file)


@contextmanager
def _written() -> Iterator[None]:
    live = process_runs.current()
    assert live is not None
    run = live.run
    entry = {
        "task": str(run.task_id),
        "attempt": run.attempt,
        "run": str(run.run_id),
        "pid": os.getpid(),
        "group": os.getpgrp(),
    }
    write({**entry, "what": "begin", "at": now()})
    good = False
    try:
        yield
        good = True
    finally:
        write({**entry, "what": "end", "at": now(), "good": good})


@durable_task(**FAST)
def work(seconds: float = 0.0) -> None:
    """Run for `seconds`."""
    with _written():
        end = time.monotonic() + seconds
        until(lambda: time.monotonic() >= end, within=seconds + 60)


@durable_task(**FAST)
async def wait(seconds: float = 0.0) -> None:
    """Wait for `seconds` on the event loop."""
    with _written():
        await pause(seconds)


@durable_task(bind=True, max_attempts=4, **FAST)
def stumble(self: Any, times: int) -> int:
    """Fail `times` times, then succeed."""
    with _written():
        if self.durable.attempt <= times:
            raise Unlucky(f"try {self.durable.attempt}")
        return times


@durable_task(max_attempts=2, **FAST)
def give_up() -> None:
    """Always fail."""
    with _written():
        raise Unlucky("never")


@durable_task(bind=True, atomic=True, **FAST)
def take_effect(self: Any) -> None:
    """Write a row that must exist exactly once."""
    with _written(), connection.cursor() as cursor:
        live = process_runs.current()
        assert live is not None
        cursor.execute("INSERT INTO chaos_effect (task) VALUES (%s)", [str(live.run.task_id)])


@durable_task(bind=True, max_attempts=4, **FAST)
def iterate(self: Any) -> None:
    """Write a row for each item of a loop, in atomic batches, and fail once in the middle."""
    with _written():
        live = process_runs.current()
        assert live is not None
        for item in self.durable.iterate(range(ITEMS), step="items", batch=4, atomic=True):
            with connection.cursor() as cursor:
                cursor.execute(
                    "INSERT INTO chaos_item (task, item) VALUES (%s, %s)",
                    [str(live.run.task_id), item],
                )
            if self.durable.attempt == 1 and item == ITEMS // 2:
                raise Unlucky(f"item {item}")


@durable_task(batch=50, **FAST)
def work_in_batches() -> None:
    """Run in a batch."""
    with _written():
        pass


@durable_task(**FAST)
def tick() -> None:
    """Run for a schedule."""
    with _written():
        pass


@durable_task(max_crashes=2, backoff="FIXED", backoff_base=0.2)
def poison(how: str) -> None:
    """Always end the process during the body."""
    with _written():
        if how == "SIGSEGV":
            ctypes.string_at(0)
        if how == "memory":
            os.abort()
        os._exit(9)


# Only in campaigns --------------------------------------------------------------------------------


@durable_task(max_concurrency=CONFIGURATION.named_limit or None, **FAST)
def work_within_a_limit(seconds: float = 0.0) -> None:
    """Run for `seconds`, at most as many at once as the configuration allows."""
    with _written():
        end = time.monotonic() + seconds
        until(lambda: time.monotonic() >= end, within=seconds + 60)


@durable_task(bind=True, **FAST)
def report(self: Any, seconds: float) -> None:
    """Run for `seconds`, report a state, and change the reported object into one that cannot be
    stored.
    """
    with _written():
        state: dict[str, Any] = {"seen": 0}
        self.update_state(state="PROGRESS", meta=state)
        state["seen"] = datetime.now(UTC)
        end = time.monotonic() + seconds
        until(lambda: time.monotonic() >= end, within=seconds + 60)


@durable_task(bind=True, **FAST)
def use_the_database(self: Any, seconds: float) -> None:
    """Query before and after a pause of `seconds`. A lost connection is a failure of the function."""
    with _written():
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        end = time.monotonic() + seconds
        until(lambda: time.monotonic() >= end, within=seconds + 60)
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")


@durable_task(bind=True, batch=50, max_attempts=3, **FAST)
def stumble_in_batches(self: Any, how: str) -> None:
    """Run in a batch, and end the first attempt in this way."""
    with _written():
        if self.durable.attempt == 1:
            _end(how)


def _end(how: str) -> None:
    """End the attempt by an exception, or with the process. Any other word is a success."""
    if how == "fail":
        raise Unlucky(how)
    if how == "retry":
        raise Retry(after=0.2, reason=how)
    if how == "reject":
        raise Reject(how, requeue=False)
    if how == "ignore":
        raise Ignore
    if how == "kill":
        os._exit(9)


if CONFIGURATION.overridden_call:

    class Overridden(DurableTask):
        """A base class with a call of its own, which needs the arguments of the task."""

        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Fail instead of the function if the task asks for it."""
            if kwargs["unlucky"]:
                raise Unlucky("before the function")
            return super().__call__(*args, **kwargs)

    @durable_task(base=Overridden, max_attempts=2, **FAST)
    def overridden(*, unlucky: bool) -> None:
        """Run within the call of its base class."""
        with _written():
            pass


if os.environ.get("CHAOS_ROLE") in ROLES_THAT_KNOW:

    @durable_task(**FAST)
    def removed() -> None:
        """A function that the current release does not have."""
        with _written():
            pass


REMOVED = f"{__name__}.removed"
