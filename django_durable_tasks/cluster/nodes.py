"""Registers nodes, counts missed heartbeats, and keeps the leader's lease."""

from __future__ import annotations

import hashlib
import os
import platform
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import django
from django.db.models import F, Max, Q, QuerySet

from django_durable_tasks import __version__, conf
from django_durable_tasks.models import Node, NodeKind, SchedulerLease
from django_durable_tasks.models.cluster import LONG_EXPIRED, TOLD_MAX, NodeQuerySet, lease_name
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.schedules.timetables.zones import tzdata_version
from django_durable_tasks.states.machine import Crash
from django_durable_tasks.store.clock import ClockStep, after
from django_durable_tasks.store.connections import on_sqlite
from django_durable_tasks.store.tables import database

# The leader's lease: three guarded statements on one row per region.
#
# The sequence when a leader dies is described in ``scheduler/leader.py``.


LONGEST = 60.0
"""Seconds. A lease that expires later, by more than three times its usual duration, was written
before the database's clock was set back. It counts as expired.
"""


def longest_term(seconds: float) -> float:
    """Return in how many seconds a lease expires at the latest, if leases last this long."""
    return max(LONGEST, 3 * seconds)


def take_lease(holder: uuid.UUID, seconds: float) -> int | None:
    """Take the lease if it has expired, or expires later than any lease can by the database's
    clock; return the new term, or None if it is valid.
    """
    leases = SchedulerLease.objects.using(database())
    lease = leases.filter(name=lease_name())
    invalid = Q(expires_at__lt=DatabaseNow()) | Q(expires_at__gt=after(longest_term(seconds)))

    def take() -> bool:
        taken = lease.filter(invalid).update(
            holder=holder,
            term=F("term") + 1,
            acquired_at=DatabaseNow(),
            expires_at=after(seconds),
        )
        return bool(taken)

    if not take():
        if lease.exists():
            return None
        # A new region. Another scheduler may insert the row, and take it, at the same time.
        new = SchedulerLease(name=lease_name(), expires_at=LONG_EXPIRED)
        leases.bulk_create([new], ignore_conflicts=True)
        if not take():
            return None
    term: int | None = lease.filter(holder=holder).values_list("term", flat=True).first()
    return term


def _own_lease(holder: uuid.UUID, term: int) -> QuerySet[SchedulerLease]:
    leases = SchedulerLease.objects.using(database())
    return leases.filter(name=lease_name(), holder=holder, term=term)


def renew_lease(holder: uuid.UUID, term: int, seconds: float) -> bool:
    """Extend the lease of this holder and term; returns False if it has expired or was taken."""
    valid = _own_lease(holder, term).filter(expires_at__gte=DatabaseNow())
    return bool(valid.update(expires_at=after(seconds)))


def resign_lease(holder: uuid.UUID, term: int) -> bool:
    """Let the lease of this holder and term expire now, so that another scheduler can take it."""
    return bool(_own_lease(holder, term).update(expires_at=after(-1)))


# A reader counts consecutive reads in which a heartbeat counter did not change. It never compares
# the clock of another host. Called by the scheduler, the worker and the maintenance jobs.


