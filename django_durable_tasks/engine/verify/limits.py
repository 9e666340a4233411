"""Checks of tasks that wait for a limit: each waits for an existing limit without capacity, and its
columns agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Q

from django_durable_tasks import conf
from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.limits import release, usage
from django_durable_tasks.engine.verify.check import PATIENCE, Check, Rows, VerifyContext, finding
from django_durable_tasks.models import Task, TaskExecutionLog
from django_durable_tasks.models.task_queries import NEVER
from django_durable_tasks.rules.limits import options as rules
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.verify import Finding, Severity

_RECENT_ATTEMPTS = 1_000
_NO_SCHEDULER = "No scheduler releases waiting tasks: run `manage.py run_scheduler`."


def limit_columns(context: VerifyContext, rows: Rows) -> list[Finding]:
    """Tasks that name a limit but are not PENDING, and waiting tasks without a limit and overlap
    key.
    """
    waits = Q(status=Status.PENDING)
    waiting = waits & Q(due_at__gte=NEVER)
    wrong = (Q(waiting_for_limit__isnull=False) & ~waits) | (
        Q(waiting_for_limit__isnull=True, overlap_key__isnull=True) & waiting
    )
    return [
        finding(
            "limit-columns",
            "task",
            pk,
            "waiting_for_limit",
            scope,
            "named by tasks that wait, and by no others",
            repair="release the waiting tasks and delete the limit",
        )
        for pk, scope in rows.filter(wrong).values_list("pk", "waiting_for_limit")
    ]


def _repair_columns(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    keys = [one.key for one in findings]
    transitions.repair_limit_wait(tables.tasks().filter(pk__in=keys))
    return dict.fromkeys(keys, "it no longer waits for a limit")


def stuck_on_limit(context: VerifyContext, rows: Rows) -> list[Finding]:
    """Tasks that still wait although their limit has capacity or no longer exists, and no other
    task uses it.
    """
    if not context.is_steady_for(PATIENCE):
        return []
    waiting = rows.filter(waiting_for_limit__isnull=False, status=Status.PENDING, due_at__gte=NEVER)
    waiting = waiting.filter(updated_at__lt=context.ago(PATIENCE))
    found = [
        (pk, scope)
        for pk, scope in waiting.values_list("pk", "waiting_for_limit")
        if scope is not None
    ]
    if not found:
        return []
    plan = release.plan_release(sorted({scope for _, scope in found}), context.now, len(found))
    idle = set(plan.rows.values()) - _active_scopes(context)
    return [
        finding(
            "stuck-on-limit",
            "task",
            pk,
            "waiting_for_limit",
            scope,
            "released, because the limit has capacity",
            severity=Severity.LATE,
            repair="release the most urgent",
            advice="" if context.led else _NO_SCHEDULER,
        )
        for pk, scope in found
        if scope in idle
    ]


def _active_scopes(context: VerifyContext) -> set[str]:
    """Return the scopes of the attempts that ended during the last PATIENCE seconds."""
    attempts = TaskExecutionLog.objects.using(tables.database()).order_by("-pk")
    last = attempts.values_list("task_id", "completed_at")[:_RECENT_ATTEMPTS]
    ids = [task_id for task_id, ended in last if ended >= context.ago(PATIENCE)]
    columns = ("name", "queue", "tenant_id", "limit_key")
    moving: set[str] = set()
    for name, queue, tenant_id, key in tables.tasks().filter(pk__in=ids).values_list(*columns):
        moving |= {*usage.scopes_of(name, queue, tenant_id, key), rules.of_share(queue, tenant_id)}
    return moving


def _release(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    batch = conf.settings().BATCH_SIZE
    plan = release.plan_release(sorted({str(one.found) for one in findings}), context.now, batch)
    transitions.release_waiting(tables.tasks().filter(pk__in=list(plan.rows)), batch)
    return {one.key: "the most urgent tasks of its limit were released" for one in findings}


CHECKS = tuple(
    Check(name=name, group="tasks", question=question, ground=Task, find=find, repair=repair)
    for name, question, find, repair in (
        (
            "limit-columns",
            "Does each task with a waiting_for_limit wait for that limit?",
            limit_columns,
            _repair_columns,
        ),
        (
            "stuck-on-limit",
            "Does each waiting task wait for a limit without capacity?",
            stuck_on_limit,
            _release,
        ),
    )
)
