"""A shifted clock for a process of the test project: TEST_CLOCK_SHIFT is the number of seconds.

Python's wall clocks are shifted. The monotonic clock and the clock of a database, including
SQLite's in SQL, are not.
"""

import os
import time
from datetime import datetime, timedelta, tzinfo

from django.utils import timezone

from django_durable_tasks.store import clock


def shift() -> None:
    """Shift the clocks of this process if the environment says so."""
    seconds = float(os.environ.get("TEST_CLOCK_SHIFT", "0"))
    if not seconds:
        return
    right_time, right_time_ns, right_now = time.time, time.time_ns, timezone.now

    def now() -> datetime:
        return right_now() + timedelta(seconds=seconds)

    time.time = lambda: right_time() + seconds
    time.time_ns = lambda: right_time_ns() + round(seconds * 1_000_000_000)
    timezone.now = now

    class ShiftedDatetime(datetime):
        """Its ``now`` is shifted too."""

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(seconds=seconds)

    vars(clock)["datetime"] = ShiftedDatetime
