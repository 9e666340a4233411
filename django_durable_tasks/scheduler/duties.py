"""What the leader does beside dispatching, in order, and how often. Each duty is a bounded slice, and idempotent.

A duty that did something comes again soon, after the others that are due, until it has nothing more to do.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from django_durable_tasks.celery import dispatcher
from django_durable_tasks.conf import settings
from django_durable_tasks.due_index import loader, redis_client
from django_durable_tasks.lifecycle import (
    ageing,
    dead_letters,
    dependencies,
    nodes,
    overlap,
    recovery,
    retention,
    shadows,
    task_requests,
    workflow_deadlines,
    workflow_runs,
    workflow_starts,
    zone_tables,
)
from django_durable_tasks.lifecycle.connections import own
from django_durable_tasks.lifecycle.leases import Lease, looks_for, over, shortest
from django_durable_tasks.lifecycle.nodes import Vigil
from django_durable_tasks.ports import Ring

logger = logging.getLogger("django_durable_tasks.scheduler")
_SLICE = 0.2
"""A duty that works in batches ends after so many seconds, so that the others have their turn."""
_NONE_SEEN = -1
_LEFT_OVER = 10.0
"""What a duty could not do now, because of a lock or an error of an item, is tried again after so many seconds."""
_OF_ENDINGS = ("tell_dependents", "count_endings")
_PAUSES_OF_PRUNING = 3.0
_SLICE_OF_PRUNING, _PRUNED_AT_ONCE = 0.02, 100
"""Pruning takes a processor from tasks that start: in short slices (seconds) of small batches, so that none of them
waits long, with pauses three times as long as a slice took."""
_Pruning = Callable[[datetime, int], int]


@dataclass(frozen=True, slots=True)
class Duty:
    """One thing to do: what, how often (seconds), and how long it may take before the leader is called stuck.

    If it did something it comes again after ``pauses`` times as long as it took, and tasks are dispatched at once where
    it ``moves`` some.
    """

    name: str
    act: Callable[[datetime, Vigil], int]
    every: float
    within: float = 30.0
    pauses: float = 1.0
    moves: bool = True


def bury_dead_nodes(now: datetime, vigil: Vigil) -> int:
    """Lose the unrenewed runs of silent nodes, ring what they had claimed, and only then mark them dead.

    A run that renews its lease is not lost because the heartbeat of its node is late.
    """
    silent = vigil.silent(_silence())
    if not silent:
        return 0
    quiet = {task: lease for task, (lease, _) in vigil.unrenewed(_silence()).items() if lease.node in set(silent)}
    with own():
        lost = _lose(quiet, recovery.DEAD, vigil)
        rings = recovery.republish_of_dead(silent, now, settings().BATCH_SIZE)
        nodes.declare_dead(silent)
    vigil.restart(nodes=silent)
    dispatcher.ring(rings)
    logger.warning(
        "%d nodes missed their heartbeats and were declared dead: %d runs marked LOST, %d tasks republished.",
        len(silent), lost, len(rings),
    )  # fmt: skip
    return lost


def _silence() -> int:
    return looks_for(nodes.timeout())


def _lose(found: Mapping[uuid.UUID, Lease], why: str, vigil: Vigil) -> int:
    """End these runs in batches; those that could not be ended now are watched anew."""
    tasks, size, lost = list(found), settings().BATCH_SIZE, set[uuid.UUID]()
    for first in range(0, len(tasks), size):
        lost |= recovery.lose({task: found[task] for task in tasks[first : first + size]}, why)
    vigil.restart(leases=set(tasks) - lost)
    return len(lost)


def lose_departed(now: datetime, vigil: Vigil) -> int:
    """Lose the runs that a node left behind when it stopped, and unrenewed ones of nodes that were declared dead."""
    seen = vigil.unrenewed(1)
    if not seen:
        return 0
    with own():
        gone = recovery.departed(now)
        needs = {node: _silence() if declared_dead else 1 for node, declared_dead in gone.items()}
        quiet = {task: lease for task, (lease, looks) in seen.items() if looks >= needs.get(lease.node, looks + 1)}
        return _lose(quiet, recovery.DEAD, vigil)


def lose_silent_runs(now: datetime, vigil: Vigil) -> int:
    """Lose runs whose lease was not renewed in an unbroken series of our own looks that is as long as the lease."""
    quiet = vigil.unrenewed(looks_for(shortest()))
    if not quiet:
        return 0
    with own():
        return _lose(over(quiet, now), recovery.OVER, vigil)


def republish(now: datetime, vigil: Vigil) -> int:
    """Ring what was published and not started in time; nothing while the broker is away or rejects the queue."""
    limit = dispatcher.room()
    if not limit:
        return 0
    with own():
        rings = recovery.republish_overdue(now, limit, dispatcher.queues_backed_off())
    dispatcher.ring(rings)
    return len(rings)


class RepublishAfterOutage:
    """Publish what is QUEUED once more when the broker answers again: it may have come back empty.

    A batch at a time, so that what is due meanwhile goes between them. What the broker still holds is doubled, and its
    second copy starts nothing.
    """

    def __init__(self) -> None:
        self._outages = dispatcher.outages()
        self._pages: Iterator[list[Ring]] = iter(())

    def __call__(self, now: datetime, vigil: Vigil) -> int:
        if not dispatcher.broker_answers():
            return 0
        if self._outages != dispatcher.outages():
            self._outages = dispatcher.outages()
            self._pages = recovery.republish_queued_before(now, settings().BATCH_SIZE)
        try:
            with own():
                rings = next(self._pages, [])
        except Exception:
            self._outages = _NONE_SEEN  # an exception ends the pages: begin again from the first
            raise
        dispatcher.ring(rings)
        return len(rings)


class Prune:
    """Delete ended tasks, ledger entries, buckets and shadows whose retention is over, one short slice.

    A slice goes on where the last one ended, and the kinds take turns, so that a kind of which there is always more
    does not keep the others from being pruned. Without a deletion it returns how many kinds are left for a next slice.
    """

    def __init__(self) -> None:
        self._stayed = retention.Stayed()
        self._kinds = deque[_Pruning]()

    def __call__(self, now: datetime, vigil: Vigil) -> int:
        end, deleted = time.monotonic() + _SLICE_OF_PRUNING, 0
        if not self._kinds:
            self._kinds.extend((self._tasks, retention.prune_ledger, retention.prune_buckets, shadows.prune))
        with own():
            while self._kinds:
                prune = self._kinds.popleft()
                number = prune(now, min(_PRUNED_AT_ONCE, settings().BATCH_SIZE))
                if number or (prune == self._tasks and self._stayed.more()):
                    self._kinds.append(prune)
                deleted += number
                if time.monotonic() >= end:
                    break
        return deleted or len(self._kinds)

    def _tasks(self, now: datetime, limit: int) -> int:
        return retention.prune(now, limit, self._stayed, time.monotonic())


class Age:
    """Raise the priority of rows that have waited for PRIORITY_AGING seconds, once in that time."""

    def __init__(self) -> None:
        self._next = time.monotonic() + (settings().PRIORITY_AGING or 0.0)

    def __call__(self, now: datetime, vigil: Vigil) -> int:
        wait = settings().PRIORITY_AGING
        if wait is None or time.monotonic() < self._next:
            return 0
        self._next = time.monotonic() + wait
        with own():
            return ageing.age(now, wait, 4 * settings().BATCH_SIZE)


def release_overlaps(now: datetime, vigil: Vigil) -> int:
    """Make the oldest waiting task of each free overlap key due."""
    with own():
        return overlap.release(settings().BATCH_SIZE)


def tell_dependents(now: datetime, vigil: Vigil) -> int:
    """Resolve the dependents of ended tasks, one slice: cascades walk one level a batch."""
    end, told = time.monotonic() + _SLICE, 0
    while time.monotonic() < end:
        with own():
            done = dependencies.spread(settings().BATCH_SIZE)
        dispatcher.ring(done.rings)
        told += done.notes
        if not done.notes:
            break
    return told


def apply_requests(now: datetime, vigil: Vigil) -> int:
    """Apply what transactions requested of RUNNING tasks and their processes did not apply after the commit."""
    with own():
        return task_requests.apply_left(settings().BATCH_SIZE)


def count_endings(now: datetime, vigil: Vigil) -> int:
    """Count endings into their workflows, and end those that are complete."""
    end, counted = time.monotonic() + _SLICE, 0
    while time.monotonic() < end:
        with own():
            number = workflow_runs.fold(4 * settings().BATCH_SIZE)
        counted += number
        if not number:
            break
    return counted


def finish_starts(now: datetime, vigil: Vigil) -> int:
    """Go on with large starts whose starter died: sealed ones are released, others removed once they are abandoned."""
    end, number = time.monotonic() + _SLICE, 0
    with own():
        while time.monotonic() < end and (done := workflow_starts.finish_starts(now, settings().BATCH_SIZE)):
            number += done
    return number


def end_late_workflows(now: datetime, vigil: Vigil) -> int:
    """Call off workflows whose deadline is over, and cancel what is open in all that were called off."""
    end, batch = time.monotonic() + _SLICE, settings().BATCH_SIZE
    with own():
        reached = workflow_deadlines.cancel_late(now, batch)
        while time.monotonic() < end and (number := workflow_deadlines.cancel_called_off(batch)):
            reached += number
    return reached


def fill_due_index(now: datetime, vigil: Vigil) -> int:
    """Fill the due index in Redis up to DUE_INDEX_HORIZON; does nothing without REDIS_URL."""
    if redis_client.url() is not None:
        with own():
            loader.fill(now)
    return 0


class FindDeleted:
    """Look for upstreams whose rows are gone, a window of edges at a time."""

    def __init__(self) -> None:
        self._past = 0

    def __call__(self, now: datetime, vigil: Vigil) -> int:
        with own():
            self._past = dependencies.find_deleted(self._past, 10 * settings().BATCH_SIZE)
        return 0


class RecomputeFires:
    """Set the next fires right that were computed by other zone tables, once a process: its own never change.

    Rows that are locked or fail are tried again until none is left.
    """

    def __init__(self) -> None:
        self._done, self._again_at = False, 0.0

    def __call__(self, now: datetime, vigil: Vigil) -> int:
        if self._done or time.monotonic() < self._again_at:
            return 0
        with own():
            number = zone_tables.recompute(settings().BATCH_SIZE)
            self._done = not number and not zone_tables.computed_elsewhere().exists()
        if not number:
            self._again_at = time.monotonic() + _LEFT_OVER
        return number


class WatchDeadLetters:
    """Warn, once a growth, when more dead letters are open than DEAD_LETTERS_MAX."""

    def __init__(self) -> None:
        self._warned_at = 0

    def __call__(self, now: datetime, vigil: Vigil) -> int:
        with own():
            number = dead_letters.open_count()
        if number > max(settings().DEAD_LETTERS_MAX, self._warned_at):
            logger.warning("%d dead letters are open. Run `manage.py durable list dead-letters` to list them.", number)
            dead_letters.announce_growth(number)
        self._warned_at = number
        return 0


def duties() -> tuple[Duty, ...]:
    """Return the leader's duties in order."""
    return (
        Duty("bury_dead_nodes", bury_dead_nodes, every=1.0),
        Duty("lose_departed", lose_departed, every=1.0),
        Duty("lose_silent_runs", lose_silent_runs, every=min(5.0, settings().LEASE / 4)),
        Duty("republish", republish, every=1.0),
        Duty("republish_after_outage", RepublishAfterOutage(), every=1.0),
        Duty("apply_requests", apply_requests, every=min(1.0, settings().POLL)),
        Duty("tell_dependents", tell_dependents, every=min(0.2, settings().POLL)),
        Duty("count_endings", count_endings, every=min(0.5, settings().POLL)),
        Duty("finish_starts", finish_starts, every=5.0),
        Duty("end_late_workflows", end_late_workflows, every=1.0),
        Duty("fill_due_index", fill_due_index, every=1.0),
        Duty("find_deleted", FindDeleted(), every=10.0),
        Duty("age", Age(), every=1.0),
        Duty("release_overlaps", release_overlaps, every=min(1.0, settings().POLL)),
        Duty("recompute_fires", RecomputeFires(), every=1.0),
        Duty("watch_dead_letters", WatchDeadLetters(), every=10.0),
        Duty("prune", Prune(), every=10.0, pauses=_PAUSES_OF_PRUNING, moves=False),
    )


class Rota:
    """Which duty is due when, by the monotonic clock."""

    def __init__(self) -> None:
        self._due = {duty.name: 0.0 for duty in duties()}
        self._duties = duties()

    def hurry(self) -> None:
        """Make the duties of endings due; safe from other threads."""
        self._due.update(dict.fromkeys(_OF_ENDINGS, 0.0))

    def due(self) -> list[Duty]:
        """Return the duties whose time has come, in order, and set when each comes again if it does nothing."""
        now = time.monotonic()
        found = [duty for duty in self._duties if self._due[duty.name] <= now]
        for duty in found:
            self._due[duty.name] = now + duty.every
        return found

    def did(self, duty: Duty, number: int, took: float) -> None:
        """Let a duty that did something come again soon: it may have more to do than a slice holds."""
        if number:
            soon = time.monotonic() + min(duty.every, duty.pauses * took)
            self._due[duty.name] = min(soon, self._due[duty.name])

    def next_in(self) -> float:
        """Return after how long (seconds) the next duty is due."""
        return max(0.0, min(self._due.values()) - time.monotonic())
