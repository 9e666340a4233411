"""Deadlines of tasks that were computed by a database clock which was ahead and was set back."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Case, F, Q, When

from django_durable_tasks import ports
from django_durable_tasks.engine.db.clock import after
from django_durable_tasks.engine.db.tables import NOW, atomic, tasks
from django_durable_tasks.engine.transitions.guarded_update import locked, matches_epochs
from django_durable_tasks.models.instants import constant
from django_durable_tasks.models.task_queries import NEVER
from django_durable_tasks.rules.states import Status


def move_waits(now: datetime, tolerance: float, limit: int) -> int:
    """Move the ``due_at`` of at most ``limit`` PENDING tasks that were written later than ``now``
    plus ``tolerance`` seconds; return how many.

    They wait for as long as they would have, from now on: a retry for the rest of its back-off. A
    ``run_at`` that the caller chose is an instant and does not move. Rows that other transactions
    have locked are skipped.
    """
    # `due_at` first, because it is indexed.
    early = tasks().filter(
        Q(run_at__lte=F("created_at")) | ~Q(due_at=F("run_at")),
        status=Status.PENDING,
        due_at__gt=now,
        due_at__lt=NEVER,
        updated_at__gt=now + timedelta(seconds=tolerance),
    )
    with atomic():
        epochs = dict(locked(early, limit))
        if not epochs:
            return 0
        rows = tasks().filter(pk__in=list(epochs)).values_list("pk", "due_at", "updated_at")
        moved = {pk: max(now, due - (written - now)) for pk, due, written in rows if due}
        whens = [When(pk=pk, then=constant(due)) for pk, due in moved.items()]
        these = tasks().filter(matches_epochs(epochs.items()), status__standing=[Status.PENDING])
        number = these.update(due_at=Case(*whens, default=F("due_at")), updated_at=NOW)
        ports.due.rescheduled(list(epochs), min(moved.values()))
        return number


def shorten_republish_waits(longest: float, limit: int) -> int:
    """Let QUEUED tasks be republished in at most ``longest`` seconds; return how many changed."""
    with atomic():
        late = tasks().filter(status=Status.QUEUED, due_at__gt=after(longest + 1.0))
        pairs = locked(late, limit)
        these = tasks().filter(matches_epochs(pairs), status__standing=[Status.QUEUED])
        return these.update(due_at=after(longest)) if pairs else 0
