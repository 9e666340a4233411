"""Pauses and resumes queues, and counts their tasks. Called by the admin and the command line."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, F, Min, Q
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.audit import current_actor, recorded
from django_durable_tasks.limits.backpressure import heads, paused_queues
from django_durable_tasks.masking import masked_text
from django_durable_tasks.models import Node, NodeKind, QueueControl
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.operations import Reason, Target, operation
from django_durable_tasks.option_values import checked_name
from django_durable_tasks.store import tables
from django_durable_tasks.store.dialects import POSTGRESQL, sql, verb
from django_durable_tasks.tasks import batches


@operation(
    Target.QUEUE,
    title=_("Pause queue"),
    help=_("No task of the queue starts until it is resumed. Running tasks continue."),
    permission="pause_queuecontrol",
    reason=Reason.REQUIRED_IN_FORMS,
    counted="paused",
    done=_("Paused queue %(subject)s. Running tasks continue."),
)
def pause(name: str) -> None:
    """Stop publishing to a queue. Tasks whose messages arrive return to PENDING. Running tasks
    continue.
    """
    checked_name("queue", name)
    with recorded("queue.pause") as entry:
        before = _pause_of(name)
        QueueControl.objects.using(tables.database()).update_or_create(
            name=name, defaults=_operated(DatabaseNow())
        )
        entry.changed("queue", name, before, _pause_of(name))


@operation(
    Target.QUEUE,
    title=_("Resume queue"),
    help=_("The tasks of a paused queue are published again."),
    permission="pause_queuecontrol",
    confirm=False,
    counted="resumed",
    done=_("Resumed queue %(subject)s."),
    unchanged=_("Queue %(subject)s was not paused."),
)
def resume(name: str) -> bool:
    """Publish to a queue again; return False if it was not paused."""
    with recorded("queue.resume") as entry:
        before = _pause_of(name)
        paused = QueueControl.objects.using(tables.database()).filter(
            name=name, paused_at__isnull=False
        )
        if not paused.update(**_operated(None)):
            return False
        entry.changed("queue", name, before, _pause_of(name))
    return True


def _operated(paused_at: Any) -> dict[str, Any]:
    actor = current_actor()
    return {"paused_at": paused_at, "paused_by": actor.by[:200], "reason": actor.reason[:500]}


def _pause_of(name: str) -> dict[str, Any]:
    """Return the pause of a queue for the audit entry, and lock its row."""
    rows = tables.locked_for_change(QueueControl.objects.using(tables.database()).filter(name=name))
    row = dict[str, Any](rows.values("paused_at", "paused_by", "reason").first() or {})
    return {"paused": row.get("paused_at") is not None, **row}


COUNTED = 10_000
"""Waiting tasks of a queue are counted up to this number, because a full count would read the whole
backlog.
"""


MISROUTED_FOR = timedelta(days=1)
"""How long a misrouted message counts as a problem; the table of queues shows it permanently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """The state of one queue: its tasks by status, its pause, and its workers with their
    concurrency.

    ``due`` are the PENDING tasks whose time has come, ``limited`` those that wait for a limit or
    for the turn of their tenant, which are not counted as due, ``unanswered`` the QUEUED tasks
    published more than once, and ``late`` the RUNNING tasks past their expected duration.
    ``oldest_due_at`` is since when a task could have started. ``pending`` and ``due`` are counted
    up to COUNTED, ``limited`` up to COUNTED in all queues together; ``counts_are_exact`` is whether
    none of them stopped there. ``rejected`` is why the broker rejects messages of the queue, as a
    running scheduler reports.
    ``misrouted`` counts the messages that were consumed from another queue; ``misrouted_at`` and
    ``misrouted_from`` are the time and the queue of the last one.
    """

    queue: str
    pending: tables.BoundedCount = tables.BoundedCount(0)
    due: tables.BoundedCount = tables.BoundedCount(0)
    limited: tables.BoundedCount = tables.BoundedCount(0)
    counts_are_exact: bool = True
    queued: int = 0
    unanswered: int = 0
    running: int = 0
    late: int = 0
    oldest_due_at: datetime | None = None
    paused_at: datetime | None = None
    paused_by: str = ""
    reason: str = ""
    workers: int = 0
    concurrency: int = 0
    rejected: str = ""
    misrouted: int = 0
    misrouted_at: datetime | None = None
    misrouted_from: str = ""

    @property
    def to_start(self) -> tables.BoundedCount:
        """The number of tasks that wait for nothing but a worker or a limit."""
        return self.due + self.limited + self.queued


