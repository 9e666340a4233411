"""Checks of seed rows, leases and nodes, and of rows whose owner was deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.db.models import Exists, Model, OuterRef

from django_durable_tasks import conf
from django_durable_tasks.engine.cluster import nodes
from django_durable_tasks.engine.db import seed_rows, tables
from django_durable_tasks.engine.db.clock import after
from django_durable_tasks.engine.recurring.retention import SHADOW_RETENTION, prune_shadow_fires
from django_durable_tasks.engine.verify.check import (
    PATIENCE,
    Check,
    Rows,
    VerifyContext,
    finding,
    ground_rows,
)
from django_durable_tasks.models import (
    DEFAULT_TENANT_ID,
    Node,
    NodeKind,
    OccurrenceOverride,
    OccurrenceRecord,
    RecurringTask,
    SchedulerLease,
    ShadowFire,
    Task,
    TaskDependency,
    TaskExecutionLog,
    Tenant,
)
from django_durable_tasks.models.lease import lease_name
from django_durable_tasks.rules.verify import Finding, Severity

_LONGEST = 600.0
"""No lease lasts longer than this (seconds)."""
_HOUR = 3_600.0


# Seed rows and leases -----------------------------------------------------------------------------


def missing(context: VerifyContext, rows: Rows) -> list[Finding]:
    """Rows that the migrations insert: without the lease no leader, without the tenant no task is
    possible.
    """
    wanted: tuple[tuple[str, type[Model], Any], ...] = (
        ("lease", SchedulerLease, lease_name()),
        ("tenant", Tenant, DEFAULT_TENANT_ID),
    )
    return [
        finding(
            "seed-rows",
            table,
            str(key),
            "row",
            None,
            "the row that the migrations insert",
            repair="insert it",
        )
        for table, model, key in wanted
        if not ground_rows(model).filter(pk=key).exists()
    ]


def _write(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    seed_rows.write_first_rows(using=tables.database())
    return dict.fromkeys((one.key for one in findings), "inserted")


def leases(context: VerifyContext, rows: Rows) -> list[Finding]:
    """Leases that expire too far in the future, and expired leases that no running
    scheduler takes.
    """
    found = [
        finding(
            "leases",
            "lease",
            name,
            "expires_at",
            until,
            f"at most {_LONGEST:g} s ahead",
            repair="let it expire, so that a scheduler takes it",
        )
        for name, until in rows.filter(expires_at__gt=context.ago(-_LONGEST)).values_list(
            "name", "expires_at"
        )
    ]
    seen = context.ago(nodes.timeout())
    schedulers = ground_rows(Node).filter(kind=NodeKind.SCHEDULER, stopped_at__isnull=True)
    settled = schedulers.filter(last_seen_at__gte=seen, started_at__lt=context.ago(PATIENCE))
    lease_names = {lease_name(region) for region in settled.values_list("region", flat=True)}
    over = rows.filter(expires_at__lt=context.ago(PATIENCE)).values_list("name", "expires_at")
    return found + [
        finding(
            "leases",
            "lease",
            name,
            "expires_at",
            until,
            "taken over by a running scheduler",
            severity=Severity.LATE,
            advice="Look at the schedulers' logs: none of them can take the lease.",
        )
        for name, until in over
        if name in lease_names
    ]


def _end(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    ended = [one.key for one in findings if one.repair]
    ground_rows(SchedulerLease).filter(pk__in=ended, expires_at__gt=context.ago(-_LONGEST)).update(
        expires_at=after(-1)
    )
    return dict.fromkeys(ended, "ended")


# Nodes --------------------------------------------------------------------------------------------


def without_heartbeat(context: VerifyContext, rows: Rows) -> list[Finding]:
    """Nodes that missed their heartbeats for long and were not declared dead."""
    patience = max(PATIENCE, 3 * nodes.timeout())
    if not context.led or not context.is_steady_for(patience):
        return []
    found = rows.filter(
        stopped_at__isnull=True,
        last_seen_at__lt=context.ago(patience),
        region=conf.settings().REGION,
    )
    return [
        finding(
            "nodes-without-heartbeat",
            "node",
            pk,
            "last_seen_at",
            seen,
            "declared dead, because it missed its heartbeats",
            severity=Severity.LATE,
            repair="declare it dead; the leader then marks its runs LOST",
        )
        for pk, seen in found.values_list("pk", "last_seen_at")
    ]


def _declare_dead(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    keys = [one.key for one in findings]
    nodes.declare_dead(keys)
    return dict.fromkeys(keys, "declared dead")


# Rows whose owner was deleted ---------------------------------------------------------------------


def _orphans(
    check: str, table: str, column: str, owner: type[Model]
) -> Callable[[VerifyContext, Rows], list[Finding]]:
    def find(context: VerifyContext, rows: Rows) -> list[Finding]:
        found = rows.filter(~Exists(ground_rows(owner).order_by().filter(pk=OuterRef(column))))
        return [
            finding(
                check,
                table,
                pk,
                column,
                key,
                f"a {owner._meta.verbose_name} that exists",
                repair="delete it",
            )
            for pk, key in found.values_list("pk", f"{column}_id")
        ]

    return find


def _delete(ground: type[Model]) -> Callable[[VerifyContext, Sequence[Finding]], Mapping[Any, str]]:
    def repair(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
        keys = [one.key for one in findings]
        ground_rows(ground).filter(pk__in=keys).delete()
        return dict.fromkeys(keys, "deleted")

    return repair


def _orphan_check(
    name: str, question: str, ground: type[Model], column: str, owner: type[Model]
) -> Check:
    table = str(ground._meta.verbose_name)
    return Check(
        name=name,
        group="orphans",
        question=question,
        ground=ground,
        repair=_delete(ground),
        find=_orphans(name, table, column, owner),
    )


def unpruned(context: VerifyContext, rows: Rows) -> list[Finding]:
    """Recorded fire times of Celery beat whose retention is over."""
    kept = SHADOW_RETENTION.total_seconds() + _HOUR
    if not context.led or not context.is_steady_for(_HOUR):
        return []
    found = rows.filter(recorded_at__lt=context.ago(kept))
    return [
        finding(
            "shadow-rows",
            "fire of beat",
            pk,
            "recorded_at",
            recorded_at,
            "pruned after a week",
            severity=Severity.LATE,
            repair="prune",
        )
        for pk, recorded_at in found.values_list("pk", "recorded_at")
    ]


def _prune(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    prune_shadow_fires(context.now, len(findings))
    return dict.fromkeys((one.key for one in findings), "pruned")


CHECKS = (
    Check(
        name="seed-rows",
        group="nodes",
        question="Do the rows written by the migrations exist?",
        ground=SchedulerLease,
        find=missing,
        lock=list,
        repair=_write,
    ),
    Check(
        name="leases",
        group="nodes",
        question="Can a scheduler become leader?",
        ground=SchedulerLease,
        find=leases,
        repair=_end,
    ),
    Check(
        name="nodes-without-heartbeat",
        group="nodes",
        question="Is each node that missed its heartbeats declared dead?",
        ground=Node,
        find=without_heartbeat,
        repair=_declare_dead,
    ),
    _orphan_check(
        "orphan-log-entries",
        "Does the task of each log entry exist?",
        TaskExecutionLog,
        "task",
        Task,
    ),
    _orphan_check(
        "orphan-edges", "Does the task of each edge exist?", TaskDependency, "task", Task
    ),
    _orphan_check(
        "orphan-ledger-entries",
        "Does the schedule of each ledger entry exist?",
        OccurrenceRecord,
        "recurring_task",
        RecurringTask,
    ),
    _orphan_check(
        "orphan-overrides",
        "Does the schedule of each override exist?",
        OccurrenceOverride,
        "recurring_task",
        RecurringTask,
    ),
    Check(
        name="shadow-rows",
        group="orphans",
        question="Are recorded fires of Celery beat pruned?",
        ground=ShadowFire,
        find=unpruned,
        repair=_prune,
    ),
)
