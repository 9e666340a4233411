"""Reads the values of the metrics that are not totals: queues, leader, nodes, limits, dead letters.

At most nine statements for 500 queues. None reads an ended task, and backlogs are counted up to
``queues.COUNTED``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import OuterRef, Subquery

from django_durable_tasks import conf
from django_durable_tasks.engine.cluster import health, queues
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.db.tables import database
from django_durable_tasks.engine.limits import config, usage
from django_durable_tasks.engine.limits.usage import Usage
from django_durable_tasks.engine.tasks import dead_letters
from django_durable_tasks.models import MetricPosition, Node, SchedulerLease, TaskExecutionLog
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.lease import lease_name
from django_durable_tasks.rules.metrics.counts import MetricKind
from django_durable_tasks.rules.metrics.gauges import QueueGauge, busiest_queues, fullest_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The state of the installation at one moment.

    ``queues`` and ``limits`` (usage and maximum by scope) have at most METRICS_SERIES_MAX names.
    ``nodes``: the number of nodes by kind and state. ``skews``: by kind, the largest difference
    between the clock of a node and the database's, in seconds. ``clock_step``: by how many seconds
    the database's clock was set in the last hour. ``uncounted_ids``: how many ids of
    log entries are not counted yet.
    """

    queues: Mapping[str, QueueGauge]
    term: int
    is_led: bool
    nodes: Mapping[tuple[str, str], int]
    skews: Mapping[str, float]
    clock_step: float
    limits: Mapping[str, tuple[int, int]]
    dead_letters: int
    uncounted_ids: int


def read_gauges() -> Gauges:
    """Read all values."""
    now, term, is_led, uncounted_ids = _leadership()
    columns = ("kind", "skew", "last_seen_at", "draining", "clock_step", "clock_step_at")
    alive = list(Node.objects.using(database()).alive().only(*columns))
    noticed = health.recent_clock_step(alive, now)
    used, most = usage.count(), conf.settings().METRICS_SERIES_MAX
    return Gauges(
        queues=busiest_queues(_queues(now, used), most),
        term=term,
        is_led=is_led,
        nodes=Counter((node.kind, _state(node, now)) for node in alive),
        skews=_skews(alive),
        clock_step=noticed.clock_step or 0.0 if noticed else 0.0,
        limits=fullest_limits(_limits(used), most),
        dead_letters=dead_letters.open_count_up_to(queues.COUNTED),
        uncounted_ids=uncounted_ids,
    )


def _leadership() -> tuple[datetime, int, bool, int]:
    """Return the time, the term, whether there is a leader, and the uncounted ids of the log."""
    newest = TaskExecutionLog.objects.filter(pk__gt=OuterRef("last_id")).order_by("-pk")
    positions = MetricPosition.objects.filter(pk=MetricKind.ATTEMPT).annotate(
        newest=Subquery(newest.values("pk")[:1])
    )
    leases = SchedulerLease.objects.using(database()).filter(name=lease_name())
    row = leases.values_list(
        "term",
        "expires_at",
        DatabaseNow(),
        Subquery(positions.values("last_id")[:1]),
        Subquery(positions.values("newest")[:1]),
    ).first()
    if row is None:
        return database_now(), 0, False, 0
    term, expires_at, now, last_id, newest_id = row
    return now, term, expires_at > now, max(0, (newest_id or 0) - (last_id or 0))


def _queues(now: datetime, used: Usage) -> dict[str, QueueGauge]:
    found = {
        queue: QueueGauge(pending, due, max(0.0, (now - head).total_seconds()) if due else 0.0)
        for queue, pending, due, head in queues.waiting(now)
    }
    for queue, tenants in list(used.of_tenants.items()):
        queued = used.window(queue)
        open_tasks = QueueGauge(queued=queued, running=tenants.total() - queued)
        found[queue] = found.get(queue, QueueGauge()).plus(open_tasks)
    return found


def _state(node: Node, now: datetime) -> str:
    if health.is_silent(node, now):
        return "silent"
    return "draining" if node.draining else "alive"


def _skews(nodes: Sequence[Node]) -> dict[str, float]:
    found: dict[str, float] = {}
    for node in nodes:
        if node.skew is not None and abs(node.skew) >= abs(found.get(node.kind, 0.0)):
            found[node.kind] = node.skew
    return found


def _limits(used: Usage) -> dict[str, tuple[int, int]]:
    limit_config = config.read()
    return {
        scope: (used.under_way[scope], allowed.places)
        for scope, allowed in sorted(limit_config.scopes.items())
        if allowed.places is not None
    }
