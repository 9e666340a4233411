"""The main loop of a scheduler: dispatch, then sleep until the next task is due. Only ``stop`` ends
it; no exception does.

This thread only dispatches. Maintenance jobs, the release of tasks that wait for a limit, the
firing of recurring tasks and the republishing of lost messages have threads of their own.
"""

from __future__ import annotations

import logging
import os
import platform
import uuid
from datetime import datetime

from django.db import Error

from django_durable_tasks import process_state
from django_durable_tasks.celery import broker_outage
from django_durable_tasks.celery.worker_node import NodeBeat
from django_durable_tasks.cluster.nodes import NodeReport
from django_durable_tasks.conf import settings, unknown_task_delay
from django_durable_tasks.models import NodeKind
from django_durable_tasks.scheduler.dispatch_loop import DispatchLoop
from django_durable_tasks.scheduler.leader import Leader
from django_durable_tasks.scheduler.listener import Listeners
from django_durable_tasks.scheduler.maintenance import Maintenance
from django_durable_tasks.scheduler.redis_index import due_index
from django_durable_tasks.scheduler.releasing import Releasing
from django_durable_tasks.scheduler.republishing import Republishing
from django_durable_tasks.scheduler.threads import Steps, Waiter
from django_durable_tasks.scheduler.triggering import Triggering
from django_durable_tasks.schedules.trigger import PostponedSchedules
from django_durable_tasks.states.demand import SHARDS
from django_durable_tasks.store.errors import reason_of

logger = logging.getLogger("django_durable_tasks.scheduler")
_DISPATCHING, _SLEEPING = "Dispatching", "Reading the next due time of all queues"
_PAUSE = 0.1


class Scheduler:
    """One scheduler process: dispatches; as the leader it runs jobs and fires schedules."""

    def __init__(self, name: str = "", *, shards: frozenset[int] | None = None) -> None:
        self.node = uuid.uuid4()
        self.name = name or f"scheduler@{platform.node()}:{os.getpid()}"
        self.leader = Leader(self.node, self._on_leader_work)
        self.steps = Steps(self.leader.watch)
        self.dispatching = DispatchLoop(self.node, due_index(), self.steps.attempt)
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
            sent = self.steps.attempt(_DISPATCHING, self.dispatching.run_once, outages=True)
        except Error as error:
            self.maintenance.missed()
            if not self._in_outage:
                logger.error("Dispatching is interrupted: %s. Retrying.", reason_of(error))
            self._in_outage = True
            return settings().POLL
        if self._in_outage:
            logger.warning("The database connection is restored; dispatching continues.")
        self._in_outage = False
        if not sent:
            return self._time_to_sleep()
        self.releasing.tasks_dispatched()
        return 0.0

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
                *process_state.of(PostponedSchedules).failing(unknown_task_delay()),
            ],
            clock_step=self.maintenance.monitor.clock_step,
            rejected_queues=broker_outage.backoff.reasons(),
            broker_outages=broker_outage.breaker.ended_outages(),
        )

    def _time_to_sleep(self) -> float:
        """Return how long to sleep: until the next task or the next poll."""
        waits = [settings().POLL]

        def look() -> int:
            waits.append(self.dispatching.time_to_sleep())
            return 0

        self.steps.attempt(_SLEEPING, look)
        put_off = self.steps.is_failing(_DISPATCHING) or self.steps.is_failing(_SLEEPING)
        return max(_PAUSE if put_off else 0.0, min(waits))
