"""Deletes ended tasks and workflows in batches, and corrects deadlines after the clock was set
back.
"""

from __future__ import annotations

import math
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf, process_state
from django_durable_tasks.audit import record_start
from django_durable_tasks.choices import OPEN, TERMINAL, Status
from django_durable_tasks.dependencies import edges
from django_durable_tasks.dependencies.edges import workflow_runs
from django_durable_tasks.limits import config, scopes
from django_durable_tasks.models import DeadLetter, LimitBucket, Node, Task, TaskExecutionLog
from django_durable_tasks.models.cluster import LOCK
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.models.workflows import COUNTS, WorkflowRunQuerySet
from django_durable_tasks.operations import OF_ALL_TENANTS, Progress, Target, no_progress, operation
from django_durable_tasks.states import endings
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.errors import Isolation
from django_durable_tasks.tasks import batches

# Deletes ended tasks and workflows in batches. The leader and ``durable prune`` call it.
#
# An idempotency key is kept for at least a day after its task has ended. A workflow is deleted
# completely or not at all. It is deleted when all of its runs have ended, the longest retention
# among the statuses of its tasks has passed since the last run ended, none of its dead letters is
# open, and no open task depends on it. A workflow with more tasks than a batch is deleted in
# several transactions, its tasks first and its runs last. A later call continues where the last
# one ended. A task without a workflow is kept while an edge connects it to an open task.


_KEY_KEPT = timedelta(hours=24)
_NODE_KEPT = timedelta(days=7)
_PASSED_OVER = 600.0
_WORKFLOW_RUNS = "workflow runs"


class PruningPositions:
    """The positions up to which a process has read the rows whose retention is over.

    Rows that must be kept, for example because of an open dead letter, would otherwise be read
    first in each call. They are skipped until ten minutes after the last row was reached, and then
    read again.
    """

    def __init__(self) -> None:
        self._past: dict[str, tuple[datetime, uuid.UUID]] = {}
        self._until: dict[str, float] = {}
        self._cut: set[str] = set()

    def past(self, what: str) -> tuple[datetime, uuid.UUID] | None:
        """Return ``completed_at`` and id of the last row that was read."""
        if time.monotonic() >= self._until.get(what, math.inf):
            self._past.pop(what, None)
            del self._until[what]
        self._cut.discard(what)
        return self._past.get(what)

    def record(self, what: str, past: tuple[datetime, uuid.UUID]) -> None:
        """Record that all rows up to this one were read."""
        self._past[what] = past

    def end(self, what: str) -> None:
        """Record that the last row was reached."""
        self._until.setdefault(what, time.monotonic() + _PASSED_OVER)

    def cut(self, what: str) -> None:
        """Record that reading stopped at the deadline, before the last row."""
        self._cut.add(what)

    def more(self) -> bool:
        """Return whether reading stopped at the deadline."""
        return bool(self._cut)


_HOLDS: set[Callable[[], datetime | None]] = set()


def register_hold(hold: Callable[[], datetime | None]) -> None:
    """Keep the tasks and workflows that ended after the time that ``hold()`` returns, if any.

    Called in ``AppConfig.ready()`` of an optional app that still has to read them.
    """
    _HOLDS.add(hold)


def prune(
    now: datetime, limit: int, positions: PruningPositions | None = None, deadline: float = math.inf
) -> int:
    """Delete at most ``limit`` ended tasks whose retention is over, with their logs and dead
    letters; return how many.

    A FAILED task with an open dead letter is kept. Call again until it returns 0. Only rows whose
    retention is over are read, in pages of ``limit`` rows. After ``deadline`` (of
    ``time.monotonic()``) at most one page per status is read, ``positions`` contains the position,
    and ``positions.more()`` is True.
    """
    positions = positions or PruningPositions()
    held = min((at for hold in _HOLDS if (at := hold()) is not None), default=now)
    retention = {status: kept for status, kept in conf.retention().items() if kept is not None}
    # A workflow must have ended before the shortest retention.
    shortest = timedelta(seconds=min(retention.values(), default=0.0))
    deleted = _prune_pages(
        _WORKFLOW_RUNS,
        partial(workflow_runs().ended_before, min(now - shortest, held)),
        lambda page, remaining: _prune_workflows(page, now, remaining),
        limit,
        positions,
        deadline,
        page_size=limit,
    )
    for status, kept in retention.items():
        cutoff = min(now - timedelta(seconds=kept), held)
        deleted += _prune_pages(
            status,
            partial(tables.tasks().ended_before, status, cutoff),
            partial(_prune_page, status, cutoff, now),
            limit - deleted,
            positions,
            deadline,
        )
    Node.objects.using(tables.database()).gone_before(now - _NODE_KEPT).delete()
    return deleted


