"""Durable tasks that run in batches."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from celery import signals

from django_durable_tasks import Retry, Schedule, durable_task
from tests.project import bodies
from tests.waiting import until

FAST: dict[str, Any] = {"batch": 50, "backoff": "FIXED", "backoff_base": 0.05, "jitter": False}


def write(notebook: str, line: object) -> None:
    """Append a line to a file atomically."""
    file = os.open(notebook, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(file, f"{line}\n".encode())
    os.close(file)


@durable_task(**FAST)
def add(left: int, right: int) -> int:
    """Return the sum."""
    return left + right


@durable_task(bind=True, **FAST)
def note(self: Any, notebook: str, number: int) -> dict[str, Any]:
    """Append the number to the notebook, and return what the run knows of itself."""
    write(notebook, number)
    return {
        "id": self.request.id,
        "args": list(self.request.args),
        "attempt": self.durable.attempt,
        "process": os.getpid(),
    }


@durable_task(max_attempts=2, **FAST)
def fail_once(notebook: str) -> str:
    """Fail the first time."""
    first = not Path(notebook).exists()
    write(notebook, "called")
    if first:
        raise ValueError("not yet")
    return "done"


@durable_task(max_attempts=3, **FAST)
def ask_again(notebook: str) -> None:
    """Request another attempt once."""
    first = not Path(notebook).exists()
    write(notebook, "called")
    if first:
        raise Retry(after=0.05, reason="not yet")


@durable_task(**FAST)
def follow(number: int) -> Any:
    """Return another task to create."""
    return Schedule(add, (number, 1))


@durable_task(atomic=True, **FAST)
def atomically(number: int) -> int:
    """Return the number; the success is in the transaction of the function."""
    return number


@durable_task(max_crashes=2, **FAST)
def kill_if(number: int, deadly: int) -> int:
    """End the process if the number is the deadly one."""
    if number == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@durable_task(**FAST)
def hold(folder: str, number: int) -> int:
    """Wait until the file ``release`` exists, if the number is 0."""
    write(f"{folder}/started", number)
    if number == 0:
        until((Path(folder) / "release").exists, within=60)
    return number


@durable_task(bind=True, **FAST)
def until_cancelled(self: Any, folder: str) -> None:
    """Run until the task is cancelled."""
    write(f"{folder}/started", 0)
    until(lambda: self.durable.cancelled, within=60)
    self.durable.check()


@durable_task(**FAST)
def observed(notebook: str) -> str:
    """A task whose signals are written to the notebook."""
    return notebook


@durable_task(**FAST)
def work(number: int, seconds: float, folder: str) -> int:
    """Run for `seconds`, as ``bodies.work`` does."""
    return bodies.work(number, seconds, folder)


def _on_success(sender: Any = None, result: str = "", **_: Any) -> None:
    write(result, f"success {sender.request.id}")


def _on_postrun(task_id: str = "", retval: str = "", **_: Any) -> None:
    write(retval, f"postrun {task_id}")


signals.task_success.connect(_on_success, sender=observed, weak=False)
signals.task_postrun.connect(_on_postrun, sender=observed, weak=False)
