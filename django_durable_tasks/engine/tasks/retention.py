"""Deletes finished rows in batches. An idempotency key outlives its task's end by a day at least.

Of a workflow all goes or nothing: once all of its runs have ended, the longest retention among its
tasks' ends is over, counted from the end of the last run, no dead letter of it is open, and nothing
open waits for it. One of more tasks than a batch goes in several transactions, its tasks first and
its runs last; whoever comes next goes on from there. A task outside of workflows stays while a task
is open to which an edge ties it.
"""

from __future__ import annotations

import math
import time
import uuid
from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from django_durable_tasks import conf
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.isolation import Isolation
from django_durable_tasks.engine.dependencies import edges
from django_durable_tasks.engine.dependencies.edges import runs
from django_durable_tasks.engine.limits import config
from django_durable_tasks.models import DeadLetter, LimitBucket, Node, Task, TaskExecutionLog
from django_durable_tasks.models.limit_bucket import LOCK
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.models.workflow_run import WorkflowRunQuerySet
from django_durable_tasks.rules.limits import options as rules
from django_durable_tasks.rules.states import OPEN, TERMINAL, Status
from django_durable_tasks.rules.workflows.plan import COUNTS

_KEY_KEPT = timedelta(hours=24)
_NODE_KEPT = timedelta(days=7)
_PASSED_OVER = 600.0
_WHOLES = "wholes"


class Stayed:
    """Up to where ended tasks have to stay though their retention is over, for a process that
    prunes again and again.

    What an open dead letter or an open neighbour keeps would stand in front of each look. It is
    passed over until ten minutes after a look came to the last row, and then looked at once more.
    """

    def __init__(self) -> None:
        self._past: dict[str, tuple[datetime, uuid.UUID]] = {}
        self._until: dict[str, float] = {}
        self._cut: set[str] = set()

    def past(self, what: str) -> tuple[datetime, uuid.UUID] | None:
        """Return the end and id of the last row that was looked at."""
        if time.monotonic() >= self._until.get(what, math.inf):
            self._past.pop(what, None)
            del self._until[what]
        self._cut.discard(what)
        return self._past.get(what)

    def note(self, what: str, past: tuple[datetime, uuid.UUID]) -> None:
        """Take in that all rows up to this one were looked at."""
        self._past[what] = past

    def end(self, what: str) -> None:
        """Take in that the last row was looked at."""
        self._until.setdefault(what, time.monotonic() + _PASSED_OVER)

    def cut(self, what: str) -> None:
        """Take in that the look ended before the last row, at its deadline."""
        self._cut.add(what)

    def more(self) -> bool:
        """Return whether a look ended at its deadline."""
        return bool(self._cut)


def prune(
    now: datetime, limit: int, stayed: Stayed | None = None, deadline: float = math.inf
) -> int:
    """Delete at most ``limit`` ended tasks whose time is over, with their logs and closed cases;
    return how many.

    A FAILED task with an open dead letter stays. Call again until it returns 0. Reads by pages of
    ``limit`` rows whose retention is over, and no others. From ``deadline`` on (of
    ``time.monotonic()``) it reads one page of each status at most; ``stayed`` then knows that there
    is more, and how far it came.
    """
    stayed = stayed or Stayed()
    deleted = _prune_wholes(now, limit, stayed, deadline)
    for status, kept in conf.retention().items():
        if kept is not None:
            cutoff = now - timedelta(seconds=kept)
            deleted += _prune_ended(status, cutoff, now, limit - deleted, stayed, deadline)
    Node.objects.using(tables.database()).gone_before(now - _NODE_KEPT).delete()
    return deleted


def _prune_ended(
    status: str, cutoff: datetime, now: datetime, limit: int, stayed: Stayed, deadline: float
) -> int:
    deleted, past = 0, stayed.past(status)
    while (size := limit - deleted) > 0:
        page = _page(tables.tasks().ended_before(status, cutoff, past), size)
        gone = _prune_apart([pk for _, pk in page], status, cutoff, now)
        deleted += gone
        if len(page) < size:
            stayed.end(status)
            break
        past = page[-1]
        if not gone:
            stayed.note(status, past)
        if time.monotonic() >= deadline:
            stayed.cut(status)
            break
    return deleted


def _page(ended: TaskQuerySet | WorkflowRunQuerySet, size: int) -> list[tuple[datetime, uuid.UUID]]:
    """Return the ends and ids of the first rows."""
    rows: list[Any] = list(ended.values_list("completed_at", "pk")[:size])
    return rows


def _over(rows: TaskQuerySet, status: str, now: datetime) -> TaskQuerySet:
    rows = _untied(rows).filter(
        Q(idempotency_key__isnull=True) | Q(completed_at__lt=now - _KEY_KEPT)
    )
    open_case = DeadLetter.objects.filter(open_task=OuterRef("pk"))
    return rows.filter(~Exists(open_case)) if status == Status.FAILED else rows


