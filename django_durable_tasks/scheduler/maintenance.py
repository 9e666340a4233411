"""The maintenance thread of a scheduler: which jobs the leader runs, in which order, and how
often.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from django.db import Error

from django_durable_tasks.cluster import nodes
from django_durable_tasks.cluster.nodes import HeartbeatMonitor, NodeReport
from django_durable_tasks.conf import settings
from django_durable_tasks.scheduler import jobs as scheduler_jobs
from django_durable_tasks.scheduler.jobs import (
    CLOCK_EVERY,
    AgePriorities,
    CorrectClockSteps,
    FindDeletedUpstreams,
    Job,
    RecomputeFireTimes,
    WatchDeadLetters,
    apply_requests,
    count_endings,
    end_late_workflows,
    finish_starts,
    release_overlaps,
    resolve_dependents,
)
from django_durable_tasks.scheduler.leader import Leader
from django_durable_tasks.scheduler.reap_dead_nodes import (
    leases,
    mark_lost_runs,
    mark_orphaned_runs,
    reap_dead_nodes,
)
from django_durable_tasks.scheduler.threads import PeriodicThread, Steps
from django_durable_tasks.states.demand import shards_of
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.connections import dedicated_connection

# Every job is idempotent and returns after a bounded slice of work. A job that changed something
# runs again soon, after the other due jobs, until nothing is left.


_JOBS_OF_ENDINGS = ("resolve_dependents", "count_endings")


def jobs() -> tuple[Job, ...]:
    """Return new instances of all jobs, in the order in which they run: those of optional apps
    (``register_job``) last.
    """
    # By name, because Django may call ``AppConfig.ready()`` again.
    optional = {job.name: job for job in (make() for make in scheduler_jobs.OPTIONAL_JOBS)}
    return (
        Job("reap_dead_nodes", reap_dead_nodes, every=1.0),
        Job("mark_orphaned_runs", mark_orphaned_runs, every=1.0),
        Job("mark_lost_runs", mark_lost_runs, every=min(5.0, settings().LEASE / 4)),
        Job("apply_requests", apply_requests, every=min(1.0, settings().POLL)),
        Job("resolve_dependents", resolve_dependents, every=min(0.2, settings().POLL)),
        Job("count_endings", count_endings, every=min(0.5, settings().POLL)),
        Job("finish_starts", finish_starts, every=5.0),
        Job("end_late_workflows", end_late_workflows, every=1.0),
        Job("find_deleted_upstreams", FindDeletedUpstreams(), every=10.0),
        Job("age_priorities", AgePriorities(), every=1.0),
        Job("release_overlaps", release_overlaps, every=min(1.0, settings().POLL)),
        Job("correct_clock_steps", CorrectClockSteps(), every=CLOCK_EVERY),
        Job("recompute_fire_times", RecomputeFireTimes(), every=1.0),
        Job("watch_dead_letters", WatchDeadLetters(), every=10.0),
        Job(
            "prune",
            scheduler_jobs.Prune(),
            every=10.0,
            pause_factor=scheduler_jobs.PAUSE_FACTOR,
            dispatches=False,
        ),
        *optional.values(),
    )


class JobSchedule:
    """When each job runs next, by the monotonic clock."""

    def __init__(self) -> None:
        self._jobs = jobs()
        self._due = {job.name: 0.0 for job in self._jobs}

    def endings_recorded(self) -> None:
        """Make the jobs that process ending events due now; safe to call from other threads."""
        self._due.update(dict.fromkeys(_JOBS_OF_ENDINGS, 0.0))

    def take_due(self) -> list[Job]:
        """Return the due jobs in order, and schedule each again after its ``every`` seconds."""
        now = time.monotonic()
        found = [job for job in self._jobs if self._due[job.name] <= now]
        for job in found:
            self._due[job.name] = now + job.every
        return found

    def finished(self, job: Job, number: int, duration: float) -> None:
        """Schedule a job earlier that changed ``number`` > 0 rows in ``duration`` seconds."""
        if number:
            soon = time.monotonic() + min(job.every, job.pause_factor * duration)
            self._due[job.name] = min(soon, self._due[job.name])

    def next_in(self) -> float:
        """Return the seconds until the next job is due."""
        return max(0.0, min(self._due.values()) - time.monotonic())


# The maintenance thread of a scheduler: reads heartbeats and leases, and runs jobs if it leads.
#
# Dispatching has its own thread and connection, so a slow job delays no task. Jobs still work in
# bounded slices, so that none of them delays the others for long.


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
