"""Runs the parts of a scheduler apart from each other: an exception of any class ends only the part that raised it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db import Error

from django_durable_tasks.conf import settings
from django_durable_tasks.lifecycle.outages import is_unmigrated, reason_of

logger = logging.getLogger("django_durable_tasks.scheduler")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


@dataclass(slots=True)
class Failing:
    """A part that fails: its last error, how often it failed in a row, and when it began and is tried again."""

    error: str
    since: float
    number: int = 0
    again_at: float = 0.0

    def pause(self, longest: float) -> None:
        """Put the next attempt off, twice as long as the last time, at most ``longest`` seconds."""
        self.number += 1
        self.again_at = time.monotonic() + min(_FIRST_PAUSE * 2.0 ** min(self.number - 1, 10), longest)


class Steps:
    """What a scheduler does, step by step. Each change of state is logged once; safe to use from several threads.

    ``watch`` is called with how many seconds a step may take before the leader is called stuck, and with None after it.
    """

    def __init__(self, watch: Callable[[float | None], None] = lambda seconds: None) -> None:
        self._watch, self._lock = watch, threading.Lock()
        self._failing: dict[str, Failing] = {}

    def attempt(
        self, what: str, act: Callable[[], int], within: float | None = None, *, outages: bool = False
    ) -> int:  # fmt: skip
        """Return what ``act`` returns; 0 if it raised, and while a failed step is put off (0.1 s, then up to 5 s).

        With ``outages`` errors of the database are raised: the caller handles a database that is away.
        """
        failing = self._failing.get(what)
        if failing is not None and time.monotonic() < failing.again_at:
            return 0
        if within is not None:
            self._watch(within)
        try:
            number = act()
        except (Exception, SystemExit) as error:  # code of the project may call sys.exit()
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
        """Return the steps that fail, with their errors, how often they failed in a row and since when (seconds)."""
        with self._lock:
            found = list(self._failing.items())
        now = time.monotonic()
        return [
            {"what": what, "error": one.error, "number": one.number, "since": round(now - one.since, 1)}
            for what, one in found
        ]

    def _failed(self, what: str, error: BaseException) -> None:
        kind = type(error).__name__
        with self._lock:
            before = self._failing.get(what)
            failing = self._failing[what] = before or Failing(kind, time.monotonic())
            failing.error = kind
            # After an outage of the database nothing waits longer than a poll.
            failing.pause(min(settings().POLL, _LONGEST_PAUSE) if isinstance(error, Error) else _LONGEST_PAUSE)
        if before is None:
            # A missing table needs no traceback.
            told = (reason_of(error), None) if is_unmigrated(error) else (kind, error)
            logger.error("%s failed (%s). The other parts of the scheduler continue.", what, told[0], exc_info=told[1])

    def _worked(self, what: str) -> None:
        if what not in self._failing:
            return
        with self._lock:
            before = self._failing.pop(what, None)
        if before is not None:
            logger.warning("%s works again after %d failures.", what, before.number)
