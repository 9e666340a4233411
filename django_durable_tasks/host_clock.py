"""The clock of this host: for estimates, texts and SQLite. The database's clock decides what is due
(``store/clock.py``).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

travelled = timedelta()
"""How far ``testing.travel`` has moved this clock; zero outside of tests."""


def host_now() -> datetime:
    """Return the current time in UTC; ``timezone.now()`` has no zone with ``USE_TZ = False``."""
    return datetime.now(UTC) + travelled
