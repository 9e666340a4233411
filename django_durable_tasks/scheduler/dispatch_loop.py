"""Dispatch loop of a scheduler: which due tasks are claimed and published, and when."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial

from django_durable_tasks import ports
from django_durable_tasks.celery import publisher
from django_durable_tasks.celery.publisher import Dispatched
from django_durable_tasks.conf import settings
from django_durable_tasks.limits import backpressure, config
from django_durable_tasks.limits.backpressure import QueueHead, QueueSnapshot, read_heads
from django_durable_tasks.limits.config import refresh_limits
from django_durable_tasks.limits.waitlist import URGENT
from django_durable_tasks.scheduler.due_index import DueEntry, DueIndex
from django_durable_tasks.scheduler.threads import Steps
from django_durable_tasks.states.demand import UNSERVED_AFTER, QueueDemand
from django_durable_tasks.store import clock
from django_durable_tasks.store.clock import database_now, host_now
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.task_values import SHARDS
from django_durable_tasks.tasks import batches
from django_durable_tasks.tasks import claim as task_claim
from django_durable_tasks.tasks.batches import BatchHead

# Order in which queues share a claim limit that is too low for all of them.


_REMEMBERED = 10_000


class QueueRotation:
    """Orders queues by when they were last served. Keeps 10,000 queues; others come first."""

    def __init__(self) -> None:
        self._number = 0
        self._last: dict[str, int] = {}

    def ordered(self, queues: Iterable[str]) -> list[str]:
        """Return these queues, the one that was served longest ago first."""
        shuffled = list(queues)
        # Queues of equal rank come in random order, so that several schedulers do not begin with
        # the same ones.
        random.shuffle(shuffled)
        return sorted(shuffled, key=lambda queue: self._last.get(queue, 0))

    def served(self, queues: Iterable[str]) -> None:
        """Record that these queues were served now, all at once."""
        self._number += 1
        for queue in queues:
            self._last.pop(queue, None)  # keeps the dict ordered by the last time served
            self._last[queue] = self._number
        while len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]


# The windows of a scheduler: how many tasks of each queue may be published, by its last poll.
#
# The dispatch thread reads the queues and publishes claimed tasks. The thread that fires schedules
# publishes within the same windows.


_FEW_QUEUED, _PAUSE_PER_QUEUED, _LONGEST_WINDOW_PAUSE = 5_000, 3e-6, 1.0
"""Published tasks that are counted at every poll. If there are more, the next count follows after
this number of seconds per task, about ten times the duration of the count.
"""
_USABLE = 2.0
"""Seconds after a poll for which its windows may be used without another poll."""
_BEHIND = timedelta(seconds=1)
"""If tasks of a queue have been due for longer, new ones do not overtake them."""


class PublishWindows:
    """How many more tasks of each queue a scheduler may publish."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent, self._sent_uncounted = Counter[str](), Counter[str]()
        self._without_task: dict[str, int] = {}
        self._snapshot = QueueSnapshot()
        self._read_at = self._count_at = float("-inf")
        self._behind: frozenset[str] = frozenset()

    def refresh(self, heads: Mapping[str, datetime], now: datetime, *, coming: bool) -> None:
        """Read the queues if tasks are due soon (``coming``) or were published since the last time.
        ``heads``: the first due time of each queue.
        """
        began = time.monotonic()
        if coming or self._sent:
            if began >= self._count_at:
                self._snapshot = backpressure.snapshot()
                with self._lock:
                    self._sent = Counter()
                queued = self._snapshot.queued.total()
                pause = _PAUSE_PER_QUEUED * queued if queued > _FEW_QUEUED else 0.0
                self._count_at = time.monotonic() + min(pause, _LONGEST_WINDOW_PAUSE)
            else:
                self._snapshot = self._snapshot.with_paused(backpressure.paused_queues())
        self._behind = frozenset([queue for queue, at in heads.items() if at < now - _BEHIND])
        self._read_at = began

    def record_sent(self, queue: str, number: int) -> None:
        """Record that ``number`` tasks of this queue were published; safe from other threads."""
        with self._lock:
            self._sent[queue] += number
            self._sent_uncounted[queue] += number

    def to_count(self) -> list[str]:
        """Return the queues whose messages in the broker should be counted: those with messages
        without a task at the last count, and those to which a window of messages was published
        since then, except queues with messages that belong to no task. Safe from other threads.
        """
        with self._lock:
            # Messages of others would count as well.
            for queue in self._snapshot.fleet.mixed & self._without_task.keys():
                del self._without_task[queue]
            sent = self._sent_uncounted.copy()
        full = {queue for queue, number in sent.items() if number >= self._snapshot.window(queue)}
        return sorted((full | self._without_task.keys()) - self._snapshot.fleet.mixed)

    def record_without_task(self, queue: str, number: int) -> None:
        """Record how many messages of a queue belong to no QUEUED task; safe from other threads.

        They use its window, because the next tasks wait behind them.
        """
        with self._lock:
            self._sent_uncounted.pop(queue, None)
            if number:
                self._without_task[queue] = number
            else:
                self._without_task.pop(queue, None)

    def capacity(self, queue: str) -> int:
        """Return how many more tasks of this queue may be published now."""
        capacity = self._snapshot.capacity(queue) - self._used(queue)
        return max(0, min(capacity, publisher.capacity_of(queue)))

    def size(self, queue: str) -> int:
        """Return the window of a queue, at least 1."""
        return max(1, self._snapshot.window(queue))  # QUEUE_WINDOW may be 0

    def _used(self, queue: str) -> int:
        """Return how much of a window is used beside the QUEUED tasks of the last poll."""
        return self._sent.get(queue, 0) + self._without_task.get(queue, 0)

    def demands(self, due: Mapping[str, int]) -> list[QueueDemand]:
        """Return how many tasks of these queues may be claimed, for the queues that have capacity.
        ``due``: for each queue the priorities for which tasks are due (``QueueDemand.levels``).

        If the window of a queue is full, only urgent tasks are demanded, within a small reserve.
        """
        demands = []
        for queue, levels in due.items():
            if capacity := self.capacity(queue):
                demands.append(QueueDemand(queue, capacity, levels=levels))
            elif (urgent := self._snapshot.urgent_capacity(queue) - self._used(queue)) > 0:
                demands.append(QueueDemand(queue, urgent, URGENT, levels))
        return demands

    def capacity_at_commit(self, queue: str) -> int:
        """Return how many new tasks of this queue may be published without a claim; safe from
        other threads.

        0 if the last poll is too old, or if tasks of the queue have been due for a while: a claim
        publishes those first.
        """
        if time.monotonic() - self._read_at > _USABLE or queue in self._behind:
            return 0
        return self.capacity(queue) if publisher.breaker.closed() else 0


