"""Checks of single tasks, of tasks that make no progress, and of tasks that wait for a limit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

from django.db import IntegrityError
from django.db.models import Count, Exists, F, Max, OuterRef, Q
from django.db.models.functions import Greatest

from django_durable_tasks import conf
from django_durable_tasks.choices import OPEN, TERMINAL, LogStatus, Resolution, Status
from django_durable_tasks.contrib.verify.check import (
    PATIENCE,
    Finding,
    Rows,
    VerifyContext,
    check,
    free_tasks,
    rows_of,
    shown,
)
from django_durable_tasks.dependencies.edges import workflow_runs
from django_durable_tasks.limits import backpressure, overlap, release, scopes, waitlist
from django_durable_tasks.models import DeadLetter, Node, Task, TaskExecutionLog
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.states import attempt_log, claims, inserts
from django_durable_tasks.states.machine import EndingKind, Outcome
from django_durable_tasks.store import tables
from django_durable_tasks.store.tables import publish_after_commit
from django_durable_tasks.tasks import attempts as tasks_attempts
from django_durable_tasks.tasks import claim

# Checks of single tasks: their columns, their dead letters and their attempt log.


BY = "durable verify"
_MARKERS = {"open_key": "key", "open_unique_key": "unique_key"}
_ACCEPTED = (
    LogStatus.SUCCESS,
    LogStatus.FAILED,
    LogStatus.RETRY,
    LogStatus.LOST,
    LogStatus.CANCELLED,
)

# Dead letters -------------------------------------------------------------------------------------


@check("dead-letters-missing", Task, "tasks", repair="open one")
def without_dead_letter(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Does each FAILED task have an open dead letter?

    FAILED tasks without an open dead letter whose last one was not discarded either.
    """
    letters = rows_of(DeadLetter).filter(task=OuterRef("pk"))
    discarded = letters.filter(
        resolution=Resolution.DISCARDED, created_at__gte=OuterRef("completed_at")
    )
    queryset = rows.filter(status=Status.FAILED).filter(
        ~Exists(rows_of(DeadLetter).filter(open_task=OuterRef("pk"))), ~Exists(discarded)
    )
    for pk in queryset.values_list("pk", flat=True):
        yield Finding(pk, "dead_letters", "none that is open", "one, because it is FAILED")


@without_dead_letter.repaired_by("opened a dead letter")
def _open(context: VerifyContext, keys: Sequence[Any]) -> None:
    cases = []
    for row in tables.tasks().filter(pk__in=keys).order_by("pk"):
        outcome = Outcome(
            kind=EndingKind.FAILED, error=row.last_error or row.reason or "The error was not kept."
        )
        reason = "UPSTREAM" if row.cause is not None else (row.reason or "EXHAUSTED")[:20]
        cases.append((row, outcome, reason))
    attempt_log.open_dead_letters(cases)


def _lock_letters(keys: Sequence[int]) -> list[int]:
    of = dict(rows_of(DeadLetter).filter(pk__in=keys).values_list("pk", "task_id"))
    free = free_tasks(of.values())
    return [pk for pk, task in of.items() if task in free]


