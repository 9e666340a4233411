"""What the leader does beside dispatching, in order, and how often. Each duty is bounded and idempotent."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from django_durable_tasks.celery import dispatcher
from django_durable_tasks.conf import settings
from django_durable_tasks.lifecycle import (
    ageing,
    dead_letters,
    dependencies,
    nodes,
    recovery,
    retention,
    shadows,
    slots,
    workflow_deadlines,
    workflow_runs,
    workflow_starts,
    zone_tables,
)
from django_durable_tasks.lifecycle.connections import own
from django_durable_tasks.lifecycle.nodes import Vigil
from django_durable_tasks.nearby import filling, redis_door

logger = logging.getLogger("django_durable_tasks.scheduler")
_SPREADING = 2.0
_OF_ENDINGS = ("tell_dependents", "count_endings")
_PRUNING = 2.0  # of every ten seconds: more than a thousand rows a second must not outgrow their retention


@dataclass(frozen=True, slots=True)
class Duty:
    """One thing to do: what, how often (seconds), and how long it may take before the leader is called stuck."""

    name: str
    act: Callable[[datetime, Vigil], int]
    every: float
    within: float = 30.0


def bury_dead_nodes(now: datetime, vigil: Vigil) -> int:
    """Lose the runs of silent nodes, ring what they had claimed, and only then mark them dead."""
    silent = vigil.silent(max(1, round(nodes.timeout() / settings().NODE_HEARTBEAT)))
    if not silent:
        return 0
    batch, lost = settings().BATCH_SIZE, 0
    with own():
        while (number := recovery.lose_of_dead(silent, batch)) > 0:
            lost += number
        rings = recovery.ring_of_dead(silent, now, batch)
        nodes.declare_dead(silent)
    dispatcher.ring(rings)
    logger.warning("%d nodes fell silent: %d runs lost, %d claims rung again.", len(silent), lost, len(rings))
    return lost


def lose_departed(now: datetime, vigil: Vigil) -> int:
    """Lose the runs that a node left behind when it stopped or was declared dead."""
    with own():
        return recovery.lose_departed(now, settings().BATCH_SIZE)


def lose_silent_runs(now: datetime, vigil: Vigil) -> int:
    """Lose runs whose lease is over, once we have seen the database without a break for a whole lease."""
    if vigil.contact * settings().NODE_HEARTBEAT < settings().LEASE:
        return 0
    with own():
        return recovery.lose_over(now, settings().BATCH_SIZE)


def ring_again(now: datetime, vigil: Vigil) -> int:
    """Ring what was published and not started in time; nothing while the broker is away."""
    if not dispatcher.broker_open():
        return 0
    with own():
        rings = recovery.ring_overdue(now, settings().BATCH_SIZE)
    dispatcher.ring(rings)
    return len(rings)


def prune(now: datetime, vigil: Vigil) -> int:
    """Delete finished rows whose retention is over, for some seconds at most."""
    end, deleted = time.monotonic() + _PRUNING, 0
    with own():
        for verb in (retention.prune, retention.prune_ledger, retention.prune_buckets, shadows.prune):
            while time.monotonic() < end and (number := verb(now, settings().BATCH_SIZE)):
                deleted += number
    return deleted


class Age:
    """Raise the priority of rows that have waited for AGEING seconds, once in that time."""

    def __init__(self) -> None:
        self._next = time.monotonic() + (settings().AGEING or 0.0)

    def __call__(self, now: datetime, vigil: Vigil) -> int:
        wait = settings().AGEING
        if wait is None or time.monotonic() < self._next:
            return 0
        self._next = time.monotonic() + wait
        with own():
            return ageing.age(now, wait, 4 * settings().BATCH_SIZE)


def let_held_go(now: datetime, vigil: Vigil) -> int:
    """Let the oldest task that waits for its slot go on where the slot is free."""
    with own():
        return slots.let_go(settings().BATCH_SIZE)


def tell_dependents(now: datetime, vigil: Vigil) -> int:
    """Tell endings to those that wait for them, for some seconds at most: cascades walk one level a batch.

    Stops early where much was released, so that it is dispatched first.
    """
    end, told, moved = time.monotonic() + _SPREADING, 0, 0
    while time.monotonic() < end and moved < 2 * settings().BATCH_SIZE:
        with own():
            done = dependencies.spread(settings().BATCH_SIZE)
        dispatcher.ring(done.rings)
        told, moved = told + done.notes, moved + done.moved
        if not done.notes:
            break
    return told


def count_endings(now: datetime, vigil: Vigil) -> int:
    """Count endings into their workflows, and end those that are complete."""
    end, counted = time.monotonic() + _SPREADING, 0
    while time.monotonic() < end:
        with own():
            number = workflow_runs.fold(4 * settings().BATCH_SIZE)
        counted += number
        if not number:
            break
    return counted


def finish_starts(now: datetime, vigil: Vigil) -> int:
    """Go on with large starts whose starter died: sealed ones are released, others removed once they are abandoned."""
    end, number = time.monotonic() + _SPREADING, 0
    with own():
        while time.monotonic() < end and (done := workflow_starts.finish_starts(now, settings().BATCH_SIZE)):
            number += done
    return number


def end_late_workflows(now: datetime, vigil: Vigil) -> int:
    """Call off workflows whose deadline is over, and cancel what is open in all that were called off."""
    end, batch = time.monotonic() + _SPREADING, settings().BATCH_SIZE
    with own():
        reached = workflow_deadlines.cancel_late(now, batch)
        while time.monotonic() < end and (number := workflow_deadlines.cancel_called_off(batch)):
            reached += number
    return reached


def fill_due_index(now: datetime, vigil: Vigil) -> int:
    """Keep the due index in Redis filled up to DUE_HORIZON; nothing without REDIS_URL, and nothing to dispatch."""
    if redis_door.url() is not None:
        with own():
            filling.fill(now)
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
    """Set the next fires right that were computed by other zone tables, once a process: its own never change."""

    def __init__(self) -> None:
        self._done = False

    def __call__(self, now: datetime, vigil: Vigil) -> int:
        if self._done:
            return 0
        with own():
            number = zone_tables.recompute(settings().BATCH_SIZE)
        self._done = not number
        return number


class WatchDeadLetters:
    """Warn, once a growth, when more dead letters are open than DEAD_LETTERS_MAX."""

    def __init__(self) -> None:
        self._warned_at = 0

    def __call__(self, now: datetime, vigil: Vigil) -> int:
        with own():
            number = dead_letters.open_count()
        if number > max(settings().DEAD_LETTERS_MAX, self._warned_at):
            logger.warning("%d dead letters are open; `manage.py durable list dead-letters` shows them.", number)
            dead_letters.announce_growth(number)
        self._warned_at = number
        return 0


def duties() -> tuple[Duty, ...]:
    """Return the leader's duties in order."""
    return (
        Duty("bury_dead_nodes", bury_dead_nodes, every=1.0),
        Duty("lose_departed", lose_departed, every=5.0),
        Duty("lose_silent_runs", lose_silent_runs, every=min(5.0, settings().LEASE / 4)),
        Duty("ring_again", ring_again, every=1.0),
        Duty("tell_dependents", tell_dependents, every=min(0.2, settings().POLL)),
        Duty("count_endings", count_endings, every=min(0.5, settings().POLL)),
        Duty("finish_starts", finish_starts, every=5.0),
        Duty("end_late_workflows", end_late_workflows, every=1.0),
        Duty("fill_due_index", fill_due_index, every=1.0),
        Duty("find_deleted", FindDeleted(), every=10.0),
        Duty("age", Age(), every=1.0),
        Duty("let_held_go", let_held_go, every=min(1.0, settings().POLL)),
        Duty("recompute_fires", RecomputeFires(), every=1.0),
        Duty("watch_dead_letters", WatchDeadLetters(), every=10.0),
        Duty("prune", prune, every=10.0),
    )


class Rota:
    """Which duty is due when, by the monotonic clock."""

    def __init__(self) -> None:
        self._due = {duty.name: 0.0 for duty in duties()}
        self._duties = duties()

    def hurry(self) -> None:
        """Let endings be told and counted at the next look; safe from other threads."""
        self._due.update(dict.fromkeys(_OF_ENDINGS, 0.0))

    def due(self) -> list[Duty]:
        """Return the duties whose time has come, and note them as done."""
        now = time.monotonic()
        found = [duty for duty in self._duties if self._due[duty.name] <= now]
        for duty in found:
            self._due[duty.name] = now + duty.every
        return found
