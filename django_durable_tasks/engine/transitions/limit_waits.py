"""Makes tasks that a limit refuses wait, and makes them due again.

A task that waits for a limit is PENDING, its ``due_at`` is NEVER, ``ready_at`` is the time since
which it is due, and ``waiting_for_limit`` is the scope without capacity. ``engine/limits/`` calls
these functions. None of them waits for a locked row, except ``make_claimed_wait``, whose rows the
caller has locked, and ``repair_limit_wait``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import Case, F, SmallIntegerField, Value, When
from django.db.models.functions import Coalesce, Least

from django_durable_tasks.engine.db.tables import NOW, atomic, tasks
from django_durable_tasks.engine.transitions.guarded_update import locked, matches_epochs, move
from django_durable_tasks.models.task_queries import NEVER, TaskQuerySet
from django_durable_tasks.rules.states import Status

_WAS_DUE: Any = Least(Coalesce("ready_at", NOW), NOW)
"""Since when a waiting task is due: not its ``run_at``, because a replay, a retry or a task that
was BLOCKED is due long after it. The clock may have been set back since then.
"""


def make_claimed_wait(
    scopes: Mapping[uuid.UUID, str], epochs: Mapping[uuid.UUID, int] | None = None
) -> int:
    """QUEUED to PENDING for tasks that this process has just claimed: make them wait for these
    scopes. ``epochs``: only tasks in these epochs, by id.
    """
    pairs = locked(tasks().filter(pk__in=list(scopes), status=Status.QUEUED)) if scopes else []
    if epochs is not None:
        pairs = [(task_id, epoch) for task_id, epoch in pairs if epochs.get(task_id) == epoch]
    writes = {
        # A claim wrote it. A task that was published when it was created or released has none.
        "ready_at": Coalesce("ready_at", NOW),
        "due_at": NEVER,
        "waiting_for_limit": _by_scope(scopes),
        "node": None,
        "publish_count": 0,
    }
    return move("return_to_pending", pairs, Status.PENDING, **writes)


def make_due_wait(scopes: Mapping[uuid.UUID, str], now: datetime) -> int:
    """Make PENDING tasks that are due at ``now`` wait for these scopes; return how many.

    Rows that other transactions have locked are skipped.
    """
    if not scopes:
        return 0
    with atomic():
        due = tasks().filter(pk__in=list(scopes), status=Status.PENDING, due_at__lte=now)
        pairs = locked(due, len(scopes))
        these = tasks().filter(matches_epochs(pairs), status__standing=[Status.PENDING])
        # ready_at first: MySQL and MariaDB evaluate the assignments from left to right.
        writes = {"ready_at": F("due_at"), "due_at": NEVER, "waiting_for_limit": _by_scope(scopes)}
        return these.update(**writes, updated_at=NOW) if pairs else 0


def release_waiting(queryset: TaskQuerySet, limit: int) -> int:
    """Make at most ``limit`` waiting tasks due again; return how many.

    ``due_at`` becomes the time since which the task is due. Rows that other transactions
    have locked are skipped. ``waiting_for_limit`` is kept until the claim, so that the capacity
    stays reserved for these tasks.
    """
    with atomic():
        waiting = queryset.filter(
            status=Status.PENDING, waiting_for_limit__isnull=False, due_at__gte=NEVER
        )
        pairs = locked(waiting, limit)
        these = tasks().filter(
            matches_epochs(pairs),
            status__standing=[Status.PENDING],
            waiting_for_limit__isnull=False,
        )
        return these.update(due_at=_WAS_DUE, updated_at=NOW) if pairs else 0


def change_waiting_limit(scopes: Mapping[uuid.UUID, str]) -> int:
    """Change the scopes for which these tasks wait; return how many.

    Rows that other transactions have locked are skipped.
    """
    if not scopes:
        return 0
    with atomic():
        waiting = tasks().filter(
            pk__in=list(scopes),
            status=Status.PENDING,
            waiting_for_limit__isnull=False,
            due_at__gte=NEVER,
        )
        pairs = locked(waiting, len(scopes))
        these = tasks().filter(
            matches_epochs(pairs),
            status__standing=[Status.PENDING],
            waiting_for_limit__isnull=False,
        )
        return these.update(waiting_for_limit=_by_scope(scopes), updated_at=NOW) if pairs else 0


def repair_limit_wait(queryset: TaskQuerySet) -> int:
    """Repair inconsistent limit waits; return how many tasks changed.

    PENDING tasks whose ``due_at`` is NEVER, but that wait for no limit or overlap key, become due
    again. ``waiting_for_limit`` is cleared for tasks that are not PENDING.
    """
    with atomic():
        these = tasks().filter(matches_epochs(locked(queryset)))
        unnamed = these.filter(
            status__standing=[Status.PENDING],
            due_at__gte=NEVER,
            waiting_for_limit=None,
            overlap_key=None,
        )
        number = unnamed.update(due_at=_WAS_DUE, updated_at=NOW)
        not_waiting = these.exclude(status=Status.PENDING).filter(waiting_for_limit__isnull=False)
        return number + not_waiting.update(waiting_for_limit=None, updated_at=NOW)


def age(queryset: TaskQuerySet, limit: int) -> int:
    """Raise the priority of PENDING tasks by one, to at most 9; ``priority_boost`` counts this."""
    with atomic():
        pairs = locked(queryset.filter(status=Status.PENDING, priority__lt=9), limit)
        these = tasks().filter(
            matches_epochs(pairs), status__standing=[Status.PENDING], priority__lt=9
        )
        more = {
            name: F(name) + Value(1, SmallIntegerField()) for name in ("priority", "priority_boost")
        }
        return these.update(**more, updated_at=NOW) if pairs else 0


def _by_scope(scopes: Mapping[uuid.UUID, str]) -> Case:
    by_scope: dict[str, list[uuid.UUID]] = {}
    for task_id, scope in scopes.items():
        by_scope.setdefault(scope, []).append(task_id)
    whens = (When(pk__in=ids, then=Value(scope)) for scope, ids in by_scope.items())
    return Case(*whens, default=None)