def depths(now: datetime, named: Iterable[str] = ()) -> list[Depth]:
    """Return every queue that has open tasks, a worker or an operator's setting, or is in
    ``named``, by name.

    Executes at most seven statements for 500 queues. Each uses the partial index of its status and
    reads no ended task. BLOCKED tasks are not counted.
    """
    facts: dict[str, dict[str, Any]] = {name: {} for name in named}
    for queue, pending, due, head in waiting(now):
        facts.setdefault(queue, {}).update(pending=pending, due=due, head=head)
    waiting_for_limit = (
        tables.tasks().waiting_for_limit().order_by().values_list("queue", flat=True)
    )
    limited = Counter(waiting_for_limit[: COUNTED + 1])
    is_whole = limited.total() <= COUNTED
    for queue in {*limited, *(name for name, seen in facts.items() if seen.get("pending"))}:
        # If counting stopped, it may not have reached a queue.
        facts.setdefault(queue, {})["limited"] = tables.BoundedCount(limited[queue], is_whole)
    controls = QueueControl.objects.using(tables.database())
    counted: tuple[Any, ...] = (
        _by_queue(
            tables.tasks().queued(),
            queued=Count("*"),
            unanswered=Count("publish_count", filter=Q(publish_count__gt=1)),
            published=Min("updated_at"),
        ),
        _by_queue(
            tables.tasks().running().with_over(),
            running=Count("*"),
            late=Count("pk", filter=Q(expected_duration__isnull=False, over__lt=now)),
        ),
        controls.values(
            "paused_at",
            "paused_by",
            "reason",
            "misrouted",
            "misrouted_at",
            "misrouted_from",
            queue=F("name"),
        ),
    )
    names = conf.settings().SECRET_NAMES
    for row in itertools.chain(*counted):
        if "reason" in row:  # every interface shows what this function returns
            row["reason"] = masked_text(row["reason"], names)
            if row["paused_at"] is None:
                row |= {"paused_by": "", "reason": ""}  # the row has who resumed it
        facts.setdefault(row.pop("queue"), {}).update(row)
    nodes = Node.objects.using(tables.database()).alive()
    for node in nodes.only("kind", "draining", "queues", "concurrency", "rejected_queues"):
        for queue, reason in (node.rejected_queues or {}).items():
            facts.setdefault(queue, {})["rejected"] = str(reason)
        if node.kind != NodeKind.WORKER or node.draining:
            continue
        for queue in node.queues:
            seen = facts.setdefault(queue, {})
            seen["workers"] = seen.get("workers", 0) + 1
            seen["concurrency"] = seen.get("concurrency", 0) + node.concurrency
    return [_depth(queue, seen, now) for queue, seen in sorted(facts.items())]


def totals(depths: Sequence[Depth]) -> dict[str, int]:
    """Return the number of PENDING, QUEUED and RUNNING tasks of these queues."""
    return {
        "PENDING": sum(depth.pending for depth in depths),
        "QUEUED": sum(depth.queued for depth in depths),
        "RUNNING": sum(depth.running for depth in depths),
    }


def due_tasks(now: datetime) -> dict[str, tables.BoundedCount]:
    """Return the number of due tasks of each queue that is not paused."""
    paused = paused_queues()
    return {queue: due for queue, _all, due, _head in waiting(now) if queue not in paused}


@verb
def waiting(now: datetime) -> list[tuple[str, tables.BoundedCount, tables.BoundedCount, datetime]]:
    """Return the PENDING and due tasks of each queue, and when its first task is due."""
    due = Count("due_at", filter=Q(due_at__lte=now))
    rows = _by_queue(tables.tasks().pending(), pending=Count("*"), due=due, head=Min("due_at"))
    return [
        (row["queue"], _bounded(row["pending"]), _bounded(row["due"]), row["head"]) for row in rows
    ]


@waiting.on(POSTGRESQL)
def _waiting_up_to_counted(
    now: datetime,
) -> list[tuple[str, tables.BoundedCount, tables.BoundedCount, datetime]]:
    first, limit = heads(), COUNTED + 1
    rows = tables.read(sql("waiting"), {"queues": sorted(first), "now": now, "limit": limit})
    counts = {queue: (pending, due, first[queue]) for queue, pending, due in rows}
    batch_heads = batches.batch_heads(now)
    if batch_heads:
        of_batches: dict[str, datetime] = {}
        for head in batch_heads:
            of_batches[head.queue] = min(head.due_at, of_batches.get(head.queue, head.due_at))
        parameters = {
            "queues": [head.queue for head in batch_heads],
            "names": [head.name for head in batch_heads],
            "now": now,
            "limit": limit,
        }
        # One row for each queue and task name.
        for queue, pending, due in tables.read(sql("waiting_batches"), parameters):
            before = counts.get(queue, (0, 0, of_batches[queue]))
            counts[queue] = (
                before[0] + pending,
                before[1] + due,
                min(before[2], of_batches[queue]),
            )
    return [
        (queue, _bounded(pending), _bounded(due), head)
        for queue, (pending, due, head) in counts.items()
    ]


def _bounded(number: int) -> tables.BoundedCount:
    return tables.BoundedCount(min(number, COUNTED), number <= COUNTED)


def _by_queue(queryset: TaskQuerySet, **counts: Any) -> Any:
    return queryset.order_by().values("queue").annotate(**counts)


def _depth(queue: str, seen: dict[str, Any], now: datetime) -> Depth:
    waits = [
        since
        for since in (seen.pop("head", None), seen.pop("published", None))
        if since and since <= now
    ]
    counts = (seen.get(name, 0) for name in ("pending", "due", "limited"))
    return Depth(
        queue=queue,
        oldest_due_at=min(waits, default=None),
        counts_are_exact=all(map(tables.is_exact, counts)),
        **seen,
    )
