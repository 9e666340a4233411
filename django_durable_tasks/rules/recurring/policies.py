"""Statuses of recurring tasks, outcomes of fire times, and the policies for misfires and
overlaps.
"""

from __future__ import annotations

from enum import StrEnum


class RecurringStatus(StrEnum):
    """The status of a recurring task."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    CANCELLED = "CANCELLED"


class CatchUp(StrEnum):
    """The policy for fire times that were detected too late (misfires)."""

    RUN_ALL_MISSED = "RUN_ALL_MISSED"
    RUN_ONE_NOW = "RUN_ONE_NOW"
    SKIP_MISSED = "SKIP_MISSED"


class CatchUpOrder(StrEnum):
    """Which of the missed fire times runs first."""

    OLDEST = "OLDEST"
    NEWEST = "NEWEST"


class Overlap(StrEnum):
    """The policy for a fire time while a run of an earlier one is open."""

    ALLOW = "ALLOW"
    SKIP = "SKIP"
    QUEUE_ONE = "QUEUE_ONE"
    QUEUE_ALL = "QUEUE_ALL"
    CANCEL_RUNNING = "CANCEL_RUNNING"
    REPLACE_PENDING = "REPLACE_PENDING"


class FireOutcome(StrEnum):
    """The outcome of a fire time in the ledger."""

    DISPATCHED = "DISPATCHED"
    ROLLED = "ROLLED"
    MANUAL = "MANUAL"
    SKIPPED_OVERLAP = "SKIPPED_OVERLAP"
    SKIPPED_CALENDAR = "SKIPPED_CALENDAR"
    SKIPPED_QUOTA = "SKIPPED_QUOTA"
    MISSED = "MISSED"
    EXPIRED = "EXPIRED"
    PAUSED = "PAUSED"
    OVERRIDDEN = "OVERRIDDEN"
    FAILED_TO_CREATE = "FAILED_TO_CREATE"


QUARANTINED = "QUARANTINED"
"""The status reason of a schedule that could not be triggered; the row also contains the error."""
MAX_RUNS = "MAX_RUNS"
ENDED = "ENDED"
"""The status reasons of a schedule that ended because of its own bounds."""