_Position = tuple[datetime, uuid.UUID]


def _prune_pages(
    what: str,
    ended_after: Callable[[_Position | None], TaskQuerySet | WorkflowRunQuerySet],
    prune_page: Callable[[list[uuid.UUID], int], int],
    limit: int,
    positions: PruningPositions,
    deadline: float,
    page_size: int | None = None,
) -> int:
    """Delete at most ``limit`` tasks, page by page; return how many.

    ``prune_page`` is called with the ids of a page and with how many tasks it may delete. Without
    ``page_size`` a page has no more rows than that.
    """
    deleted, past = 0, positions.past(what)
    while (remaining := limit - deleted) > 0:
        size = page_size or remaining
        rows: list[Any] = list(ended_after(past).values_list("completed_at", "pk")[:size])
        number = prune_page([pk for _, pk in rows], remaining) if rows else 0
        deleted += number
        if len(rows) < size:
            positions.end(what)
            break
        past = rows[-1]
        if not number:
            positions.record(what, past)
        if time.monotonic() >= deadline:
            positions.cut(what)
            break
    return deleted


def _over(queryset: TaskQuerySet, status: str, now: datetime) -> TaskQuerySet:
    """Exclude tasks that are still needed: by their idempotency key, an edge to an open task, an
    ending event, an open workflow run, or an open dead letter.
    """
    below = edges.edges().filter(depends_on=OuterRef("pk"), task__status__in=OPEN)
    above = edges.edges().filter(task=OuterRef("pk"), depends_on__status__in=OPEN)
    event = edges.endings().filter(task_id=OuterRef("pk"))
    # The open workflow that a recurring task started uses the overlap key of this row.
    started = workflow_runs().filter(
        recurring_task=OuterRef("recurring_task"),
        fire_time=OuterRef("fire_time"),
        completed_at__isnull=True,
    )
    queryset = queryset.filter(
        Q(idempotency_key__isnull=True) | Q(completed_at__lt=now - _KEY_KEPT),
        *(~Exists(rows) for rows in (below, above, event, started)),
    )
    open_letter = DeadLetter.objects.filter(open_task=OuterRef("pk"))
    return queryset.filter(~Exists(open_letter)) if status == Status.FAILED else queryset


_tasks, _workflows = Isolation[uuid.UUID]("task"), Isolation[uuid.UUID]("workflow")
"""Deletions call signal receivers of the project, and its foreign keys may prevent them.
"""


def _prune_page(
    status: str, cutoff: datetime, now: datetime, page: list[uuid.UUID], _limit: int
) -> int:
    postponed = set(_tasks.postponed())
    task_ids = [pk for pk in page if pk not in postponed]
    if not task_ids:
        return 0
    return sum(
        _tasks.batch(
            lambda: _prune(task_ids, status, cutoff, now),
            lambda: task_ids,
            lambda pk: _prune([pk], status, cutoff, now),
        )
    )


def _prune(page: list[uuid.UUID], status: str, cutoff: datetime, now: datetime) -> int:
    with tables.atomic():
        ended = tables.tasks().filter(pk__in=page).ended_before(status, cutoff).order_by("pk")
        # Locked, so that a task that is replayed at the same time keeps its row and its log.
        locked_ids = list(ended.select_for_update(skip_locked=True).values_list("pk", flat=True))
        # Checked after the rows are locked: earlier edges are found, and no edges can be added
        # while the locks exist.
        deletable = list(
            _over(tables.tasks().filter(pk__in=locked_ids), status, now).values_list(
                "pk", flat=True
            )
        )
        _delete(deletable)
    return len(deletable)


