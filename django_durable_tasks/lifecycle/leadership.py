"""The leader's lease: three guarded statements on one row. The term is the fencing token of a reign.

Each region has an office of its own. Regions double work and nothing else: every write is guarded by status and epoch.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from django.db.models import F

from django_durable_tasks import conf
from django_durable_tasks.lifecycle.clock import after
from django_durable_tasks.lifecycle.transitions import database
from django_durable_tasks.models import SchedulerLease
from django_durable_tasks.models.clock import DatabaseNow

LEADER = "leader"
LONG_OVER = datetime(2000, 1, 1, tzinfo=UTC)


def office(region: str | None = None) -> str:
    """Return the name of the lease of a region, by default of this process's."""
    found = conf.settings().REGION if region is None else region
    return f"{LEADER}@{found}" if found else LEADER


def region_of(name: str) -> str:
    """Return the region whose lease has this name."""
    return name.partition("@")[2]


def _found(name: str) -> bool:
    """Make the row of an office that has none, as that of a new region; False where it stands. Safe in a race."""
    rows = SchedulerLease.objects.using(database())
    if rows.filter(name=name).exists():
        return False
    rows.bulk_create([SchedulerLease(name=name, expires_at=LONG_OVER)], ignore_conflicts=True)
    return True


def take(holder: uuid.UUID, seconds: float) -> int | None:
    """Take the lease if it has ended; return the new term, or None while somebody else holds it."""
    name = office()
    if not _taken(name, holder, seconds) and not (_found(name) and _taken(name, holder, seconds)):
        return None
    mine = SchedulerLease.objects.using(database()).filter(name=name, holder=holder)
    term: int | None = mine.values_list("term", flat=True).first()
    return term


def _taken(name: str, holder: uuid.UUID, seconds: float) -> bool:
    ended = SchedulerLease.objects.using(database()).filter(name=name, expires_at__lt=DatabaseNow())
    return bool(ended.update(holder=holder, term=F("term") + 1, acquired_at=DatabaseNow(), expires_at=after(seconds)))


def renew(holder: uuid.UUID, term: int, seconds: float) -> bool:
    """Prolong this very reign; False when it is over, for whatever reason."""
    mine = SchedulerLease.objects.using(database()).filter(name=office(), holder=holder, term=term)
    return bool(mine.filter(expires_at__gte=DatabaseNow()).update(expires_at=after(seconds)))


def resign(holder: uuid.UUID, term: int) -> bool:
    """End this reign now, so that another scheduler can take over at once."""
    mine = SchedulerLease.objects.using(database()).filter(name=office(), holder=holder, term=term)
    return bool(mine.update(expires_at=after(-1)))
