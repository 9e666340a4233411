"""Checks of shards: each task is in the shard of its id, and live schedulers serve all shards.

A wrong assignment loses nothing. Any scheduler serves unassigned shards, some seconds late.
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
    Look,
    Rows,
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


def wrong_keys(look: Look, rows: Rows) -> list[Finding]:
    """Find open tasks in a shard other than that of their id, or in one that does not exist."""
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


def _write(look: Look, findings: Sequence[Finding]) -> Mapping[Any, str]:
    keys = [one.key for one in findings]
    right = Case(*(When(pk=key, then=Value(shard_of(key))) for key in keys))
    tables.tasks().filter(pk__in=keys).update(shard_key=right)
    ports.due.moved(keys)  # the index of due rows knows the shard of each
    return dict.fromkeys(keys, "written")


# The shards of the schedulers ---------------------------------------------------------------------


def _patience() -> float:
    return max(PATIENCE, 3 * nodes.timeout())


def _schedulers(look: Look) -> dict[str, list[Node]]:
    """Return the schedulers by region that have not left, and those that left recently."""
    there = Q(stopped_at__isnull=True) | Q(stopped_at__gte=look.ago(_patience()))
    found: dict[str, list[Node]] = defaultdict(list)
    for node in ground_rows(Node).filter(there, kind=NodeKind.SCHEDULER):
        found[node.region].append(node)
    return found


def _kept(node: Node) -> frozenset[int] | None:
    return frozenset(node.shards or ()) if node.keeps_to_shards else None


def unserved(look: Look, rows: Rows) -> list[Finding]:
    """Find regions whose schedulers are all limited to certain shards and have left other shards
    unassigned for a while.
    """
    everybody = _schedulers(look)
    found = {
        name: _holes(look, everybody[region_of(name)])
        for name in rows.values_list("name", flat=True)
    }
    return [
        finding(
            "unserved-shards",
            "lease",
            name,
            "unserved shards",
            spell_shards(holes),
            f"none, because their tasks start {UNSERVED_AFTER:g} s late",
            severity=Severity.LATE,
            advice=(
                f"Run a scheduler with --shards {spell_shards(holes)}, or one without --shards,"
                " which serves the shards that no other serves."
            ),
        )
        for name, holes in found.items()
        if holes
    ]


def _holes(look: Look, several: Sequence[Node]) -> frozenset[int]:
    """Return the unassigned shards. A scheduler that left a moment ago may be restarting, and
    counts.
    """
    seen, settled = look.ago(nodes.timeout()), look.ago(_patience())
    living = [node for node in several if node.stopped_at is None and node.last_seen_at >= seen]
    if not any(node.started_at < settled for node in living):
        return frozenset()
    kept = [_kept(node) for node in several]
    return frozenset(range(SHARDS)).difference(
        *(frozenset(range(SHARDS)) if one is None else one for one in kept)
    )


def contradicted(look: Look, rows: Rows) -> list[Finding]:
    """Find schedulers that serve other shards than the assignment of their region, although no
    scheduler came or left for a while.
    """
    living = rows.filter(kind=NodeKind.SCHEDULER, stopped_at__isnull=True, version=__version__)
    wanted = set(living.values_list("pk", flat=True))
    maps = {
        pk: right
        for several in _schedulers(look).values()
        for pk, right in _map_of(look, several).items()
    }
    return [
        finding(
            "shard-maps",
            "node",
            node.pk,
            "shards",
            spell_shards(node.shards),
            f"{spell_shards(right)}, by the map of the schedulers that live",
            severity=Severity.LATE,
            advice="Restart it: it does not look at who else lives.",
        )
        for pk, (node, right) in maps.items()
        if pk in wanted and node.shards is not None and frozenset(node.shards) != right
    ]


def _map_of(look: Look, several: Sequence[Node]) -> dict[Any, tuple[Node, frozenset[int]]]:
    """Return the assignment of a region whose schedulers have all been there for a while; empty
    otherwise.
    """
    seen, settled = look.ago(nodes.timeout()), look.ago(_patience())
    for node in several:
        away = node.stopped_at is not None or node.draining or node.last_seen_at < seen
        if away or node.started_at >= settled:
            return {}
    kept = {node.pk: _kept(node) for node in several}
    return {node.pk: (node, shards_of(node.pk, kept)) for node in several}


CHECKS = (
    Check(
        name="shard-keys",
        group="shards",
        question="Is each open task in the shard computed from its id?",
        ground=Task,
        judge=wrong_keys,
        repair=_write,
    ),
    Check(
        name="unserved-shards",
        group="shards",
        question="Does a scheduler serve each shard?",
        ground=SchedulerLease,
        judge=unserved,
    ),
    Check(
        name="shard-maps",
        group="shards",
        question="Does each scheduler serve the shards assigned to it?",
        ground=Node,
        judge=contradicted,
    ),
)
