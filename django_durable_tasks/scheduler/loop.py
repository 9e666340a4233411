"""The main loop of a scheduler: dispatch, then sleep until the next task is due. Only ``stop`` ends
it; no exception does.

This thread only dispatches. Maintenance jobs, the release of tasks that wait for a limit, the
firing of recurring tasks and the republishing of lost messages have threads of their own.
"""

from __future__ import annotations

import logging
import os
import platform
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

from django.db import Error

from django_durable_tasks import process_state
from django_durable_tasks.celery import publisher
from django_durable_tasks.celery.worker_node import NodeBeat
from django_durable_tasks.cluster.nodes import NodeReport
from django_durable_tasks.conf import settings, unknown_task_delay
from django_durable_tasks.limits import release, waitlist
from django_durable_tasks.models import NodeKind
from django_durable_tasks.scheduler.dispatch_loop import DispatchLoop, PublishWindows
from django_durable_tasks.scheduler.due_index import due_index
from django_durable_tasks.scheduler.jobs import Maintenance
from django_durable_tasks.scheduler.leader import Leader
from django_durable_tasks.scheduler.notifier import Listeners
from django_durable_tasks.scheduler.republishing import Republishing
from django_durable_tasks.scheduler.threads import PeriodicThread, Steps, Waiter
from django_durable_tasks.schedules import trigger
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.store.errors import reason_of
from django_durable_tasks.task_values import SHARDS

logger = logging.getLogger("django_durable_tasks.scheduler")
_DISPATCHING, _SLEEPING = "Dispatching", "Reading the next due time of all queues"
# Seconds until the next round after one in which dispatching failed.
_PAUSE = 0.1
# Seconds after which a step of these threads makes the leader resign.
_TIME_LIMIT = 60.0


# Creates the occurrences of recurring tasks at their fire times, on the leader.


_RETRY_LOCKED_AFTER = 0.1
_RECENT = timedelta(seconds=1)
"""While schedules are overdue by more than this, every second batch takes the schedules that became
due within this time. A backlog, for example after an outage, therefore does not delay the schedules
that become due now.
"""


class Triggering(PeriodicThread):
    """The thread that fires schedules; ``fired`` is called after each batch to dispatch it."""

    def __init__(
        self, leader: Leader, steps: Steps, windows: PublishWindows, fired: Callable[[], None]
    ) -> None:
        super().__init__("triggering", self.round)
        self._leader, self._steps, self._fired = leader, steps, fired
        self._windows = windows
        self._next_in = 0.0
        self._full = self._later_first = False

    def round(self) -> float:
        """Fire one batch of due schedules; return the seconds until the next round."""
        term = self._leader.term
        if not self._leader.leading() or term is None:
            return settings().POLL
        self._next_in = min(_RETRY_LOCKED_AFTER, settings().POLL)
        if self._steps.attempt("Firing recurring tasks", partial(self._fire, term), 0, _TIME_LIMIT):
            self._fired()
        return self._next_in

    def _fire(self, term: int) -> int:
        with dedicated_connection():
            head, now, read_at = trigger.head(), database_now(), time.monotonic()
            number = 0
            if head is not None and head <= now:
                number = self._batch(term, now, head)
                head = trigger.head()
        wait = (
            settings().POLL
            if head is None
            else (head - now).total_seconds() - (time.monotonic() - read_at)
        )
        # A due schedule that did not fire is locked by another transaction.
        self._next_in = min(
            settings().POLL,
            wait if number or wait > 0 else min(_RETRY_LOCKED_AFTER, settings().POLL),
        )
        return number

    def _batch(self, term: int, now: datetime, head: datetime) -> int:
        """Fire the oldest due schedules or, in turns with them while there is a backlog, later
        ones.

        Many schedules that are due at the same instant, such as new ones, therefore do not delay
        those that become due after it. Schedules with different times are fired in their order
        until they are overdue by more than _RECENT.
        """
        limit, recent = settings().BATCH_SIZE, now - _RECENT
        self._later_first = (self._full or head <= recent) and not self._later_first
        if self._later_first:
            after = max(head, recent)
            number = trigger.fire_due(now, limit, term, after=after, windows=self._windows)
            if number:
                return number
        number = trigger.fire_due(now, limit, term, windows=self._windows)
        self._full = number >= limit
        return number


# Releases tasks that wait for a limit, on a thread of its own.
#
# Every scheduler does this, not only the leader. The dispatch thread claims the released tasks. If
# two schedulers, or this thread and a claim, use the same capacity, the claim makes the tasks that
# exceed it wait.
#
# While tasks wait for concurrency limits only, this is a safety net that runs once per POLL: the
# process of an ended run hands its capacity over (``tasks/attempts.py``).


# Seconds. Released tasks that are short free their capacity soon.
_AFTER_RELEASE = 0.02
# Seconds between two reads of the waitlists while tasks are dispatched, which free capacity.
_BUSY_INTERVAL = 0.1