SHOWN = 20
"""At most this many ids of running tasks and failing parts are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """The values that a node reports with a heartbeat; None keeps the value reported before.

    ``active`` contains the ids of running tasks, and ``busy`` the number of busy processes or
    threads. ``held`` counts the messages that a worker has received and not started, by the queue
    of their tasks, and those that belong to no task under an empty name. ``starts`` is how many
    tasks it started per second since its last report, ``mixed`` are the queues in which it received
    messages that belong to no task, and ``queues`` those that it consumes.
    ``scanned`` and ``started`` are instants of this host's monotonic clock: the last scan
    for due tasks, and the last start of a task. ``skew`` is in seconds. ``index_state`` and
    ``wakeups_state`` describe the due index and the wakeups of a scheduler. ``failing`` are the
    failing parts of a scheduler: ``what``, ``error``, ``number`` of consecutive failures and
    ``since`` (seconds). ``rejected_queues`` maps queues to the reason why the broker rejects their
    messages. ``broker_outages`` counts how often this process lost the broker and could use it
    again. ``names`` are the tasks that the consumer of a worker has registered. ``clock_step`` is
    the last step of the database's clock that a leader noticed.
    """

    active: Sequence[uuid.UUID] | None = None
    busy: int | None = None
    held: Mapping[str, int] = field(default_factory=dict)
    starts: float = 0.0
    mixed: Collection[str] = ()
    queues: Sequence[str] | None = None
    shards: Collection[int] | None = None
    keeps_to_shards: bool | None = None
    scanned: float | None = None
    started: float | None = None
    skew: float | None = None
    draining: bool | None = None
    index_state: str | None = None
    wakeups_state: str | None = None
    rejected_queues: Mapping[str, str] | None = None
    failing: Sequence[Mapping[str, Any]] | None = None
    broker_outages: int | None = None
    names: Collection[str] | None = None
    clock_step: ClockStep | None = None

    def columns(self) -> dict[str, Any]:
        """Return the reported values as columns of the Node row."""
        columns: dict[str, Any] = {
            "skew": self.skew,
            "draining": self.draining,
            "keeps_to_shards": self.keeps_to_shards,
            "broker_outages": self.broker_outages,
            "index_state": self.index_state and self.index_state[:TOLD_MAX],
            "wakeups_state": self.wakeups_state and self.wakeups_state[:TOLD_MAX],
            "last_scan_at": _ago(self.scanned),
            "last_start_at": _ago(self.started),
        }
        if self.rejected_queues is not None:
            columns["rejected_queues"] = dict(self.rejected_queues)
        if self.failing is not None:
            columns["failing"] = [dict(step) for step in self.failing[:SHOWN]]
        if self.active is not None:
            columns["active"] = {
                "number": len(self.active) if self.busy is None else self.busy,
                "ids": [str(task_id) for task_id in self.active[:SHOWN]],
                "held": dict(self.held),
                "starts": round(self.starts, 1),
                "mixed": sorted(self.mixed),
            }
        if self.queues is not None:
            columns["queues"] = list(self.queues)
        if self.shards is not None:
            columns["shards"] = sorted(self.shards)
        if self.names is not None:
            names = sorted(self.names)
            columns |= {"names": names, "names_digest": names_digest(names)}
        if self.clock_step is not None:
            columns["clock_step"] = self.clock_step.seconds
            columns["clock_step_at"] = _ago(self.clock_step.noticed)
        return {name: value for name, value in columns.items() if value is not None}


_NOTHING = NodeReport()


def names_digest(names: Sequence[str]) -> str:
    """Return a short text that is equal for equal lists of names."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:32]


def _ago(instant: float | None) -> Any:
    return None if instant is None else after(min(0.0, instant - time.monotonic()))


@cache
def versions() -> dict[str, str]:
    """Return the releases of the package, Python, tzdata, Django and Celery in this process."""
    try:
        celery = version("celery")
    except PackageNotFoundError:
        celery = ""
    return {
        "package": __version__,
        "python": platform.python_version(),
        "tzdata": tzdata_version(),
        "django": django.get_version(),
        "celery": celery,
    }


def here() -> NodeQuerySet:
    """Return the nodes of this region that have neither left nor been declared dead."""
    return Node.objects.using(database()).alive().filter(region=conf.settings().REGION)


def schedulers() -> dict[uuid.UUID, frozenset[int] | None]:
    """Return the running schedulers of this region that do not drain, each with the shards it is
    restricted to.
    """
    running = here().filter(kind=NodeKind.SCHEDULER, draining=False)
    rows = running.values_list("pk", "shards", "keeps_to_shards")
    return {node: frozenset(shards or ()) if keeps else None for node, shards, keeps in rows}


def timeout() -> float:
    """Return after how many seconds without a heartbeat a node counts as dead."""
    return conf.settings().NODE_TIMEOUT or (60.0 if on_sqlite() else 20.0)


def register(
    node_id: uuid.UUID,
    name: str,
    kind: NodeKind,
    *,
    pool: str = "",
    concurrency: int = 0,
    queues: Sequence[str] = (),
    report: NodeReport = _NOTHING,
) -> None:
    """Insert or restore the node of this process under its random id. A restarted process is a new
    node.
    """
    details: dict[str, Any] = {
        "name": name,
        "kind": kind,
        "host": platform.node(),
        "pid": os.getpid(),
        "version": __version__,
        "pool": pool,
        "concurrency": concurrency,
        "queues": list(queues),
        "beats": 1,
        "started_at": DatabaseNow(),
        "last_seen_at": DatabaseNow(),
        "stopped_at": None,
        "declared_dead": False,
        "region": conf.settings().REGION,
        "versions": versions(),
        "draining": False,
        **report.columns(),
    }
    Node.objects.using(database()).update_or_create(id=node_id, defaults=details)


def beat(node_id: uuid.UUID, report: NodeReport = _NOTHING) -> bool:
    """Record a heartbeat and the report of the node.

    Return False if it was declared dead; it must then register again.
    """
    alive = Node.objects.using(database()).filter(pk=node_id, stopped_at__isnull=True)
    return bool(alive.update(beats=F("beats") + 1, last_seen_at=DatabaseNow(), **report.columns()))


def leave(node_id: uuid.UUID) -> None:
    """Record that the node stopped normally."""
    Node.objects.using(database()).filter(pk=node_id, stopped_at__isnull=True).update(
        stopped_at=DatabaseNow()
    )


def declare_dead(node_ids: Sequence[uuid.UUID]) -> int:
    """Mark nodes as dead; return how many were not marked before."""
    alive = Node.objects.using(database()).alive().filter(pk__in=list(node_ids))
    return alive.update(stopped_at=DatabaseNow(), declared_dead=True)


