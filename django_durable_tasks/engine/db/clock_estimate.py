"""What the database's clock shows, as this process reckons it between two looks: no host's clock
decides anything.

A look is one statement, at most one a minute: on the caller's connection if that is in a
transaction, because a second connection may have to be waited for (a pooler with as many slots as
callers would never give one), else on one of ours. Between two looks the monotonic clock counts on,
which no operator and no time server sets.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import Error
from django.utils import timezone

from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.db.connections import (
    close_all,
    dedicated_connection,
    in_test_run,
    in_transaction,
    on_sqlite,
)

_FRESH, _SOON = 60.0, 3.0
"""After so many seconds the database is asked anew; this soon after it failed or was slow."""
_TOO_SLOW = 1.0


@dataclass(frozen=True, slots=True)
class Look:
    """What the database said, and when this host had asked and heard (seconds of its monotonic
    clock).
    """

    said: datetime
    asked: float
    heard: float
    host: datetime

    @property
    def skew(self) -> float:
        """How far the host's clock is ahead of the database's (seconds), to half the round trip."""
        asked_halfway = self.host + timedelta(seconds=(self.heard - self.asked) / 2)
        return (asked_halfway - self.said).total_seconds()

    @property
    def is_slow(self) -> bool:
        """Whether the answer took too long to say much."""
        return self.heard - self.asked > _TOO_SLOW


def look() -> Look:
    """Ask the database for its time, on the connection of this thread."""
    host, asked = timezone.now(), time.monotonic()
    said = database_now()
    return Look(said, asked, time.monotonic(), host)


def skew() -> float | None:
    """Return how far the host's clock is ahead of the database's (seconds); None where the answer
    took too long.
    """
    if on_sqlite():
        return 0.0  # there the host's clock is the database's
    seen = look()
    return None if seen.is_slow else seen.skew


class _Last:
    """The last look of this process; of several threads one looks, the others go by what
    is known.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seen: Look | None = None
        self.again_at = float("-inf")

    def recent(self) -> Look | None:
        if time.monotonic() >= self.again_at and self.lock.acquire(blocking=False):
            try:
                self._look()
            finally:
                self.lock.release()
        return self.seen

    def _look(self) -> None:
        try:
            with nullcontext() if in_transaction() else dedicated_connection():
                seen = look()
            if not seen.is_slow:
                self.seen = seen
            self.again_at = time.monotonic() + (_SOON if seen.is_slow else _FRESH)
        except Error:
            self.again_at = time.monotonic() + _SOON
        if in_test_run():
            close_all()


_last = _Last()


def forget() -> None:
    """Forget the last look; the next question looks anew."""
    global _last
    _last = _Last()


os.register_at_fork(after_in_child=forget)


def _recent() -> Look | None:
    return _last.recent()


def surely_over(instant: datetime) -> bool:
    """Return whether this instant is past by the database's clock; False while that
    cannot be told.
    """
    if on_sqlite():
        return instant <= timezone.now()
    seen = _recent()
    # It said so before we heard it: its clock shows at least what has passed since.
    return seen is not None and instant <= seen.said + timedelta(
        seconds=time.monotonic() - seen.heard
    )


def reckoned_now() -> datetime:
    """Return what the database's clock shows, a round trip late at most, never early; while it is
    away the host's.
    """
    seen = None if on_sqlite() else _recent()
    if seen is None:
        return timezone.now()
    return seen.said + timedelta(seconds=time.monotonic() - seen.asked)
