"""The way out: rows are claimed, republished, handed back."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any

from django.db.models import Case, F, Q, Value, When

from django_durable_tasks.lifecycle.announcing import announce
from django_durable_tasks.lifecycle.clock import after
from django_durable_tasks.lifecycle.statements import statement
from django_durable_tasks.lifecycle.transitions.guards import (
    NOW,
    PAGES,
    Pair,
    atomic,
    first_locked,
    first_of_each,
    locked,
    move,
    read,
    shown,
    tasks,
)
from django_durable_tasks.lifecycle.transitions.runs import RUN_COLUMNS, start_writes
from django_durable_tasks.models.task import TaskQuerySet
from django_durable_tasks.rules.demands import Demand
from django_durable_tasks.rules.shards import UNSERVED_AFTER
from django_durable_tasks.rules.states import Status

RING_COLUMNS = (
    "id", "epoch", "publish_count", "name", "queue", "priority", "options", "idempotency_key", "run_at", "expires_at",
    "overlap_key", "waiting_for_limit",
)  # fmt: skip
"""What a claim reads back, in this order; ``waiting_for_limit`` as it was before the claim."""

_HELD_FOR = RING_COLUMNS.index("waiting_for_limit")


def claim(
    asked: Sequence[Demand], now: datetime, limit: int, node: uuid.UUID, wait: float,
    shards: Collection[int] | None = None,
) -> list[tuple[Any, ...]]:  # fmt: skip
    """PENDING to QUEUED for due rows of these queues, of each the most urgent first; return their RING_COLUMNS.

    At most ``limit`` rows: the queues have their turns in the order of ``asked``. ``shards``: only rows of these, or of
    any that nobody has served for UNSERVED_AFTER seconds.
    """
    sql, late = statement("claim"), now - timedelta(seconds=UNSERVED_AFTER)
    if sql is not None:
        parameters = {"now": now, "limit": limit, "node": node, "wait": wait, "late": late}
        for name, column in (("queues", "queue"), ("limits", "limit"), ("leasts", "least")):
            parameters[name] = [getattr(one, column) for one in asked]
        rows = read(sql, parameters | {"shards": None if shards is None else sorted(shards)})
        announce("claim", Status.QUEUED, [row[0] for row in rows])
        return rows
    with atomic():
        due = tasks().due(now).order_by("due_at")
        if shards is not None:
            due = due.filter(Q(shard_key__in=sorted(shards)) | Q(due_at__lte=late))
        return _claimed(_locked_due(due, asked, now, limit), node, wait)


def _locked_due(due: TaskQuerySet, asked: Sequence[Demand], now: datetime, limit: int) -> list[Pair]:
    """Lock at most ``limit`` of these rows, past the ones that other transactions have locked."""
    held, seen = list[Pair](), list[uuid.UUID]()
    for _ in range(PAGES):
        page = _due_of(due.exclude(pk__in=seen) if seen else due, asked, limit - len(held))
        got = locked(tasks().pending().filter(pk__in=list(page), due_at__lte=now), len(page)) if page else []
        held += got
        if len(got) == len(page):
            break
        seen += page
        taken = Counter(page[task_id] for task_id, _ in got)
        asked = [one._replace(limit=one.limit - taken[one.queue]) for one in asked if one.limit > taken[one.queue]]
    return held


def _due_of(due: TaskQuerySet, asked: Sequence[Demand], limit: int) -> dict[uuid.UUID, str]:
    """Return at most ``limit`` of these rows with their queues, by a short scan for each queue and priority.

    Many scans are one statement. The queues are spelled as they were asked for: MySQL and MariaDB ignore spaces at the
    end of a name when they compare.
    """
    if not asked:
        return {}
    scans = {
        (one.queue, priority): (
            due.filter(queue=one.queue, priority=priority).annotate(asked=Value(one.queue)),
            one.limit,
        )
        for one in asked
        for priority in range(9, one.least - 1, -1)
    }
    found: dict[str, list[tuple[int, uuid.UUID]]] = {one.queue: [] for one in asked}
    for task_id, queue, priority in first_of_each(scans.values(), ("pk", "asked", "priority")):
        found[queue].append((-priority, task_id))
    most = {one.queue: one.limit for one in asked}
    # By priority alone: within one, the rows stand in the order of their scan.
    ids = [(row[1], queue) for queue, rows in found.items() for row in sorted(rows, key=itemgetter(0))[: most[queue]]]
    return dict(ids[:limit])


def _claimed(pairs: Sequence[tuple[uuid.UUID, int]], node: uuid.UUID, wait: float) -> list[tuple[Any, ...]]:
    writes: dict[str, Any] = {"node": node, "due_at": after(wait), "publish_count": F("publish_count") + 1}
    move("claim", pairs, Status.QUEUED, **writes)
    rows = list(tasks().filter(pk__in=[task_id for task_id, _ in pairs]).values_list(*RING_COLUMNS))
    named = [row[0] for row in rows if row[_HELD_FOR] is not None]
    if named:
        tasks().filter(pk__in=named, status__standing=[Status.QUEUED]).update(waiting_for_limit=None)
    return rows


def claim_these(ids: Sequence[uuid.UUID], node: uuid.UUID, wait: float) -> list[tuple[Any, ...]]:
    """PENDING to QUEUED for those of these rows that are due by the database's clock; return their RING_COLUMNS."""
    sql = statement("claim_these")
    if sql is not None:
        rows = read(sql, {"ids": list(ids), "node": node, "wait": wait})
        announce("claim", Status.QUEUED, [row[0] for row in rows])
        return rows
    with atomic():
        return _claimed(locked(tasks().pending().filter(pk__in=list(ids), due_at__lte=NOW), len(ids)), node, wait)


