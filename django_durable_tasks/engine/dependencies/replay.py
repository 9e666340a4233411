"""Replays ended tasks of a graph, with the tasks that were skipped or failed because of them.

The edges from a replayed task become unresolved again, because it will end again. Dependents that
were skipped or failed because of it are replayed too, if no other upstream prevents it, and so on
downstream. All these tasks are locked in primary-key order before anything is decided. Dead
letters, operator actions and workflow operations call these functions.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db.models import Case, F, Q, When

from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.dependencies import edges
from django_durable_tasks.engine.dependencies.locked_subgraph import (
    RELEASED,
    LockedSubgraph,
    lock_runs,
)
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.models import WorkflowRun
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.rules.states import REPLAYABLE, TERMINAL, TRANSITIONS, Status
from django_durable_tasks.rules.workflows.plan import DEADLINE, WorkflowStatus


def in_graph(ids: Iterable[uuid.UUID]) -> bool:
    """Return whether one of these tasks has dependents or upstreams."""
    keys = list(ids)
    return (
        tables.tasks().filter(pk__in=keys, has_dependents=True).exists()
        or edges.edges().above(keys).exists()
    )


def replay(
    queryset: TaskQuerySet, reason: str = "", **changes: Any
) -> tuple[list[uuid.UUID], list[uuid.UUID]]:
    """Replay ended tasks; return their ids, and the ids of the tasks replayed because of them.

    Must be called inside ``atomic()``. ``changes`` are written to the requested tasks, ``reason``
    to all. A task whose join cannot be met because of another upstream does not change: replay that
    upstream, or force-run the task. Raises TransitionRefused if no requested task can be replayed.
    """
    requested = list(queryset.filter(status__in=REPLAYABLE).values_list("pk", flat=True))
    if not in_graph(requested):
        runs = lock_runs(requested)
        ids = transitions.replay(queryset, reason=reason, **changes)
        _reopen_runs(runs)
        return ids, []
    subgraph = LockedSubgraph(requested)
    replayable = {
        key
        for key in subgraph.requested
        if key in subgraph.rows and subgraph.rows[key].status in REPLAYABLE
    }
    replayed = subgraph.without_lost(replayable | subgraph.doomed(), set())
    replayed = subgraph.reached(replayable & replayed, replayed)
    if replayable and not replayable & replayed:
        raise TransitionRefused(_unmet_edge_message(subgraph, min(replayable)))
    subgraph.rearm(replayed)
    _write_replay(subgraph, replayed, changes, reason)
    return sorted(replayable & replayed), sorted(replayed - replayable)


def again(requested: Sequence[uuid.UUID], reason: str = "") -> list[uuid.UUID]:
    """Run ended tasks again, also those that succeeded; return the ids of all replayed tasks.

    Must be called inside ``atomic()``. A task waits for those of its upstreams that run again.
    Dependents that were released and have not started become BLOCKED again. Raises
    TransitionRefused if a dependent is RUNNING, or if no requested task can run again.
    """
    subgraph = LockedSubgraph(requested)
    replayable = {
        key
        for key in subgraph.requested
        if key in subgraph.rows and subgraph.rows[key].status in TERMINAL
    }
    replayed = subgraph.without_lost(replayable | subgraph.doomed(), set())
    replayed = subgraph.reached(replayable & replayed, replayed)
    if not replayable & replayed:
        raise TransitionRefused(
            _unmet_edge_message(subgraph, min(replayable))
            if replayable
            else "None of these tasks has ended."
        )
    below = {under for key in replayed for under in subgraph.under.get(key, ())} - replayed
    _refuse_running(subgraph, below)
    _block_released(subgraph, below, replayed)
    subgraph.rearm(replayed)
    _write_replay(subgraph, replayed, {}, reason)
    return sorted(replayed)


def _refuse_running(subgraph: LockedSubgraph, below: set[uuid.UUID]) -> None:
    for key in sorted(below):
        row = subgraph.rows[key]
        if row.status == Status.RUNNING:
            raise TransitionRefused(
                f"{row.step or row.name} ({key}) is RUNNING and depends on a task that would run"
                " again: wait for its end, or cancel it first."
            )


def _block_released(
    subgraph: LockedSubgraph, below: set[uuid.UUID], replayed: set[uuid.UUID]
) -> None:
    """Block dependents again that were released and have not started, if they need these tasks."""
    blocked = [
        key
        for key in sorted(below)
        if subgraph.rows[key].status in RELEASED and subgraph.needed_by(key, replayed)
    ]
    these = tables.tasks().filter(pk__in=blocked)
    transitions.return_to_pending(these, 0)
    transitions.block(these)
    subgraph.blocked_again.update(blocked)


def _write_replay(
    subgraph: LockedSubgraph,
    replayed: set[uuid.UUID],
    changes: Mapping[str, Any],
    reason: str = "",
    sources: Iterable[uuid.UUID] = (),
) -> None:
    """Replay these tasks, except the sources, whose status has been written already.

    Tasks that need others of ``replayed`` become BLOCKED, the others PENDING. ``changes`` are
    written to the requested tasks only, so that the others keep their arguments.
    """
    needs = {key: subgraph.needed_by(key, replayed) for key in sorted(replayed - set(sources))}
    for name in ("replay", "rerun"):
        keys = {key for key in needs if subgraph.rows[key].status in TRANSITIONS[name].sources}
        at_once = {key for key in needs if key in keys and not needs[key]}
        for part, writes in (
            (at_once & subgraph.requested, changes),
            (at_once - subgraph.requested, {}),
        ):
            if part:
                these = tables.tasks().filter(pk__in=sorted(part))
                transitions.replay(these, name, reason=reason, **writes)
        blocked = [(key, subgraph.rows[key].epoch) for key in needs if key in keys and needs[key]]
        transitions.replay_blocked(blocked, name, reason=reason)
    waiting = {key: number for key, number in needs.items() if number}
    edited = sorted(subgraph.requested & waiting.keys())
    if changes and edited:
        transitions.edit(tables.tasks().filter(pk__in=edited), **changes)
    transitions.set_needed(waiting)
    _reopen_runs(subgraph.runs_of(needs))


def _reopen_runs(keys: set[uuid.UUID]) -> None:
    """Set workflow runs to RUNNING again, because tasks of them are replayed.

    Their cancellation requests are cleared, and they own their keys again. A deadline that has
    passed is cleared too, because it would cancel them at once. Raises TransitionRefused if another
    open run owns the key.
    """
    if not keys:
        return
    stopped = (
        edges.runs()
        .filter(pk__in=keys)
        .exclude(status=WorkflowStatus.STARTING)
        .filter(Q(completed_at__isnull=False) | Q(cancel_requested_at__isnull=False))
    )
    for row in stopped.filter(key__isnull=False, open_key__isnull=True):
        other = edges.runs().filter(tenant_id=row.tenant_id, open_key=row.key)
        for key in other.values_list("pk", flat=True):
            raise TransitionRefused(
                f"{row} cannot run again: its key {row.key!r} belongs to the open run {key}."
            )
    missed = Q(reason=DEADLINE) | Q(deadline_at__lte=tables.NOW)
    these = [row.pk for row in stopped]
    WorkflowRun.objects.using(tables.database()).unguarded().filter(pk__in=these).update(
        # The deadline first: MariaDB assigns from left to right.
        deadline_at=Case(When(missed, then=None), default=F("deadline_at")),
        status=WorkflowStatus.RUNNING,
        completed_at=None,
        open_key=F("key"),
        cancel_requested_at=None,
        reason="",
        updated_at=tables.NOW,
    )


def _unmet_edge_message(subgraph: LockedSubgraph, key: uuid.UUID) -> str:
    unmet = (
        edge for edge in subgraph.above[key] if edge.met is False and edge.depends_on_id is not None
    )
    edge = next(unmet, None)
    name = subgraph.rows[key].step or subgraph.rows[key].name
    upstream = edge.depends_on_id if edge else "one of its upstreams"
    outcome = edge.outcome if edge else "not met"
    other = "force-run" if subgraph.rows[key].status == Status.SKIPPED else "force-complete"
    return (
        f"{name} ({key}) waits for task {upstream}, which is {outcome}: replay that one, or {other}"
        " this one."
    )


def force_run(
    queryset: TaskQuerySet, reason: str, *, by: str = ""
) -> tuple[list[uuid.UUID], list[uuid.UUID]]:
    """Run BLOCKED and SKIPPED tasks without regard to their upstreams.

    Return their ids, and the ids of the dependents that were replayed because of them.
    """
    requested = list(
        queryset.filter(status__in=TRANSITIONS["force_run"].sources).values_list("pk", flat=True)
    )
    subgraph = LockedSubgraph(requested)
    skipped = {
        key
        for key in requested
        if key in subgraph.rows and subgraph.rows[key].status == Status.SKIPPED
    }
    forced = transitions.force_run(tables.tasks().filter(pk__in=requested), reason)
    edges.force(forced, by=by)
    subgraph.force(forced)
    _reopen_runs(subgraph.runs_of(forced))
    return forced, _revive(subgraph, skipped & set(forced))


def hold(queryset: TaskQuerySet) -> None:
    """Lock tasks of a graph together with their dependents, before a transition changes any of
    them.

    This keeps the lock order of all other operations.
    """
    keys = set(queryset.values_list("pk", flat=True))
    if in_graph(keys):
        LockedSubgraph(keys)


def revive_below(done: Iterable[uuid.UUID]) -> list[uuid.UUID]:
    """Replay dependents that ended because of these tasks, now SUCCESS; return their ids."""
    keys = set(done)
    return _revive(LockedSubgraph(keys), keys) if in_graph(keys) else []


def _revive(subgraph: LockedSubgraph, sources: set[uuid.UUID]) -> list[uuid.UUID]:
    replayed = subgraph.without_lost((subgraph.doomed() - subgraph.requested) | sources, sources)
    replayed = subgraph.reached(sources, replayed)
    subgraph.rearm(replayed)
    _write_replay(subgraph, replayed, {}, sources=sources)
    return sorted(replayed - sources)