@check("dead-letters-stale", DeadLetter, "tasks", lock=_lock_letters, repair="close it as REPLAYED")
def stale_dead_letters(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Does each open dead letter belong to a FAILED task?

    Open dead letters of tasks that are not FAILED.
    """
    letters = rows.filter(open_task__isnull=False).exclude(task__status=Status.FAILED)
    for pk, task, status in letters.values_list("pk", "open_task", "task__status"):
        yield Finding(pk, "open_task", task, f"closed, because the task is {status}")


@stale_dead_letters.repaired_by("closed")
def _close(context: VerifyContext, keys: Sequence[Any]) -> None:
    tasks = list(rows_of(DeadLetter).filter(pk__in=keys).values_list("task_id", flat=True))
    attempt_log.close_replayed_letters(tasks, by=BY, reason="its task is not FAILED")


# Columns ------------------------------------------------------------------------------------------


@check("key-markers", Task, "tasks", repair="write it, unless another open task owns the key")
def markers(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Do open tasks, and no ended ones, own their keys?

    Ended tasks that still own a key, and open tasks that do not own theirs.
    """
    differs = Q()
    for marker, key in _MARKERS.items():
        ended = Q(status__in=TERMINAL, **{f"{marker}__isnull": False})
        wrong_key = ~Q(**{marker: F(key)}) | Q(
            **{f"{marker}__isnull": True, f"{key}__isnull": False}
        )
        differs |= ended | (
            Q(status__in=OPEN)
            & (wrong_key | Q(**{f"{marker}__isnull": False, f"{key}__isnull": True}))
        )
    columns = ("pk", "status", "attempts", *_MARKERS, *_MARKERS.values())
    for row in rows.filter(differs).values(*columns):
        for marker, key in _MARKERS.items():
            value, right = row[marker], row[key] if row["status"] in OPEN else None
            # A task that has started may have lost its key to a newer one, so only a task that
            # never started must have it.
            if value != right and (value is not None or not row["attempts"]):
                text = f"{shown(right)}, because the task is {row['status']}"
                yield Finding(row["pk"], marker, value, text)


@markers.repaired_by("written")
def _mark(context: VerifyContext, keys: Sequence[Any]) -> Collection[Any]:
    written = set()
    for finding in list(markers.look(context, tables.tasks().filter(pk__in=keys))):
        this = tables.tasks().filter(pk=finding.key)
        this.filter(status__in=TERMINAL).update(**{finding.field: None})
        with suppress(IntegrityError), tables.atomic():
            this.filter(status__in=OPEN).update(**{finding.field: F(_MARKERS[finding.field])})
            written.add(finding.key)
    return written


@check(
    "completion-times",
    Task,
    "tasks",
    repair="write the time of its last change, or NULL if it is open",
)
def completions(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Do ended tasks, and no open ones, have a completion time?

    Ended tasks without a completion time, and open tasks with one.
    """
    odd = Q(status__in=TERMINAL, completed_at__isnull=True) | Q(
        status__in=OPEN, completed_at__isnull=False
    )
    for pk, status, at in rows.filter(odd).values_list("pk", "status", "completed_at"):
        right = "empty" if status in OPEN else "when it ended"
        yield Finding(pk, "completed_at", at, f"{right}, because the task is {status}")


@completions.repaired_by("written")
def _complete(context: VerifyContext, keys: Sequence[Any]) -> None:
    queryset = tables.tasks().filter(pk__in=keys)
    queryset.filter(status__in=TERMINAL).update(completed_at=F("updated_at"))
    queryset.filter(status__in=OPEN).update(completed_at=None)


@check("attempts", Task, "tasks", repair="raise it to the number of its last attempt")
def attempts(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Does each attempt have at most one accepted ending?

    Tasks with more accepted endings than attempts.

    A success that an operator sets has no run and is not counted as the ending of an attempt.
    """
    accepted = Q(executions__run_id__isnull=False, executions__status__in=_ACCEPTED)
    counted = rows.order_by().filter(accepted)
    counted = counted.annotate(
        endings=Count("executions"),
        ended=Count("executions__attempt_number", distinct=True),
        highest=Max("executions__attempt_number"),
    )
    odd = counted.filter(
        Q(endings__gt=F("ended"))
        | Q(highest__gt=F("attempts"))
        | Q(status=Status.RUNNING, highest=F("attempts"))
    )
    columns = ("pk", "attempts", "status", "endings", "ended", "highest")
    for pk, number, status, endings, ended, highest in odd.values_list(*columns):
        if endings > ended:
            right = f"one ending an attempt, and {ended} of them ended {endings} times"
            advice = "Read its attempt log: an attempt ended twice and may have run twice."
            yield Finding(pk, "attempts", number, right, advice, repair="")
        else:
            least = highest + (status == Status.RUNNING)
            right = f"at least {least}, by the log rows of its endings"
            yield Finding(pk, "attempts", number, right)


@attempts.repaired_by("raised")
def _raise(context: VerifyContext, keys: Sequence[Any]) -> None:
    accepted = TaskExecutionLog.objects.using(tables.database()).filter(
        task__in=keys, run_id__isnull=False, status__in=_ACCEPTED
    )
    highest = accepted.order_by().values_list("task_id").annotate(highest=Max("attempt_number"))
    for pk, number in highest:
        this = tables.tasks().filter(pk=pk)
        this.filter(status=Status.RUNNING, attempts__lte=number).update(attempts=number + 1)
        this.exclude(status=Status.RUNNING).filter(attempts__lt=number).update(attempts=number)


# Checks of tasks that make no progress: expired leases, unpublished tasks, and waits for a free
# overlap key.
#
# Lateness is reported only after a steady period with or without a leader
# (``VerifyContext.is_steady_for``), because after an outage of the database everything is late.


NO_LEADER = "No scheduler is the leader: run `manage.py run_scheduler`."
_LOST = Outcome(
    kind=EndingKind.CRASHED,
    error="The lease of the run expired and the leader did not end it.",
    error_type="Lost",
)


@check("expired-leases", Task, "tasks", late=True)
def expired_leases(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Is each run whose lease expired marked LOST in time?

    RUNNING tasks whose lease has expired, or whose node stopped, for longer than the lease.
    """
    patience = max(PATIENCE, conf.settings().LEASE)
    if not context.is_steady_for(patience):
        return
    gone = Exists(rows_of(Node).filter(pk=OuterRef("node"), stopped_at__lt=context.ago(patience)))
    running = rows.filter(status=Status.RUNNING).annotate(gone=gone)
    expired = running.filter(Q(lease_until__lt=context.ago(patience)) | Q(gone=True))
    repair, advice = ("mark the run LOST", "") if context.led else ("", NO_LEADER)
    for pk, node, lease, has_stopped in expired.values_list("pk", "node", "lease_until", "gone"):
        field, value, right = "lease_until", lease, "renewed, or the run marked LOST"
        if has_stopped:
            field, value, right = "node", node, "a running node, or the run marked LOST"
        yield Finding(pk, field, value, right, advice, repair)


@expired_leases.repaired_by("the run is marked LOST")
def _mark_lost(context: VerifyContext, keys: Sequence[Any]) -> Collection[Any]:
    return tasks_attempts.end_runs(tables.tasks().filter(pk__in=keys), lambda _: _LOST).keys()


@check("not-republished", Task, "tasks", repair="publish it", late=True)
def not_republished(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Are published tasks that were not started republished?

    QUEUED tasks beside workers with free processes that should have been republished long ago.

    A task may wait for any time while all workers of its queue are busy. Without a leader, nothing
    is republished.
    """
    patience = max(PATIENCE, 4 * conf.settings().REPUBLISH_AFTER)
    if not context.is_steady_for(patience):
        return
    queryset = rows.filter(status=Status.QUEUED, due_at__lt=context.ago(patience))
    if context.led:
        free = backpressure.fleet().free
        queryset = queryset.filter(queue__in=[queue for queue, number in free.items() if number])
    for pk, due_at in queryset.values_list("pk", "due_at"):
        right = "republished at that time"
        advice = "" if context.led else NO_LEADER
        yield Finding(pk, "due_at", due_at, right, advice)


@not_republished.repaired_by("published")
def _publish(context: VerifyContext, keys: Sequence[Any]) -> None:
    publish_after_commit(
        claim.republish(tables.tasks().filter(pk__in=keys), context.now, len(keys))
    )


@check("unpublished", Task, "tasks", late=True)
def unpublished(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Are due tasks published?

    PENDING tasks overdue in a queue that has capacity but neither runs nor publishes tasks.
    """
    patience = conf.settings().OLDEST_DUE_MAX
    if not context.led or not context.is_steady_for(max(PATIENCE, patience)):
        return
    either = Q(in_batch=False) | Q(in_batch=True)  # so that the partial indexes are usable
    late = rows.filter(either, status=Status.PENDING, due_at__lt=context.ago(patience))
    overdue = list(late.values_list("pk", "queue", "due_at"))
    if not overdue:
        return
    snapshot = backpressure.snapshot()
    # Queues that run tasks or had one published in the last PATIENCE seconds are left out.
    busy = Q(status=Status.RUNNING) | Q(status=Status.QUEUED, updated_at__gte=context.ago(PATIENCE))
    waiting_in = {queue for _, queue, _ in overdue}
    active = tables.tasks().filter(busy, queue__in=list(waiting_in)).order_by()
    idle = {queue for queue in waiting_in if snapshot.capacity(queue)}
    idle -= set(active.values_list("queue", flat=True))
    for pk, queue, due_at in overdue:
        if queue in idle:
            right = (
                f"published within {patience:g} s, because queue {queue} is open and below its"
                " limits"
            )
            advice = "Look at the schedulers' logs, and at `manage.py durable status`."
            yield Finding(pk, "due_at", due_at, right, advice)


# Overlap keys -------------------------------------------------------------------------------------


@check("stuck-on-overlap", Task, "tasks", repair="make the oldest task of the key due", late=True)
def stuck_on_overlap(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Does each task that waits for its overlap key wait for an open task?

    Find tasks that wait for an overlap key that has been free for PATIENCE seconds.
    """
    if not context.is_steady_for(PATIENCE):
        return
    waiting = list(
        rows.filter(
            status=Status.PENDING,
            overlap_key__isnull=False,
            waiting_for_limit=None,
            due_at__gte=NEVER,
            updated_at__lt=context.ago(PATIENCE),
        ).values_list("pk", "overlap_key", "recurring_task_id")
    )
    overlap_keys = {overlap_key for _, overlap_key, _ in waiting}
    if not overlap_keys:
        return
    free = {
        overlap_key
        for overlap_key, several in overlap.open_runs(overlap_keys).items()
        if all(task.held for task in several)
    }
    # Not those of which a task or workflow ended or changed recently.
    cutoff = context.ago(PATIENCE)
    ended = tables.tasks().filter(overlap_key__in=list(free)).order_by().values_list("overlap_key")
    recent = {
        overlap_key
        for overlap_key, last in ended.annotate(last=Max("completed_at"))
        if last is not None and last >= cutoff
    }
    moved = tables.tasks().with_overlap_keys(free).filter(updated_at__gte=cutoff).order_by()
    recent |= set(moved.values_list("overlap_key", flat=True))
    schedules = {schedule for *_, schedule in waiting if schedule is not None}
    of_schedules = workflow_runs().filter(recurring_task__in=list(schedules))
    if of_schedules.filter(completed_at__gte=cutoff).exists():
        return
    for pk, overlap_key, _ in waiting:
        if overlap_key in free - recent:
            yield Finding(
                pk, "overlap_key", overlap_key, "due", advice="" if context.led else NO_LEADER
            )


@stuck_on_overlap.repaired_by("the oldest task of its key is due")
def _make_due(context: VerifyContext, keys: Sequence[Any]) -> None:
    overlap_keys = tables.tasks().filter(pk__in=keys).values_list("overlap_key", flat=True)
    oldest = [
        several[0].task_id
        for several in overlap.open_runs(set(overlap_keys)).values()
        if all(task.held for task in several)
    ]
    oldest_tasks = tables.tasks().waiting_for_overlap().filter(pk__in=oldest)
    inserts.edit(oldest_tasks, due_at=Greatest("run_at", DatabaseNow()))


# Checks of tasks that wait for a limit: each waits for an existing limit without capacity, and its
# columns agree.


_RECENT_ATTEMPTS = 1_000
_NO_SCHEDULER = "No scheduler releases waiting tasks: run `manage.py run_scheduler`."


@check("limit-columns", Task, "tasks", repair="release the waiting tasks and delete the limit")
def limit_columns(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Does each task with a waiting_for_limit wait for that limit?

    Tasks that name a limit but are not PENDING, and waiting tasks without a limit and overlap
    key.
    """
    waits = Q(status=Status.PENDING)
    waiting = waits & Q(due_at__gte=NEVER)
    wrong = (Q(waiting_for_limit__isnull=False) & ~waits) | (
        Q(waiting_for_limit__isnull=True, overlap_key__isnull=True) & waiting
    )
    for pk, scope in rows.filter(wrong).values_list("pk", "waiting_for_limit"):
        yield Finding(pk, "waiting_for_limit", scope, "named by tasks that wait, and by no others")


@limit_columns.repaired_by("it no longer waits for a limit")
def _repair_columns(context: VerifyContext, keys: Sequence[Any]) -> None:
    claims.repair_limit_wait(tables.tasks().filter(pk__in=keys))


@check("stuck-on-limit", Task, "tasks", repair="release the most urgent", late=True)
def stuck_on_limit(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Does each waiting task wait for a limit without capacity?

    Tasks that still wait although their limit has capacity or no longer exists, and no other
    task uses it.
    """
    if not context.is_steady_for(PATIENCE):
        return
    waiting = rows.filter(waiting_for_limit__isnull=False, status=Status.PENDING, due_at__gte=NEVER)
    waiting = waiting.filter(updated_at__lt=context.ago(PATIENCE))
    parked = [
        (pk, scope)
        for pk, scope in waiting.values_list("pk", "waiting_for_limit")
        if scope is not None
    ]
    if not parked:
        return
    plan = release.plan_release(sorted({scope for _, scope in parked}), context.now, len(parked))
    # The scopes of the attempts that ended during the last PATIENCE seconds.
    attempts = TaskExecutionLog.objects.using(tables.database()).order_by("-pk")
    last = attempts.values_list("task_id", "completed_at")[:_RECENT_ATTEMPTS]
    ids = [task_id for task_id, ended in last if ended >= context.ago(PATIENCE)]
    columns = ("name", "queue", "tenant_id", "limit_key")
    moving: set[str] = set()
    for name, queue, tenant_id, key in tables.tasks().filter(pk__in=ids).values_list(*columns):
        moving |= {
            *waitlist.scopes_of(name, queue, tenant_id, key),
            scopes.scope_of_share(queue, tenant_id),
        }
    idle = set(plan.rows.values()) - moving
    for pk, scope in parked:
        if scope in idle:
            right = "released, because the limit has capacity"
            advice = "" if context.led else _NO_SCHEDULER
            yield Finding(pk, "waiting_for_limit", scope, right, advice)


@stuck_on_limit.repaired_by("the most urgent tasks of its limit were released")
def _release(context: VerifyContext, keys: Sequence[Any]) -> None:
    batch = conf.settings().BATCH_SIZE
    waiting = tables.tasks().filter(pk__in=keys).values_list("waiting_for_limit", flat=True)
    limits = sorted({scope for scope in waiting if scope is not None})
    plan = release.plan_release(limits, context.now, batch)
    claims.release_waiting(tables.tasks().filter(pk__in=list(plan.rows)), batch)
