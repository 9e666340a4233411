"""A process of the test project whose clock is wrong: TEST_CLOCK_SHIFT says by how many seconds.

Python's wall clocks are shifted, the monotonic one is not; nor is the clock of a database, SQLite's
in SQL included.
"""

import os
import time
from datetime import datetime, timedelta

from django.utils import timezone


def shift() -> None:
    """Move the clocks of this process, where the environment asks for it."""
    seconds = float(os.environ.get("TEST_CLOCK_SHIFT", "0"))
    if not seconds:
        return
    right_time, right_time_ns, right_now = time.time, time.time_ns, timezone.now

    def now() -> datetime:
        return right_now() + timedelta(seconds=seconds)

    time.time = lambda: right_time() + seconds
    time.time_ns = lambda: right_time_ns() + round(seconds * 1_000_000_000)
    timezone.now = now
