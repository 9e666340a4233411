"""The maintenance thread of a scheduler: reads heartbeats and leases, and runs jobs if it leads.

Dispatching has its own thread and connection, so a slow job delays no task. Jobs still work in
bounded slices, so that none of them delays the others for long.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from django.db import Error

from django_durable_tasks.conf import settings
from django_durable_tasks.engine.cluster import nodes
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor, NodeReport
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.rules.tasks.shards import shards_of
from django_durable_tasks.scheduler.leader import Leader
from django_durable_tasks.scheduler.maintenance.reap_dead_nodes import leases
from django_durable_tasks.scheduler.maintenance.schedule import JobSchedule
from django_durable_tasks.scheduler.steps import Steps
from django_durable_tasks.scheduler.threads import PeriodicThread

_READING_HEARTBEATS = "Reading the heartbeats"


class Maintenance(PeriodicThread):
    """``serve`` is called with the shards of this node, ``done`` after a job that changed tasks, to
    dispatch them.
    """

    def __init__(
        self,
        node: uuid.UUID,
        leader: Leader,
        steps: Steps,
        report: Callable[[], NodeReport],
        serve: Callable[[frozenset[int]], None],
        done: Callable[[], None],
    ) -> None:
        super().__init__("maintenance", self.round)
        self.monitor, self.schedule = HeartbeatMonitor(), JobSchedule()
        self.kept_shards: frozenset[int] | None = None
        self._node, self._leader, self._steps = node, leader, steps
        self._report, self._serve, self._done = report, serve, done
        self._read_at, self._missed = 0.0, False

    def missed(self) -> None:
        """Record that another thread could not reach the database, so that no node is declared
        dead because of that outage; safe to call from any thread.
        """
        self._missed = True

    def endings_recorded(self) -> None:
        """Resolve and count endings at once; safe to call from other threads."""
        self.schedule.endings_recorded()
        self.wake()

    def round(self) -> float:
        """Do what is due; return the seconds until the next round."""
        try:
            self._steps.attempt(_READING_HEARTBEATS, self._read_heartbeats, outages=True)
            if not self._leader.leading():
                return settings().POLL
            return self._run_jobs()
        except Error:
            self.monitor.missed()  # the dispatching thread logs the outage
            return settings().POLL

    def _read_heartbeats(self) -> int:
        if self._missed:
            self._missed = False
            self.monitor.missed()
        if time.monotonic() < self._read_at:
            return 0
        self._read_at = time.monotonic() + settings().NODE_HEARTBEAT
        with dedicated_connection():
            # A write first: in an outage reads may still succeed while no node can write.
            nodes.beat(self._node, self._report())
            self.monitor.record(
                nodes.beats(), time.monotonic(), 3 * settings().NODE_HEARTBEAT, leases()
            )
            self.monitor.record_broker_outages(nodes.broker_outages(), time.monotonic())
            living = nodes.schedulers()
        living[self._node] = self.kept_shards
        self._serve(shards_of(self._node, living))
        return 0

    def _run_jobs(self) -> float:
        due = self.schedule.take_due()
        if due:
            with dedicated_connection():
                now, asked = database_now(), time.monotonic()
        for job in due:
            if self._stopping or not self._leader.leading():
                break
            # Between jobs too: silence is counted in reads, and a long job must not delay a read.
            self._steps.attempt(_READING_HEARTBEATS, self._read_heartbeats, outages=True)
            began = time.monotonic()
            run = partial(job.run, now + timedelta(seconds=began - asked), self.monitor)
            number = self._steps.attempt(f"Job {job.name}", run, job.time_limit)
            self.schedule.finished(job, number, time.monotonic() - began)
            if number and job.dispatches:
                self._done()
        return min(settings().POLL, self.schedule.next_in())
