"""Reads the values of the metrics that are not totals: queues, leader, nodes, limits, dead
letters.

At most nine statements for 500 queues. None reads an ended task, and backlogs are counted up to
``queues.COUNTED``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django_durable_tasks.cluster import queues
from django_durable_tasks.cluster.status import is_silent, recent_clock_step
from django_durable_tasks.contrib.metrics.counts import settled_until
from django_durable_tasks.contrib.metrics.series import OTHER, SERIES_MAX
from django_durable_tasks.limits import config, waitlist
from django_durable_tasks.limits.scopes import EACH_TENANT
from django_durable_tasks.limits.waitlist import Usage
from django_durable_tasks.models import Node, SchedulerLease
from django_durable_tasks.models.cluster import lease_name
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.tables import database
from django_durable_tasks.tasks import operator_actions


class QueueGauge(NamedTuple):
    """The open tasks of a queue, and the age in seconds of the oldest one that is due."""

    pending: int = 0
    due: int = 0
    oldest_due_age: float = 0.0
    queued: int = 0
    running: int = 0

    def plus(self, other: QueueGauge) -> QueueGauge:
        """Return both queues as one."""
        return QueueGauge(
            self.pending + other.pending,
            self.due + other.due,
            max(self.oldest_due_age, other.oldest_due_age),
            self.queued + other.queued,
            self.running + other.running,
        )


def busiest_queues(queues: Mapping[str, QueueGauge], most: int) -> dict[str, QueueGauge]:
    """Return the ``most`` queues with the most open tasks by name, the others as ``other``."""

    def size(name: str) -> tuple[int, str]:
        one = queues[name]
        return -(one.pending + one.queued + one.running), name

    names = sorted(queues, key=size)
    found = {name: queues[name] for name in sorted(names[:most])}
    for name in names[most:]:
        found[OTHER] = found.get(OTHER, QueueGauge()).plus(queues[name])
    return found


def fullest_limits(limits: Mapping[str, tuple[int, int]], most: int) -> dict[str, tuple[int, int]]:
    """Return the ``most`` limits of which the largest part is used, by scope."""

    def free(scope: str) -> tuple[float, str]:
        used, limit = limits[scope]
        return -(used / limit if limit else 0.0), scope

    return {scope: limits[scope] for scope in sorted(sorted(limits, key=free)[:most])}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The state of the installation at one moment.

    ``queues`` and ``limits`` (usage and maximum by scope) have at most SERIES_MAX names.
    ``nodes``: the number of nodes by kind and state. ``skews``: by kind, the largest difference
    between the clock of a node and the database's, in seconds. ``clock_step``: by how many seconds
    the database's clock was set in the last hour. ``settled_age``: the age in seconds of the
    newest minute that is counted for the last time.
    """

    queues: Mapping[str, QueueGauge]
    term: int
    is_led: bool
    nodes: Mapping[tuple[str, str], int]
    skews: Mapping[str, float]
    clock_step: float
    limits: Mapping[str, tuple[int, int]]
    dead_letters: int
    settled_age: float


def read_gauges() -> Gauges:
    """Read all values."""
    leases = SchedulerLease.objects.using(database()).filter(name=lease_name())
    lease = leases.values_list(DatabaseNow(), "term", "expires_at").first()
    now, term, expires_at = lease or (database_now(), 0, None)
    settled = settled_until()
    columns = ("kind", "skew", "last_seen_at", "draining", "clock_step", "clock_step_at")
    alive = list(Node.objects.using(database()).alive().only(*columns))
    skews: dict[str, float] = {}
    for node in alive:
        if node.skew is not None and abs(node.skew) >= abs(skews.get(node.kind, 0.0)):
            skews[node.kind] = node.skew
    noticed = recent_clock_step(alive, now)
    used, most = waitlist.count_usage(), SERIES_MAX
    limit_config = config.read()
    return Gauges(
        queues=busiest_queues(_queues(now, used), most),
        term=term,
        is_led=expires_at is not None and expires_at > now,
        nodes=Counter((node.kind, _state(node, now)) for node in alive),
        skews=skews,
        clock_step=noticed.clock_step or 0.0 if noticed else 0.0,
        limits=fullest_limits(
            {
                scope: (used.under_way[scope], allowed.places)
                for scope, allowed in sorted(limit_config.scopes.items())
                if allowed.places is not None and scope != EACH_TENANT
            },
            most,
        ),
        dead_letters=operator_actions.open_letters_up_to(queues.COUNTED),
        settled_age=(now - settled).total_seconds() if settled else 0.0,
    )


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
    if is_silent(node, now):
        return "silent"
    return "draining" if node.draining else "alive"
