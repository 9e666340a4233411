"""Rows that a limit refuses are parked: PENDING, never due, under the scope that has no room; and
let go again.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import Case, F, SmallIntegerField, Value, When
from django.db.models.functions import Least

from django_durable_tasks.engine.db.tables import NOW, atomic, tasks
from django_durable_tasks.engine.transitions.guarded_update import locked, matches_epochs, move
from django_durable_tasks.models.task_queries import NEVER, TaskQuerySet
from django_durable_tasks.rules.states import Status

_WAS_DUE: Any = Least("run_at", NOW)
"""Only what is due is parked; it may have been made due before its ``run_at`` by an operator."""


def park_claimed(scopes: Mapping[uuid.UUID, str]) -> int:
    """QUEUED rows that this transaction has just claimed go back to PENDING, parked for these
    scopes.
    """
    pairs = locked(tasks().filter(pk__in=list(scopes), status=Status.QUEUED)) if scopes else []
    writes = {
        "due_at": NEVER,
        "waiting_for_limit": _by_scope(scopes),
        "node": None,
        "publish_count": 0,
    }
    return move("hand_back", pairs, Status.PENDING, **writes)


def park_due(scopes: Mapping[uuid.UUID, str], now: datetime) -> int:
    """PENDING rows that are due are parked where they stand; rows that somebody else holds are left
    alone.
    """
    if not scopes:
        return 0
    with atomic():
        due = tasks().filter(pk__in=list(scopes), status=Status.PENDING, due_at__lte=now)
        pairs = locked(due, len(scopes))
        these = tasks().filter(matches_epochs(pairs), status__standing=[Status.PENDING])
        return (
            these.update(due_at=NEVER, waiting_for_limit=_by_scope(scopes), updated_at=NOW)
            if pairs
            else 0
        )


def let_go(question: TaskQuerySet, limit: int) -> int:
    """Parked rows are due again, in the order in which they were; rows that somebody else holds are
    left alone.

    They name their scope until they are claimed: it was their turn.
    """
    with atomic():
        parked = question.filter(
            status=Status.PENDING, waiting_for_limit__isnull=False, due_at__gte=NEVER
        )
        pairs = locked(parked, limit)
        these = tasks().filter(
            matches_epochs(pairs),
            status__standing=[Status.PENDING],
            waiting_for_limit__isnull=False,
        )
        return these.update(due_at=_WAS_DUE, updated_at=NOW) if pairs else 0


def park_elsewhere(scopes: Mapping[uuid.UUID, str]) -> int:
    """Parked rows wait for these scopes from now on; rows that somebody else holds are
    left alone.
    """
    if not scopes:
        return 0
    with atomic():
        parked = tasks().filter(
            pk__in=list(scopes),
            status=Status.PENDING,
            waiting_for_limit__isnull=False,
            due_at__gte=NEVER,
        )
        pairs = locked(parked, len(scopes))
        these = tasks().filter(
            matches_epochs(pairs),
            status__standing=[Status.PENDING],
            waiting_for_limit__isnull=False,
        )
        return these.update(waiting_for_limit=_by_scope(scopes), updated_at=NOW) if pairs else 0


def repair_limit_wait(question: TaskQuerySet) -> int:
    """Rows that are parked for nobody are due when they were asked for; rows that do not wait name
    no limit.
    """
    with atomic():
        these = tasks().filter(matches_epochs(locked(question)))
        unnamed = these.filter(
            status__standing=[Status.PENDING],
            due_at__gte=NEVER,
            waiting_for_limit=None,
            overlap_key=None,
        )
        number = unnamed.update(due_at=_WAS_DUE, updated_at=NOW)
        unparked = these.exclude(status=Status.PENDING).filter(waiting_for_limit__isnull=False)
        return number + unparked.update(waiting_for_limit=None, updated_at=NOW)


def age(question: TaskQuerySet, limit: int) -> int:
    """PENDING rows become more urgent by one; how often stands in ``priority_boost``."""
    with atomic():
        pairs = locked(question.filter(status=Status.PENDING, priority__lt=9), limit)
        these = tasks().filter(
            matches_epochs(pairs), status__standing=[Status.PENDING], priority__lt=9
        )
        more = {
            name: F(name) + Value(1, SmallIntegerField()) for name in ("priority", "priority_boost")
        }
        return these.update(**more, updated_at=NOW) if pairs else 0


def _by_scope(scopes: Mapping[uuid.UUID, str]) -> Case:
    of: dict[str, list[uuid.UUID]] = {}
    for task_id, scope in scopes.items():
        of.setdefault(scope, []).append(task_id)
    return Case(*(When(pk__in=ids, then=Value(scope)) for scope, ids in of.items()), default=None)
