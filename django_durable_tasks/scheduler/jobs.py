"""The maintenance jobs of the leader, and the thread that runs them. Each job is idempotent and
returns after a bounded slice of work.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.db import Error

from django_durable_tasks.audit import prune_audit
from django_durable_tasks.celery import publisher
from django_durable_tasks.cluster import nodes
from django_durable_tasks.cluster.nodes import HeartbeatMonitor, NodeReport
from django_durable_tasks.conf import SKEW_MAX, settings
from django_durable_tasks.dependencies import resolve
from django_durable_tasks.limits import overlap, release
from django_durable_tasks.scheduler.leader import Leader
from django_durable_tasks.scheduler.reap_dead_nodes import (
    leases,
    mark_lost_runs,
    mark_orphaned_runs,
    reap_dead_nodes,
)
from django_durable_tasks.scheduler.threads import PeriodicThread, Steps
from django_durable_tasks.schedules import writes
from django_durable_tasks.schedules.ledger import prune_ended, prune_ledger
from django_durable_tasks.states.demand import shards_of
from django_durable_tasks.store.clock import ClockStep, ClockStepDetector, database_now
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.tasks import operator_actions, requests, retention
from django_durable_tasks.texts import counted
from django_durable_tasks.workflows import runs

# The type of a maintenance job, and the time slice of jobs that work in batches.


SLICE = 0.2
"""Seconds after which a job that works in batches returns, so that other due jobs can run."""


@dataclass(frozen=True, slots=True)
class Job:
    """A maintenance job of the leader. ``run`` returns how many rows it changed.

    It runs every ``every`` seconds. If it changed something, it runs again after ``pause_factor``
    times its last duration. A run longer than ``time_limit`` seconds makes the leader resign. If
    ``dispatches``, tasks are dispatched at once after a run that changed something.
    """

    name: str
    run: Callable[[datetime, HeartbeatMonitor], int]
    every: float
    time_limit: float = 30.0
    pause_factor: float = 1.0
    dispatches: bool = True


OPTIONAL_JOBS: dict[str, Callable[[], Job]] = {}
"""What makes the jobs of optional apps, by their names. They run after those of the core."""


def register_job(name: str, make: Callable[[], Job]) -> None:
    """Let each leader run the job of this name that ``make()`` returns; called in
    ``AppConfig.ready()``, which Django may call again.

    ``make`` is called once per scheduler, so a job may keep what it knows in its object.
    """
    OPTIONAL_JOBS[name] = make


def _for_one_slice(act: Callable[[], int]) -> int:
    """Repeat ``act`` until it changes nothing or SLICE seconds are over; return the sum."""
    end, changed = time.monotonic() + SLICE, 0
    while time.monotonic() < end:
        with dedicated_connection():
            number = act()
        if not number:
            break
        changed += number
    return changed


# Job: raise the priority of tasks that have waited for PRIORITY_AGING seconds.


class AgePriorities:
    """Raise priorities once per PRIORITY_AGING seconds; does nothing without that setting.

    A pass is divided into slices, because its duration grows with the number of queues.
    """

    def __init__(self) -> None:
        self._next = time.monotonic() + (settings().PRIORITY_AGING or 0.0)
        self._pass: Iterator[int] | None = None

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        wait = settings().PRIORITY_AGING
        if wait is None:
            return 0
        if self._pass is None:
            if time.monotonic() < self._next:
                return 0
            self._next = time.monotonic() + wait
            self._pass = release.aging_steps(now, wait, 4 * settings().BATCH_SIZE)
        raised, end = 0, time.monotonic() + SLICE
        try:
            with dedicated_connection():
                for number in self._pass:
                    raised += number
                    if time.monotonic() >= end:
                        return raised
        except BaseException:
            self._pass = None
            raise
        self._pass = None
        return raised


# Job: apply requests to RUNNING tasks that the requesting process did not apply after COMMIT.


def apply_requests(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Apply one batch of left requests."""
    with dedicated_connection():
        return requests.apply_left(settings().BATCH_SIZE)


# Job: notice that the database's clock was set, and correct what waits for a time that is far away
# because the clock was set back.
#
# A clock that is set forward needs no correction: everything is due early, and schedules treat the
# fire times that were skipped as missed. When it is set back, these instants lie in the future:
#
# * the watermarks of schedules: they are set to now (``schedules/writes.py``);
# * the end of the waits of tasks, such as back-offs: they are moved with the clock
#   (``states/endings.py``);
# * the times at which messages are published again: they are shortened to REPUBLISH_AFTER;
# * the pauses of endpoints: the next request probes them.
#
# Nothing else has to be corrected. Runs and nodes are judged without a clock, the leader's lease
# that expires too late counts as expired, and buckets of rate limits count from the present.


