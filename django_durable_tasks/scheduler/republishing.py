"""Republishes tasks whose messages the broker has lost, on a thread of its own.

The age of a message is no evidence: in a backlog every message is old. So the leader compares, for
each queue with QUEUED tasks that have waited for REPUBLISH_AFTER, the number of its tasks with the
number of messages that the broker reports and that live workers hold (``_Look``). Where messages
are missing, the oldest tasks are republished, each at most once per REPUBLISH_AFTER. A comparison
starts without that wait if the queue has a worker with free processes, if it got its first worker,
after an outage of the broker, and when this process becomes leader.

Messages that belong to no QUEUED task raise the count and hide losses. Three rules bound that:

1. Such messages of tasks (cancelled, edited, published twice) are dropped by the next worker.
2. If a task that was published later has started, an older one that no worker holds is lost,
   because queues are first in, first out (``_overtaken``).
3. If nothing was started, one task of the queue is republished per ``republish_after_max``. Its
   start makes place for a task that is published once, whose start leads to rule 2.

A broker that cannot count gets a message of each task after REPUBLISH_AFTER, twice that, four times
that, up to ``republish_after_max``.

Every scheduler also counts the messages without a QUEUED task for its own windows
(``PublishWindows.record_without_task``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from django.db.models import Count, Max, Q
from django.db.models.functions import Coalesce

from django_durable_tasks.celery import publisher
from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.conf import SKEW_MAX, republish_after_max, settings
from django_durable_tasks.exceptions import BrokerUnavailable
from django_durable_tasks.limits import backpressure, config
from django_durable_tasks.limits.backpressure import Fleet
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.scheduler.dispatch_loop import PublishWindows
from django_durable_tasks.scheduler.leader import Leader
from django_durable_tasks.scheduler.threads import PeriodicThread, Steps
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import aware, database_now
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.tasks import batches, claim

_READING, _WINDOWS = "Reading the published tasks", "Counting the messages of queues"
_READING_STARTS = "Reading the starts of running tasks"
_TIME_LIMIT = 60.0
_INTERVAL, _CONFIRM_INTERVAL = 0.5, 0.1
"""Seconds between two rounds, and after a first count of messages without a task: only what two
counts show is not a message whose task was started between the reading of both numbers.
"""
_PAUSE_PER_READ = 20.0
"""The time between two readings of the published tasks, as a multiple of the duration of one."""
_RECENT = 60.0
"""Seconds. Outages that were reported longer ago were handled by the previous leader."""
_REPORTS_INTERVAL = 15.0
"""Seconds. The nodes report one outage with their next heartbeats, not at the same time."""


@dataclass(frozen=True, slots=True)
class _Published:
    """The QUEUED tasks of a queue: all, those whose publishing is certainly over, those published
    before the last report of every worker, and those that have waited for REPUBLISH_AFTER.
    """

    queue: str
    total: int
    settled: int
    early: int
    overdue: int


@dataclass(frozen=True, slots=True)
class _Look:
    """The last comparison of a queue: when, how many messages were missing, when to look again, and
    when rule 3 was applied last; instants of the monotonic clock.
    """

    at: float = float("-inf")
    missing: int = 0
    next_at: float = float("-inf")
    aged_at: float = float("-inf")


class Republishing(PeriodicThread):
    """Compares tasks and messages, and republishes what is lost."""

    def __init__(
        self, leader: Leader, steps: Steps, monitor: HeartbeatMonitor, windows: PublishWindows
    ) -> None:
        super().__init__("republishing", self.round)
        self._leader, self._steps, self._windows = leader, steps, windows
        self._comparison = Comparison(monitor)
        self._term: int | None = None
        self._compare_at = 0.0
        self._without_task: dict[str, int] = {}

    def round(self) -> float:
        """Do what is due; return the seconds until the next round."""
        unconfirmed = self._steps.attempt(_WINDOWS, self._count_for_windows, 0, _TIME_LIMIT)
        if not self._leader.leading():
            self._term = None
        else:
            if self._term != self._leader.term:
                self._term = self._leader.term
                self._comparison.restart()
            self._compare()
        return _CONFIRM_INTERVAL if unconfirmed else min(_INTERVAL, settings().POLL)

    def _compare(self) -> None:
        began = time.monotonic()
        if began < self._compare_at:
            return
        nothing = list[_Published]()
        queues = self._steps.attempt(_READING, self._comparison.read, nothing, _TIME_LIMIT)
        if any(published.overdue for published in queues):
            read_starts = partial(self._comparison.read_starts, queues)
            self._steps.attempt(_READING_STARTS, read_starts, None, _TIME_LIMIT)
        took = time.monotonic() - began
        self._compare_at = began + max(_INTERVAL, _PAUSE_PER_READ * took)
        for published in queues:
            if self._stopping or not self._leader.leading():
                return
            act = partial(self._comparison.compare, published)
            self._steps.attempt(f"Republishing queue {published.queue!r}", act, 0, _TIME_LIMIT)

    def _count_for_windows(self) -> int:
        """Count the messages without a QUEUED task in the queues to which this process publishes
        most; return how many counts are to be confirmed.
        """
        queues = [queue for queue in self._windows.to_count() if publisher.breaker.closed()]
        if not queues:
            self._without_task = {}
            return 0
        before, counts = _queued(queues), dict[str, int]()
        for queue in queues:
            try:
                counts[queue] = publisher.count(queue) or 0
            except BrokerUnavailable:
                return 0
        after, last = _queued(queues), self._without_task
        self._without_task = {
            queue: max(0, number - max(before[queue], after[queue]))
            for queue, number in counts.items()
        }
        unconfirmed = 0
        for queue, number in self._without_task.items():
            if number and queue not in last:
                unconfirmed += 1
            else:
                self._windows.record_without_task(queue, min(number, last.get(queue, 0)))
        return unconfirmed


def _queued(queues: Iterable[str]) -> Counter[str]:
    """Return the number of QUEUED tasks of these queues."""
    with dedicated_connection():
        published = tables.with_texts(tables.tasks().queued(), "queue", list(queues)).order_by()
        return Counter(dict(published.values_list("queue").annotate(number=Count("pk"))))


class Comparison:
    """Compares the QUEUED tasks of queues with their messages; used by the leader only."""

    def __init__(
        self, monitor: HeartbeatMonitor, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._monitor, self._clock = monitor, clock
        self._outages = publisher.breaker.outages
        self._reported, self._reports_from = float("-inf"), 0.0
        self._fleet, self._now = Fleet(), datetime.fromtimestamp(0, UTC)
        self._looks: dict[str, _Look] = {}
        self._all_early_until, self._early_until = float("-inf"), dict[str, float]()
        self._started: dict[str, dict[int, datetime]] = {}

    def restart(self) -> None:
        """Compare all queues at once, and until REPUBLISH_AFTER has passed without its wait."""
        self._looks, self._all_early_until = {}, self._clock() + settings().REPUBLISH_AFTER

    def read(self) -> list[_Published]:
        """Return the queues with QUEUED tasks, those that were compared longest ago first. Nothing
        is read while the broker is unavailable.
        """
        breaker = publisher.breaker
        if not breaker.closed() and not breaker.may_probe():
            return []
        with dedicated_connection():
            self._now, before = database_now(), self._fleet
            self._fleet = backpressure.fleet()
            self._request_after_events(before)
            tasks = tables.tasks().queued()
            if not tasks.filter(due_at__lte=self._published_before(_early())).exists():
                return []

            def since(seconds: float) -> Count:
                return Count("pk", filter=Q(due_at__lte=self._published_before(seconds)))

            counts = (
                tasks.order_by()
                .values_list("queue")
                .annotate(
                    total=Count("pk"),
                    settled=since(_settled()),
                    early=since(_early()),
                    overdue=since(settings().REPUBLISH_AFTER),
                )
            )
            queues = [_Published(*row) for row in counts]
        names = {published.queue for published in queues}
        self._looks = {name: look for name, look in self._looks.items() if name in names}
        queues.sort(key=lambda published: self._looks.get(published.queue, _Look()).at)
        return queues

    def _published_before(self, seconds: float) -> datetime:
        """Return the latest ``due_at`` of tasks that were published at least so long ago."""
        return self._now + timedelta(seconds=settings().REPUBLISH_AFTER - seconds)

    def _request_after_events(self, before: Fleet) -> None:
        """Request comparisons after an outage, and of queues that have got their first worker or
        lost their last one.
        """
        if self._outage_ended():
            self.restart()
            batches.publish_messages_again()
        for queue in before.concurrency.keys() - self._fleet.concurrency.keys():
            self._looks.pop(queue, None)
        for queue in self._fleet.concurrency.keys() - before.concurrency.keys():
            self._looks.pop(queue, None)
            self._early_until[queue] = self._clock() + settings().REPUBLISH_AFTER
            batches.publish_messages_again(queue)

    def _outage_ended(self) -> bool:
        """Return whether the broker can be used again. An outage is noticed by this process if it
        failed to publish, and otherwise by the workers and the other schedulers, which report it.
        """
        if not publisher.breaker.closed():
            return False
        outages, reported = publisher.breaker.outages, self._monitor.broker_outage_at
        at = self._clock()
        is_new = reported > self._reported and at - reported < _RECENT
        if outages == self._outages and not (is_new and at >= self._reports_from):
            return False
        self._outages, self._reported = outages, reported
        self._reports_from = at + _REPORTS_INTERVAL
        return True

    def read_starts(self, queues: Sequence[_Published]) -> None:
        """Read when the tasks that run now were published, if that was once. What is later than now
        was written by a clock that was ahead.
        """
        latest = self._now + timedelta(seconds=SKEW_MAX)
        self._started = {
            queue: {level: at for level, at in self._started.get(queue, {}).items() if at <= latest}
            for queue in (published.queue for published in queues)
        }
        running = tables.tasks().running().filter(publish_count=1, in_batch=False).order_by()
        last_published = Max(Coalesce("queued_at", "created_at"))
        with dedicated_connection():
            rows = list(running.values_list("queue", "priority").annotate(last=last_published))
        for queue, priority, at in rows:
            if queue in self._started and aware(at) <= latest:
                last = self._started[queue]
                last[priority] = max(aware(at), last.get(priority, aware(at)))

    def compare(self, published: _Published) -> int:
        """Compare a queue if that is due, and republish what is missing; return how many tasks."""
        queue, at = published.queue, self._clock()
        look = self._looks.get(queue, _Look())
        is_early = self._fleet.free[queue] > 0 or at < max(
            self._all_early_until, self._early_until.get(queue, float("-inf"))
        )
        if not (published.early if is_early else published.overdue) or at < look.next_at:
            return 0
        if publisher.backoff.remaining(queue):
            return 0
        if published.overdue:
            self._end_waits(queue)
        try:
            in_broker = publisher.count(queue)
        except BrokerUnavailable:
            return 0
        shortest, longest = settings().REPUBLISH_AFTER, republish_after_max()
        if in_broker is None:
            return self._republish(self._overdue(queue, shortest), longest)
        rows = self._overdue(queue, _early() if is_early else shortest)
        missing = self._missing(published, in_broker)
        if not missing and published.overdue:
            rows, missing = self._overtaken(queue)
        confirmed = min(missing, look.missing) if at < look.at + 3 * _confirm() else 0
        number = 0
        while number < confirmed:
            republished = self._republish(rows, shortest, confirmed - number)
            number += republished
            if not republished:
                break
        aged_at, hidden = look.aged_at, in_broker > published.total and published.overdue
        if not missing and hidden and at >= aged_at + longest:
            number, aged_at = self._republish(self._overdue(queue, longest), shortest, 1), at
        still_missing = missing - number
        if still_missing > 0 or self._fleet.leaves_out(queue):
            again = _confirm()
        elif is_early and published.settled < published.total:
            # What is still being published was not compared.
            again = _settled()
        else:
            again = shortest
        self._looks[queue] = _Look(at, max(0, still_missing), at + again, aged_at)
        return number

    def _end_waits(self, queue: str) -> None:
        """End expired tasks, and return tasks that use places of limits in a queue without a
        worker.
        """
        with dedicated_connection():
            claim.expire_queued(queue, self._now, settings().BATCH_SIZE)
            if config.limits_in_force().is_shared and self._fleet.leaves_out(queue):
                claim.return_left_out(queue, self._now, settings().BATCH_SIZE)

    def _missing(self, published: _Published, in_broker: int) -> int:
        """Return how many tasks have no message in the broker or in a worker.

        Workers with free processes could run what others hold, so that much is missing too.
        """
        without = max(0, published.settled - in_broker)
        lost = max(0, without - self._fleet.held[published.queue])
        return min(without, lost + self._fleet.free[published.queue])

    def _overdue(self, queue: str, seconds: float) -> TaskQuerySet:
        """Return the tasks of a queue that were published so long ago, the oldest first."""
        return tables.tasks().republish_due(self._published_before(seconds)).filter(queue=queue)

    def _overtaken(self, queue: str) -> tuple[TaskQuerySet, int]:
        """Return the tasks that were published before one of the same or a lower priority that has
        started, and how many of them no worker can hold.
        """
        earlier = Q(pk__in=[])
        for priority, at in self._started.get(queue, {}).items():
            last = at + timedelta(seconds=settings().REPUBLISH_AFTER - _settled())
            earlier |= Q(priority__gte=priority, due_at__lt=last)
        with dedicated_connection():
            rows = self._overdue(queue, settings().REPUBLISH_AFTER).filter(earlier)
            return rows, max(0, rows.count() - self._fleet.held[queue])

    def _republish(self, rows: TaskQuerySet, longest: float, number: int | None = None) -> int:
        """Republish at most ``number`` of these tasks, whose next wait is at most ``longest``
        seconds.
        """
        limit = min(settings().BATCH_SIZE, publisher.capacity())
        limit = limit if number is None else min(limit, number)
        if limit <= 0:
            return 0
        with dedicated_connection():
            messages = claim.republish(rows, self._now, limit, longest)
        publisher.publish_claimed(messages)
        return len(messages)


def _settled() -> float:
    """Return the seconds after which the publishing of a claimed task is over."""
    return min(settings().PUBLISH_TIMEOUT, settings().REPUBLISH_AFTER / 4)


def _early() -> float:
    """Return the seconds after which a task beside free processes has no message: each worker has
    reported since then.
    """
    return min(settings().NODE_HEARTBEAT, settings().REPUBLISH_AFTER / 2)


def _confirm() -> float:
    """Return the seconds between two comparisons, of which the smaller result counts: each worker
    reports how many messages it holds in between.
    """
    return min(1.1 * settings().NODE_HEARTBEAT, settings().REPUBLISH_AFTER / 2)