def beats() -> dict[uuid.UUID, int]:
    """Return the heartbeat counters of the nodes of this region, and of regions without a leader;
    two statements.

    The leader of a region reaps the nodes of that region.
    """
    latest = after(longest_term(conf.settings().LEADER_LEASE or 0.0))
    leases = SchedulerLease.objects.using(database()).filter(
        expires_at__gte=after(-timeout()), expires_at__lte=latest
    )
    led = {name.partition("@")[2] for name in leases.values_list("name", flat=True)} - {
        conf.settings().REGION
    }
    return dict(
        Node.objects.using(database()).alive().exclude(region__in=led).values_list("pk", "beats")
    )


def seen_later(now: datetime) -> float:
    """Return by how many seconds the last heartbeat of a node is later than ``now``; 0 if none is.

    The database's clock was set back since that heartbeat.
    """
    last = Node.objects.using(database()).aggregate(last=Max("last_seen_at"))["last"]
    return max(0.0, (last - now).total_seconds()) if last else 0.0


def broker_outages() -> dict[uuid.UUID, int]:
    """Return how many outages of the broker each live node has reported, in every region."""
    alive = Node.objects.using(database()).alive()
    return dict(alive.values_list("pk", "broker_outages"))


class _UnchangedReads:
    """How many consecutive reads each key has shown the value that it shows now."""

    def __init__(self) -> None:
        self.seen: dict[uuid.UUID, tuple[Any, int]] = {}

    def record(self, values: Mapping[uuid.UUID, Any]) -> None:
        before = self.seen
        self.seen = {
            key: (value, before[key][1] + 1 if key in before and before[key][0] == value else 0)
            for key, value in values.items()
        }

    def restart(self, keys: Iterable[uuid.UUID]) -> None:
        self.seen |= {key: (self.seen[key][0], 0) for key in keys if key in self.seen}


class HeartbeatMonitor:
    """Counts in how many consecutive reads node heartbeats and task leases did not change.

    An outage of the database stops every heartbeat, also the reader's. A failed read therefore
    restarts all counts at zero. ``contact`` is the number of consecutive successful reads. No clock
    of the database is compared, because it may jump. Safe to use from two threads.
    """

    def __init__(self) -> None:
        self.contact = 0
        self._read_at = float("-inf")
        self._nodes, self._leases = _UnchangedReads(), _UnchangedReads()
        self._broker_outages: Mapping[uuid.UUID, int] | None = None
        self.broker_outage_at = float("-inf")
        """The monotonic instant at which the last outage of the broker was read from a node."""
        self.clock_step: ClockStep | None = None
        """The last step of the database's clock that this process noticed as the leader."""
        self.judged: dict[uuid.UUID, Crash] = {}
        """How runs of dead nodes are judged that were not yet marked LOST, by run id."""
        self._lock = threading.RLock()

    def record(
        self,
        beats_now: Mapping[uuid.UUID, int],
        at: float,
        within: float,
        leases: Mapping[uuid.UUID, Any] | None = None,
    ) -> None:
        """Record the heartbeat counters of nodes and the leases of tasks, read successfully at the
        monotonic instant ``at``.

        All counts restart if the previous read is more than ``within`` seconds older, because this
        process itself was suspended.
        """
        with self._lock:
            if at - self._read_at > within:
                self.missed()
            self._read_at = at
            self.contact += 1
            self._nodes.record(beats_now)
            self._leases.record(leases or {})

    def record_broker_outages(self, reported: Mapping[uuid.UUID, int], at: float) -> None:
        """Record how many outages of the broker each node has reported, read at the monotonic
        instant ``at``. The first read only records what was reported before.
        """
        before, self._broker_outages = self._broker_outages, reported
        if before is not None and any(
            number > before.get(node, 0) for node, number in reported.items()
        ):
            self.broker_outage_at = at

    def missed(self) -> None:
        """Record that a read did not reach the database."""
        with self._lock:
            self.contact = 0
            self._nodes.restart(list(self._nodes.seen))
            self._leases.restart(list(self._leases.seen))

    def silent(self, reads: int) -> list[uuid.UUID]:
        """Return the nodes whose counter did not change in at least ``reads`` consecutive reads."""
        with self._lock:
            return [node for node, (_, silent) in self._nodes.seen.items() if silent >= reads]

    def unrenewed(self, reads: int) -> dict[uuid.UUID, tuple[Any, int]]:
        """Return the leases that did not change in at least ``reads`` consecutive reads, each with
        that number, by task id.
        """
        with self._lock:
            return {task: seen for task, seen in self._leases.seen.items() if seen[1] >= reads}

    def restart(self, *, nodes: Iterable[uuid.UUID] = (), leases: Iterable[uuid.UUID] = ()) -> None:
        """Restart the counts of these nodes, and of the leases of these tasks."""
        with self._lock:
            self._nodes.restart(nodes)
            self._leases.restart(leases)