def _untied(question: TaskQuerySet) -> TaskQuerySet:
    """Leave those out on which something open still hangs: a task by an edge, a note of the end, an
    open workflow.
    """
    below = edges.edges().filter(depends_on=OuterRef("pk"), task__status__in=OPEN)
    above = edges.edges().filter(task=OuterRef("pk"), depends_on__status__in=OPEN)
    note = edges.endings().filter(task_id=OuterRef("pk"))
    # The open workflow that a recurring task started uses the overlap key of this row.
    started = runs().filter(
        recurring_task=OuterRef("recurring_task"),
        fire_time=OuterRef("fire_time"),
        completed_at__isnull=True,
    )
    return question.filter(~Exists(below), ~Exists(above), ~Exists(note), ~Exists(started))


_tasks, _workflows = Isolation[uuid.UUID]("task"), Isolation[uuid.UUID]("workflow")
"""What deletes a row runs receivers of the project, and foreign keys of the project may
protect it.
"""


def _prune_apart(page: list[uuid.UUID], status: str, cutoff: datetime, now: datetime) -> int:
    postponed = set(_tasks.postponed())
    these = [pk for pk in page if pk not in postponed]
    if not these:
        return 0
    return sum(
        _tasks.batch(
            lambda: _prune(these, status, cutoff, now),
            lambda: these,
            lambda pk: _prune([pk], status, cutoff, now),
        )
    )


def _prune(page: list[uuid.UUID], status: str, cutoff: datetime, now: datetime) -> int:
    with tables.atomic():
        ended = tables.tasks().filter(pk__in=page).ended_before(status, cutoff).order_by("pk")
        # Locked, so that a replay in this moment neither loses its history nor is deleted.
        held = list(ended.select_for_update(skip_locked=True).values_list("pk", flat=True))
        # Judged after that: an edge that came before is seen, and none comes while the rows are
        # locked.
        gone = list(
            _over(tables.tasks().filter(pk__in=held), status, now).values_list("pk", flat=True)
        )
        _delete(gone)
    return len(gone)


def _delete(gone: list[uuid.UUID]) -> None:
    """Delete tasks with all that tells of them, their edges too; edges of what waited for them tell
    how they ended.
    """
    database = tables.database()
    TaskExecutionLog.objects.using(database).unguarded().filter(task_id__in=gone).delete()
    DeadLetter.objects.using(database).unguarded().filter(task_id__in=gone).delete()
    Task.objects.using(database).unguarded().filter(pk__in=gone).delete()


# Workflows ----------------------------------------------------------------------------------------


def _wholes(now: datetime) -> WorkflowRunQuerySet:
    """Return the outermost runs that may go with all that they hold."""
    question = runs().filter(parent__isnull=True, completed_at__isnull=False)
    parts, tasks = (
        runs().filter(root=OuterRef("pk")),
        tables.tasks().filter(workflow__root=OuterRef("pk")),
    )
    counted: dict[float | None, Q] = defaultdict(Q)
    for status, kept in conf.retention().items():
        counted[kept] |= Q(**{f"{COUNTS[status]}__gt": 0})
    for kept, some in counted.items():
        such = Exists(parts.filter(some))
        if kept is None:
            question = question.filter(~such)
        else:
            question = question.filter(
                ~such | ~Exists(_ended_since(parts, now - timedelta(seconds=kept)))
            )
    keyed = tasks.filter(idempotency_key__isnull=False, completed_at__gte=now - _KEY_KEPT)
    below = edges.edges().filter(depends_on__workflow__root=OuterRef("pk"), task__status__in=OPEN)
    above = edges.edges().filter(task__workflow__root=OuterRef("pk"), depends_on__status__in=OPEN)
    in_the_way = (
        parts.filter(completed_at__isnull=True),
        tasks.filter(status__in=OPEN),
        keyed,
        tasks.filter(dead_letters__open_task__isnull=False),
        below,
        above,
    )
    return question.filter(*(~Exists(one) for one in in_the_way))


def _ended_since(parts: WorkflowRunQuerySet, cutoff: datetime) -> WorkflowRunQuerySet:
    return parts.filter(completed_at__gte=cutoff)


def _prune_wholes(now: datetime, limit: int, stayed: Stayed, deadline: float) -> int:
    deleted, past = 0, stayed.past(_WHOLES)
    while deleted < limit:
        page = _page(runs().ended_before(_least(now), past), limit)
        gone = _prune_these_wholes([pk for _, pk in page], now, limit - deleted) if page else 0
        deleted += gone
        if len(page) < limit:
            stayed.end(_WHOLES)
            break
        past = page[-1]
        if not gone:
            stayed.note(_WHOLES, past)
        if time.monotonic() >= deadline:
            stayed.cut(_WHOLES)
            break
    return deleted


