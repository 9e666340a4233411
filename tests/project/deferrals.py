"""Places between the end of a task function and the COMMIT of its deferred success, where a child
process of a worker waits or is killed.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django_durable_tasks.celery.execution import deferred_success
from django_durable_tasks.celery.execution.deferred_success import DeferredSuccess

PLACES = ("held", "deferred", "next-start", "next-started")
_A_LONG_TIME = 3_600.0


def arm(place: str, file: str) -> None:
    """Make a success wait for the next start (``held``), or kill the process once, if the file
    exists: after a function (``deferred``), before the success and the next start are recorded
    together (``next-start``), or after (``next-started``).
    """
    deferred_success.DELAY = _A_LONG_TIME
    defer, record_with = DeferredSuccess.defer, DeferredSuccess.record_with

    def deferred(self: DeferredSuccess, *given: Any) -> None:
        defer(self, *given)
        _die("deferred")

    def recorded_with(self: DeferredSuccess, start: Callable[..., Any]) -> Any:
        is_deferred = self._held is not None
        if is_deferred:
            _die("next-start")
        found = record_with(self, start)
        if is_deferred:
            _die("next-started")
        return found

    def _die(here: str) -> None:
        if here == place and Path(file).exists():
            Path(file).unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(DeferredSuccess, "defer", deferred)  # noqa: B010 - mypy refuses the assignment
    setattr(DeferredSuccess, "record_with", recorded_with)  # noqa: B010
