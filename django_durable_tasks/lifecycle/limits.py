"""What holds work back: paused queues, and the window of published rows per queue.

The fast path asks a picture of the queues that is at most a second old and is painted on a connection of our own, so
that ``.delay()`` adds no statement to the caller's transaction.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from django.core import mail
from django.db import Error
from django.db.models import Count

from django_durable_tasks import conf
from django_durable_tasks.lifecycle.connections import close_all, own
from django_durable_tasks.lifecycle.transitions import database, tasks
from django_durable_tasks.models import Node, QueueControl

_FRESH = 1.0
_UNKNOWN_WORKERS_WINDOW = 1_000
_SMALLEST_WINDOW = 200


@dataclass(frozen=True, slots=True)
class Picture:
    """The queues at one moment: which are paused, how many rows wait published, how many slots listen."""

    paused: frozenset[str] = frozenset()
    queued: Counter[str] = field(default_factory=Counter)
    slots: Counter[str] = field(default_factory=Counter)

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


def picture() -> Picture:
    """Look at the queues: three statements, whatever the number of rows that wait."""
    paused = QueueControl.objects.using(database()).filter(paused_at__isnull=False).values_list("name", flat=True)
    waiting = tasks().queued().order_by().values_list("queue").annotate(number=Count("pk"))
    workers = Node.objects.using(database()).alive().workers().values_list("queues", "slots")
    return Picture(frozenset(paused), Counter(dict(waiting)), _slots(workers))


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
        self.rung: Counter[str] = Counter()

    def take_place(self, queue: str) -> bool:
        if time.monotonic() - self.painted_at > _FRESH and self.lock.acquire(blocking=False):
            try:
                self._paint()
            finally:
                self.lock.release()
        if self.picture is None or self.picture.room(queue) <= self.rung[queue]:
            return False
        self.rung[queue] += 1
        return True

    def _paint(self) -> None:
        try:
            with own():
                self.picture = picture()
        except Error:
            self.picture = None
        if hasattr(mail, "outbox"):
            # Django's test runner drops its database at the end, which PostgreSQL refuses while we are connected.
            close_all()
        self.rung.clear()
        self.painted_at = time.monotonic()


_recent = _Recent()


def forget_picture() -> None:
    """Forget the last picture; the next fast path paints a new one."""
    global _recent
    _recent = _Recent()


os.register_at_fork(after_in_child=forget_picture)


def fast_path_open(queue: str) -> bool:
    """Return whether a task born now may be published at once, and count it; False while the queues are unknown."""
    return _recent.take_place(queue)
