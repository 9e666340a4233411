"""The words of recurring tasks: where one stands, what becomes of a fire time, and the policies of
late and busy.
"""

from __future__ import annotations

from enum import StrEnum


class RecurringStatus(StrEnum):
    """Where a recurring task stands."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    CANCELLED = "CANCELLED"


class CatchUp(StrEnum):
    """What becomes of fire times that were noticed too late (misfires)."""

    RUN_ALL_MISSED = "RUN_ALL_MISSED"
    RUN_ONE_NOW = "RUN_ONE_NOW"
    SKIP_MISSED = "SKIP_MISSED"


class CatchUpOrder(StrEnum):
    """Which of the missed fire times runs first."""

    OLDEST = "OLDEST"
    NEWEST = "NEWEST"


class Overlap(StrEnum):
    """What becomes of a fire time while a run of an earlier one is open."""

    ALLOW = "ALLOW"
    SKIP = "SKIP"
    QUEUE_ONE = "QUEUE_ONE"
    QUEUE_ALL = "QUEUE_ALL"
    CANCEL_RUNNING = "CANCEL_RUNNING"
    REPLACE_PENDING = "REPLACE_PENDING"


class Fate(StrEnum):
    """The outcome of a fire time, as the ledger tells it."""

    DISPATCHED = "DISPATCHED"
    ROLLED = "ROLLED"
    MANUAL = "MANUAL"
    SKIPPED_OVERLAP = "SKIPPED_OVERLAP"
    SKIPPED_CALENDAR = "SKIPPED_CALENDAR"
    MISSED = "MISSED"
    EXPIRED = "EXPIRED"
    PAUSED = "PAUSED"
    OVERRIDDEN = "OVERRIDDEN"
    FAILED_TO_CREATE = "FAILED_TO_CREATE"


QUARANTINED = "QUARANTINED"
"""The status reason of a row that could not be triggered; its error stands beside it."""
MAX_RUNS = "MAX_RUNS"
ENDED = "ENDED"
"""The status reasons of a schedule that came to its end by itself."""