def locked_pending(question: TaskQuerySet, limit: int) -> list[uuid.UUID]:
    """Lock PENDING rows of the question and return them in its order; rows that somebody else holds are left alone."""
    return [task_id for task_id, _ in first_locked(question.filter(status=Status.PENDING), limit)]


def take(question: TaskQuerySet, limit: int, node: uuid.UUID, lease: float) -> list[tuple[Any, ...]]:
    """PENDING to RUNNING for due rows, by the process that will run them; return their RUN_COLUMNS."""
    with atomic():
        pairs = locked(question.filter(status=Status.PENDING), limit)
        runs = Case(*(When(pk=task_id, then=Value(uuid.uuid4())) for task_id, _ in pairs), default=None)
        if not move("take", pairs, Status.RUNNING, **start_writes(runs, node, lease), waiting_for_limit=None):
            return []
        return list(tasks().filter(pk__in=[task_id for task_id, _ in pairs]).values_list(*RUN_COLUMNS))


def republish(question: TaskQuerySet, limit: int, first: float, longest: float) -> list[tuple[Any, ...]]:
    """QUEUED stays QUEUED under the same epoch, so that whichever copy of the message arrives first wins.

    The wait doubles up to ``longest`` seconds; from the eighth ring on it is four times that.
    """
    with atomic():
        pairs = locked(question.filter(status=Status.QUEUED), limit)
        steps = [(rings, after(min(first * 2**rings, longest))) for rings in range(8)]
        later = Case(*(When(publish_count=rings, then=step) for rings, step in steps), default=after(4 * longest))
        rung = tasks().filter(shown(pairs), status__standing=[Status.QUEUED])
        rung.update(due_at=later, publish_count=F("publish_count") + 1)
        return list(tasks().filter(pk__in=[task_id for task_id, _ in pairs]).values_list(*RING_COLUMNS))


def not_published(messages: Sequence[tuple[uuid.UUID, int, int]], wait: float) -> int:
    """QUEUED stays QUEUED: what ``republish`` wrote for these ids, epochs and numbers is undone, due in ``wait``."""
    by_number: dict[tuple[int, int], list[uuid.UUID]] = defaultdict(list)
    for task_id, epoch, number in sorted(messages):
        by_number[epoch, number].append(task_id)
    guard = Q(pk__in=[])
    for (epoch, number), ids in by_number.items():
        guard |= Q(pk__in=ids, epoch=epoch, publish_count=number)
    with atomic():
        locked(tasks().filter(pk__in=[task_id for task_id, *_ in messages], status=Status.QUEUED))
        stands = tasks().filter(guard, status__standing=[Status.QUEUED])
        return stands.update(due_at=after(wait), publish_count=F("publish_count") - 1)


def hand_back(question: TaskQuerySet, again: float | datetime, epochs: dict[uuid.UUID, int] | None = None) -> int:
    """QUEUED to PENDING, due ``again`` at an instant or in seconds; no failure counted; only in these ``epochs``."""
    with atomic():
        pairs = locked(question.filter(status=Status.QUEUED))
        if epochs is not None:
            pairs = [(task_id, epoch) for task_id, epoch in pairs if epochs.get(task_id) == epoch]
        due_at = again if isinstance(again, datetime) else after(again)
        return move("hand_back", pairs, Status.PENDING, due_at=due_at, node=None, publish_count=0)
