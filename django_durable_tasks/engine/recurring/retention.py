"""Deletes ledger entries, and recorded fire times of celery-beat, whose retention is over."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from django.db.models import Case, DateTimeField, Value, When
from django.db.models.functions import Coalesce, Greatest

from django_durable_tasks import conf
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.isolation import Isolation
from django_durable_tasks.engine.recurring.ledger import ledger
from django_durable_tasks.models import RecurringTask, ShadowFire

_entries = Isolation[int]("ledger entry")


def prune_ledger(now: datetime, limit: int) -> int:
    """Delete ledger entries whose retention is over among the ``limit`` oldest; return how many.

    Their schedules store up to when, so that no backfill creates the task of a deleted entry again.
    Entries of a schedule that another transaction has locked are left out.
    """
    cutoff = now - timedelta(seconds=conf.settings().LEDGER_RETENTION)
    locked = set[uuid.UUID]()
    while True:
        before = len(locked)
        oldest = (
            ledger().exclude(pk__in=_entries.postponed()).exclude(recurring_task__in=sorted(locked))
        )
        page = list(oldest.order_by("pk").values_list("pk", flat=True)[:limit])
        deleted = _forget_apart(page, cutoff, locked) if page else 0
        if deleted or len(locked) == before:
            return deleted


def _forget_apart(page: list[int], cutoff: datetime, locked: set[uuid.UUID]) -> int:
    return sum(
        _entries.batch(
            lambda: _forget(page, cutoff, locked),
            lambda: page,
            lambda pk: _forget([pk], cutoff, locked),
        )
    )


def _forget(page: list[int], cutoff: datetime, locked: set[uuid.UUID]) -> int:
    """Delete the older ones of these entries. Add to ``locked`` the schedules that keep some of
    them.
    """
    with tables.atomic():
        lines = ledger().filter(pk__in=page, created_at__lt=cutoff)
        gone = list(
            lines.order_by("pk").values_list("pk", "recurring_task", "fire_time", "last_fire_time")
        )
        schedules = (
            RecurringTask.objects.using(tables.database())
            .unguarded()
            .filter(pk__in={line[1] for line in gone})
        )
        held = set(
            schedules.order_by("pk")
            .select_for_update(skip_locked=True)
            .values_list("pk", flat=True)
        )
        locked |= set(schedules.values_list("pk", flat=True)) - held
        gone = [line for line in gone if line[1] not in locked]
        forgotten: dict[uuid.UUID, datetime] = {}
        for _, schedule, first, last in gone:
            forgotten[schedule] = max(last or first, forgotten.get(schedule, first))
        if forgotten:
            # Each schedule by its own entries, because another schedule may have deleted more.
            own = Case(
                *(
                    When(pk=pk, then=Value(until, DateTimeField()))
                    for pk, until in forgotten.items()
                )
            )
            schedules.filter(pk__in=forgotten).update(
                ledger_from=Greatest(Coalesce("ledger_from", own), own)
            )
            ledger().filter(pk__in=[line[0] for line in gone]).delete()
    return len(gone)


def prune_shadow_fires(now: datetime, limit: int) -> int:
    """Delete at most ``limit`` fire times of celery-beat older than SHADOW_RETENTION; return how
    many.
    """
    rows = ShadowFire.objects.using(tables.database())
    cutoff = now - timedelta(seconds=conf.settings().SHADOW_RETENTION)
    gone = list(
        rows.filter(heard_at__lt=cutoff).order_by("heard_at").values_list("pk", flat=True)[:limit]
    )
    if gone:
        rows.filter(pk__in=gone).delete()
    return len(gone)
