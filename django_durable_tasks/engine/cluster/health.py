"""Finds nodes that send heartbeats but make no progress.

Such a node is never declared dead. The probe ``durable health`` reports it, so that the supervisor
restarts it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Min

from django_durable_tasks import conf
from django_durable_tasks.engine.cluster import nodes
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.db.tables import database, tasks
from django_durable_tasks.models import Node, NodeKind, QueueControl
from django_durable_tasks.models.node import NodeQuerySet
from django_durable_tasks.rules.tasks.explanations import ago

CLOCK_STEP_SHOWN = timedelta(hours=1)
"""How long a step of the database's clock is reported. Afterwards nothing depends on it."""


def is_silent(node: Node, now: datetime) -> bool:
    """Return whether the last heartbeat of the node is older than the node timeout. One that is
    later than now by more than that was sent before the database's clock was set back.
    """
    return abs(now - node.last_seen_at) > timedelta(seconds=nodes.timeout())


def recent_clock_step(nodes_: Iterable[Node], now: datetime) -> Node | None:
    """Return the node that noticed the last step of the database's clock, if that was less than
    CLOCK_STEP_SHOWN ago.
    """
    found = [
        (node.clock_step_at, node.pk, node)
        for node in nodes_
        if node.clock_step_at is not None and node.clock_step_at > now - CLOCK_STEP_SHOWN
    ]
    return max(found)[2] if found else None


def stalled(candidates: Iterable[Node], now: datetime) -> dict[uuid.UUID, str]:
    """Return the stalled nodes, each with the reason; two statements if a worker has to be judged.

    A worker is judged only if it has free processes, does not drain, and serves a queue that is not
    paused.
    """
    found, idle = dict[uuid.UUID, str](), list[tuple[Node, float]]()
    for node in candidates:
        if is_silent(node, now) or node.draining:
            continue
        still = _seconds_without_work(node, now)
        if still is None or still <= conf.settings().STALLED_AFTER:
            continue
        if node.kind == NodeKind.SCHEDULER:
            found[node.pk] = f"it has not polled for due tasks for {ago(still)}"
        elif _has_free_processes(node):
            idle.append((node, still))
    waiting = _waiting_since(now) if idle else {}
    for node, still in idle:
        queue = next((name for name in node.queues if name in waiting), None)
        if queue is not None:
            found[node.pk] = (
                f"it has free processes and has started no task for {ago(still)}, though tasks wait"
                f" published in queue {queue} since {ago((now - waiting[queue]).total_seconds())}"
            )
    return found


def _seconds_without_work(node: Node, now: datetime) -> float | None:
    """Return the seconds since the node last did work; None if its release does not report this."""
    if node.versions is None:
        return None
    last = node.last_scan_at if node.kind == NodeKind.SCHEDULER else node.last_start_at
    return (now - max(last or node.started_at, node.started_at)).total_seconds()


def _has_free_processes(node: Node) -> bool:
    return node.active is not None and int(node.active.get("number", 0)) < node.concurrency


def _waiting_since(now: datetime) -> dict[str, datetime]:
    """Return the queues with tasks that were published and not started for STALLED_AFTER seconds,
    each with the oldest time.
    """
    long_ago = now - timedelta(seconds=conf.settings().STALLED_AFTER)
    paused = (
        QueueControl.objects.using(database())
        .filter(paused_at__isnull=False)
        .values_list("name", flat=True)
    )
    # A worker without a connection to the broker reports a start just now and is not judged.
    published = tasks().queued().filter(updated_at__lt=long_ago)
    waiting = published.exclude(queue__in=list(paused)).order_by()
    return dict(waiting.values_list("queue").annotate(since=Min("updated_at")))


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """The health of one node as a probe reports it; ``fault`` is empty if the node is healthy."""

    node: Node
    state: str
    fault: str


def vitals(question: NodeQuerySet) -> list[NodeHealth]:
    """Judge the newest node of each kind and name. A process that was restarted has an older row
    too.
    """
    newest = {
        (node.kind, node.name): node for node in question.using(database()).order_by("started_at")
    }
    now, running = (
        database_now(),
        {(node.kind, node.host) for node in newest.values() if node.stopped_at is None},
    )
    # Skip a stopped node if a node of the same kind runs on its host. It may be the replacement
    # under another name, because names may contain a process id.
    judged = [
        node
        for node in newest.values()
        if node.stopped_at is None or (node.kind, node.host) not in running
    ]
    found = sorted(judged, key=lambda node: (node.kind, node.name))
    still = stalled([node for node in found if node.stopped_at is None], now)
    return [_vital(node, now, still.get(node.pk, "")) for node in found]


def _vital(node: Node, now: datetime, stall: str) -> NodeHealth:
    since = ago((now - node.last_seen_at).total_seconds())
    if node.declared_dead:
        return NodeHealth(node, "dead", f"it was declared dead, last seen {since} ago")
    if node.stopped_at is not None:
        return NodeHealth(node, "left", "it has left")
    if is_silent(node, now):
        return NodeHealth(node, "silent", f"it was last seen {since} ago")
    if stall:
        return NodeHealth(node, "stalled", stall)
    return NodeHealth(node, "draining" if node.draining else "alive", "")
