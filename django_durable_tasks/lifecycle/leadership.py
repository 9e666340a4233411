"""The leader's lease: three guarded statements on one row. The term is the fencing token of a reign."""

from __future__ import annotations

import uuid

from django.db.models import F

from django_durable_tasks.lifecycle.clock import after
from django_durable_tasks.lifecycle.transitions import database
from django_durable_tasks.models import SchedulerLease
from django_durable_tasks.models.clock import DatabaseNow

LEADER = "leader"


def take(holder: uuid.UUID, seconds: float) -> int | None:
    """Take the lease if it has ended; return the new term, or None while somebody else holds it."""
    ended = SchedulerLease.objects.using(database()).filter(name=LEADER, expires_at__lt=DatabaseNow())
    if not ended.update(holder=holder, term=F("term") + 1, acquired_at=DatabaseNow(), expires_at=after(seconds)):
        return None
    mine = SchedulerLease.objects.using(database()).filter(name=LEADER, holder=holder)
    term: int | None = mine.values_list("term", flat=True).first()
    return term


def renew(holder: uuid.UUID, term: int, seconds: float) -> bool:
    """Prolong this very reign; False when it is over, for whatever reason."""
    mine = SchedulerLease.objects.using(database()).filter(name=LEADER, holder=holder, term=term)
    return bool(mine.filter(expires_at__gte=DatabaseNow()).update(expires_at=after(seconds)))


def resign(holder: uuid.UUID, term: int) -> bool:
    """End this reign now, so that another scheduler can take over at once."""
    mine = SchedulerLease.objects.using(database()).filter(name=LEADER, holder=holder, term=term)
    return bool(mine.update(expires_at=after(-1)))
