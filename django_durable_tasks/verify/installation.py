"""Checks of seed rows, leases, nodes, orphans and shards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.db.models import Case, Exists, Model, OuterRef, Q, Value, When

from django_durable_tasks import __version__, conf, ports
from django_durable_tasks.choices import OPEN
from django_durable_tasks.cluster import nodes
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
from django_durable_tasks.models.cluster import lease_name, region_of
from django_durable_tasks.schedules.ledger import SHADOW_RETENTION, prune_shadow_fires
from django_durable_tasks.states.demand import (
    SHARDS,
    UNSERVED_AFTER,
    shard_of,
    shards_of,
    spell_shards,
)
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import after
from django_durable_tasks.verify.check import (
    PATIENCE,
    Check,
    Finding,
    Rows,
    Severity,
    VerifyContext,
    finding,
    ground_rows,
)

# Checks of seed rows, leases and nodes, and of rows whose owner was deleted.


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


def _write_nodes(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    tables.write_first_rows(using=tables.database())
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


NODE_CHECKS = (
    Check(
        name="seed-rows",
        group="nodes",
        question="Do the rows written by the migrations exist?",
        ground=SchedulerLease,
        find=missing,
        lock=list,
        repair=_write_nodes,
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


# Checks of shards: each task is in the shard of its id, and the running schedulers serve every
# shard.
#
# A wrong division loses no task: any scheduler serves the tasks of an unserved shard,
# UNSERVED_AFTER seconds late.


# The shard of a task ------------------------------------------------------------------------------


def wrong_keys(context: VerifyContext, rows: Rows) -> list[Finding]:
    """Open tasks whose shard does not match their id."""
    found = rows.filter(status__in=OPEN).values_list("pk", "shard_key")
    return [
        finding(
            "shard-keys",
            "task",
            pk,
            "shard_key",
            shard,
            f"{shard_of(pk)}, by its id",
            repair="write it",
        )
        for pk, shard in found
        if shard != shard_of(pk)
    ]


def _write_shards(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    keys = [one.key for one in findings]
    right = Case(*(When(pk=key, then=Value(shard_of(key))) for key in keys))
    tables.tasks().filter(pk__in=keys).update(shard_key=right)
    ports.due.rescheduled(keys)  # the due index stores the shard of each task
    return dict.fromkeys(keys, "written")


# The shards of the schedulers ---------------------------------------------------------------------


def _settled_after() -> float:
    return max(PATIENCE, 3 * nodes.timeout())


def _schedulers(context: VerifyContext) -> dict[str, list[Node]]:
    """Return the schedulers that have not stopped, or stopped recently, by region."""
    present = Q(stopped_at__isnull=True) | Q(stopped_at__gte=context.ago(_settled_after()))
    found: dict[str, list[Node]] = defaultdict(list)
    for node in ground_rows(Node).filter(present, kind=NodeKind.SCHEDULER):
        found[node.region].append(node)
    return found


def _restricted_to(node: Node) -> frozenset[int] | None:
    return frozenset(node.shards or ()) if node.keeps_to_shards else None


def unserved(context: VerifyContext, rows: Rows) -> list[Finding]:
    """Regions whose schedulers are all restricted to some shards and leave others unserved."""
    schedulers = _schedulers(context)
    found = {
        name: _unserved_shards(context, schedulers[region_of(name)])
        for name in rows.values_list("name", flat=True)
    }
    return [
        finding(
            "unserved-shards",
            "lease",
            name,
            "unserved shards",
            spell_shards(missing),
            f"none, because their tasks start {UNSERVED_AFTER:g} s late",
            severity=Severity.LATE,
            advice=(
                f"Run a scheduler with --shards {spell_shards(missing)}, or one without --shards,"
                " which serves the shards that no other serves."
            ),
        )
        for name, missing in found.items()
        if missing
    ]


def _unserved_shards(context: VerifyContext, nodes_of_region: Sequence[Node]) -> frozenset[int]:
    """Return the shards that no scheduler serves. A scheduler that stopped recently still counts,
    as it may restart.
    """
    seen, settled = context.ago(nodes.timeout()), context.ago(_settled_after())
    running = [
        node for node in nodes_of_region if node.stopped_at is None and node.last_seen_at >= seen
    ]
    if not any(node.started_at < settled for node in running):
        return frozenset()
    kept = [_restricted_to(node) for node in nodes_of_region]
    return frozenset(range(SHARDS)).difference(
        *(frozenset(range(SHARDS)) if one is None else one for one in kept)
    )


def contradicted(context: VerifyContext, rows: Rows) -> list[Finding]:
    """Schedulers whose shards do not match the division computed for their region, which has not
    changed recently.
    """
    running = rows.filter(kind=NodeKind.SCHEDULER, stopped_at__isnull=True, version=__version__)
    wanted = set(running.values_list("pk", flat=True))
    maps = {
        pk: right
        for region in _schedulers(context).values()
        for pk, right in _division(context, region).items()
    }
    return [
        finding(
            "shard-maps",
            "node",
            node.pk,
            "shards",
            spell_shards(node.shards),
            f"{spell_shards(right)}, by the division among the running schedulers",
            severity=Severity.LATE,
            advice="Restart it: it does not read the other schedulers.",
        )
        for pk, (node, right) in maps.items()
        if pk in wanted and node.shards is not None and frozenset(node.shards) != right
    ]


def _division(
    context: VerifyContext, nodes_of_region: Sequence[Node]
) -> dict[Any, tuple[Node, frozenset[int]]]:
    """Return the division of shards in a region; empty if a scheduler of the region started or
    stopped recently.
    """
    seen, settled = context.ago(nodes.timeout()), context.ago(_settled_after())
    for node in nodes_of_region:
        unavailable = node.stopped_at is not None or node.draining or node.last_seen_at < seen
        if unavailable or node.started_at >= settled:
            return {}
    kept = {node.pk: _restricted_to(node) for node in nodes_of_region}
    return {node.pk: (node, shards_of(node.pk, kept)) for node in nodes_of_region}


SHARD_CHECKS = (
    Check(
        name="shard-keys",
        group="shards",
        question="Is each open task in the shard computed from its id?",
        ground=Task,
        find=wrong_keys,
        repair=_write_shards,
    ),
    Check(
        name="unserved-shards",
        group="shards",
        question="Does a scheduler serve each shard?",
        ground=SchedulerLease,
        find=unserved,
    ),
    Check(
        name="shard-maps",
        group="shards",
        question="Does each scheduler serve the shards assigned to it?",
        ground=Node,
        find=contradicted,
    ),
)


CHECKS = (
    *NODE_CHECKS,
    *SHARD_CHECKS,
)
