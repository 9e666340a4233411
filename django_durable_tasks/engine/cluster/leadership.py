"""The leader's lease: three guarded statements on one row per region.

The sequence when a leader dies is described in ``scheduler/leader.py``.
"""

from __future__ import annotations

import uuid

from django.db.models import F, Q

from django_durable_tasks.engine.db.clock import after
from django_durable_tasks.engine.db.tables import database
from django_durable_tasks.models import SchedulerLease
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.lease import LONG_EXPIRED, lease_name

LONGEST = 60.0
"""Seconds. A lease that expires later, by more than three times its usual duration, was written
before the database's clock was set back. It counts as expired.
"""


def longest(seconds: float) -> float:
    """Return in how many seconds a lease expires at the latest, if leases last this long."""
    return max(LONGEST, 3 * seconds)


def _insert_row(name: str) -> bool:
    """Insert the lease row of a new region; returns False if it exists. Safe in a race."""
    rows = SchedulerLease.objects.using(database())
    if rows.filter(name=name).exists():
        return False
    rows.bulk_create([SchedulerLease(name=name, expires_at=LONG_EXPIRED)], ignore_conflicts=True)
    return True


def take(holder: uuid.UUID, seconds: float) -> int | None:
    """Take the lease if it has expired, or expires later than any lease can by the database's
    clock; return the new term, or None if it is valid.
    """
    name = lease_name()
    if not _taken(name, holder, seconds) and not (
        _insert_row(name) and _taken(name, holder, seconds)
    ):
        return None
    own = SchedulerLease.objects.using(database()).filter(name=name, holder=holder)
    term: int | None = own.values_list("term", flat=True).first()
    return term


def _taken(name: str, holder: uuid.UUID, seconds: float) -> bool:
    invalid = Q(expires_at__lt=DatabaseNow()) | Q(expires_at__gt=after(longest(seconds)))
    ended = SchedulerLease.objects.using(database()).filter(invalid, name=name)
    return bool(
        ended.update(
            holder=holder, term=F("term") + 1, acquired_at=DatabaseNow(), expires_at=after(seconds)
        )
    )


def renew(holder: uuid.UUID, term: int, seconds: float) -> bool:
    """Extend the lease of this holder and term; returns False if it has expired or was taken."""
    own = SchedulerLease.objects.using(database()).filter(
        name=lease_name(), holder=holder, term=term
    )
    return bool(own.filter(expires_at__gte=DatabaseNow()).update(expires_at=after(seconds)))


def resign(holder: uuid.UUID, term: int) -> bool:
    """Let the lease of this holder and term expire now, so that another scheduler can take it."""
    own = SchedulerLease.objects.using(database()).filter(
        name=lease_name(), holder=holder, term=term
    )
    return bool(own.update(expires_at=after(-1)))