def _delete(deletable: list[uuid.UUID]) -> None:
    """Delete tasks with their log entries, requests, dead letters and edges to their upstreams.

    The edges of their dependents are kept with the outcome.
    """
    database = tables.database()
    TaskExecutionLog.objects.using(database).unguarded().filter(task_id__in=deletable).delete()
    DeadLetter.objects.using(database).unguarded().filter(task_id__in=deletable).delete()
    Task.objects.using(database).unguarded().filter(pk__in=deletable).delete()


# Workflows ----------------------------------------------------------------------------------------


def _deletable_workflows(now: datetime) -> WorkflowRunQuerySet:
    """Return the root runs of workflows that may be deleted."""
    queryset = workflow_runs().filter(parent__isnull=True, completed_at__isnull=False)
    runs = workflow_runs().filter(root=OuterRef("pk"))
    tasks = tables.tasks().filter(workflow__root=OuterRef("pk"))
    counted: dict[float | None, Q] = defaultdict(Q)
    for status, kept in conf.retention().items():
        counted[kept] |= Q(**{f"{COUNTS[status]}__gt": 0})
    for kept, condition in counted.items():
        with_status = Exists(runs.filter(condition))
        if kept is None:
            queryset = queryset.filter(~with_status)
        else:
            queryset = queryset.filter(
                ~with_status | ~Exists(runs.filter(completed_at__gte=now - timedelta(seconds=kept)))
            )
    keyed = tasks.filter(idempotency_key__isnull=False, completed_at__gte=now - _KEY_KEPT)
    below = edges.edges().filter(depends_on__workflow__root=OuterRef("pk"), task__status__in=OPEN)
    above = edges.edges().filter(task__workflow__root=OuterRef("pk"), depends_on__status__in=OPEN)
    obstacles = (
        runs.filter(completed_at__isnull=True),
        tasks.filter(status__in=OPEN),
        keyed,
        tasks.filter(dead_letters__open_task__isnull=False),
        below,
        above,
    )
    return queryset.filter(*(~Exists(obstacle) for obstacle in obstacles))


def _prune_workflows(page: list[uuid.UUID], now: datetime, limit: int) -> int:
    deleted = 0

    def prune_workflow(root: uuid.UUID) -> None:
        nonlocal deleted
        while deleted < limit and (number := _prune_workflow(root, now, limit - deleted)):
            deleted += number

    over = _deletable_workflows(now).filter(pk__in=page).order_by("pk")
    _workflows.each(list(over.values_list("pk", flat=True)), prune_workflow)
    return deleted


def _prune_workflow(root: uuid.UUID, now: datetime, limit: int) -> int:
    """Delete at most ``limit`` tasks of a workflow, and its runs with the last of them; return how
    many.
    """
    with tables.atomic():
        runs = workflow_runs().filter(root=root).order_by("pk")
        # While its runs are locked, no tasks are added to the workflow and no endings are counted.
        keys = list(runs.select_for_update(skip_locked=True).values_list("pk", flat=True))
        if len(keys) < runs.count() or not _deletable_workflows(now).filter(pk=root).exists():
            return 0
        rows = tables.tasks().filter(workflow__in=keys).order_by("pk")
        ids = list(rows.values_list("pk", flat=True)[:limit])
        ended = tables.tasks().filter(pk__in=ids, status__in=TERMINAL).order_by("pk")
        if len(ended.select_for_update(skip_locked=True).values_list("pk", flat=True)) < len(ids):
            return 0
        if edges.endings().filter(Q(task_id__in=ids) | Q(workflow_id__in=keys)).exists():
            return 0
        _delete(ids)
        if not rows.exists():
            runs.delete()
    return len(ids)


# Buckets ------------------------------------------------------------------------------------------

_BUCKET_KEPT = timedelta(days=30)
"""How long the bucket of a scope without a limit is kept."""
_buckets = Isolation[str]("bucket")


class BucketCursor:
    """The last scope that this process has read. The next call continues after it."""

    def __init__(self) -> None:
        self.past = ""


