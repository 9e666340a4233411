"""Checks of seed rows, leases, nodes, orphans and shards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from django.db.models import Case, Exists, Model, OuterRef, Q, Value, When

from django_durable_tasks import __version__, conf
from django_durable_tasks.choices import OPEN
from django_durable_tasks.cluster import nodes
from django_durable_tasks.contrib.verify.check import (
    PATIENCE,
    Finding,
    Rows,
    Severity,
    VerifyContext,
    check,
    rows_of,
)
from django_durable_tasks.models import (
    DEFAULT_TENANT_ID,
    Node,
    NodeKind,
    OccurrenceRecord,
    SchedulerLease,
    Task,
    TaskDependency,
    TaskExecutionLog,
    Tenant,
)
from django_durable_tasks.models.cluster import lease_name, region_of
from django_durable_tasks.states import demand
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import after
from django_durable_tasks.task_values import SHARDS, shard_of

# Checks of seed rows, leases and nodes, and of rows whose owner was deleted.


_LONGEST = 600.0
"""No lease lasts longer than this (seconds)."""


# Seed rows and leases -----------------------------------------------------------------------------


@check("seed-rows", SchedulerLease, "nodes", lock=list, repair="insert it")
def missing(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Do the rows written by the migrations exist?

    Rows that the migrations insert: without the lease no leader, without the tenant no task is
    possible.
    """
    expected: tuple[tuple[str, type[Model], Any], ...] = (
        ("lease", SchedulerLease, lease_name()),
        ("tenant", Tenant, DEFAULT_TENANT_ID),
    )
    for table, model, key in expected:
        if not rows_of(model).filter(pk=key).exists():
            yield Finding(str(key), "row", None, "the row that the migrations insert", table=table)


@missing.repaired_by("inserted")
def _write_nodes(context: VerifyContext, keys: Sequence[Any]) -> None:
    tables.write_first_rows(using=tables.database())


