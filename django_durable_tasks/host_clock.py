"""The clock of this host: for estimates, texts and SQLite. The database's clock decides what is due
(``store/clock.py``).
"""

from __future__ import annotations

from datetime import UTC, datetime


def host_now() -> datetime:
    """Return the current time in UTC; ``timezone.now()`` has no zone with ``USE_TZ = False``."""
    return datetime.now(UTC)
