"""Checks of shards: each task is in the shard of its id, and the running schedulers serve every
shard.

A wrong division loses no task: any scheduler serves the tasks of an unserved shard, UNSERVED_AFTER
seconds late.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Case, Q, Value, When

from django_durable_tasks import __version__, ports
from django_durable_tasks.engine.cluster import nodes
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.verify.check import (
    PATIENCE,
    Check,
    Rows,
    VerifyContext,
    finding,
    ground_rows,
)
from django_durable_tasks.models import Node, NodeKind, SchedulerLease, Task
from django_durable_tasks.models.lease import region_of
from django_durable_tasks.rules.states import OPEN
from django_durable_tasks.rules.tasks.shards import (
    SHARDS,
    UNSERVED_AFTER,
    shard_of,
    shards_of,
    spell_shards,
)
from django_durable_tasks.rules.verify import Finding, Severity

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


def _write(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
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


CHECKS = (
    Check(
        name="shard-keys",
        group="shards",
        question="Is each open task in the shard computed from its id?",
        ground=Task,
        find=wrong_keys,
        repair=_write,
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
