"""Which maintenance jobs the leader runs, in which order, and how often.

Every job is idempotent and returns after a bounded slice of work. A job that changed something runs
again soon, after the other due jobs, until nothing is left.
"""

from __future__ import annotations

import time

from django_durable_tasks.conf import settings
from django_durable_tasks.scheduler.maintenance import prune
from django_durable_tasks.scheduler.maintenance.age_priorities import AgePriorities
from django_durable_tasks.scheduler.maintenance.apply_requests import apply_requests
from django_durable_tasks.scheduler.maintenance.correct_clock_steps import EVERY as CLOCK_EVERY
from django_durable_tasks.scheduler.maintenance.correct_clock_steps import CorrectClockSteps
from django_durable_tasks.scheduler.maintenance.count_endings import count_endings
from django_durable_tasks.scheduler.maintenance.count_metrics import EVERY as METRICS_EVERY
from django_durable_tasks.scheduler.maintenance.count_metrics import CountMetrics
from django_durable_tasks.scheduler.maintenance.deliver_notifications import (
    deliver_notifications,
)
from django_durable_tasks.scheduler.maintenance.end_late_workflows import end_late_workflows
from django_durable_tasks.scheduler.maintenance.fill_due_index import fill_due_index
from django_durable_tasks.scheduler.maintenance.find_deleted_upstreams import FindDeletedUpstreams
from django_durable_tasks.scheduler.maintenance.finish_starts import finish_starts
from django_durable_tasks.scheduler.maintenance.job import Job
from django_durable_tasks.scheduler.maintenance.probe_workers import ProbeWorkers
from django_durable_tasks.scheduler.maintenance.reap_dead_nodes import (
    mark_lost_runs,
    mark_orphaned_runs,
    reap_dead_nodes,
)
from django_durable_tasks.scheduler.maintenance.recompute_fire_times import RecomputeFireTimes
from django_durable_tasks.scheduler.maintenance.release_overlaps import release_overlaps
from django_durable_tasks.scheduler.maintenance.resolve_dependents import resolve_dependents
from django_durable_tasks.scheduler.maintenance.watch_alerts import watch_alerts
from django_durable_tasks.scheduler.maintenance.watch_dead_letters import WatchDeadLetters

_JOBS_OF_ENDINGS = ("resolve_dependents", "count_endings")


def jobs() -> tuple[Job, ...]:
    """Return new instances of all jobs, in the order in which they run."""
    return (
        Job("reap_dead_nodes", reap_dead_nodes, every=1.0),
        Job("mark_orphaned_runs", mark_orphaned_runs, every=1.0),
        Job("mark_lost_runs", mark_lost_runs, every=min(5.0, settings().LEASE / 4)),
        Job("apply_requests", apply_requests, every=min(1.0, settings().POLL)),
        Job("resolve_dependents", resolve_dependents, every=min(0.2, settings().POLL)),
        Job("count_endings", count_endings, every=min(0.5, settings().POLL)),
        Job("deliver_notifications", deliver_notifications, every=min(0.5, settings().POLL)),
        Job("finish_starts", finish_starts, every=5.0),
        Job("end_late_workflows", end_late_workflows, every=1.0),
        Job("fill_due_index", fill_due_index, every=1.0),
        Job("find_deleted_upstreams", FindDeletedUpstreams(), every=10.0),
        Job("age_priorities", AgePriorities(), every=1.0),
        Job("release_overlaps", release_overlaps, every=min(1.0, settings().POLL)),
        Job("correct_clock_steps", CorrectClockSteps(), every=CLOCK_EVERY),
        Job("recompute_fire_times", RecomputeFireTimes(), every=1.0),
        Job("watch_dead_letters", WatchDeadLetters(), every=10.0),
        Job("count_metrics", CountMetrics(), every=METRICS_EVERY, dispatches=False),
        Job("watch_alerts", watch_alerts, every=10.0),
        Job("probe_workers", ProbeWorkers(), every=5.0),
        Job("prune", prune.Prune(), every=10.0, pause_factor=prune.PAUSE_FACTOR, dispatches=False),
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
