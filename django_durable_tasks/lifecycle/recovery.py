"""What nobody told: silent runs and dead nodes, messages that nobody started, rows that came too late."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q

from django_durable_tasks import conf
from django_durable_tasks.lifecycle import attempts, cancellation, claims, dead_letters, transitions
from django_durable_tasks.lifecycle.leases import Lease
from django_durable_tasks.models import Node, Task
from django_durable_tasks.models.task import TaskQuerySet
from django_durable_tasks.ports import Ring
from django_durable_tasks.rules.endings import Kind, Outcome

_FAREWELL = timedelta(seconds=5)


def _lost(why: str) -> Outcome:
    return Outcome(kind=Kind.CRASHED, error=why, error_type="Lost")


def lose(found: Mapping[uuid.UUID, Lease], why: str) -> set[uuid.UUID]:
    """End the runs that still have exactly these leases; return the tasks whose run was ended.

    A run that has renewed its lease since, and a row that another transaction has locked, are left alone: its
    heartbeat could not pass that lock.
    """
    same = [Q(pk=pk, run_id=lease.run_id, lease_until=lease.until) for pk, lease in found.items()]
    if not same:
        return set()
    question = transitions.tasks().filter(Q(*same, _connector=Q.OR))
    return set(attempts.end_runs(question, lambda _: _lost(why), limit=len(same)))


OVER = "The run fell silent: its lease ended."
DEAD = "The worker died: its node fell silent."


def departed(now: datetime) -> dict[uuid.UUID, bool]:
    """Return the nodes with runs that were declared dead (True), or said goodbye some seconds ago (False)."""
    return dict(
        Node.objects.using(transitions.database())
        .filter(region=conf.settings().REGION)
        .filter(Q(declared_dead=True) | Q(stopped_at__lt=now - _FAREWELL), stopped_at__isnull=False)
        .filter(pk__in=transitions.tasks().running().order_by().values("node"))
        .values_list("pk", "declared_dead")
    )


def lose_child(task_id: uuid.UUID, epoch: int, node: uuid.UUID, outcome: Outcome, worker: str, celery_id: str) -> bool:
    """End the run that a child of this node had started from the message of this epoch; False when it is not there."""
    question = transitions.tasks().filter(pk=task_id, epoch=epoch + 1, node=node)

    def told(_: Task) -> Outcome:
        return outcome

    return bool(attempts.end_runs(question, told, worker=worker, celery_id=celery_id))


def republish_of_dead(dead: Sequence[uuid.UUID], now: datetime, limit: int) -> list[Ring]:
    """Ring what dead nodes had claimed: they may have died before they published it."""
    return claims.republish(transitions.tasks().queued().owned_by(list(dead)).filter(publish_count__lte=1), now, limit)


def republish_overdue(now: datetime, limit: int, but_of: Collection[str] = ()) -> list[Ring]:
    """Ring what was published and not started in time, but for rows of these queues."""
    overdue = transitions.tasks().republish_due(now)
    return claims.republish(overdue.exclude(queue__in=but_of) if but_of else overdue, now, limit)


def republish_queued_before(cutoff: datetime, batch: int) -> Iterator[list[Ring]]:
    """Go once through what was QUEUED before ``cutoff``, in batches to ring: a broker that was away may be empty."""
    return claims.ring_all(transitions.tasks().filter(updated_at__lte=cutoff), batch)


@dataclass(frozen=True, slots=True)
class Retried:
    """How many waiting tries became due at once, and which ended tasks run again."""

    released: int
    replayed: list[uuid.UUID]


def retry(question: TaskQuerySet, *, by: str, reason: str = "") -> Retried:
    """An operator's retry: a waiting try is due now, an ended task is replayed; other rows are left alone."""
    with transitions.atomic():
        released = cancellation.end_wait(question, by=by, reason=reason)
        return Retried(released, dead_letters.replay(question, by=by, reason=reason))