def prune_buckets(now: datetime, limit: int) -> int:
    """Delete the full buckets among the next ``limit`` scopes of keys and removed limits; return
    how many.

    A missing bucket counts as full. A bucket is full when it has enough tokens for the heaviest
    task.
    """
    limit_config, cursor = config.limits_in_force(), process_state.of(BucketCursor)
    rates = [allowed.rate for allowed in limit_config.per_key.values() if allowed.rate is not None]
    by_key = timedelta(seconds=max(map(scopes.refill, rates))) if rates else _BUCKET_KEPT
    buckets = LimitBucket.objects.using(tables.database())
    page = list(
        buckets.filter(pk__gt=cursor.past).order_by("pk").values_list("pk", flat=True)[:limit]
    )
    cursor.past = page[-1] if len(page) == limit else ""
    left_out = {LOCK, *_buckets.postponed()}
    unlimited = [
        scope for scope in page if scope not in left_out and limit_config.of(scope).rate is None
    ]
    keyed = Q(
        pk__in=[scope for scope in unlimited if scope.startswith("key:")],
        refilled_at__lt=now - by_key,
    )
    removed = Q(
        pk__in=[scope for scope in unlimited if not scope.startswith("key:")],
        refilled_at__lt=now - _BUCKET_KEPT,
    )
    full = buckets.filter(keyed | removed)
    return sum(
        _buckets.batch(
            lambda: _prune_full(full),
            lambda: unlimited,
            lambda scope: _prune_full(full.filter(pk=scope)),
        )
    )


def _prune_full(full: QuerySet[LimitBucket]) -> int:
    with tables.atomic():
        scopes = list(
            full.order_by("pk").select_for_update(skip_locked=True).values_list("pk", flat=True)
        )
        LimitBucket.objects.using(tables.database()).filter(pk__in=scopes).delete()
    return len(scopes)


@operation(
    Target.INSTALLATION,
    name="prune",
    title=_("Delete ended tasks"),
    help=_("Deletes ended tasks after their retention, in batches. The leader does so regularly."),
    permission="",
    confirm=False,
    not_in_api=OF_ALL_TENANTS,
    not_in_admin="it can delete more rows than a web request has time for",
    counted=lambda deleted: {"deleted": deleted} if isinstance(deleted, int) else {},
)
def prune_all(*, dry_run: bool = False, progress: Progress = no_progress) -> int | dict[str, int]:
    """Delete ended tasks after their retention; return how many, in a dry run by status.

    Works in several transactions. The audit entry is written before the first one.
    """
    now, size = database_now(), conf.settings().BATCH_SIZE
    if dry_run:
        return prunable(now)
    record_start("installation.prune")
    deleted, positions = 0, PruningPositions()
    while (number := prune(now, size, positions)) > 0:
        deleted += number
        if number == size:
            progress(f"{deleted} deleted")
    return deleted


def prunable(now: datetime) -> dict[str, int]:
    """Return how many tasks of each status ``prune`` would delete, for a dry run."""
    cutoffs = {
        status: now - timedelta(seconds=kept)
        for status, kept in conf.retention().items()
        if kept is not None
    }
    in_workflows = tables.tasks().filter(workflow__root__in=_deletable_workflows(now).values("pk"))
    by_status = dict(in_workflows.order_by().values_list("status").annotate(Count("pk")))
    return {
        status: _over(tables.tasks().ended_before(status, cutoff), status, now).count()
        + by_status.get(status, 0)
        for status, cutoff in cutoffs.items()
    }


CLOCK_CORRECTIONS: dict[str, Callable[[float], int]] = {}
"""The corrections of optional apps. Each is called with the tolerance in seconds, and returns how
many rows it changed.
"""


def correct_deadlines(now: datetime, tolerance: float, limit: int) -> int:
    """Correct what was written more than ``tolerance`` seconds later than ``now``; return how many
    rows changed, at most ``limit`` of a kind. Must be repeated until it returns 0.
    """
    longest = conf.settings().REPUBLISH_AFTER
    return (
        endings.move_waits(now, tolerance, limit)
        + endings.shorten_republish_waits(longest, limit)
        + batches.shorten_waits(longest)
        + sum(correct(tolerance) for correct in CLOCK_CORRECTIONS.values())
    )
