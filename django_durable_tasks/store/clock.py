"""The clock of the host, and that of the database: read, estimated between two reads, and watched
for steps.
"""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import Error, connections
from django.db.models import ExpressionWrapper

from django_durable_tasks import conf, process_state
from django_durable_tasks.models.fields import DatabaseNow, InstantField, instant
from django_durable_tasks.store.connections import dedicated_connection, in_transaction, on_sqlite
from django_durable_tasks.store.dialects import MYSQL, POSTGRESQL, sql, verb

# The clock of the host: for estimates, texts and SQLite. The database's clock decides what is due.


travelled = timedelta()
"""How far ``testing.travel`` has moved this clock; zero outside of tests."""


def host_now() -> datetime:
    """Return the current time in UTC; ``timezone.now()`` has no zone with ``USE_TZ = False``."""
    return datetime.now(UTC) + travelled


# The database's clock, or the host's clock on SQLite.
#
# A scheduler reads it once per tick and passes the time on as ``now``.


@verb
def database_now() -> datetime:
    """Return the current time of the database, aware and in UTC."""
    return host_now()


@database_now.on(POSTGRESQL, MYSQL)
def _server_now() -> datetime:
    with connections[conf.settings().DATABASE].cursor() as cursor:
        cursor.execute(sql("now"))
        return aware(instant(cursor.fetchone()[0], cursor.db))


def aware(time: datetime) -> datetime:
    """Return a time of the database in UTC. MariaDB returns naive times, which are in UTC."""
    if time.tzinfo is UTC:
        return time
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)


def after(seconds: float) -> Any:
    """Return the expression for the time of the database plus ``seconds``."""
    return ExpressionWrapper(DatabaseNow() + timedelta(seconds=seconds), InstantField())


# Estimates the database's clock between two queries of it. The clock of the host decides nothing.
#
# The clock is queried at most once a minute. A caller in a transaction uses its own connection,
# because waiting for a second one could deadlock behind a pooler with as many slots as callers.
# Other callers use a dedicated connection. Between two queries the monotonic clock is added, which
# neither an operator nor a time server sets.


_FRESH, _SOON = 60.0, 3.0
"""Seconds until the next query: after a success, and after a failure or a slow answer."""
_TOO_SLOW = 1.0


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The time of the database, and when it was requested and received in seconds of the monotonic
    clock.
    """

    database_time: datetime
    requested: float
    received: float
    host_time: datetime

    @property
    def skew(self) -> float:
        """How far the host's clock is ahead of the database's in seconds, to half the round
        trip.
        """
        halfway = self.host_time + timedelta(seconds=(self.received - self.requested) / 2)
        return (halfway - self.database_time).total_seconds()

    @property
    def is_slow(self) -> bool:
        """Whether the answer took too long to be precise."""
        return self.received - self.requested > _TOO_SLOW


@dataclass(frozen=True, slots=True)
class ReceivedTime:
    """A time of the database, and when it was received in seconds of the monotonic clock."""

    database_time: datetime
    received: float

    def now(self) -> datetime:
        """Return the time of the database now, late by the way of the answer and never early."""
        return self.database_time + timedelta(seconds=time.monotonic() - self.received)


def read_clock() -> ClockReading:
    """Query the database's time on the connection of this thread."""
    host, requested = host_now(), time.monotonic()
    database = database_now()
    return ClockReading(database, requested, time.monotonic(), host)


def skew() -> float | None:
    """Return how far the host's clock is ahead of the database's in seconds; None if the answer
    took too long.
    """
    if on_sqlite():
        return 0.0  # there the host's clock is the database's
    seen = read_clock()
    return None if seen.is_slow else seen.skew


class LastClockReading:
    """The last query of this process. One thread queries; others use the last result meanwhile."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seen: ClockReading | None = None
        self.again_at = float("-inf")

    def recent(self) -> ClockReading | None:
        if time.monotonic() >= self.again_at and self.lock.acquire(blocking=False):
            try:
                self._query()
            finally:
                self.lock.release()
        return self.seen

    def _query(self) -> None:
        try:
            with nullcontext() if in_transaction() else dedicated_connection():
                seen = read_clock()
            if not seen.is_slow:
                self.seen = seen
            self.again_at = time.monotonic() + (_SOON if seen.is_slow else _FRESH)
        except Error:
            self.again_at = time.monotonic() + _SOON


def _recent() -> ClockReading | None:
    return process_state.of(LastClockReading).recent()


def has_passed(instant: datetime) -> bool:
    """Return whether this instant has passed by the database's clock; False if that is unknown."""
    if on_sqlite():
        return instant <= host_now()
    seen = _recent()
    # The database answered before the answer was received, so its clock is at least this far.
    return seen is not None and instant <= seen.database_time + timedelta(
        seconds=time.monotonic() - seen.received
    )


def estimated_now() -> datetime:
    """Return the time of the database, late by a round trip at most and never early. If the
    database is unavailable, the time of the host.
    """
    seen = None if on_sqlite() else _recent()
    if seen is None:
        return host_now()
    return seen.database_time + timedelta(seconds=time.monotonic() - seen.requested)


# Detects that the database's clock was set: two readings differ by another time than has passed.
#
# The time that has passed is that of the host's monotonic clock, which neither an operator nor a
# time server sets, and which continues while the host is suspended.


_STEP_TOO_SLOW = 1.0
"""Seconds. A reading that took longer is not precise enough."""


def elapsed() -> float:
    """Return the seconds since the host started, suspensions included."""
    clock = getattr(
        time, "CLOCK_BOOTTIME", None
    )  # on Linux; elsewhere `monotonic` may include them
    return time.monotonic() if clock is None else time.clock_gettime(clock)


@dataclass(frozen=True, slots=True)
class ClockStep:
    """By how many seconds the clock was set, negative if back, and when this was noticed by the
    process's monotonic clock.
    """

    seconds: float
    noticed: float


class ClockStepDetector:
    """Compares each reading of the database's clock with the previous one."""

    def __init__(self) -> None:
        self._last: tuple[datetime, float] | None = None

    def read(self) -> float | None:
        """Read the clock; return by how many seconds it was set since the previous reading.

        Returns None if this is unknown: after the first reading and after a slow one.
        """
        asked = elapsed()
        now = database_now()
        answered = elapsed()
        if answered - asked > _STEP_TOO_SLOW:
            return None
        last, self._last = self._last, (now, (asked + answered) / 2)
        if last is None:
            return None
        return (now - last[0]).total_seconds() - (self._last[1] - last[1])