# Publishes batch messages for due tasks that workers start in batches.
#
# A worker that starts fewer tasks than it may ends its message, because none is left. Tasks that
# become due after that need the next message. So the dispatch loop looks for them between its
# polls: when the first task of a name becomes due, and LOOK_PAUSE after it published a message.


LOOK_PAUSE, _LONGEST_BATCH_PAUSE = 0.02, 0.1
"""Seconds after which due tasks are looked for again: twice as long after each look that published
nothing, because a message is outstanding. After the longest pause the polls of the loop suffice.
"""


class BatchDispatch:
    """The queues and task names with tasks that wait for a batch, as of the last look.

    ``look_at``: the instant of the monotonic clock at which to look again.
    """

    def __init__(self) -> None:
        self._heads: list[BatchHead] = []
        self._pause, self.look_at = LOOK_PAUSE, math.inf

    def read(self, now: datetime) -> None:
        """Read them, on the connection of the caller."""
        self._heads = batches.batch_heads(now)

    def publish(self) -> int:
        """Publish a message for those that are due and have none outstanding; return how many.

        A worker that starts as many tasks as it may publishes the next message itself.
        """
        due = {
            (head.queue, head.name): head.priority
            for head in self._heads
            if head.priority is not None
        }
        self.look_at, sent = math.inf, 0
        if due:
            with dedicated_connection():
                paused, limit_config = backpressure.paused_queues(), config.limits_in_force()
            sent = publisher.publish_batches(
                {
                    (queue, name): priority
                    for (queue, name), priority in due.items()
                    if queue not in paused and not limit_config.lacks_worker(name, queue)
                }
            )
        self._pause = LOOK_PAUSE if sent or not due else 2 * self._pause
        if due and self._pause <= _LONGEST_BATCH_PAUSE:
            self.look_at = time.monotonic() + self._pause
        return sent

    def must_look(self, now: datetime) -> bool:
        """Return whether to look now: a task has become due since the last look, or ``look_at`` has
        passed.
        """
        return time.monotonic() >= self.look_at or any(
            head.priority is None and head.due_at <= now for head in self._heads
        )

    def look(self, now: datetime) -> int:
        """Read and publish. After an error the next poll of the loop does."""
        self._heads, self.look_at = [], math.inf
        with dedicated_connection():
            self.read(now)
        return self.publish()

    def upcoming(self, now: datetime) -> list[datetime]:
        """Return when the first tasks become due that were not due at the last look."""
        return [head.due_at for head in self._heads if head.due_at > now]


