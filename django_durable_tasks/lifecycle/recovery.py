"""What nobody told: silent runs and dead nodes, messages that nobody started, rows that came too late."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django_durable_tasks import conf
from django_durable_tasks.lifecycle import attempts, claims, dead_letters, scheduling, transitions
from django_durable_tasks.models import Node, Task
from django_durable_tasks.models.task import TaskQuerySet
from django_durable_tasks.ports import Ring
from django_durable_tasks.rules.endings import Kind, Outcome

_FAREWELL = timedelta(seconds=5)


def _lost(why: str) -> Outcome:
    return Outcome(kind=Kind.CRASHED, error=why, error_type="Lost")


def lose_over(now: datetime, limit: int) -> int:
    """End runs whose lease is over; the caller has had unbroken contact with the database for a whole lease."""
    over = transitions.tasks().lease_over(now)
    return len(attempts.end_runs(over, lambda _: _lost("The run fell silent: its lease ended."), limit=limit))


def lose_of_dead(dead: Sequence[uuid.UUID], limit: int) -> int:
    """End the runs of dead nodes."""
    question = transitions.tasks().running().held_by(list(dead))
    return len(attempts.end_runs(question, lambda _: _lost("The worker died: its node fell silent."), limit=limit))


def lose_departed(now: datetime, limit: int) -> int:
    """End the runs that nodes left behind which said goodbye, or were declared dead, some seconds ago."""
    gone = list(
        Node.objects.using(transitions.database())
        .filter(region=conf.settings().REGION)
        .gone_before(now - _FAREWELL)
        .filter(pk__in=transitions.tasks().running().order_by().values("node"))
        .values_list("pk", flat=True)
    )
    return lose_of_dead(gone, limit) if gone else 0


def lose_child(task_id: uuid.UUID, epoch: int, node: uuid.UUID, outcome: Outcome, worker: str, celery_id: str) -> bool:
    """End the run that a child of this node had started from the message of this epoch; False when it is not there."""
    question = transitions.tasks().filter(pk=task_id, epoch=epoch + 1, node=node)

    def told(_: Task) -> Outcome:
        return outcome

    return bool(attempts.end_runs(question, told, worker=worker, celery_id=celery_id))


def ring_of_dead(dead: Sequence[uuid.UUID], now: datetime, limit: int) -> list[Ring]:
    """Ring what dead nodes had claimed: they may have died before they published it."""
    return claims.ring_again(transitions.tasks().queued().held_by(list(dead)).filter(publish_count__lte=1), now, limit)


def ring_overdue(now: datetime, limit: int) -> list[Ring]:
    """Ring what was published and not started in time."""
    return claims.ring_again(transitions.tasks().ring_overdue(now), now, limit)


@dataclass(frozen=True, slots=True)
class Retried:
    """How many waiting tries became due at once, and which ended tasks run again."""

    released: int
    replayed: list[uuid.UUID]


def retry(question: TaskQuerySet, *, by: str, note: str = "") -> Retried:
    """An operator's retry: a waiting try is due now, an ended task is replayed; other rows are left alone."""
    with transitions.atomic():
        released = scheduling.end_wait(question)
        return Retried(released, dead_letters.replay(question, by=by, note=note))
