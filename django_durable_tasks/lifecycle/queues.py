"""An operator's hand on a queue: pause and resume; and what stands in the queues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, F, Min, Q

from django_durable_tasks.lifecycle.transitions import database, tasks
from django_durable_tasks.models import Node, QueueControl
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.task import TaskQuerySet
from django_durable_tasks.rules.options import checked_name


def pause(name: str, *, by: str, reason: str = "") -> None:
    """Hold a queue: nothing of it is published, and messages already out hand their rows back. Runs go on."""
    QueueControl.objects.using(database()).update_or_create(
        name=checked_name("queue", name),
        defaults={"paused_at": DatabaseNow(), "paused_by": by[:200], "reason": reason[:500]},
    )


def resume(name: str, *, by: str) -> bool:
    """Let a queue go on; False when it was not paused."""
    paused = QueueControl.objects.using(database()).filter(name=name, paused_at__isnull=False)
    return bool(paused.update(paused_at=None, paused_by=by[:200], reason=""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """What stands in one queue: rows by status, who holds it, and how many workers and slots listen.

    ``due`` are the pending rows whose time has come, ``unanswered`` the queued ones that were rung more than once,
    ``late`` the running ones past their expected duration; ``oldest_due_at`` is since when a row could have started.
    """

    queue: str
    pending: int = 0
    due: int = 0
    queued: int = 0
    unanswered: int = 0
    running: int = 0
    late: int = 0
    oldest_due_at: datetime | None = None
    paused_at: datetime | None = None
    paused_by: str = ""
    reason: str = ""
    workers: int = 0
    slots: int = 0


def depths(now: datetime, named: Iterable[str] = ()) -> list[Depth]:
    """Return every queue that has open rows, a worker, an operator's mark or is ``named``, by name; six statements.

    Each counts by the partial index of its status and reads no ended row. BLOCKED rows stand in no queue yet.
    """
    facts: dict[str, dict[str, Any]] = {name: {} for name in named}
    waiting, published = tasks().pending(), tasks().queued()
    come, rung_again = Q(alarm_at__lte=now), Q(publish_count__gt=1)
    counted: tuple[Any, ...] = (
        _by_queue(waiting, pending=Count("*"), due=Count("alarm_at", filter=come), head=Min("alarm_at")),
        _by_queue(published, queued=Count("*"), unanswered=Count("publish_count", filter=rung_again),
                  published=Min("updated_at")),
        _by_queue(tasks().running(), running=Count("*")),
        _by_queue(tasks().overdue(now), late=Count("*")),
        QueueControl.objects.using(database()).values("paused_at", "paused_by", "reason", queue=F("name")),
    )  # fmt: skip
    for row in (row for question in counted for row in question):
        facts.setdefault(row.pop("queue"), {}).update(row)
    for queues, slots in Node.objects.using(database()).alive().workers().values_list("queues", "slots"):
        for queue in queues:
            seen = facts.setdefault(queue, {})
            seen.update(workers=seen.get("workers", 0) + 1, slots=seen.get("slots", 0) + slots)
    return [_depth(queue, seen, now) for queue, seen in sorted(facts.items())]


def _by_queue(question: TaskQuerySet, **counts: Any) -> Any:
    return question.order_by().values("queue").annotate(**counts)


def _depth(queue: str, seen: dict[str, Any], now: datetime) -> Depth:
    waits = [since for since in (seen.pop("head", None), seen.pop("published", None)) if since and since <= now]
    return Depth(queue=queue, oldest_due_at=min(waits, default=None), **seen)
