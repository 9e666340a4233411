"""Checks of parked rows: each waits for a scope that somebody limits and that has no room, and is parked wholly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Q

from django_durable_tasks import conf
from django_durable_tasks.lifecycle import holders, letting_go, transitions
from django_durable_tasks.lifecycle.verifying_walks import PATIENCE, Check, Look, Rows, finding
from django_durable_tasks.models import Task, TaskExecutionLog
from django_durable_tasks.models.task import NEVER
from django_durable_tasks.rules import limits as rules
from django_durable_tasks.rules.findings import Finding, Severity
from django_durable_tasks.rules.states import Status

_LATELY = 1_000
_NO_SCHEDULER = "Nobody lets parked tasks go: run `manage.py run_scheduler`."


def half_parked(look: Look, rows: Rows) -> list[Finding]:
    """Tasks that name a limit and do not wait, or that are parked and name neither a limit nor an overlap key."""
    waits = Q(status=Status.PENDING)
    parked = waits & Q(due_at__gte=NEVER)
    wrong = (Q(waiting_for_limit__isnull=False) & ~waits) | (
        Q(waiting_for_limit__isnull=True, overlap_key__isnull=True) & parked
    )
    return [
        finding("half-parked", "task", pk, "waiting_for_limit", scope, "named by tasks that wait, and by no others",
                repair="let it go where it waits, and forget the limit")
        for pk, scope in rows.filter(wrong).values_list("pk", "waiting_for_limit")
    ]  # fmt: skip


def _unpark(look: Look, findings: Sequence[Finding]) -> Mapping[Any, str]:
    keys = [one.key for one in findings]
    transitions.set_right(transitions.tasks().filter(pk__in=keys))
    return dict.fromkeys(keys, "it waits for no limit any more")


def parked_for_nobody(look: Look, rows: Rows) -> list[Finding]:
    """Tasks that are parked for a while although their scope has room, or nobody limits it, and nothing moves in it."""
    if not look.may_judge(PATIENCE):
        return []
    parked = rows.filter(waiting_for_limit__isnull=False, status=Status.PENDING, due_at__gte=NEVER)
    parked = parked.filter(updated_at__lt=look.ago(PATIENCE))
    found = [(pk, scope) for pk, scope in parked.values_list("pk", "waiting_for_limit") if scope is not None]
    if not found:
        return []
    going = letting_go.going(sorted({scope for _, scope in found}), look.now, len(found))
    still = set(going.rows.values()) - _moving(look)
    return [
        finding("stuck-on-limit", "task", pk, "waiting_for_limit", scope, "let go, because the limit has room",
                severity=Severity.LATE, repair="let the most urgent go", advice="" if look.led else _NO_SCHEDULER)
        for pk, scope in found if scope in still
    ]  # fmt: skip


def _moving(look: Look) -> set[str]:
    """Return the scopes in which one of the last tries ended of late, or a row is on its way: there it moves."""
    lately = TaskExecutionLog.objects.using(transitions.database()).order_by("-pk")
    last = lately.values_list("task_id", "completed_at")[:_LATELY]
    ids = [task_id for task_id, ended in last if ended >= look.ago(PATIENCE)]
    columns = ("name", "queue", "tenant_id", "limit_key")
    moving: set[str] = set()
    for name, queue, tenant_id, key in transitions.tasks().filter(pk__in=ids).values_list(*columns):
        moving |= {*holders.scopes_of(name, queue, tenant_id, key), rules.of_share(queue, tenant_id)}
    return moving


def _let_go(look: Look, findings: Sequence[Finding]) -> Mapping[Any, str]:
    batch = conf.settings().BATCH_SIZE
    going = letting_go.going(sorted({str(one.found) for one in findings}), look.now, batch)
    transitions.let_go(transitions.tasks().filter(pk__in=list(going.rows)), batch)
    return {one.key: "the most urgent of its limit go on" for one in findings}


CHECKS = tuple(
    Check(name=name, group="tasks", question=question, ground=Task, judge=judge, repair=repair)
    for name, question, judge, repair in (
        ("half-parked", "Does a task that names a limit wait for it?", half_parked, _unpark),
        ("stuck-on-limit", "Does each parked task wait for a limit without room?", parked_for_nobody, _let_go),
    )
)
