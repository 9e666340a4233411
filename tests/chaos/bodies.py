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
from typing import Any

from django.db import connection

from django_durable_tasks import durable_task
from django_durable_tasks.celery.execution.live_runs import process_runs
from tests.waiting import until

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
        cursor.execute("INSERT INTO chaos_effect (task) VALUES (%s)", [live.run.task_id])


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
