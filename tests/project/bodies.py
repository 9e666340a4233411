"""Durable tasks that end in every possible way, used by tests/broker, tests/processes and the kill
trials.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from celery import shared_task, signals
from celery.exceptions import Ignore, Reject
from django.contrib.auth.models import Group

from django_durable_tasks import Retry, Schedule, durable_task
from tests.waiting import until

FAST: dict[str, Any] = {"backoff": "FIXED", "backoff_base": 0.05, "jitter": False}


class Unwilling(Exception):
    """Cannot be pickled, because it contains a generator."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.held = (number for number in range(3))


@contextmanager
def _noting(folder: str) -> Iterator[None]:
    """Create the file `started` in the folder, and `ended` when the block returns."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    (place / f"started-{os.getpid()}-{time.monotonic_ns()}").touch()
    yield
    (place / f"ended-{os.getpid()}-{time.monotonic_ns()}").touch()


@durable_task(**FAST)
def add(left: int, right: int) -> int:
    """Return the sum."""
    return left + right


@durable_task(**FAST)
def hold_the_interpreter(seconds: float) -> None:
    """Sleep in C without releasing the GIL, so that no other thread of the process runs."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


@durable_task(**FAST)
def note(line: str, notebook: str) -> None:
    """Append the line to the notebook file atomically."""
    file = os.open(notebook, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(file, f"{line}\n".encode())
    os.close(file)


@durable_task(bind=True, **FAST)
def note_start(self: Any, notebook: str) -> None:
    """Append the idempotency key and the time of this start to the notebook file."""
    note(f"{self.durable.idempotency_key} {datetime.now(UTC).isoformat()}", notebook)


@durable_task(queue="durable-side")
def sideways() -> str:
    """Run in a separate queue."""
    return "side"


@durable_task(max_attempts=2, **FAST)
def fail(message: str) -> None:
    """Raise."""
    raise ValueError(message)


@durable_task(max_attempts=3, **FAST)
def ask_again(after: float) -> None:
    """Request a retry every time."""
    raise Retry(after=after)


@durable_task(bind=True, max_attempts=5, **FAST)
def celery_retry(self: Any, times: int) -> int:
    """Use Celery's own retry `times` times, then return the number of the attempt."""
    if self.request.retries < times:
        raise self.retry(countdown=0.01, exc=KeyError("not yet"))
    attempt: int = self.durable.attempt
    return attempt


@durable_task(
    bind=True, autoretry_for=(LookupError,), retry_backoff=False, retry_kwargs={"countdown": 0.01}
)
def autoretry(self: Any, times: int) -> int:
    """Fail `times` times with an error that Celery retries."""
    if self.durable.attempt <= times:
        raise LookupError("not yet")
    attempt: int = self.durable.attempt
    return attempt


@durable_task(**FAST)
def ignore() -> None:
    """Raise Ignore."""
    raise Ignore("nobody cares")


@durable_task(max_attempts=2, **FAST)
def reject(requeue: bool) -> None:
    """Reject the message."""
    raise Reject("not for me", requeue=requeue)


@durable_task(max_attempts=1, soft_timeout=0.5, timeout=20)
def over_soft_limit() -> None:
    """Wait longer than the soft limit."""
    until(lambda: False, within=30)


@durable_task(max_attempts=1, timeout=1)
def over_hard_limit() -> None:
    """Wait longer than the hard limit, ignoring the soft one."""
    until(lambda: False, within=30)


@durable_task(bind=True, max_attempts=1, timeout=0.3)
def heed_the_clock(self: Any) -> None:
    """Check the limit as bodies do on pools that cannot interrupt them."""
    until(self.durable.check, within=30)


@durable_task(max_crashes=2, **FAST)
def leave(how: str, code: int = 0) -> None:
    """End the process during the body."""
    if how == "sys.exit":
        sys.exit(code)
    if how == "os._exit":
        os._exit(code)
    if how == "SIGSEGV":
        ctypes.string_at(0)
    os.kill(os.getpid(), signal.Signals[how])
    until(lambda: False, within=30)


@durable_task
def last(seconds: float) -> None:
    """Run for this long."""
    threading.Event().wait(seconds)


@durable_task
def end_the_worker(seconds: float) -> None:
    """Run for this long, then kill the process group of the worker, with all its processes."""
    threading.Event().wait(seconds)
    os.killpg(os.getpgid(0), signal.SIGKILL)


@durable_task(max_crashes=2, **FAST)
def lose_before_the_start() -> None:
    """Is never called: a receiver of ``task_prerun`` ends the process first."""


def _end_process(**_: Any) -> None:
    os._exit(3)


signals.task_prerun.connect(_end_process, sender=lose_before_the_start, weak=False)


@durable_task(on_orphan="DEAD_LETTER")
def leave_an_orphan() -> None:
    """End the process during a body that must not run twice."""
    os._exit(3)


@durable_task(max_attempts=1)
def raise_named(name: str) -> None:
    """Raise a built-in exception by its name."""
    raise getattr(__import__("builtins"), name)("from the body")


@durable_task(max_attempts=1)
def raise_unpicklable() -> None:
    """Raise an exception that cannot be pickled."""
    raise Unwilling("no pickle for me")


@durable_task
def give_back(kind: str) -> Any:
    """Return a value that is not JSON, too large, or an invalid follow-up."""
    return {
        "not json": {1, 2},
        "too large": "x" * 70_000,
        "follow-up": Schedule(add, (1, 2)),
        "wrong follow-up": Schedule(add, (1, 2, 3)),
        "unknown follow-up": Schedule("no.such.task"),
    }[kind]


@durable_task(bind=True)
def hold(self: Any, folder: str, released: str = "") -> int:
    """Run until the file `released` exists."""
    with _noting(folder):
        until(Path(released or f"{folder}/released").exists, within=600)
    attempt: int = self.durable.attempt
    return attempt


@durable_task(bind=True, atomic=True)
def hold_atomically(self: Any, folder: str) -> int:
    """Write a row whose effect must happen once, then run until the file `released` exists."""
    attempt: int = self.durable.attempt
    Group.objects.create(name=f"{self.durable.idempotency_key}-{attempt}")
    with _noting(folder):
        until(Path(f"{folder}/released").exists, within=120)
    return attempt


@durable_task(bind=True)
def heed(self: Any, folder: str) -> None:
    """Run until its cancellation is requested, reporting progress."""
    with _noting(folder):
        self.durable.progress(1, 3, "waiting")
        until(self.durable.check, within=60)


@durable_task
def work(number: int, seconds: float, folder: str) -> int:
    """Run for `seconds`: one task of a drain. Meanwhile a file of the folder contains the id of its
    process.
    """
    mark = Path(folder) / str(os.getpid())
    mark.touch()
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() >= end, within=60)
    mark.unlink()
    return number


@shared_task(name="tests.project.bodies.plain")
def plain() -> str:
    """A task that is not durable."""
    return "plain"
