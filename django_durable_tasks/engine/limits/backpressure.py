"""Decides whether a new task may be published at commit, and how many tasks of a queue may be
published.

A queue has a window of published tasks. Paused queues and tasks to which a limit can apply are left
to the scheduler.

The fast path uses a snapshot of the queues, which a background thread reads about once a second on
a dedicated connection. So ``.delay()`` adds no statement to the caller's transaction and does not
wait for a second connection. Without a recent snapshot a new task is PENDING and a scheduler
publishes it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from django.db import Error
from django.db.models import Count

from django_durable_tasks import conf, ports, process_state
from django_durable_tasks.engine.db.background_refresh import Refresher
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.db.connections import (
    dedicated_connection,
    has_one_connection,
    in_transaction,
)
from django_durable_tasks.engine.db.tables import database, tasks
from django_durable_tasks.engine.limits import config
from django_durable_tasks.engine.limits.next_due import late
from django_durable_tasks.models import Node, QueueControl
from django_durable_tasks.rules.limits.admission import share_of

_UNKNOWN_WORKERS_WINDOW = 1_000
_SMALLEST_WINDOW = 200
_FEWEST_URGENT = 10
_BEHIND = 1.0
"""Seconds. If tasks of a queue have been due for longer, half of its window is left to them."""
_REFRESH_EVERY, _USABLE = 0.9, 2.0
"""Seconds between two snapshots, and the age up to which one is used if the database is slow."""
_FORGOTTEN_AFTER = 600.0
"""Seconds without a publish after which this process no longer reads the state of a queue."""


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The queues at one moment: the paused ones, the published tasks, and the concurrency of the
    workers.
    """

    paused: frozenset[str] = frozenset()
    queued: Counter[str] = field(default_factory=Counter)
    concurrency: Counter[str] = field(default_factory=Counter)
    of_tenants: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def window(self, queue: str, starts_per_second: float = 0.0) -> int:
        """Return how many tasks may be published and not started: twice the concurrency plus the
        starts of 2 s, or 1,000 without a worker.
        """
        fixed = conf.settings().QUEUE_WINDOW
        if fixed is not None:
            return fixed
        if not self.concurrency[queue]:
            return _UNKNOWN_WORKERS_WINDOW
        return max(_SMALLEST_WINDOW, 2 * self.concurrency[queue] + round(2 * starts_per_second))

    def with_paused(self, queues: frozenset[str]) -> QueueSnapshot:
        """Return the snapshot with these paused queues instead."""
        return replace(self, paused=queues)

    def capacity(self, queue: str, starts_per_second: float = 0.0) -> int:
        """Return how many more tasks of this queue may be published now."""
        if queue in self.paused:
            return 0
        return max(0, self.window(queue, starts_per_second) - self.queued[queue])

    def urgent_capacity(self, queue: str, starts_per_second: float = 0.0) -> int:
        """Return how many more tasks of the highest priority may be published: a full window is
        extended by a tenth for them.
        """
        if queue in self.paused:
            return 0
        window = self.window(queue, starts_per_second)
        return max(0, window + max(_FEWEST_URGENT, window // 10) - self.queued[queue])

    def share(self, queue: str, tenant_id: int) -> int:
        """Return how many more tasks of this tenant may be published by its fair share of the
        queue.
        """
        tenants = self.of_tenants.get(queue, {})
        share = share_of(self.window(queue), len(tenants.keys() | {tenant_id}))
        return share - tenants.get(tenant_id, 0)


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
    workers = Node.objects.using(database()).alive().workers().values_list("queues", "concurrency")
    of_tenants: dict[str, dict[int, int]] = {}
    for queue, tenant_id, number in waiting:
        of_tenants.setdefault(queue, {})[tenant_id] = number
    queued = Counter({queue: sum(tenants.values()) for queue, tenants in of_tenants.items()})
    found = QueueSnapshot(paused_queues(), queued, _concurrency(workers), of_tenants)
    process_state.of(QueueWindows).snapshot = found
    return found


class QueueWindows:
    """The windows of queues by the last snapshot of this process. ``start_rate`` returns the starts
    per second of a queue.
    """

    def __init__(self) -> None:
        self.snapshot = QueueSnapshot()
        self.start_rate: Callable[[str], float] = Counter[str]().__getitem__


def use_start_rates(start_rate: Callable[[str], float]) -> None:
    """Set the function that returns the starts per second of a queue, for the windows of this
    process.
    """
    process_state.of(QueueWindows).start_rate = start_rate


def window_of(queue: str) -> int:
    """Return the window of a queue by the last snapshot and the starts per second of this
    process.
    """
    windows = process_state.of(QueueWindows)
    return windows.snapshot.window(queue, windows.start_rate(queue))


def _concurrency(workers: Iterable[tuple[list[str], int]]) -> Counter[str]:
    concurrency: Counter[str] = Counter()
    for queues, number in workers:
        for queue in queues:
            concurrency[queue] += number
    return concurrency


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

    def take_place(self, name: str, queue: str, tenant_id: int) -> bool:
        """Return whether a task may be published without a claim, and count it."""
        if (
            self.snapshot is None
            or queue not in self.queues
            or self.limit_config.binds(name, queue, tenant_id)
        ):
            return False
        # Tasks that are due must not starve: new tasks leave half of the window to them.
        left = self.snapshot.window(queue) // 2 if queue in self.behind else 0
        if self.snapshot.capacity(queue) - left <= self.published[queue]:
            return False
        if (
            self.limit_config.tenants
            and self.snapshot.share(queue, tenant_id) <= self.published_of[queue, tenant_id]
        ):
            return False
        self.published[queue] += 1
        self.published_of[queue, tenant_id] += 1
        return True

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
    once all its connections are used that way. In Celery's eager mode there is no thread and the
    caller always reads, because its task has to run at once.
    """

    in_background = True
    """Whether a thread may read. Without it the caller always reads, as in eager mode."""

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
        if not self._refresher.runs and self._must_read_here():
            if age > config.FRESH or queue not in self.state.queues:
                self._read()
            return self.state
        if age > _USABLE and not in_transaction():
            self._read()
        self._refresher.ask()
        return self.state if time.monotonic() - self.state.read_at <= _USABLE else None

    def known(self, queue: str) -> _State | None:
        """Return the state of a queue without reading it, except in Celery's eager mode or without
        a thread; None if there is no recent one. The thread reads it then.
        """
        self._asked[queue] = time.monotonic()
        if not self._refresher.runs and self._must_read_here():
            return self.of(queue)
        self._refresher.ask()
        age = time.monotonic() - self.state.read_at
        return self.state if age <= _USABLE and queue in self.state.queues else None

    def _must_read_here(self) -> bool:
        return not self.in_background or has_one_connection() or ports.eager()

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
            self.state = self._read_now()
        finally:
            self._lock.release()

    def _read_now(self) -> _State:
        since = time.monotonic() - _FORGOTTEN_AFTER
        queues = frozenset([queue for queue, at in list(self._asked.items()) if at > since])
        for queue in self._asked.keys() - queues:
            self._asked.pop(queue, None)
        try:
            with dedicated_connection():
                limit_config, found = config.read(), snapshot(queues)
                behind = late(queues, database_now() - timedelta(seconds=_BEHIND))
            return _State(time.monotonic(), found, limit_config, queues, behind)
        except Error:
            return _State(time.monotonic())


class FastPath:
    """Implements ``ports.FastPath`` by the last state of the queues."""

    def is_open(self, name: str, queue: str, tenant_id: int) -> bool:
        """Return whether a task may be published at commit, without a claim, and count it.

        Returns False if a limit can apply to the task, because only a claim enforces limits, and if
        the state of its queue is unknown. Inside a transaction it does not query the database.
        """
        state = process_state.of(RecentQueueState).of(queue)
        return state is not None and state.take_place(name, queue, tenant_id)

    def may_start_batch(self, name: str, queue: str, tenant_id: int) -> bool:
        """Return whether a batch message may be published at commit, for a task that no limit can
        bind, in a queue that was not paused at the last look.

        If the state is unknown, it may: the worker that starts a batch checks both, and reading the
        state would delay the caller.
        """
        state = process_state.of(RecentQueueState).known(queue)
        return state is None or state.may_start_batch(name, queue, tenant_id)

    def is_limited(self, name: str, queue: str, tenant_id: int) -> bool:
        """Return whether a limit can apply to a task of this name, by the last state."""
        return process_state.of(RecentQueueState).state.limit_config.binds(name, queue, tenant_id)