class Releasing(PeriodicThread):
    """``busy`` returns whether tasks were dispatched in the last seconds, ``released`` is called
    after a batch to dispatch it.
    """

    def __init__(
        self, steps: Steps, busy: Callable[[], bool], released: Callable[[], None]
    ) -> None:
        super().__init__("releasing", self._look)
        self._steps, self._busy, self._released = steps, busy, released
        self._idle, self._look_at = True, 0.0

    def tasks_dispatched(self) -> None:
        """Read the waitlists often from now on, because dispatched tasks free capacity when they
        end; safe to call from other threads.
        """
        if self._idle:
            self.wake()

    def _look(self) -> float:
        """Release one batch, unless the last look released nothing a moment ago: each claim that
        makes tasks wait for a limit without capacity wakes this thread.
        """
        too_early = self._look_at - time.monotonic()
        return too_early if too_early > 0 else self.round()

    def round(self) -> float:
        """Release one batch; return the seconds until the next round."""
        began = time.monotonic()
        number = self._steps.attempt(
            "Releasing tasks that wait for a limit", self._release, 0, _TIME_LIMIT
        )
        ended = time.monotonic()
        # A look costs about as much as the claim that caused it: looks may take half of the time.
        self._look_at = ended if number else ended + min(_BUSY_INTERVAL, ended - began)
        if number:
            self._released()
        self._idle = not number and not self._busy()
        if not number and release.has_more_pages():
            return min(_BUSY_INTERVAL, settings().POLL)
        if self._idle or (not number and release.wait_for_endings()):
            return settings().POLL
        if number >= settings().BATCH_SIZE:
            return 0.0
        return min(_AFTER_RELEASE if number else _BUSY_INTERVAL, settings().POLL)

    def _release(self) -> int:
        try:
            with dedicated_connection():
                if not waitlist.scopes_after("", 1):  # the only statement while no task waits
                    return 0
                return release.release_waiting(database_now(), settings().BATCH_SIZE)
        except Error:
            try:
                with dedicated_connection():
                    database_now()
            except Error:
                return 0  # the dispatch thread logs the outage
            raise


# The process of a scheduler: its dispatch thread, and the threads beside it.


class Scheduler:
    """One scheduler process: dispatches; as the leader it runs jobs and fires schedules."""

    def __init__(self, name: str = "", *, shards: frozenset[int] | None = None) -> None:
        self.node = uuid.uuid4()
        self.name = name or f"scheduler@{platform.node()}:{os.getpid()}"
        self.leader = Leader(self.node, self._on_leader_work)
        self.steps = Steps(self.leader.watch)
        self.dispatching = DispatchLoop(self.node, due_index(), self.steps)
        self.maintenance = Maintenance(
            self.node,
            self.leader,
            self.steps,
            self._report,
            self.dispatching.serve,
            self._on_tasks_due,
        )
        self.triggering = Triggering(
            self.leader, self.steps, self.dispatching.windows, self._on_tasks_due
        )
        self.releasing = Releasing(self.steps, self.dispatching.busy, self._on_tasks_due)
        self.republishing = Republishing(
            self.leader, self.steps, self.maintenance.monitor, self.dispatching.windows
        )
        self.dispatching.shards = self.maintenance.kept_shards = shards
        self.listeners = Listeners(self._on_due_soon, self._on_leader_work)
        self._beat = NodeBeat(self.node, self.name, NodeKind.SCHEDULER, self._report)
        self._stopping, self._in_outage, self._waiter = False, False, Waiter()

    def run(self) -> None:
        """Run until ``stop``; then resign and mark the node as stopped."""
        jobs = (self.maintenance, self.triggering, self.releasing, self.republishing)
        for thread in (self._beat, self.leader, self.listeners, *jobs):
            thread.start()
        while not self._stopping:
            self._waiter.wait(self.round())
        for job in jobs:
            job.stop()
        self.leader.stop()
        self.listeners.stop()
        self._beat.leave()

    def run_once(self) -> int:
        """Do everything in this thread: dispatch, and as leader fire and run each job once.

        Return how many tasks were published.
        """
        self.leader.step()
        self.triggering.round()
        self.releasing.round()
        sent = self.dispatching.poll()
        self.maintenance.round()
        self.republishing.round()
        self.leader.resign()
        return sent

    def stop(self) -> None:
        """Request the loop to end after the current round; safe in a signal handler."""
        self._stopping = True
        self._waiter.wake()

    def _on_due_soon(self, at: datetime) -> None:
        self.dispatching.request_poll()
        self._waiter.wake()

    def _on_leader_work(self) -> None:
        self.maintenance.endings_recorded()
        self.triggering.wake()

    def _on_tasks_due(self) -> None:
        """Dispatch at once the tasks that another thread created or released."""
        self.dispatching.poll_soon()
        self._waiter.wake()

    def round(self) -> float:
        """Do one round; return how long to sleep (seconds). Never raises."""
        try:
            sent = self.steps.attempt(_DISPATCHING, self.dispatching.run_once, 0, outages=True)
        except Error as error:
            self.maintenance.missed()
            if not self._in_outage:
                logger.error("Dispatching is interrupted: %s. Retrying.", reason_of(error))
            self._in_outage = True
            return settings().POLL
        if self._in_outage:
            logger.warning("The database connection is restored; dispatching continues.")
        self._in_outage = False
        if self.dispatching.made_wait:
            self.releasing.wake()
        if sent:
            self.releasing.tasks_dispatched()
            return 0.0
        longest = settings().POLL
        seconds = min(
            longest, self.steps.attempt(_SLEEPING, self.dispatching.time_to_sleep, longest)
        )
        if self.steps.is_failing(_DISPATCHING) or self.steps.is_failing(_SLEEPING):
            return max(_PAUSE, seconds)
        return seconds

    def _report(self) -> NodeReport:
        loop = self.dispatching
        return NodeReport(
            shards=range(SHARDS) if loop.shards is None else loop.shards,
            keeps_to_shards=self.maintenance.kept_shards is not None,
            scanned=loop.scanned_at,
            started=loop.sent_at,
            index_state=loop.index.state,
            wakeups_state=self.listeners.source_state,
            failing=[
                *self.steps.failing(),
                *process_state.of(trigger.PostponedSchedules).failing(unknown_task_delay()),
            ],
            clock_step=self.maintenance.monitor.clock_step,
            rejected_queues=publisher.backoff.reasons(),
            broker_outages=publisher.breaker.ended_outages(),
        )