# A poll reads the first due time of each queue, publishes tasks that are due within the window of
# published tasks, and reads ahead: tasks that will be due within LOOKAHEAD seconds are added to
# the due index. At its due time a task is claimed by its id, so only one statement lies between
# the due time and the publish. The index is an optimization. A task that is missing in it is found
# by the next poll, and a wrong entry is refused by the claim.


logger = logging.getLogger("django_durable_tasks.scheduler")

_TIME_LIMIT = 60.0
_BATCHES = "Publishing batch messages"
_BUSY_POLL_INTERVAL = 0.1
_MIN_POLL_INTERVAL = 0.02  # seconds: a window that was just filled lasts longer
# The part of a full window that is refilled at once. A poll for each few tasks that were started
# would take the processor time of as many tasks.
_REFILLED = 0.25
_BUSY_FOR = 5.0  # seconds: a dispatched task is often followed by others
_MIN_SLEEP = 0.005
_PASSES_PER_POLL, _BATCHES_PER_PASS, _MIN_PER_QUEUE = 4, 5, 10
"""A poll has at most four passes. Each claims at most five times BATCH_SIZE tasks, and allows every
queue at least ten.
"""
_CLAIM_PAUSE_PER_TASK, _CLAIM_PAUSE_MAX = 0.002, 0.015
"""After a claim by ids the next one waits as long as it took, or this many seconds per task, up to
the maximum. If many tasks are due, larger batches share the cost of a claim.
"""
_READ_AHEAD_INTERVAL = 0.25  # seconds: each time all tasks within LOOKAHEAD are read again
_POLL_POSTPONED_MAX, _POLL_DURATION_MAX = 0.05, 0.02
"""A regular poll that would still last when the next task of the due index is due is postponed
until that task is dispatched, by at most 0.05 s. A poll is assumed to last as long as the last one,
at most 0.02 s.
"""
_CLOCK_TOLERANCE = timedelta(microseconds=300)
"""The estimated clock may be ahead of the database by this much. An early claim finds nothing."""