@check("leases", SchedulerLease, "nodes")
def leases(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Can a scheduler become leader?

    Leases that expire too far in the future, and expired leases that no running
    scheduler takes.
    """
    far = rows.filter(expires_at__gt=context.ago(-_LONGEST))
    for name, until in far.values_list("name", "expires_at"):
        repair = "let it expire, so that a scheduler takes it"
        yield Finding(name, "expires_at", until, f"at most {_LONGEST:g} s ahead", repair=repair)
    seen = context.ago(nodes.timeout())
    schedulers = rows_of(Node).filter(kind=NodeKind.SCHEDULER, stopped_at__isnull=True)
    settled = schedulers.filter(last_seen_at__gte=seen, started_at__lt=context.ago(PATIENCE))
    lease_names = {lease_name(region) for region in settled.values_list("region", flat=True)}
    over = rows.filter(expires_at__lt=context.ago(PATIENCE)).values_list("name", "expires_at")
    for name, until in over:
        if name in lease_names:
            right = "taken over by a running scheduler"
            advice = "Look at the schedulers' logs: none of them can take the lease."
            yield Finding(name, "expires_at", until, right, advice, severity=Severity.LATE)


@leases.repaired_by("ended")
def _end(context: VerifyContext, keys: Sequence[Any]) -> None:
    leases = rows_of(SchedulerLease).filter(pk__in=keys, expires_at__gt=context.ago(-_LONGEST))
    leases.update(expires_at=after(-1))


# Nodes --------------------------------------------------------------------------------------------


def _settled_after() -> float:
    return max(PATIENCE, 3 * nodes.timeout())


@check(
    "nodes-without-heartbeat",
    Node,
    "nodes",
    repair="declare it dead; the leader then marks its runs LOST",
    late=True,
)
def without_heartbeat(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Is each node that missed its heartbeats declared dead?

    Nodes that missed their heartbeats for long and were not declared dead.
    """
    patience = _settled_after()
    if not context.led or not context.is_steady_for(patience):
        return
    silent = rows.filter(
        stopped_at__isnull=True,
        last_seen_at__lt=context.ago(patience),
        region=conf.settings().REGION,
    )
    for pk, seen in silent.values_list("pk", "last_seen_at"):
        yield Finding(pk, "last_seen_at", seen, "declared dead, because it missed its heartbeats")


@without_heartbeat.repaired_by("declared dead")
def _declare_dead(context: VerifyContext, keys: Sequence[Any]) -> None:
    nodes.declare_dead(keys)


# Rows whose owner was deleted ---------------------------------------------------------------------


def _check_orphans(name: str, of: str, model: type[Model], column: str) -> None:
    owner: Any = model._meta.get_field(column).related_model

    @check(name, model, "orphans", question=f"Does the {of} exist?", repair="delete it")
    def orphans(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
        orphaned = rows.filter(~Exists(rows_of(owner).order_by().filter(pk=OuterRef(column))))
        for pk, key in orphaned.values_list("pk", f"{column}_id"):
            yield Finding(pk, column, key, f"a {owner._meta.verbose_name} that exists")

    @orphans.repaired_by("deleted")
    def _delete(context: VerifyContext, keys: Sequence[Any]) -> None:
        rows_of(model).filter(pk__in=keys).delete()


_check_orphans("orphan-log-entries", "task of each log entry", TaskExecutionLog, "task")
_check_orphans("orphan-edges", "task of each edge", TaskDependency, "task")
_check_orphans(
    "orphan-ledger-entries", "schedule of each ledger entry", OccurrenceRecord, "recurring_task"
)

# Checks of shards: each task is in the shard of its id, and the running schedulers serve every
# shard.
#
# A wrong division loses no task: any scheduler serves the tasks of an unserved shard,
# UNSERVED_AFTER seconds late.


# The shard of a task ------------------------------------------------------------------------------


@check("shard-keys", Task, "shards", repair="write it")
def wrong_keys(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Is each open task in the shard computed from its id?

    Open tasks whose shard does not match their id.
    """
    shards = rows.filter(status__in=OPEN).values_list("pk", "shard_key")
    for pk, shard in shards:
        if shard != shard_of(pk):
            yield Finding(pk, "shard_key", shard, f"{shard_of(pk)}, by its id")


@wrong_keys.repaired_by("written")
def _write_shards(context: VerifyContext, keys: Sequence[Any]) -> None:
    right = Case(*(When(pk=key, then=Value(shard_of(key))) for key in keys))
    tables.tasks().filter(pk__in=keys).update(shard_key=right)


# The shards of the schedulers ---------------------------------------------------------------------


def _schedulers(context: VerifyContext) -> dict[str, list[Node]]:
    """Return the schedulers that have not stopped, or stopped recently, by region."""
    present = Q(stopped_at__isnull=True) | Q(stopped_at__gte=context.ago(_settled_after()))
    by_region: dict[str, list[Node]] = defaultdict(list)
    for node in rows_of(Node).filter(present, kind=NodeKind.SCHEDULER):
        by_region[node.region].append(node)
    return by_region


def _restricted_to(node: Node) -> frozenset[int] | None:
    return frozenset(node.shards or ()) if node.keeps_to_shards else None


@check("unserved-shards", SchedulerLease, "shards", late=True)
def unserved(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Does a scheduler serve each shard?

    Regions whose schedulers are all restricted to some shards and leave others unserved.
    """
    schedulers, every = _schedulers(context), frozenset(range(SHARDS))
    seen, settled = context.ago(nodes.timeout()), context.ago(_settled_after())
    for name in rows.values_list("name", flat=True):
        # A scheduler that stopped recently still counts, as it may restart.
        of_region = schedulers[region_of(name)]
        running = [node for node in of_region if node.stopped_at is None]
        if not any(seen <= node.last_seen_at and node.started_at < settled for node in running):
            continue
        kept = [_restricted_to(node) for node in of_region]
        missing = every.difference(*(every if shards is None else shards for shards in kept))
        if missing:
            right = f"none, because their tasks start {demand.UNSERVED_AFTER:g} s late"
            advice = (
                f"Run a scheduler with --shards {demand.spell_shards(missing)}, or one without"
                " --shards, which serves the shards that no other serves."
            )
            yield Finding(name, "unserved shards", demand.spell_shards(missing), right, advice)


@check("shard-maps", Node, "shards", late=True)
def contradicted(context: VerifyContext, rows: Rows) -> Iterator[Finding]:
    """Does each scheduler serve the shards assigned to it?

    Schedulers whose shards do not match the division computed for their region, which has not
    changed recently.
    """
    running = rows.filter(kind=NodeKind.SCHEDULER, stopped_at__isnull=True, version=__version__)
    node_ids = set(running.values_list("pk", flat=True))
    seen, settled = context.ago(nodes.timeout()), context.ago(_settled_after())
    for of_region in _schedulers(context).values():
        if any(
            node.stopped_at is not None
            or node.draining
            or node.last_seen_at < seen
            or node.started_at >= settled
            for node in of_region
        ):
            continue
        kept = {node.pk: _restricted_to(node) for node in of_region}
        for node in of_region:
            shards = demand.shards_of(node.pk, kept)
            if node.pk in node_ids and node.shards is not None and frozenset(node.shards) != shards:
                right = (
                    f"{demand.spell_shards(shards)}, by the division among the running schedulers"
                )
                advice = "Restart it: it does not read the other schedulers."
                yield Finding(node.pk, "shards", demand.spell_shards(node.shards), right, advice)
