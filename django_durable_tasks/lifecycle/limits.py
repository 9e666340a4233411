"""What holds work back before the claim: paused queues, the window of published rows per queue, limits that can apply.

The fast path asks a picture of the queues that is at most a second old and is painted on a connection of our own, so
that ``.delay()`` adds no statement to the caller's transaction.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from django.core import mail
from django.db import Error
from django.db.models import Count

from django_durable_tasks import conf
from django_durable_tasks.lifecycle import allowances
from django_durable_tasks.lifecycle.clock import database_now
from django_durable_tasks.lifecycle.connections import close_all, own
from django_durable_tasks.lifecycle.heads import heads
from django_durable_tasks.lifecycle.transitions import database, tasks
from django_durable_tasks.models import Node, QueueControl
from django_durable_tasks.rules.rooms import share_of

_UNKNOWN_WORKERS_WINDOW = 1_000
_SMALLEST_WINDOW = 200
_FEWEST_URGENT = 10
_BEHIND = 1.0
"""Rows that are due for longer than so many seconds are behind: new ones leave room for them."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The queues at one moment: which are paused, how many rows wait published, how many slots listen."""

    paused: frozenset[str] = frozenset()
    queued: Counter[str] = field(default_factory=Counter)
    slots: Counter[str] = field(default_factory=Counter)
    of_tenants: Counter[tuple[str, int]] = field(default_factory=Counter)

    def window(self, queue: str, starts_per_second: float = 0.0) -> int:
        """Return how many rows may wait published: 2 x slots and two seconds' starts, 1,000 with no worker known."""
        fixed = conf.settings().QUEUE_WINDOW
        if fixed is not None:
            return fixed
        if not self.slots[queue]:
            return _UNKNOWN_WORKERS_WINDOW
        return max(_SMALLEST_WINDOW, 2 * self.slots[queue] + round(2 * starts_per_second))

    def room(self, queue: str, starts_per_second: float = 0.0) -> int:
        """Return how many more rows of this queue may be published now."""
        if queue in self.paused:
            return 0
        return max(0, self.window(queue, starts_per_second) - self.queued[queue])

    def urgent_room(self, queue: str, starts_per_second: float = 0.0) -> int:
        """Return how many more rows of the highest priority may be: a full window has a tenth more for them."""
        if queue in self.paused:
            return 0
        window = self.window(queue, starts_per_second)
        return max(0, window + max(_FEWEST_URGENT, window // 10) - self.queued[queue])

    def share(self, queue: str, tenant_id: int) -> int:
        """Return how many more rows of this tenant its fair share of the queue holds."""
        tenants = {tenant for name, tenant in self.of_tenants if name == queue} | {tenant_id}
        return share_of(self.window(queue), len(tenants)) - self.of_tenants[queue, tenant_id]


def paused_queues() -> frozenset[str]:
    """Return the queues of which nothing starts."""
    paused = QueueControl.objects.using(database()).filter(paused_at__isnull=False)
    return frozenset(paused.values_list("name", flat=True))


def picture() -> Picture:
    """Look at the queues: three statements, whatever the number of rows that wait."""
    global _window_of
    waiting = tasks().queued().order_by().values_list("queue", "tenant_id").annotate(number=Count("pk"))
    workers = Node.objects.using(database()).alive().workers().values_list("queues", "slots")
    of_tenants = Counter({(queue, tenant): number for queue, tenant, number in waiting})
    queued = Counter[str]()
    for (queue, _), number in of_tenants.items():
        queued[queue] += number
    found = Picture(paused_queues(), queued, _slots(workers), of_tenants)
    _window_of = found.window
    return found


_window_of: Callable[[str, float], int] = Picture().window
_pace_of: Callable[[str], float] = Counter[str]().__getitem__


def move_at(pace: Callable[[str], float]) -> None:
    """Let the windows of this process count how many starts a second each queue has."""
    global _pace_of
    _pace_of = pace


def window_of(queue: str) -> int:
    """Return how many rows of a queue may wait published, by the last picture and the pace of this process."""
    return _window_of(queue, _pace_of(queue))


def _slots(workers: Iterable[tuple[list[str], int]]) -> Counter[str]:
    slots: Counter[str] = Counter()
    for queues, number in workers:
        for queue in queues:
            slots[queue] += number
    return slots


class _Recent:
    """The last picture of this process, at most a second old; of several threads one paints, the others look."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.painted_at = float("-inf")
        self.picture: Picture | None = None
        self.book = allowances.Book()
        self.behind: frozenset[str] = frozenset()
        self.rung: Counter[str] = Counter()
        self.rung_of: Counter[tuple[str, int]] = Counter()

    def look(self) -> None:
        if time.monotonic() - self.painted_at > allowances.FRESH and self.lock.acquire(blocking=False):
            try:
                self._paint()
            finally:
                self.lock.release()

    def take_place(self, name: str, queue: str, tenant_id: int) -> bool:
        self.look()
        if self.picture is None or self.book.binds(name, queue, tenant_id):
            return False
        # Rows that are due and wait are not to starve: births leave half of the window to them.
        left = self.picture.window(queue) // 2 if queue in self.behind else 0
        if self.picture.room(queue) - left <= self.rung[queue]:
            return False
        if self.book.tenants and self.picture.share(queue, tenant_id) <= self.rung_of[queue, tenant_id]:
            return False
        self.rung[queue] += 1
        self.rung_of[queue, tenant_id] += 1
        return True

    def _paint(self) -> None:
        try:
            with own():
                self.book, self.picture = allowances.read(), picture()
                late = database_now() - timedelta(seconds=_BEHIND)
                self.behind = frozenset(queue for queue, head in heads().items() if head < late)
        except Error:
            self.picture = None
        if hasattr(mail, "outbox"):
            # Django's test runner drops its database at the end, which PostgreSQL refuses while we are connected.
            close_all()
        self.rung.clear()
        self.rung_of.clear()
        self.painted_at = time.monotonic()


_recent = _Recent()


def forget_picture() -> None:
    """Forget the last picture and what was read of limits; the next fast path looks anew."""
    global _recent, _window_of, _pace_of
    _recent, _window_of, _pace_of = _Recent(), Picture().window, Counter[str]().__getitem__
    allowances.forget()


os.register_at_fork(after_in_child=forget_picture)


def fast_path_open(name: str, queue: str, tenant_id: int) -> bool:
    """Return whether a task of this name may be published at once, without a claim, and count it.

    False where any limit can apply to it, for only a claim decides of those, and while the queues are unknown.
    """
    return _recent.take_place(name, queue, tenant_id)


def can_bind(name: str, queue: str, tenant_id: int) -> bool:
    """Return whether a limit can apply to a task of this name, as the last look said."""
    return _recent.book.binds(name, queue, tenant_id)
