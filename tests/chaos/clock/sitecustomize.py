"""Found by every Python started with this folder on its path: CHAOS_CLOCK sets its wall clock off
by so many seconds.

The monotonic clock is left alone, and children inherit it. libfaketime does neither on Python 3.11.
"""

import os
from datetime import UTC, datetime, timedelta

import time_machine

if os.environ.get("CHAOS_CLOCK"):
    time_machine.travel(
        datetime.now(UTC) + timedelta(seconds=float(os.environ["CHAOS_CLOCK"])), tick=True
    ).start()
