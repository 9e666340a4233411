"""Checks of tasks that make no progress: expired leases, unpublished tasks, and waits for a free
overlap key.

Lateness is reported only after a steady period with or without a leader
(``VerifyContext.is_steady_for``), because after an outage of the database everything is late.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Exists, Max, OuterRef, Q
from django.db.models.functions import Greatest

from django_durable_tasks import conf
from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.publish_on_commit import publish_after_commit
from django_durable_tasks.engine.dependencies.edges import runs
from django_durable_tasks.engine.limits import backpressure, overlap
from django_durable_tasks.engine.tasks import attempts, claim
from django_durable_tasks.engine.verify.check import (
    PATIENCE,
    Check,
    Rows,
    VerifyContext,
    finding,
    ground_rows,
)
from django_durable_tasks.models import Node, Task
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.task_queries import NEVER
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tasks.endings import EndingKind, Outcome
from django_durable_tasks.rules.verify import Finding, Severity

NO_LEADER = "No scheduler is the leader: run `manage.py run_scheduler`."
_LOST = Outcome(
    kind=EndingKind.CRASHED,
    error="The lease of the run expired and the leader did not end it.",
    error_type="Lost",
)


def expired_leases(context: VerifyContext, rows: Rows) -> list[Finding]:
    """RUNNING tasks whose lease has expired, or whose node stopped, for longer than the lease."""
    patience = max(PATIENCE, conf.settings().LEASE)
    if not context.is_steady_for(patience):
        return []
    gone = Exists(
        ground_rows(Node).filter(pk=OuterRef("node"), stopped_at__lt=context.ago(patience))
    )
    found = (
        rows.filter(status=Status.RUNNING)
        .annotate(gone=gone)
        .filter(Q(lease_until__lt=context.ago(patience)) | Q(gone=True))
    )
    return [
        finding(
            "expired-leases",
            "task",
            pk,
            "node" if left else "lease_until",
            node if left else lease,
            "a running node, or the run marked LOST" if left else "renewed, or the run marked LOST",
            severity=Severity.LATE,
            repair="mark the run LOST" if context.led else "",
            advice="" if context.led else NO_LEADER,
        )
        for pk, node, lease, left in found.values_list("pk", "node", "lease_until", "gone")
    ]


def _mark_lost(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    keys = [one.key for one in findings]
    verdicts = attempts.end_runs(tables.tasks().filter(pk__in=keys), lambda _: _LOST)
    return {
        key: f"the run is marked LOST, the task is {verdict.status}"
        for key, verdict in verdicts.items()
    }


def not_republished(context: VerifyContext, rows: Rows) -> list[Finding]:
    """QUEUED tasks beside workers with free processes that should have been republished long ago.

    A task may wait for any time while all workers of its queue are busy. Without a leader, nothing
    is republished.
    """
    patience = max(PATIENCE, 4 * conf.settings().REPUBLISH_AFTER)
    if not context.is_steady_for(patience):
        return []
    found = rows.filter(status=Status.QUEUED, due_at__lt=context.ago(patience))
    if context.led:
        free = backpressure.fleet().free
        found = found.filter(queue__in=[queue for queue, number in free.items() if number])
    return [
        finding(
            "not-republished",
            "task",
            pk,
            "due_at",
            due_at,
            "republished at that time",
            severity=Severity.LATE,
            repair="publish it",
            advice="" if context.led else NO_LEADER,
        )
        for pk, due_at in found.values_list("pk", "due_at")
    ]


def _publish(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    keys = [one.key for one in findings]
    publish_after_commit(
        claim.republish(tables.tasks().filter(pk__in=keys), context.now, len(keys))
    )
    return dict.fromkeys(keys, "published")


def unpublished(context: VerifyContext, rows: Rows) -> list[Finding]:
    """PENDING tasks overdue in a queue that has capacity but neither runs nor publishes tasks."""
    patience = conf.settings().OLDEST_DUE_MAX
    if not context.led or not context.is_steady_for(max(PATIENCE, patience)):
        return []
    either = Q(in_batch=False) | Q(in_batch=True)  # so that the partial indexes are usable
    late = rows.filter(either, status=Status.PENDING, due_at__lt=context.ago(patience))
    overdue = list(late.values_list("pk", "queue", "due_at"))
    if not overdue:
        return []
    snapshot = backpressure.snapshot()
    idle = {queue for _, queue, _ in overdue if snapshot.capacity(queue)} - _active_queues(
        {queue for _, queue, _ in overdue}, context
    )
    return [
        finding(
            "unpublished",
            "task",
            pk,
            "due_at",
            due_at,
            f"published within {patience:g} s, because queue {queue} is open and below its limits",
            severity=Severity.LATE,
            advice="Look at the schedulers' logs, and at `manage.py durable status`.",
        )
        for pk, queue, due_at in overdue
        if queue in idle
    ]


def _active_queues(queues: Iterable[str], context: VerifyContext) -> set[str]:
    """Return the queues that run tasks or had one published in the last PATIENCE seconds."""
    busy = Q(status=Status.RUNNING) | Q(status=Status.QUEUED, updated_at__gte=context.ago(PATIENCE))
    return set(
        tables.tasks()
        .filter(busy, queue__in=list(queues))
        .order_by()
        .values_list("queue", flat=True)
    )


# Overlap keys -------------------------------------------------------------------------------------


def stuck_on_overlap(context: VerifyContext, rows: Rows) -> list[Finding]:
    """Find tasks that wait for an overlap key that has been free for PATIENCE seconds."""
    if not context.is_steady_for(PATIENCE):
        return []
    waiting = list(
        rows.filter(
            status=Status.PENDING,
            overlap_key__isnull=False,
            waiting_for_limit=None,
            due_at__gte=NEVER,
            updated_at__lt=context.ago(PATIENCE),
        ).values_list("pk", "overlap_key", "recurring_task_id")
    )
    wanted = {overlap_key for _, overlap_key, _ in waiting}
    if not wanted:
        return []
    free = {
        overlap_key
        for overlap_key, several in overlap.open_runs(wanted).items()
        if all(task.held for task in several)
    }
    recent = _recently_changed(
        free, {schedule for *_, schedule in waiting if schedule is not None}, context.ago(PATIENCE)
    )
    return [
        finding(
            "stuck-on-overlap",
            "task",
            pk,
            "overlap_key",
            overlap_key,
            "due",
            severity=Severity.LATE,
            repair="make the oldest task of the key due",
            advice="" if context.led else NO_LEADER,
        )
        for pk, overlap_key, _ in waiting
        if overlap_key in free - recent
    ]


def _recently_changed(free: Iterable[str], schedules: Iterable[Any], cutoff: datetime) -> set[str]:
    """Return the overlap keys of which a task or workflow ended or changed after ``cutoff``."""
    ended = tables.tasks().filter(overlap_key__in=list(free)).order_by().values_list("overlap_key")
    found = {
        overlap_key
        for overlap_key, last in ended.annotate(last=Max("completed_at"))
        if last is not None and last >= cutoff
    }
    moved = tables.tasks().with_overlap_keys(free).filter(updated_at__gte=cutoff).order_by()
    found |= {
        overlap_key
        for overlap_key in moved.values_list("overlap_key", flat=True)
        if overlap_key is not None
    }
    if runs().filter(recurring_task__in=list(schedules), completed_at__gte=cutoff).exists():
        return set(free)
    return found


def _make_due(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    of: dict[Any, list[Any]] = defaultdict(list)
    for one in findings:
        of[one.found].append(one.key)
    oldest = [
        several[0].task_id
        for several in overlap.open_runs(of).values()
        if all(task.held for task in several)
    ]
    these = tables.tasks().waiting_for_overlap().filter(pk__in=oldest)
    transitions.edit(these, due_at=Greatest("run_at", DatabaseNow()))
    return dict.fromkeys(
        (key for keys in of.values() for key in keys), "the oldest task of its key is due"
    )


CHECKS = tuple(
    Check(name=name, group="tasks", question=question, ground=Task, find=find, repair=repair)
    for name, question, find, repair in (
        (
            "expired-leases",
            "Is each run whose lease expired marked LOST in time?",
            expired_leases,
            _mark_lost,
        ),
        (
            "not-republished",
            "Are published tasks that were not started republished?",
            not_republished,
            _publish,
        ),
        ("unpublished", "Are due tasks published?", unpublished, None),
        (
            "stuck-on-overlap",
            "Does each task that waits for its overlap key wait for an open task?",
            stuck_on_overlap,
            _make_due,
        ),
    )
)
