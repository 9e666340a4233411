"""Isolates the steps of a scheduler: an exception ends only the step that raised it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db import Error

from django_durable_tasks.conf import settings
from django_durable_tasks.engine.db.outages import is_unmigrated, reason_of

logger = logging.getLogger("django_durable_tasks.scheduler")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


@dataclass(slots=True)
class FailingStep:
    """A failing step: last error, consecutive failures, first failure and next attempt."""

    error: str
    since: float
    number: int = 0
    again_at: float = 0.0

    def pause(self, longest: float) -> None:
        """Delay the next attempt, twice as long as the last time, at most ``longest`` seconds."""
        self.number += 1
        self.again_at = time.monotonic() + min(
            _FIRST_PAUSE * 2.0 ** min(self.number - 1, 10), longest
        )


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
        act: Callable[[], int],
        within: float | None = None,
        *,
        outages: bool = False,
    ) -> int:
        """Return what ``act`` returns; 0 if it raised, or if it is not retried yet (0.1 s after the
        first failure, up to 5 s after more).

        With ``outages`` database errors are raised, because the caller handles an outage.
        """
        failing = self._failing.get(what)
        if failing is not None and time.monotonic() < failing.again_at:
            return 0
        if within is not None:
            self._watch(within)
        try:
            number = act()
        except (Exception, SystemExit) as error:  # the project's code may call sys.exit()
            if outages and isinstance(error, Error):
                raise
            self._failed(what, error)
            return 0
        finally:
            if within is not None:
                self._watch(None)
        self._worked(what)
        return number

    def is_failing(self, what: str) -> bool:
        """Return whether the last attempt of this step failed."""
        return what in self._failing

    def failing(self) -> list[dict[str, Any]]:
        """Return the failing steps with their errors, consecutive failures and seconds since the
        first one.
        """
        with self._lock:
            found = list(self._failing.items())
        now = time.monotonic()
        return [
            {
                "what": what,
                "error": one.error,
                "number": one.number,
                "since": round(now - one.since, 1),
            }
            for what, one in found
        ]

    def _failed(self, what: str, error: BaseException) -> None:
        kind = type(error).__name__
        with self._lock:
            before = self._failing.get(what)
            failing = self._failing[what] = before or FailingStep(kind, time.monotonic())
            failing.error = kind
            # After a database outage no step waits longer than a poll interval.
            failing.pause(
                min(settings().POLL, _LONGEST_PAUSE) if isinstance(error, Error) else _LONGEST_PAUSE
            )
        if before is None:
            # A missing table needs no traceback.
            reason, trace = (reason_of(error), None) if is_unmigrated(error) else (kind, error)
            logger.error(
                "%s failed (%s). The other parts of the scheduler continue.",
                what,
                reason,
                exc_info=trace,
            )

    def _worked(self, what: str) -> None:
        if what not in self._failing:
            return
        with self._lock:
            before = self._failing.pop(what, None)
        if before is not None:
            logger.warning("%s works again after %d failures.", what, before.number)
