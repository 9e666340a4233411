"""How many tasks of a queue may be published, and when its next task is due."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db import Error, connections
from django.db.models import BooleanField, Count, ExpressionWrapper, Min, Q
from django.utils.dateparse import parse_datetime

from django_durable_tasks import conf, ports, process_state
from django_durable_tasks.choices import Status
from django_durable_tasks.limits import config
from django_durable_tasks.limits.scopes import share_of, workers_of
from django_durable_tasks.models import Node, QueueControl
from django_durable_tasks.models.fields import InstantField
from django_durable_tasks.process_state import Refresher
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import after, database_now
from django_durable_tasks.store.connections import (
    dedicated_connection,
    has_one_connection,
    in_transaction,
)
from django_durable_tasks.store.dialects import MYSQL, POSTGRESQL, SQLITE, sql, verb
from django_durable_tasks.store.tables import database, tasks

# Reads when the first PENDING task of each queue is due, with index probes.
#
# Called first in every round of dispatch.


AT_ONCE = 500
"""The number of queues, or scopes, per statement. MySQL and MariaDB end a recursive query after
1,000 steps, MariaDB without an error.
"""
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class QueueHead(NamedTuple):
    """A queue, when its first PENDING task is due, and the priorities of tasks that are due by the
    time that the caller gave, as bits.
    """

    queue: str
    at: datetime
    levels: int


def heads() -> dict[str, datetime]:
    """Return when the first PENDING task of each queue is due, for the queues that have one."""
    return {head.queue: head.at for head in _read(_LONG_AGO, everything=True)}


def read_heads(until: datetime) -> list[QueueHead]:
    """Return the queues with PENDING tasks that are due by ``until``.

    Probes the index and never scans the tasks. On PostgreSQL it is one statement with one probe for
    each priority that a queue has tasks of; elsewhere one statement for 500 queues.
    """
    return [head for head in _read(until, everything=False) if head.levels]


@verb
def _read(until: datetime, *, everything: bool) -> list[QueueHead]:
    pending = tables.tasks().published_alone().filter(priority__in=range(10))
    levels = pending.order_by().values_list("queue", "priority")
    heads: dict[str, QueueHead] = {}
    for queue, priority, at in levels.annotate(head=Min("due_at")):
        before = heads.get(queue, QueueHead(queue, at, 0))
        due = 1 << priority if at <= until else 0
        heads[queue] = QueueHead(queue, min(at, before.at), before.levels | due)
    return list(heads.values())


@_read.on(POSTGRESQL)
def _read_in_one_statement(until: datetime, *, everything: bool) -> list[QueueHead]:
    connection = connections[tables.database()]
    until = InstantField().get_db_prep_value(until, connection)
    rows = tables.read(sql("heads"), {"until": until, "everything": everything}, binary=True)
    return [QueueHead._make(row) for row in rows]


@_read.on(MYSQL, SQLITE)
def _read_by_pages(until: datetime, *, everything: bool) -> list[QueueHead]:
    connection = connections[tables.database()]
    parameters = {"until": InstantField().get_db_prep_value(until, connection)}
    heads, past = list[QueueHead](), ""
    while True:
        rows = tables.read(sql("heads"), parameters | {"past": past, "limit": AT_ONCE})
        heads += [
            QueueHead(queue, _instant(head), int(levels))
            for queue, head, levels in rows
            if head is not None
        ]
        if len(rows) < AT_ONCE:
            return heads
        past = rows[-1][0]


@verb
def late(queues: Collection[str], since: datetime) -> frozenset[str]:
    """Return the queues in which a task has been due since before ``since``; ten index probes per
    queue.
    """
    return frozenset(queue for queue, head in heads().items() if head < since and queue in queues)


@late.on(POSTGRESQL)
def _late_in_one_statement(queues: Collection[str], since: datetime) -> frozenset[str]:
    rows = tables.read(sql("late"), {"queues": sorted(queues), "since": since})
    return frozenset(queue for (queue,) in rows)


def _instant(value: Any) -> datetime:
    instant = parse_datetime(value) if isinstance(value, str) else value
    if not isinstance(instant, datetime):
        raise TypeError(f"The database returned {value!r} for an instant.")
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


# Decides whether a new task may be published at commit, and how many tasks of a queue may be
# published.
#
# A queue has a window of published tasks. Paused queues and tasks to which a limit can apply are
# left to the scheduler.
#
# The fast path uses a snapshot of the queues, which a background thread reads about once a second
# on a dedicated connection. So ``.delay()`` adds no statement to the caller's transaction and does
# not wait for a second connection. Without a recent snapshot a new task is PENDING and a scheduler
# publishes it.


SMALLEST_WINDOW = 50
"""The window of a queue with slow tasks, and of a queue without a known worker: what one process
runs of tasks of 0.1 s in five seconds. A scheduler refills a full window when about a quarter of
it was started, at least ten times a second, so that this also suffices for two processes that run
tasks without any work.
"""
_FEWEST_URGENT = 10
# Seconds after which a task that another thread of this process has published is usually committed.
_UNSEEN = 0.1
_BEHIND = 1.0
"""Seconds. If tasks of a queue have been due for longer, half of its window is left to them."""
_REFRESH_EVERY, _USABLE = 0.9, 2.0
"""Seconds between two snapshots, and the age up to which one is used if the database is slow."""
_SERVED_FOR = 10.0
"""Seconds after which a snapshot no longer shows that a queue has no worker."""
_FORGOTTEN_AFTER = 600.0
"""Seconds without a publish after which this process no longer reads the state of a queue."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The live workers at one moment, by the queues that they consume.

    ``concurrency``, ``free`` (processes or threads without a task) and ``starts`` (per second) are
    those of the workers of each queue. ``held`` counts the messages of tasks of a queue that they
    have received and not started. ``mixed`` are queues in which they also received messages that
    belong to no task. ``busy`` are queues all of whose processes are busy, while those of others
    are free, and have started nothing for REPUBLISH_AFTER.
    """

    concurrency: Counter[str] = field(default_factory=Counter)
    free: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    starts: Mapping[str, float] = field(default_factory=dict)
    mixed: frozenset[str] = frozenset()
    busy: frozenset[str] = frozenset()

    def leaves_out(self, queue: str) -> bool:
        """Return whether there are workers and none of them can start tasks of this queue."""
        return bool(self.concurrency) and (not self.concurrency[queue] or queue in self.busy)


def fleet() -> Fleet:
    """Read the live workers; one statement."""
    totals, starts, mixed, serving = Fleet(), dict[str, float](), set[str](), set[str]()
    settings = conf.settings()
    before = after(-max(settings.REPUBLISH_AFTER, 2 * settings.NODE_HEARTBEAT))
    is_recent = ExpressionWrapper(Q(last_start_at__gt=before), BooleanField())
    workers = Node.objects.using(database()).alive().workers()
    columns = workers.values_list("queues", "concurrency", "active", is_recent)
    for queues, concurrency, active, starts_tasks in columns:
        report = active or {}
        held: Mapping[str, int] = report.get("held") or {}
        unused = max(0, concurrency - int(report.get("number", 0)))
        free = 0 if active is None or any(held.values()) else unused
        totals.held.update(held)
        if starts_tasks or unused or active is None:
            serving.update(queues)
        for queue in queues:
            totals.concurrency[queue] += concurrency
            totals.free[queue] += free
            starts[queue] = starts.get(queue, 0.0) + float(report.get("starts", 0.0))
        mixed.update(report.get("mixed", ()))
    busy = totals.concurrency.keys() - serving if any(totals.free.values()) else ()
    return replace(totals, starts=starts, mixed=frozenset(mixed), busy=frozenset(busy))


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The queues at one moment: the paused ones, the published tasks, and the workers."""

    paused: frozenset[str] = frozenset()
    queued: Counter[str] = field(default_factory=Counter)
    fleet: Fleet = field(default_factory=Fleet)
    of_tenants: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def window(self, queue: str) -> int:
        """Return how many messages may wait in the broker: twice the concurrency plus the starts of
        one second, and at least SMALLEST_WINDOW.
        """
        fixed = conf.settings().QUEUE_WINDOW
        if fixed is not None:
            return fixed
        fast = self.fleet.starts.get(queue, 0.0)
        return max(SMALLEST_WINDOW, 2 * self.fleet.concurrency[queue] + round(fast))

    def with_paused(self, queues: frozenset[str]) -> QueueSnapshot:
        """Return the snapshot with these paused queues instead."""
        return replace(self, paused=queues)

    def is_closed(self, queue: str) -> bool:
        """Return whether nothing is published to this queue: it is paused, or only other queues
        have workers that can start tasks, and its own would occupy places of shared limits.
        """
        return queue in self.paused or self.is_left_out(queue)

    def is_left_out(self, queue: str) -> bool:
        """Return whether tasks of this queue would occupy places of shared limits, by the limits
        that this process has read last, without a worker that could start them.
        """
        return self.fleet.leaves_out(queue) and config.last_limits().is_shared

    def capacity(self, queue: str) -> int:
        """Return how many more tasks of this queue may be published now."""
        if self.is_closed(queue):
            return 0
        return max(0, self.window(queue) - self.queued[queue])

    def urgent_capacity(self, queue: str) -> int:
        """Return how many more tasks of the highest priority may be published: a full window is
        extended by a tenth for them.
        """
        if self.is_closed(queue):
            return 0
        window = self.window(queue)
        return max(0, window + max(_FEWEST_URGENT, window // 10) - self.queued[queue])

    def share(self, queue: str, tenant_id: int) -> int:
        """Return how many more tasks of this tenant may be published by its fair share of the
        queue.
        """
        tenants = self.of_tenants.get(queue, {})
        share = share_of(self.window(queue), len(tenants.keys() | {tenant_id}))
        return share - tenants.get(tenant_id, 0)


def places_of_customer(
    queue: str, tenant_id: int, current: config.LimitConfig, fleet_now: Fleet | None = None
) -> int | None:
    """Return how many tasks of a queue this tenant may have QUEUED and RUNNING because it is one of
    several; None without such a limit. ``fleet_now``: the workers, if the caller has read them.
    """
    if not current.shares_processes(queue, tenant_id):
        return None
    if fleet_now is None:
        fleet_now = process_state.of(LastSnapshot).with_recent_fleet().fleet
    return workers_of(fleet_now.concurrency[queue])


def paused_queues() -> frozenset[str]:
    """Return the paused queues."""
    paused = QueueControl.objects.using(database()).filter(paused_at__isnull=False)
    return frozenset(paused.values_list("name", flat=True))


def snapshot(queues: Collection[str] | None = None) -> QueueSnapshot:
    """Read the state of these queues, or of all, with three statements."""
    published = (
        tasks().queued() if queues is None else tasks().queued().filter(queue__in=sorted(queues))
    )
    waiting = published.order_by().values_list("queue", "tenant_id").annotate(number=Count("pk"))
    of_tenants: dict[str, dict[int, int]] = {}
    for queue, tenant_id, number in waiting:
        of_tenants.setdefault(queue, {})[tenant_id] = number
    queued = Counter({queue: sum(tenants.values()) for queue, tenants in of_tenants.items()})
    current = QueueSnapshot(paused_queues(), queued, fleet(), of_tenants)
    process_state.of(LastSnapshot).use(current)
    return current


class LastSnapshot:
    """The last snapshot of this process, for the windows and closed queues of limited tasks."""

    def __init__(self) -> None:
        self.snapshot, self._read_at = QueueSnapshot(), float("-inf")

    def use(self, snapshot: QueueSnapshot) -> None:
        """Keep this snapshot, which was read just now."""
        self.snapshot, self._read_at = snapshot, time.monotonic()

    def is_unserved(self, queue: str) -> bool:
        """Return whether no live worker consumes this queue; False if the snapshot is old."""
        recent = time.monotonic() - self._read_at <= _SERVED_FOR
        return recent and not self.snapshot.fleet.concurrency[queue]

    def with_recent_fleet(self) -> QueueSnapshot:
        """Return the last snapshot, with workers that were read in the last two seconds.

        Only schedulers read whole snapshots; a worker that hands capacity over reads the workers.
        """
        if time.monotonic() - self._read_at > _USABLE:
            self.use(replace(self.snapshot, fleet=fleet()))
        return self.snapshot


def window_of(queue: str) -> int:
    """Return the window of a queue by the last snapshot of this process."""
    return process_state.of(LastSnapshot).with_recent_fleet().window(queue)


def is_unserved(queue: str) -> bool:
    """Return whether no live worker consumed this queue a few seconds ago. False if this process
    has no snapshot that is so recent.
    """
    return process_state.of(LastSnapshot).is_unserved(queue)


def is_left_out(queue: str) -> bool:
    """Return whether tasks of this queue would occupy places of shared limits without a worker that
    could start them, by the last snapshot of this process.
    """
    return process_state.of(LastSnapshot).with_recent_fleet().is_left_out(queue)


@dataclass(frozen=True, slots=True)
class _State:
    """The state of the queues as last read, and the tasks that this process has published since.

    ``snapshot`` is None if the database did not answer. ``queues`` were read. In those of
    ``behind`` tasks have been due for longer than ``_BEHIND``.
    """

    read_at: float
    snapshot: QueueSnapshot | None = None
    limit_config: config.LimitConfig = field(default_factory=config.LimitConfig)
    queues: frozenset[str] = frozenset()
    behind: frozenset[str] = frozenset()
    published: Counter[str] = field(default_factory=Counter)
    published_of: Counter[tuple[str, int]] = field(default_factory=Counter)
    just_published: dict[tuple[str, int], list[tuple[float, int]]] = field(default_factory=dict)

    def take_place(self, name: str, queue: str, tenant_id: int) -> bool:
        """Return whether a task may be published without a claim, and count it."""
        if (
            self.snapshot is None
            or queue not in self.queues
            or self.limit_config.binds(name, queue, tenant_id)
        ):
            return False
        if self.snapshot.is_closed(queue):
            return False
        if not self._has_room(self.snapshot, queue, tenant_id):
            return False
        self.published[queue] += 1
        self.published_of[queue, tenant_id] += 1
        return True

    def _has_room(self, read: QueueSnapshot, queue: str, tenant_id: int) -> bool:
        """Return whether the window of the queue and the shares of the tenant have a free place.

        The QUEUED and RUNNING tasks of a customer are counted by one index probe on the connection
        of the caller, which sees its own. Tasks that other threads have just published may not be
        committed yet, so those of the last _UNSEEN seconds are counted too.
        """
        # Tasks that are due must not starve: new tasks leave half of the window to them.
        reserved = read.window(queue) // 2 if queue in self.behind else 0
        if read.capacity(queue) - reserved <= self.published[queue]:
            return False
        if (
            self.limit_config.tenants
            and read.share(queue, tenant_id) <= self.published_of[queue, tenant_id]
        ):
            return False
        places = places_of_customer(queue, tenant_id, self.limit_config, read.fleet)
        if places is None:
            return True
        now, thread = time.monotonic(), threading.get_ident()
        recent = self.just_published.setdefault((queue, tenant_id), [])
        recent[:] = [entry for entry in recent if entry[0] > now - _UNSEEN]
        unseen = sum(by != thread for _, by in recent)
        if unseen >= places:
            return False
        recent.append((now, thread))
        under_way = tasks().filter(
            queue=queue, tenant_id=tenant_id, status__in=[Status.QUEUED, Status.RUNNING]
        )
        return len(under_way.values_list("pk")[: places - unseen]) < places - unseen

    def may_start_batch(self, name: str, queue: str, tenant_id: int) -> bool:
        """Return whether a batch message may be published for a new task."""
        return (
            self.snapshot is not None
            and queue in self.queues
            and queue not in self.snapshot.paused
            and not self.limit_config.binds(name, queue, tenant_id)
        )


class RecentQueueState:
    """The last state of the queues that this process publishes to, read about once a second by a
    background thread.

    A caller reads the state itself only outside a transaction and if there is no recent one. Inside
    a transaction it would hold one connection and wait for another, which deadlocks behind a pooler
    once all its connections are used that way.
    """

    in_background = True
    """Whether a thread may read. Without it the caller always reads."""

    def __init__(self) -> None:
        self.state = _State(float("-inf"))
        self._asked: dict[str, float] = {}
        self._lock = threading.Lock()
        self._refresher = Refresher("durable-queue-state", self._read_if_old, _REFRESH_EVERY)

    def of(self, queue: str) -> _State | None:
        """Return the state of a queue; None if it is too old."""
        self._asked[queue] = now = time.monotonic()
        age = now - self.state.read_at
        # While the thread runs, none of these is true. Reading Celery's settings would cost more
        # than the rest of this method.
        if not self._refresher.runs and not self.in_background:
            if age > config.FRESH or queue not in self.state.queues:
                self._read()
            return self.state
        if age > _USABLE and not in_transaction():
            self._read()
        self._refresher.ask()
        return self.state if time.monotonic() - self.state.read_at <= _USABLE else None

    def known(self, queue: str) -> _State | None:
        """Return the state of a queue without reading it, except without a thread; None if there is
        no recent one. The thread reads it then.
        """
        self._asked[queue] = time.monotonic()
        if not self._refresher.runs and not self.in_background:
            return self.of(queue)
        self._refresher.ask()
        age = time.monotonic() - self.state.read_at
        return self.state if age <= _USABLE and queue in self.state.queues else None

    def stop(self, patience: float) -> None:
        """End the background thread and wait for it for at most ``patience`` seconds."""
        self._refresher.stop(patience)

    def _read_if_old(self) -> None:
        if time.monotonic() - self.state.read_at > _REFRESH_EVERY / 2:
            self._read()

    def _read(self) -> None:
        """Read the state. If another thread is reading it, keep the last one."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            since = time.monotonic() - _FORGOTTEN_AFTER
            queues = frozenset([queue for queue, at in list(self._asked.items()) if at > since])
            for queue in self._asked.keys() - queues:
                self._asked.pop(queue, None)
            with dedicated_connection():
                limit_config, read = config.read(), snapshot(queues)
                behind = late(queues, database_now() - timedelta(seconds=_BEHIND))
            self.state = _State(time.monotonic(), read, limit_config, queues, behind)
        except Error:
            self.state = _State(time.monotonic())
        finally:
            self._lock.release()


class FastPath:
    """Implements ``ports.FastPath`` by the last state of the queues."""

    def is_open(self, name: str, queue: str, tenant_id: int) -> bool:
        """Return whether a task may be published at commit, without a claim, and count it.

        Returns False if a limit can apply to the task, because only a claim enforces limits, and if
        the state of its queue is unknown. Inside a transaction it does not query the database,
        except that one probe counts the tasks of a customer on the connection of the caller.

        In Celery's eager mode it is always open, without a query: the task runs in the caller, one
        at a time, and whether its queue is paused is checked when it starts. No worker can read an
        SQLite database in memory.
        """
        if ports.eager() or has_one_connection():
            return ports.eager()
        state = process_state.of(RecentQueueState).of(queue)
        return state is not None and state.take_place(name, queue, tenant_id)

    def may_start_batch(self, name: str, queue: str, tenant_id: int) -> bool:
        """Return whether a batch message may be published at commit, for a task that no limit can
        bind, in a queue that was not paused at the last look.

        If the state is unknown, it may: the worker that starts a batch checks both, and reading the
        state would delay the caller.
        """
        if has_one_connection():
            return False
        state = process_state.of(RecentQueueState).known(queue)
        return state is None or state.may_start_batch(name, queue, tenant_id)

    def is_limited(self, name: str, queue: str, tenant_id: int) -> bool:
        """Return whether a limit can apply to a task of this name, by the last state."""
        return process_state.of(RecentQueueState).state.limit_config.binds(name, queue, tenant_id)