logger = logging.getLogger("django_durable_tasks.scheduler")
CLOCK_EVERY = 1.0
"""Seconds between two readings of the clock."""
_GAP, _CHECK_EVERY = 30.0, 60.0
"""Seconds. The clock may have been set forward and back between two readings. So rows that were
written later than now are searched: after a pause of _GAP, in which another scheduler may have led,
and every _CHECK_EVERY seconds.
"""
_REPEAT_FOR = 120.0
"""Seconds after a step in which corrections are repeated. Processes estimate the database's clock
from a reading that is up to a minute old, and transactions that were open are committed later.
"""


class CorrectClockSteps:
    """Reads the clock at each call, and corrects after it was set back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._detector = clock, ClockStepDetector()
        self._called = self._checked = self._until = float("-inf")

    def __call__(self, _: datetime, monitor: HeartbeatMonitor) -> int:
        at, tolerance = self._clock(), SKEW_MAX
        with dedicated_connection():
            step = self._detector.read() or 0.0
            if at - self._called > _GAP or at - self._checked > _CHECK_EVERY:
                self._checked = at
                if abs(step) <= tolerance:
                    now = database_now()
                    step = -max(nodes.seen_later(now), writes.processed_later_by(now))
            self._called = at
            if abs(step) > tolerance:
                monitor.clock_step = ClockStep(step, time.monotonic())
            if step > tolerance:
                logger.error(
                    "The database's clock was set forward by %.1f s. Tasks and schedules are due"
                    " earlier by that time.",
                    step,
                )
            elif step < -tolerance:
                self._until = at + _REPEAT_FOR
                logger.error(
                    "The database's clock was set back by %.1f s. Watermarks of schedules and waits"
                    " of tasks that lie in the future are corrected.",
                    -step,
                )
            if at >= self._until:
                return 0
            now, limit = database_now(), settings().BATCH_SIZE
            corrected = retention.correct_deadlines(now, tolerance, limit)
            return corrected + writes.set_back_schedules(now, tolerance, limit)


# Job: count endings into their workflow runs, and end the runs that are complete.


def count_endings(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Count batches of ending events for one slice."""
    return _for_one_slice(lambda: runs.count_endings(4 * settings().BATCH_SIZE))


# Job: cancel workflow runs that have passed their deadline.


