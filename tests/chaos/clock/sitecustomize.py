"""Loaded by every Python process with this folder on its path: CHAOS_CLOCK shifts its wall clock by
this number of seconds.

The monotonic clock is unchanged, and children inherit the shift. libfaketime does neither on Python
3.11.
"""

import os
from datetime import UTC, datetime, timedelta

import time_machine

if os.environ.get("CHAOS_CLOCK"):
    time_machine.travel(
        datetime.now(UTC) + timedelta(seconds=float(os.environ["CHAOS_CLOCK"])), tick=True
    ).start()