class DispatchLoop:
    """Publishes the due tasks of ``shards``; None means all of them.

    ``made_wait``: whether a claim of the last round published fewer tasks than it took, usually
    because a limit refused some. Capacity for these may have become free before the claim was
    committed.
    """

    def __init__(self, node: uuid.UUID, index: DueIndex, steps: Steps) -> None:
        self.node, self.index = node, index
        self.shards: frozenset[int] | None = None
        self.scanned_at: float | None = None
        self.sent_at: float | None = None
        self.made_wait = False
        self._steps = steps
        self.windows = PublishWindows()
        self._rotation, self._batches = QueueRotation(), BatchDispatch()
        self._failed_queues = set[str]()
        self._clock: clock.ClockReading | None = None
        self._next_heads: list[datetime] = []
        self._poll_at = self._busy_until = self._next_claim_at = self._poll_took = 0.0
        self._popped_nothing = self._poll_requested = self._poll_is_urgent = False
        self._filled = 0.0
        """The largest part of a window that the last poll filled; 0 if it left a window open."""
        self._read_ahead_at, self._read_ahead = float("-inf"), dict[str, int]()

    @property
    def now(self) -> datetime:
        """Return the database's time: read at the last poll, advanced by the monotonic clock."""
        if self._clock is None:
            return host_now()
        return self._clock.database_time + timedelta(
            seconds=time.monotonic() - (self._clock.requested + self._clock.received) / 2
        )

    def serve(self, shards: frozenset[int]) -> None:
        """Dispatch tasks of these shards from now on."""
        served = None if len(shards) == SHARDS else shards
        if served != self.shards:
            self.shards, self._poll_at, self._read_ahead_at = served, 0.0, float("-inf")

    def request_poll(self) -> None:
        """Poll in the next round, because tasks that are due soon were created or moved; safe to
        call from other threads.
        """
        self._poll_requested = True

    def poll_soon(self) -> None:
        """Poll in the next round, and often for some seconds; safe from other threads."""
        self._poll_requested, self._busy_until = True, time.monotonic() + _BUSY_FOR

    def run_once(self) -> int:
        """Publish the tasks that have become due; return their number."""
        self.made_wait = False
        sent = self._dispatch_at_due_time()
        if time.monotonic() >= self._next_poll_at():
            sent += self.poll()
        elif self._batches.must_look(self.now - _CLOCK_TOLERANCE):
            look = partial(self._batches.look, self.now)
            sent += self._steps.attempt(_BATCHES, look, 0, _TIME_LIMIT)
        if sent:
            self.sent_at = time.monotonic()
            self._busy_until = self.sent_at + _BUSY_FOR
        return sent

    def poll(self) -> int:
        """Publish due tasks and read ahead; return how many messages were published."""
        began, last_at = time.monotonic(), self.scanned_at
        # First, so that a request during this poll is kept.
        requested, self._poll_requested = self._poll_requested, False
        with dedicated_connection():
            self._clock = clock.read_clock()
            now = self._clock.database_time
            soon = now + timedelta(seconds=max(settings().LOOKAHEAD, 2 * settings().POLL))
            coming = [] if ports.takes_tasks() else read_heads(soon)
            self._batches.read(now)
            self._failed_queues &= {head.queue for head in coming}
            self._next_heads = [head.at for head in coming if head.at > now]
            self.windows.refresh({head.queue: head.at for head in coming}, now, coming=bool(coming))
        due = {head.queue: head.levels for head in coming if head.at <= now}

        def refresh() -> None:
            with dedicated_connection():
                refresh_limits()

        if coming:  # so that no claim at a due time has to read them
            self._steps.attempt("Reading the limits", refresh, None, _TIME_LIMIT)
        sent, unindexed, more = self._dispatch(due, now)
        batches = self._steps.attempt(_BATCHES, self._batches.publish, 0, _TIME_LIMIT)
        # Read ahead if the last read is old, or did not include all of these queues and priorities.
        if coming and (
            requested
            or time.monotonic() >= self._read_ahead_at + _READ_AHEAD_INTERVAL
            or any(head.levels & ~self._read_ahead.get(head.queue, 0) for head in coming)
        ):
            read_ahead = partial(self._look_ahead, coming, now, soon)
            self._steps.attempt("Reading upcoming tasks", read_ahead, None, _TIME_LIMIT)
        self.scanned_at = time.monotonic()
        pause = 0.0 if more else self._pause(unindexed)
        if unindexed and not more and self._filled and last_at is not None:
            # No task of these queues can be published before others were started.
            lasts = (began - last_at) * _REFILLED / self._filled
            pause = max(pause, min(lasts, _BUSY_POLL_INTERVAL, settings().POLL))
        self._poll_at = self.scanned_at + pause
        self._poll_is_urgent = more or bool(unindexed)
        self._poll_took = min(self.scanned_at - began, _POLL_DURATION_MAX)
        return sent + batches

    def _next_poll_at(self) -> float:
        """Return when to poll next. A request makes it earlier, but keeps the minimum interval. A
        regular poll that would delay a task of the due index is postponed.
        """
        now = time.monotonic()
        if self._poll_requested:
            return min(self._poll_at, (self.scanned_at or 0.0) + _MIN_POLL_INTERVAL)
        if self._poll_is_urgent or now < self._poll_at:
            return self._poll_at
        next_at = self._next_at()
        until = 0.0 if next_at is None else (next_at + _CLOCK_TOLERANCE - self.now).total_seconds()
        if not 0 < until < self._poll_took:
            return self._poll_at
        return min(now + until, self._poll_at + _POLL_POSTPONED_MAX)

    def busy(self) -> bool:
        """Return whether tasks were dispatched, or became due, in the last seconds; safe to call
        from other threads.
        """
        return time.monotonic() < self._busy_until

    def _pause(self, unindexed: int) -> float:
        """Return the seconds until the next poll after one that claimed ``unindexed`` tasks which
        the due index did not contain, and left no due task. Such tasks are often followed by
        others. Tasks of the index that became due during the poll are not: if they counted, each
        poll would soon cause another one, and tasks would start at the rate of the polls instead
        of at their due time. Batch messages do not count: see ``BatchDispatch``.
        """
        if unindexed:
            return _MIN_POLL_INTERVAL
        return min(_BUSY_POLL_INTERVAL if self.busy() else settings().POLL, settings().POLL)

    def _dispatch(self, due: Mapping[str, int], now: datetime) -> tuple[int, int, bool]:
        """Publish due tasks of these queues and priorities (``QueueDemand.levels``); return how
        many, how many claimed tasks the due index did not contain, and whether more tasks may be
        publishable.

        Each pass claims an equal part of every queue, so that a long queue does not delay the
        others. If the limit is too low for all of them, the queues that were served longest ago
        come first.
        """
        batch, sent, unindexed = settings().BATCH_SIZE, Counter[str](), 0
        remaining = {demand.queue: demand for demand in self.windows.demands(due)}
        limits = {queue: demand.limit for queue, demand in remaining.items()}
        for _ in range(_PASSES_PER_POLL):
            if not remaining:
                break
            most = _BATCHES_PER_PASS * batch
            share = max(_MIN_PER_QUEUE, most // len(remaining))
            demands = [
                remaining[queue].at_most(share) for queue in self._rotation.ordered(remaining)
            ]
            done = Dispatched()
            # A queue that failed the last time is claimed alone.
            alone = [demand for demand in demands if demand.queue in self._failed_queues]
            together = [demand for demand in demands if demand.queue not in self._failed_queues]
            if together:
                self._serve_together(done, together, now, most)
            for demand in alone:
                self._serve_single(done, demand, now)
            self._rotation.served(done.taken)
            self.made_wait |= done.taken.total() > done.claimed.total()
            # A claimed task that stayed in the index would be claimed again in vain.
            unindexed += len(done.ids) - self.index.discard(done.ids)
            for queue, number in done.sent.items():
                self.windows.record_sent(queue, number)
            sent.update(done.sent)
            remaining = {
                demand.queue: whole._replace(limit=whole.limit - done.claimed[demand.queue])
                for demand in demands
                if (whole := remaining[demand.queue]).limit > done.claimed[demand.queue]
                and (demand.queue in done.cut or done.taken[demand.queue] >= demand.limit)
            }
            if done.of_full_shares:
                break  # the next poll also sees tasks of others that have become due meanwhile
        more = bool(remaining) or any(number >= batch for number in sent.values())
        filled_shares = [number / self.windows.size(queue) for queue, number in sent.items()]
        are_full = all(number >= limits[queue] for queue, number in sent.items())
        self._filled = max(filled_shares, default=0.0) if are_full else 0.0
        return sent.total(), unindexed, more

    def _serve_together(
        self, done: Dispatched, demands: list[QueueDemand], now: datetime, most: int
    ) -> None:
        """Dispatch these queues; on failure retry in halves to isolate the failing queue."""
        if len(demands) == 1:
            self._serve_single(done, demands[0], now)
            return
        failed = list[Exception]()

        def act() -> int:
            try:
                return self._dispatch_of(done, demands, now, most - done.taken.total())
            except Exception as error:
                logger.debug(
                    "Dispatching %d queues together failed; trying halves.",
                    len(demands),
                    exc_info=True,
                )
                failed.append(error)
                return 0

        self._steps.attempt("Dispatching due tasks", act, 0, _TIME_LIMIT)
        if failed:
            with dedicated_connection():
                database_now()  # raises in an outage, so that the halves are not tried
            middle = len(demands) // 2
            for half in (demands[:middle], demands[middle:]):
                self._serve_together(done, half, now, most)

    def _serve_single(self, done: Dispatched, demand: QueueDemand, now: datetime) -> None:
        """Dispatch this queue; after a failure it is claimed separately until it succeeds."""

        def act() -> int:
            self._failed_queues.add(demand.queue)
            sent = self._dispatch_of(done, [demand], now, demand.limit)
            self._failed_queues.discard(demand.queue)
            return sent

        self._steps.attempt(f"Dispatching queue {demand.queue!r}", act, 0, _TIME_LIMIT)

    def _dispatch_of(
        self, done: Dispatched, demands: list[QueueDemand], now: datetime, limit: int
    ) -> int:
        # A joint claim that failed may have published some tasks: a repetition must not exceed
        # the windows.
        remaining = [
            demand.at_most(number)
            for demand in demands
            if (number := demand.limit - done.claimed.get(demand.queue, 0)) > 0
        ]
        publisher.dispatch_of(done, remaining, now, max(0, limit), self.node, self.shards)
        return done.sent.total()

    def _look_ahead(self, coming: list[QueueHead], now: datetime, soon: datetime) -> None:
        queues, levels, limit = [head.queue for head in coming], 0, 10 * settings().BATCH_SIZE
        for head in coming:
            levels |= head.levels
        with dedicated_connection():
            rows = task_claim.coming(queues, now, soon, limit, self.shards, levels=levels)
        self.index.add(DueEntry(*row) for row in rows)
        if len(rows) < limit:
            self._read_ahead_at, self._read_ahead = time.monotonic(), dict.fromkeys(queues, levels)

    def _dispatch_at_due_time(self) -> int:
        """Claim the tasks of the due index that are due by their ids; a poll handles the others."""
        began = time.monotonic()
        if began < self._next_claim_at:
            return 0
        entries = list[DueEntry]()

        def pop() -> None:
            # Appended one after the other: what was popped is claimed even after an error.
            nonlocal entries
            now, limit, shards = self.now - _CLOCK_TOLERANCE, settings().BATCH_SIZE, self.shards
            entries += self.index.pop_due(now, limit, shards)
            if shards is not None and len(entries) < limit:
                unserved_since = now - timedelta(seconds=UNSERVED_AFTER)
                entries += self.index.pop_due(unserved_since, limit - len(entries))

        self._steps.attempt("Reading the due index", pop, None, _TIME_LIMIT)
        self._popped_nothing = not entries
        if not entries:
            return 0
        numbers = Counter(due.queue for due in entries)
        capacity = {queue: self.windows.capacity(queue) for queue in numbers}
        ids = [due.task_id for due in entries if numbers[due.queue] <= capacity[due.queue]]
        claim = partial(publisher.dispatch_these, ids, self.now, self.node)
        sent = (
            self._steps.attempt("Dispatching tasks at their due time", claim, 0, _TIME_LIMIT)
            if ids
            else 0
        )
        if sent == len(entries):
            for queue, number in numbers.items():
                self.windows.record_sent(queue, number)
        else:
            self._poll_at = min(self._poll_at, time.monotonic() + _MIN_POLL_INTERVAL)
            self._poll_is_urgent = True
            self.made_wait |= sent < len(ids)
        ended = time.monotonic()
        self._next_claim_at = ended + min(
            max(ended - began, _CLAIM_PAUSE_PER_TASK * len(entries)), _CLAIM_PAUSE_MAX
        )
        return sent

    def _next_at(self) -> datetime | None:
        """Return when the first entry of the index is due; None if the index fails."""
        return self._steps.attempt(
            "Reading the next due time", self.index.next_at, None, _TIME_LIMIT
        )

    def time_to_sleep(self) -> float:
        """Return the seconds until the next poll or due time."""
        now = self.now
        waits = [min(self._next_poll_at(), self._batches.look_at) - time.monotonic()]
        waits += [
            (head + _CLOCK_TOLERANCE - now).total_seconds()
            for head in (*self._next_heads, *self._batches.upcoming(now))
            if head > now
        ]
        next_at = self._next_at()
        if next_at is not None:
            until = (next_at + _CLOCK_TOLERANCE - now).total_seconds()
            if until <= 0 and self._popped_nothing:
                # it belongs to another node's shards; that node will claim it
                until = _MIN_SLEEP
            waits.append(max(until, self._next_claim_at - time.monotonic()))
        return max(0.0, min(waits))
