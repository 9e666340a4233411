"""Checks of single tasks: their columns, their dead letters and their attempt log."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from django.db import IntegrityError
from django.db.models import Count, Exists, F, Max, OuterRef, Q

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.transitions import attempt_log
from django_durable_tasks.engine.transitions import dead_letters as transition_dead_letters
from django_durable_tasks.engine.verify.check import (
    Check,
    Rows,
    VerifyContext,
    finding,
    free_tasks,
    ground_rows,
)
from django_durable_tasks.models import DeadLetter, Task, TaskExecutionLog
from django_durable_tasks.rules.states import OPEN, TERMINAL, LogStatus, Resolution, Status
from django_durable_tasks.rules.tasks.endings import EndingKind, Outcome
from django_durable_tasks.rules.verify import (
    Finding,
    wrong_attempts,
    wrong_completion,
    wrong_marker,
)

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


def without_dead_letter(context: VerifyContext, rows: Rows) -> list[Finding]:
    """FAILED tasks without an open dead letter whose last one was not discarded either."""
    letters = ground_rows(DeadLetter).filter(task=OuterRef("pk"))
    discarded = letters.filter(
        resolution=Resolution.DISCARDED, created_at__gte=OuterRef("completed_at")
    )
    found = rows.filter(status=Status.FAILED).filter(
        ~Exists(ground_rows(DeadLetter).filter(open_task=OuterRef("pk"))), ~Exists(discarded)
    )
    return [
        finding(
            "dead-letters-missing",
            "task",
            pk,
            "dead_letters",
            "none that is open",
            "one, because it is FAILED",
            repair="open one",
        )
        for pk in found.values_list("pk", flat=True)
    ]


def _open(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    keys = [one.key for one in findings]
    cases = []
    for row in tables.tasks().filter(pk__in=keys).order_by("pk"):
        outcome = Outcome(
            kind=EndingKind.FAILED,
            error=row.last_error or row.reason or "The error was not kept.",
        )
        reason = "UPSTREAM" if row.cause is not None else (row.reason or "EXHAUSTED")[:20]
        cases.append(
            (attempt_log.AttemptResult(task=row, log=LogStatus.FAILED, outcome=outcome), reason)
        )
    transition_dead_letters.open_many(cases)
    return dict.fromkeys(keys, "opened a dead letter")


def stale_dead_letters(context: VerifyContext, rows: Rows) -> list[Finding]:
    """Open dead letters of tasks that are not FAILED."""
    found = rows.filter(open_task__isnull=False).exclude(task__status=Status.FAILED)
    return [
        finding(
            "dead-letters-stale",
            "dead letter",
            pk,
            "open_task",
            task,
            f"closed, because the task is {status}",
            repair="close it as REPLAYED",
        )
        for pk, task, status in found.values_list("pk", "open_task", "task__status")
    ]


def _lock_letters(keys: Sequence[int]) -> list[int]:
    of = dict(ground_rows(DeadLetter).filter(pk__in=keys).values_list("pk", "task_id"))
    free = free_tasks(of.values())
    return [pk for pk, task in of.items() if task in free]


def _close(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    keys = [one.key for one in findings]
    tasks = list(ground_rows(DeadLetter).filter(pk__in=keys).values_list("task_id", flat=True))
    transition_dead_letters.close_replayed(tasks, by=BY, reason="its task is not FAILED")
    return dict.fromkeys(keys, "closed")


# Columns ------------------------------------------------------------------------------------------


def markers(context: VerifyContext, rows: Rows) -> list[Finding]:
    """Ended tasks that still own a key, and open tasks that do not own theirs."""
    differs = Q()
    for marker, key in _MARKERS.items():
        ended = Q(status__in=TERMINAL, **{f"{marker}__isnull": False})
        other = ~Q(**{marker: F(key)}) | Q(**{f"{marker}__isnull": True, f"{key}__isnull": False})
        differs |= ended | (
            Q(status__in=OPEN) & (other | Q(**{f"{marker}__isnull": False, f"{key}__isnull": True}))
        )
    columns = ("pk", "status", "attempts", *_MARKERS, *_MARKERS.values())
    found = []
    for row in rows.filter(differs).values(*columns):
        for marker, key in _MARKERS.items():
            wrong = wrong_marker(marker, row[marker], row[key], row["status"], row["attempts"])
            if wrong is not None:
                found.append(
                    finding(
                        "key-markers",
                        "task",
                        row["pk"],
                        marker,
                        wrong.found,
                        wrong.right,
                        repair="write it, unless another open task owns the key",
                    )
                )
    return found


def _mark(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    done: dict[Any, str] = {}
    for one in findings:
        this = tables.tasks().filter(pk=one.key)
        this.filter(status__in=TERMINAL).update(**{one.field: None})
        with suppress(IntegrityError), tables.atomic():
            this.filter(status__in=OPEN).update(**{one.field: F(_MARKERS[one.field])})
            done[one.key] = "written"
    return done


def completions(context: VerifyContext, rows: Rows) -> list[Finding]:
    """Ended tasks without a completion time, and open tasks with one."""
    odd = Q(status__in=TERMINAL, completed_at__isnull=True) | Q(
        status__in=OPEN, completed_at__isnull=False
    )
    checked = (
        (pk, wrong_completion(status, completed_at))
        for pk, status, completed_at in rows.filter(odd).values_list("pk", "status", "completed_at")
    )
    return [
        finding(
            "completion-times",
            "task",
            pk,
            wrong.field,
            wrong.found,
            wrong.right,
            repair="write the time of its last change, or NULL if it is open",
        )
        for pk, wrong in checked
        if wrong is not None
    ]


def _complete(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    these = tables.tasks().filter(pk__in=[one.key for one in findings])
    these.filter(status__in=TERMINAL).update(completed_at=F("updated_at"))
    these.filter(status__in=OPEN).update(completed_at=None)
    return dict.fromkeys((one.key for one in findings), "written")


def _wrong_attempts(rows: Rows) -> Rows:
    """Return the tasks whose accepted endings do not match their attempts."""
    accepted = Q(executions__run_id__isnull=False, executions__status__in=_ACCEPTED)
    counted = (
        rows.order_by()
        .filter(accepted)
        .annotate(
            endings=Count("executions"),
            kinds=Count("executions__attempt_number", distinct=True),
            highest=Max("executions__attempt_number"),
        )
    )
    odd: Rows = counted.filter(
        Q(endings__gt=F("kinds"))
        | Q(highest__gt=F("attempts"))
        | Q(status=Status.RUNNING, highest=F("attempts"))
    )
    return odd


def attempts(context: VerifyContext, rows: Rows) -> list[Finding]:
    """Tasks with more accepted endings than attempts.

    A success that an operator sets has no run and is not counted as the ending of an attempt.
    """
    found = []
    for pk, number, status, *counts in _wrong_attempts(rows).values_list(
        "pk", "attempts", "status", "endings", "kinds", "highest"
    ):
        wrong = wrong_attempts(
            number,
            running=status == Status.RUNNING,
            endings=counts[0],
            distinct=counts[1],
            highest=counts[2],
        )
        if wrong is not None:
            found.append(
                finding(
                    "attempts",
                    "task",
                    pk,
                    wrong.field,
                    wrong.found,
                    wrong.right,
                    repair="raise it to the number of its last attempt" if wrong.safe else "",
                    advice=""
                    if wrong.safe
                    else "Read its attempt log: an attempt ended twice and may have run twice.",
                )
            )
    return found


def _raise(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    keys: list[uuid.UUID] = [one.key for one in findings]
    accepted = TaskExecutionLog.objects.using(tables.database()).filter(
        task__in=keys, run_id__isnull=False, status__in=_ACCEPTED
    )
    highest = accepted.order_by().values_list("task_id").annotate(highest=Max("attempt_number"))
    for pk, number in highest:
        this = tables.tasks().filter(pk=pk)
        this.filter(status=Status.RUNNING, attempts__lte=number).update(attempts=number + 1)
        this.exclude(status=Status.RUNNING).filter(attempts__lt=number).update(attempts=number)
    return dict.fromkeys(keys, "raised")


def _check(
    name: str, question: str, find: Any, repair: Any, ground: Any = Task, lock: Any = None
) -> Check:
    return Check(
        name=name,
        group="tasks",
        question=question,
        ground=ground,
        find=find,
        repair=repair,
        lock=lock,
    )


CHECKS = (
    _check(
        "dead-letters-missing",
        "Does each FAILED task have an open dead letter?",
        without_dead_letter,
        _open,
    ),
    _check(
        "dead-letters-stale",
        "Does each open dead letter belong to a FAILED task?",
        stale_dead_letters,
        _close,
        DeadLetter,
        _lock_letters,
    ),
    _check("key-markers", "Do open tasks, and no ended ones, own their keys?", markers, _mark),
    _check(
        "completion-times",
        "Do ended tasks, and no open ones, have a completion time?",
        completions,
        _complete,
    ),
    _check("attempts", "Does each attempt have at most one accepted ending?", attempts, _raise),
)
