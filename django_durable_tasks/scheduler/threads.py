"""Threads of a scheduler besides the dispatch thread, and the isolation of their steps."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from django.db import Error

from django_durable_tasks.conf import settings
from django_durable_tasks.store.errors import is_unmigrated, reason_of
from django_durable_tasks.texts import counted

# Isolates the steps of a scheduler: an exception ends only the step that raised it.


logger = logging.getLogger("django_durable_tasks.scheduler")
T = TypeVar("T")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


@dataclass(slots=True)
class FailingStep:
    """A failing step: last error, consecutive failures, first failure and next attempt."""

    error: str
    since: float
    number: int = 0
    again_at: float = 0.0


class Steps:
    """Runs steps by name and logs each change between working and failing once; thread-safe.

    ``watch`` is called with the time limit of a step (seconds) before it runs, and with None after
    it. The leader resigns if a step exceeds its limit.
    """

    def __init__(self, watch: Callable[[float | None], None] = lambda seconds: None) -> None:
        self._watch, self._lock = watch, threading.Lock()
        self._failing: dict[str, FailingStep] = {}

    def attempt(
        self,
        what: str,
        act: Callable[[], T],
        otherwise: T,
        within: float | None = None,
        *,
        outages: bool = False,
    ) -> T:
        """Return what ``act`` returns; ``otherwise`` if it raised, or if it is not retried yet
        (0.1 s after the first failure, up to 5 s after more).

        With ``outages`` database errors are raised, because the caller handles an outage.
        """
        failing = self._failing.get(what)
        if failing is not None and time.monotonic() < failing.again_at:
            return otherwise
        if within is not None:
            self._watch(within)
        try:
            result = act()
        except (Exception, SystemExit) as error:  # the project's code may call sys.exit()
            if outages and isinstance(error, Error):
                raise
            self._failed(what, error)
            return otherwise
        finally:
            if within is not None:
                self._watch(None)
        if what in self._failing:
            with self._lock:
                before = self._failing.pop(what, None)
            if before is not None:
                logger.warning("%s works again after %s.", what, counted(before.number, "failure"))
        return result

    def is_failing(self, what: str) -> bool:
        """Return whether the last attempt of this step failed."""
        return what in self._failing

    def failing(self) -> list[dict[str, Any]]:
        """Return the failing steps with their errors, consecutive failures and seconds since the
        first one.
        """
        with self._lock:
            failing = list(self._failing.items())
        now = time.monotonic()
        return [
            {
                "what": what,
                "error": step.error,
                "number": step.number,
                "since": round(now - step.since, 1),
            }
            for what, step in failing
        ]

    def _failed(self, what: str, error: BaseException) -> None:
        kind = type(error).__name__
        # After a database outage no step waits longer than a poll interval.
        longest = (
            min(settings().POLL, _LONGEST_PAUSE) if isinstance(error, Error) else _LONGEST_PAUSE
        )
        with self._lock:
            before = self._failing.get(what)
            failing = self._failing[what] = before or FailingStep(kind, time.monotonic())
            failing.error = kind
            failing.number += 1
            # Twice as long as the last time.
            pause = _FIRST_PAUSE * 2.0 ** min(failing.number - 1, 10)
            failing.again_at = time.monotonic() + min(pause, longest)
        if before is None:
            # A missing table needs no traceback.
            reason, trace = (reason_of(error), None) if is_unmigrated(error) else (kind, error)
            logger.error(
                "%s failed (%s). The other parts of the scheduler continue.",
                what,
                reason,
                exc_info=trace,
            )


# Threads of a scheduler besides the dispatch thread: each repeats one function, and no exception
# ends it.


_PAUSE = 1.0


class Waiter:
    """A wait that can be ended early, also from a signal handler, where an Event could deadlock."""

    def __init__(self) -> None:
        self._calls = SimpleQueue[None]()

    def wake(self) -> None:
        """End the current wait, or the next one."""
        self._calls.put(None)

    def wait(self, seconds: float) -> None:
        """Wait until ``wake`` is called, at most ``seconds``."""
        with suppress(Empty):
            self._calls.get(timeout=seconds)
            while True:
                self._calls.get_nowait()


def log_failure(error: BaseException, text: str, *values: object) -> None:
    """Log an exception that is being handled; print it to stderr if a log handler raises too."""
    try:
        logger.error(text, *values, exc_info=error)
    except BaseException:  # noqa: BLE001 - a thread of the scheduler must not end because its error cannot be logged
        traceback.print_exc()


class PeriodicThread(threading.Thread):
    """Calls ``act`` repeatedly. It returns the seconds to wait; ``wake`` ends that wait early."""

    def __init__(self, name: str, act: Callable[[], float]) -> None:
        super().__init__(name=f"durable-{name}", daemon=True)
        self._act, self._waiter, self._stopping, self._failing = act, Waiter(), False, False

    def run(self) -> None:
        """Repeat until ``stop``."""
        while not self._stopping:
            try:
                seconds, self._failing = self._act(), False
            except BaseException as error:  # noqa: BLE001 - code of the project may call sys.exit(), which ends threads
                if not self._failing:
                    text = "A round of the thread %s failed; it is repeated every %g s."
                    log_failure(error, text, self.name, _PAUSE)
                seconds, self._failing = _PAUSE, True
            self._waiter.wait(max(0.0, seconds))

    def wake(self) -> None:
        """Start the next round at once."""
        self._waiter.wake()

    def stop(self, patience: float = 2.0) -> None:
        """End after the current round; wait for it at most ``patience`` seconds."""
        self._stopping = True
        self.wake()
        if self.is_alive():
            self.join(patience)