def _prune_these_wholes(page: list[uuid.UUID], now: datetime, limit: int) -> int:
    deleted = 0

    def prune_whole(root: uuid.UUID) -> None:
        nonlocal deleted
        while deleted < limit and (number := _prune_whole(root, now, limit - deleted)):
            deleted += number

    over = _wholes(now).filter(pk__in=page).order_by("pk")
    _workflows.each(list(over.values_list("pk", flat=True)), prune_whole)
    return deleted


def _least(now: datetime) -> datetime:
    """Return before when a whole must have ended to go, whatever its tasks ended as."""
    kept = [seconds for seconds in conf.retention().values() if seconds is not None]
    return now - timedelta(seconds=min(kept, default=0.0))


def _prune_whole(root: uuid.UUID, now: datetime, limit: int) -> int:
    """Delete at most so many tasks of a whole that may go, and with the last of them its runs;
    return how many.
    """
    with tables.atomic():
        parts = runs().filter(root=root).order_by("pk")
        # Under the locks of its runs nothing is added to it or counted.
        keys = list(parts.select_for_update(skip_locked=True).values_list("pk", flat=True))
        if len(keys) < parts.count() or not _wholes(now).filter(pk=root).exists():
            return 0
        rows = tables.tasks().filter(workflow__in=keys).order_by("pk")
        found = list(rows.values_list("pk", flat=True)[:limit])
        held = tables.tasks().filter(pk__in=found, status__in=TERMINAL).order_by("pk")
        if len(held.select_for_update(skip_locked=True).values_list("pk", flat=True)) < len(found):
            return 0
        if edges.endings().filter(Q(task_id__in=found) | Q(workflow_id__in=keys)).exists():
            return 0
        _delete(found)
        if not rows.exists():
            parts.delete()
    return len(found)


# Buckets ------------------------------------------------------------------------------------------

_BUCKET_KEPT = timedelta(days=30)
"""So long the tokens of a scope stay that no limit names any more."""
_buckets = Isolation[str]("bucket")
_past_bucket = ""
"""Up to which scope this process has looked; with very many each call goes on where the last one
ended.
"""


def prune_buckets(now: datetime, limit: int) -> int:
    """Delete buckets that are full again among the next so many scopes of keys and forgotten
    limits; return how many.

    A scope without a bucket has a full one. Full is what holds enough for the heaviest task there
    can be.
    """
    global _past_bucket
    book = config.book()
    rates = [allowed.rate for allowed in book.per_key.values() if allowed.rate is not None]
    by_key = timedelta(seconds=max(map(rules.refill, rates))) if rates else _BUCKET_KEPT
    buckets = LimitBucket.objects.using(tables.database())
    page = list(
        buckets.filter(pk__gt=_past_bucket).order_by("pk").values_list("pk", flat=True)[:limit]
    )
    _past_bucket = page[-1] if len(page) == limit else ""
    left_out = {LOCK, *_buckets.postponed()}
    mine = [scope for scope in page if scope not in left_out and book.of(scope).rate is None]
    keyed = Q(
        pk__in=[scope for scope in mine if scope.startswith("key:")], refilled_at__lt=now - by_key
    )
    other = Q(
        pk__in=[scope for scope in mine if not scope.startswith("key:")],
        refilled_at__lt=now - _BUCKET_KEPT,
    )
    full = buckets.filter(keyed | other)
    return sum(
        _buckets.batch(
            lambda: _prune_full(full),
            lambda: mine,
            lambda scope: _prune_full(full.filter(pk=scope)),
        )
    )


def _prune_full(full: QuerySet[LimitBucket]) -> int:
    with tables.atomic():
        gone = list(
            full.order_by("pk").select_for_update(skip_locked=True).values_list("pk", flat=True)
        )
        LimitBucket.objects.using(tables.database()).filter(pk__in=gone).delete()
    return len(gone)


def prunable(now: datetime) -> dict[str, int]:
    """Return how many tasks of each status ``prune`` would delete, for a dry run."""
    cutoffs = {
        status: now - timedelta(seconds=kept)
        for status, kept in conf.retention().items()
        if kept is not None
    }
    wholes = tables.tasks().filter(workflow__root__in=_wholes(now).values("pk"))
    whole = dict(wholes.order_by().values_list("status").annotate(Count("pk")))
    return {
        status: _over(tables.tasks().ended_before(status, cutoff), status, now).count()
        + whole.get(status, 0)
        for status, cutoff in cutoffs.items()
    }
