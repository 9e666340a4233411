"""Deletes finished rows in batches. An idempotency key outlives its task's end by a day at least.

Of a workflow all goes or nothing: once all of its runs have ended, the longest retention among its tasks' ends is over,
counted from the end of the last run, no dead letter of it is open, and nothing open waits for it. One of more tasks
than a batch goes in several transactions, its tasks first and its runs last; whoever comes next goes on from there. A
task outside of workflows stays while a task is open to which an edge ties it.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from datetime import datetime, timedelta

from django.db.models import Case, Count, DateTimeField, Exists, OuterRef, Q, Value, When
from django.db.models.functions import Coalesce, Greatest

from django_durable_tasks import conf
from django_durable_tasks.lifecycle import allowances, edges, transitions
from django_durable_tasks.lifecycle.edges import runs
from django_durable_tasks.lifecycle.ledger import ledger
from django_durable_tasks.models import DeadLetter, LimitBucket, Node, RecurringTask, Task, TaskExecutionLog
from django_durable_tasks.models.limit_bucket import LOCK
from django_durable_tasks.models.task import TaskQuerySet
from django_durable_tasks.models.workflow_run import WorkflowRunQuerySet
from django_durable_tasks.rules import limits as rules
from django_durable_tasks.rules.states import OPEN, TERMINAL, Status
from django_durable_tasks.rules.workflows import COUNTS

_KEY_KEPT = timedelta(hours=24)
_NODE_KEPT = timedelta(days=7)


def prune(now: datetime, limit: int) -> int:
    """Delete at most so many finished tasks whose time is over, with their logs and closed cases; return how many.

    A FAILED task with an open dead letter stays. Call again until it returns 0.
    """
    deleted = _prune_wholes(now, limit)
    for status, kept in conf.retention().items():
        if kept is not None and deleted < limit:
            cutoff = now - timedelta(seconds=kept)
            for finished in _finished(cutoff):
                deleted += _prune(_over(finished, status, now), limit - deleted)
    Node.objects.using(transitions.database()).gone_before(now - _NODE_KEPT).delete()
    return deleted


def _finished(cutoff: datetime) -> tuple[TaskQuerySet, TaskQuerySet]:
    return transitions.tasks().finished_before(cutoff), transitions.tasks().finished_under_foreign_ids(cutoff)


def _over(finished: TaskQuerySet, status: str, now: datetime) -> TaskQuerySet:
    finished = _untied(finished.filter(status=status, workflow__isnull=True)).order_by("pk")
    finished = finished.filter(Q(idempotency_key__isnull=True) | Q(completed_at__lt=now - _KEY_KEPT))
    open_case = DeadLetter.objects.filter(open_task=OuterRef("pk"))
    return finished.filter(~Exists(open_case)) if status == Status.FAILED else finished


def _untied(question: TaskQuerySet) -> TaskQuerySet:
    """Leave those out on which something open still hangs: a task by an edge, a note of the end, an open workflow."""
    below = edges.edges().filter(depends_on=OuterRef("pk"), task__status__in=OPEN)
    above = edges.edges().filter(task=OuterRef("pk"), depends_on__status__in=OPEN)
    note = edges.endings().filter(task_id=OuterRef("pk"))
    # The open workflow that a recurring task started holds the slot of this row.
    started = runs().filter(
        recurring_task=OuterRef("recurring_task"), fire_time=OuterRef("fire_time"), completed_at__isnull=True
    )
    return question.filter(~Exists(below), ~Exists(above), ~Exists(note), ~Exists(started))


def _prune(question: TaskQuerySet, limit: int) -> int:
    with transitions.atomic():
        # Locked, so that a replay in this moment neither loses its history nor is deleted.
        held = list(question.select_for_update(skip_locked=True).values_list("pk", flat=True)[:limit])
        # Asked again: an edge that came in between is seen now, and none comes while the rows are locked.
        gone = list(_untied(transitions.tasks().filter(pk__in=held)).values_list("pk", flat=True)) if held else []
        _delete(gone)
    return len(gone)


def _delete(gone: list[uuid.UUID]) -> None:
    """Delete tasks with all that tells of them, their edges too; edges of what waited for them tell how they ended."""
    database = transitions.database()
    TaskExecutionLog.objects.using(database).filter(task_id__in=gone).delete()
    DeadLetter.objects.using(database).filter(task_id__in=gone).delete()
    Task.objects.using(database).filter(pk__in=gone).delete()


# Workflows --------------------------------------------------------------------------------------------------------


def _wholes(now: datetime) -> WorkflowRunQuerySet:
    """Return the outermost runs that may go with all that they hold."""
    question = runs().filter(parent__isnull=True, completed_at__isnull=False)
    parts, tasks = runs().filter(root=OuterRef("pk")), transitions.tasks().filter(workflow__root=OuterRef("pk"))
    counted: dict[float | None, Q] = defaultdict(Q)
    for status, kept in conf.retention().items():
        counted[kept] |= Q(**{f"{COUNTS[status]}__gt": 0})
    for kept, some in counted.items():
        such = Exists(parts.filter(some))
        if kept is None:
            question = question.filter(~such)
        else:
            question = question.filter(~such | ~Exists(_ended_since(parts, now - timedelta(seconds=kept))))
    keyed = tasks.filter(idempotency_key__isnull=False, completed_at__gte=now - _KEY_KEPT)
    below = edges.edges().filter(depends_on__workflow__root=OuterRef("pk"), task__status__in=OPEN)
    above = edges.edges().filter(task__workflow__root=OuterRef("pk"), depends_on__status__in=OPEN)
    in_the_way = (
        parts.filter(completed_at__isnull=True), tasks.filter(status__in=OPEN), keyed,
        tasks.filter(dead_letters__open_task__isnull=False), below, above,
    )  # fmt: skip
    return question.filter(*(~Exists(one) for one in in_the_way))


def _ended_since(parts: WorkflowRunQuerySet, cutoff: datetime) -> WorkflowRunQuerySet:
    return parts.filter(completed_at__gte=cutoff)


def _prune_wholes(now: datetime, limit: int) -> int:
    deleted = 0
    for root in list(_wholes(now).order_by("pk").values_list("pk", flat=True)[:limit]):
        while deleted < limit and (number := _prune_whole(root, now, limit - deleted)):
            deleted += number
    return deleted


def _prune_whole(root: uuid.UUID, now: datetime, limit: int) -> int:
    """Delete at most so many tasks of a whole that may go, and with the last of them its runs; return how many."""
    with transitions.atomic():
        parts = runs().filter(root=root).order_by("pk")
        # Under the locks of its runs nothing is added to it or counted.
        keys = list(parts.select_for_update(skip_locked=True).values_list("pk", flat=True))
        if len(keys) < parts.count() or not _wholes(now).filter(pk=root).exists():
            return 0
        rows = transitions.tasks().filter(workflow__in=keys).order_by("pk")
        found = list(rows.values_list("pk", flat=True)[:limit])
        held = transitions.tasks().filter(pk__in=found, status__in=TERMINAL).order_by("pk")
        if len(held.select_for_update(skip_locked=True).values_list("pk", flat=True)) < len(found):
            return 0
        if edges.endings().filter(Q(task_id__in=found) | Q(workflow_id__in=keys)).exists():
            return 0
        _delete(found)
        if not rows.exists():
            parts.delete()
    return len(found)


def prune_ledger(now: datetime, limit: int) -> int:
    """Delete at most so many lines of the ledger whose time is over, oldest first; return how many.

    Their schedules remember up to when, so that no backfill gives birth to a forgotten fire a second time.
    """
    cutoff = now - timedelta(seconds=conf.settings().LEDGER_RETENTION)
    with transitions.atomic():
        oldest = (
            ledger().order_by("pk").values_list("pk", "created_at", "recurring_task", "fire_time", "last_fire_time")
        )
        gone = [line for line in oldest[:limit] if line[1] < cutoff]
        if gone:
            forgotten: dict[uuid.UUID, datetime] = {}
            for _, _, schedule, first, last in gone:
                forgotten[schedule] = max(last or first, forgotten.get(schedule, first))
            these = RecurringTask.objects.using(transitions.database()).filter(pk__in=forgotten)
            # Each by its own lines: what another schedule has forgotten may still be to come here.
            own = Case(*(When(pk=pk, then=Value(told, DateTimeField())) for pk, told in forgotten.items()))
            these.update(ledger_from=Greatest(Coalesce("ledger_from", own), own))
            ledger().filter(pk__in=[line[0] for line in gone]).delete()
    return len(gone)


# Buckets ----------------------------------------------------------------------------------------------------------

_BUCKET_KEPT = timedelta(days=30)
"""So long the tokens of a scope stay that no limit names any more."""
_past_bucket = ""
"""Up to which scope this process has looked; with very many each call goes on where the last one ended."""


def prune_buckets(now: datetime, limit: int) -> int:
    """Delete buckets that are full again among the next so many scopes of keys and forgotten limits; return how many.

    A scope without a bucket has a full one. Full is what holds enough for the heaviest task there can be.
    """
    global _past_bucket
    book = allowances.book()
    rates = [allowed.rate for allowed in book.per_key.values() if allowed.rate is not None]
    by_key = timedelta(seconds=max(map(rules.refill, rates))) if rates else _BUCKET_KEPT
    buckets = LimitBucket.objects.using(transitions.database())
    page = list(buckets.filter(pk__gt=_past_bucket).order_by("pk").values_list("pk", flat=True)[:limit])
    _past_bucket = page[-1] if len(page) == limit else ""
    mine = [scope for scope in page if scope != LOCK and book.of(scope).rate is None]
    keyed = Q(pk__in=[scope for scope in mine if scope.startswith("key:")], refilled_at__lt=now - by_key)
    other = Q(pk__in=[scope for scope in mine if not scope.startswith("key:")], refilled_at__lt=now - _BUCKET_KEPT)
    with transitions.atomic():
        full = buckets.filter(keyed | other).order_by("pk").select_for_update(skip_locked=True)
        gone = list(full.values_list("pk", flat=True))
        buckets.filter(pk__in=gone).delete()
    return len(gone)


def prunable(now: datetime) -> dict[str, int]:
    """Return how many tasks of each status ``prune`` would delete, for a dry run."""
    cutoffs = {status: now - timedelta(seconds=kept) for status, kept in conf.retention().items() if kept is not None}
    wholes = transitions.tasks().filter(workflow__root__in=_wholes(now).values("pk"))
    whole = dict(wholes.order_by().values_list("status").annotate(Count("pk")))
    return {
        status: sum(_over(finished, status, now).count() for finished in _finished(cutoff)) + whole.get(status, 0)
        for status, cutoff in cutoffs.items()
    }