def end_late_workflows(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Request the cancellation of late runs, then cancel open tasks of runs with such a request."""
    end, batch = time.monotonic() + SLICE, settings().BATCH_SIZE
    with dedicated_connection():
        reached = runs.cancel_late(now, batch)
        while time.monotonic() < end and (number := runs.cancel_called_off(batch)):
            reached += number
    return reached


# Job: find edges whose upstream task was deleted, so that dependents do not wait for it.


class FindDeletedUpstreams:
    """Scan the edges by primary key, a bounded number per run, and start again at the end."""

    def __init__(self) -> None:
        self._past = 0

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        with dedicated_connection():
            self._past = resolve.find_deleted(self._past, 10 * settings().BATCH_SIZE)
        return 0


# Job: finish starts of large workflows whose starting process died.


def finish_starts(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Release the tasks of completely written starts, and delete incomplete, abandoned ones."""
    return _for_one_slice(lambda: runs.finish_starts(now, settings().BATCH_SIZE))


# Job: delete ended tasks, ledger entries, limit buckets and audit entries after their retention.
#
# Pruning competes with starting tasks for the database: it works in short slices of small batches,
# and pauses three times as long as a slice took.


PAUSE_FACTOR = 3.0
_SLICE = 0.02
"""Seconds."""
_BATCH = 100
_Pruning = Callable[[datetime, int], int]


class Prune:
    """Delete for one slice, continuing where the last slice ended.

    The kinds of rows take turns, so that a kind with a constant supply does not delay the others.
    If nothing was deleted, it returns how many kinds are left for the next slice.
    """

    def __init__(self) -> None:
        self._positions = retention.PruningPositions()
        self._kinds = deque[_Pruning]()

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        end, deleted = time.monotonic() + _SLICE, 0
        self._kinds = self._kinds or deque(
            [
                self._tasks,
                prune_ledger,
                prune_ended,
                retention.prune_buckets,
                prune_audit,
            ]
        )
        with dedicated_connection():
            while self._kinds:
                prune = self._kinds.popleft()
                number = prune(now, min(_BATCH, settings().BATCH_SIZE))
                if number or (prune == self._tasks and self._positions.more()):
                    self._kinds.append(prune)
                deleted += number
                if time.monotonic() >= end:
                    break
        return deleted or len(self._kinds)

    def _tasks(self, now: datetime, limit: int) -> int:
        return retention.prune(now, limit, self._positions, time.monotonic())


# Job: recompute next fire times that another version of the time zone database computed.


_RETRY_AFTER = 10.0
"""Seconds after which rows that were locked or failed are tried again."""


class RecomputeFireTimes:
    """Recompute until no row is left, once per process: its own zone tables never change."""

    def __init__(self) -> None:
        self._done, self._again_at = False, 0.0

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        if self._done or time.monotonic() < self._again_at:
            return 0
        with dedicated_connection():
            number = writes.recompute_fire_times(settings().BATCH_SIZE)
            self._done = not number and not writes.computed_elsewhere().exists()
        if not number:
            self._again_at = time.monotonic() + _RETRY_AFTER
        return number


# Job: make the oldest waiting task of each free overlap key due.


def release_overlaps(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Release one batch of overlap keys."""
    with dedicated_connection():
        return overlap.release(settings().BATCH_SIZE)


# Job: resolve the dependents of ended tasks that the ending worker did not resolve itself.


def resolve_dependents(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Resolve batches of ending events for one slice; a cascade advances one level per batch."""
    end, resolved = time.monotonic() + SLICE, 0
    while time.monotonic() < end:
        with dedicated_connection():
            batch = resolve.resolve_endings(settings().BATCH_SIZE)
        publisher.publish_claimed(batch.messages)
        resolved += batch.events
        if not batch.events:
            break
    return resolved


# Job: warn when more than DEAD_LETTERS_MAX dead letters are open.


class WatchDeadLetters:
    """Warn each time the number of open dead letters grows while it is above DEAD_LETTERS_MAX."""

    def __init__(self) -> None:
        self._warned_at = 0

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        with dedicated_connection():
            number = operator_actions.open_letters()
        if number > max(settings().DEAD_LETTERS_MAX, self._warned_at):
            logger.warning(
                "%s open. Run `manage.py durable list dead-letters` to list them.",
                counted(number, "dead letter is", "dead letters are"),
            )
            operator_actions.send_growth_signal(number)
        self._warned_at = number
        return 0


# When the jobs run, and in which order. A job that changed something runs again soon, after the
# other due jobs, until nothing is left.


_JOBS_OF_ENDINGS = ("resolve_dependents", "count_endings")


def jobs() -> tuple[Job, ...]:
    """Return new instances of all jobs, in the order in which they run: those of optional apps
    (``register_job``) last.
    """
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
        Job("prune", Prune(), every=10.0, pause_factor=PAUSE_FACTOR, dispatches=False),
        *(make() for make in OPTIONAL_JOBS.values()),
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
        due = [job for job in self._jobs if self._due[job.name] <= now]
        self._due.update((job.name, now + job.every) for job in due)
        return due

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
            self._steps.attempt(_READING_HEARTBEATS, self._read_heartbeats, None, outages=True)
            if not self._leader.leading():
                return settings().POLL
            return self._run_jobs()
        except Error:
            self.monitor.missed()  # the dispatching thread logs the outage
            return settings().POLL

    def _read_heartbeats(self) -> None:
        if self._missed:
            self._missed = False
            self.monitor.missed()
        if time.monotonic() < self._read_at:
            return
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

    def _run_jobs(self) -> float:
        due = self.schedule.take_due()
        if due:
            with dedicated_connection():
                now, read_at = database_now(), time.monotonic()
        for job in due:
            if self._stopping or not self._leader.leading():
                break
            # Between jobs too: silence is counted in reads, and a long job must not delay a read.
            self._steps.attempt(_READING_HEARTBEATS, self._read_heartbeats, None, outages=True)
            began = time.monotonic()
            run = partial(job.run, now + timedelta(seconds=began - read_at), self.monitor)
            number = self._steps.attempt(f"Job {job.name}", run, 0, job.time_limit)
            self.schedule.finished(job, number, time.monotonic() - began)
            if number and job.dispatches:
                self._done()
        return min(settings().POLL, self.schedule.next_in())
