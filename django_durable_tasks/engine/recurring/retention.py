"""Deletes ledger entries, ended recurring tasks of the HTTP API, and recorded fire times of
celery-beat, whose retention is over.
"""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from django.db.models import Case, Exists, OuterRef, When
from django.db.models.functions import Coalesce, Greatest

from django_durable_tasks import conf
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.isolation import Isolation
from django_durable_tasks.engine.dependencies.edges import runs
from django_durable_tasks.engine.recurring.ledger import ledger
from django_durable_tasks.models import RecurringTask, ShadowFire
from django_durable_tasks.models.instants import constant
from django_durable_tasks.rules.recurring.declarations import API
from django_durable_tasks.rules.recurring.policies import RecurringStatus

_ENDED_KEPT = timedelta(days=30)
"""How long an ended recurring task of a client is shown; as long as a bulk operation."""
_entries = Isolation[int]("ledger entry")
# A week: a comparison with beat contains each weekday, and its fires are of no use afterwards.
SHADOW_RETENTION = timedelta(days=7)


def prune_ledger(now: datetime, limit: int) -> int:
    """Delete the expired entries among the ``limit`` oldest of the ledger; return how many were
    deleted.

    ``ledger_from`` of each schedule is set to the last deleted fire time, so that a backfill does
    not repeat it. Entries of a schedule that another transaction has locked are skipped.
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
    """Delete those of these entries that are older than ``cutoff``.

    Add the schedules that another transaction has locked to ``locked``.
    """
    with tables.atomic():
        expired = ledger().filter(pk__in=page, created_at__lt=cutoff)
        deleted_rows = list(
            expired.order_by("pk").values_list(
                "pk", "recurring_task", "fire_time", "last_fire_time"
            )
        )
        schedules = (
            RecurringTask.objects.using(tables.database())
            .unguarded()
            .filter(pk__in={entry[1] for entry in deleted_rows})
        )
        acquired = set(
            schedules.order_by("pk")
            .select_for_update(skip_locked=True)
            .values_list("pk", flat=True)
        )
        locked |= set(schedules.values_list("pk", flat=True)) - acquired
        deleted_rows = [entry for entry in deleted_rows if entry[1] not in locked]
        forgotten: dict[uuid.UUID, datetime] = {}
        for _, schedule, first, last in deleted_rows:
            forgotten[schedule] = max(last or first, forgotten.get(schedule, first))
        if forgotten:
            # Each schedule has its own limit: another schedule may still need entries of the same
            # time.
            own = Case(
                *(
                    When(pk=pk, then=constant(last_deleted))
                    for pk, last_deleted in forgotten.items()
                )
            )
            schedules.filter(pk__in=forgotten).update(
                ledger_from=Greatest(Coalesce("ledger_from", own), own)
            )
            ledger().filter(pk__in=[entry[0] for entry in deleted_rows]).delete()
    return len(deleted_rows)


def prune_ended(now: datetime, limit: int) -> int:
    """Delete at most ``limit`` recurring tasks that the HTTP API created, that have ended, and of
    which no task and no ledger entry is kept; return how many.

    A tenant could otherwise create and cancel recurring tasks without end. Those of other sources
    are kept, because code that declares or creates them again must not revive them.
    """
    rows = RecurringTask.objects.using(tables.database()).unguarded()
    cutoff = now - _ENDED_KEPT
    ended = rows.filter(source=API, status=RecurringStatus.CANCELLED, updated_at__lt=cutoff)
    unused = ended.exclude(
        Exists(ledger().filter(recurring_task=OuterRef("pk")))
        | Exists(tables.tasks().filter(recurring_task=OuterRef("pk")))
        | Exists(runs().filter(recurring_task=OuterRef("pk")))
    )
    page = list(unused.order_by("updated_at").values_list("pk", flat=True)[:limit])
    if not page:
        return 0
    with tables.atomic():
        locked = ended.filter(pk__in=page).order_by("pk").select_for_update(skip_locked=True)
        keys = list(locked.values_list("pk", flat=True))
        rows.filter(pk__in=keys).delete()
    return len(keys)


def prune_shadow_fires(now: datetime, limit: int) -> int:
    """Delete at most ``limit`` fire times of celery-beat older than a week; return how many."""
    rows = ShadowFire.objects.using(tables.database())
    cutoff = now - SHADOW_RETENTION
    deleted = list(
        rows.filter(recorded_at__lt=cutoff)
        .order_by("recorded_at")
        .values_list("pk", flat=True)[:limit]
    )
    if deleted:
        rows.filter(pk__in=deleted).delete()
    return len(deleted)
