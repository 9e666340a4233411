"""Replays ended tasks of a graph, under lock, with the tasks that were skipped or failed because
of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Case, F, Q, When

from django_durable_tasks.choices import DEADLINE, REPLAYABLE, TERMINAL, Status, WorkflowStatus
from django_durable_tasks.dependencies import edges, rules
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.models import Task
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.states import claims, dependencies, endings, inserts
from django_durable_tasks.states.machine import TRANSITIONS
from django_durable_tasks.store import tables

# The replayed tasks and their dependents, locked in primary-key order, with their edges.
#
# ``replay`` calls it.


_DOOMED = frozenset({Status.SKIPPED, Status.FAILED})


RELEASED = frozenset({Status.PENDING, Status.QUEUED, Status.RUNNING})


_BATCH = 500


@dataclass(slots=True)
class _Edge:
    """What a replay reads of a TaskDependency. A graph can have a hundred times as many edges as
    tasks, and a model instance of each takes most of the time of a replay.
    """

    task_id: uuid.UUID
    depends_on_id: uuid.UUID | None
    resolved: bool
    outcome: str | None
    met: bool | None


class LockedSubgraph:
    """The requested tasks and their dependents, locked, with all edges to their upstreams.

    ``above``: the edges of each task. ``under``: the dependents of each upstream. Workflow runs are
    locked before the tasks, in the same order as when a task function adds tasks to its workflow.
    """

    def __init__(self, requested: Iterable[uuid.UUID]) -> None:
        self.requested = set(requested)
        self.rows: dict[uuid.UUID, Task] = {}
        locked = set[uuid.UUID]()
        # Until all dependents that are found are locked: edges may be added between the query and
        # the locks. A transaction that adds an edge locks its upstream, so no dependents are added
        # to locked tasks.
        while keys := sorted(set(_with_all_below(self.requested)) - locked):
            lock_runs(keys)
            self.rows |= dependencies.lock_rows(keys)
            locked.update(keys)
        self.above: dict[uuid.UUID, list[_Edge]] = {key: [] for key in self.rows}
        self.under: dict[uuid.UUID, list[uuid.UUID]] = {}
        self.forced: set[uuid.UUID] = set()
        self.blocked_again: set[uuid.UUID] = set()
        columns = ("task", "depends_on", "resolved_at", "outcome", "met")
        for task, depends_on, resolved_at, outcome, met in (
            edges.edges().above(self.rows).values_list(*columns)
        ):
            edge = _Edge(task, depends_on, resolved_at is not None, outcome, met)
            self.above[task].append(edge)
            if edge.depends_on_id is not None:
                self.under.setdefault(edge.depends_on_id, []).append(edge.task_id)

    def runs_of(self, keys: Iterable[uuid.UUID]) -> set[uuid.UUID]:
        """Return the workflow runs of these tasks."""
        run_ids = (self.rows[key].workflow_id for key in keys)
        return {run for run in run_ids if run is not None}

    def doomed(self) -> set[uuid.UUID]:
        """Return the tasks that were skipped or failed because of an upstream."""
        return {
            key for key, row in self.rows.items() if row.cause is not None and row.status in _DOOMED
        }

    def requested_in(self, statuses: Collection[str]) -> set[uuid.UUID]:
        """Return the requested tasks that exist and have one of these statuses."""
        return {
            key for key in self.requested if key in self.rows and self.rows[key].status in statuses
        }

    def replayable(self, statuses: Collection[str]) -> tuple[set[uuid.UUID], set[uuid.UUID]]:
        """Return the requested tasks with one of these statuses, and the tasks that can run again:
        those of them whose joins can be met, and the tasks that ended because of them.
        """
        replayable = self.requested_in(statuses)
        replayed = self.without_lost(replayable | self.doomed(), set())
        return replayable, self.reached(replayable & replayed, replayed)

    def tally(self, key: uuid.UUID, replayed: set[uuid.UUID]) -> rules.EdgeCounts:
        """Count the edges of a task as they will be after these tasks are replayed."""
        unresolved = met = unmet = gates = 0
        for edge in self.above[key]:
            if edge.depends_on_id is None:
                gates += not edge.resolved
            elif not edge.resolved or edge.depends_on_id in replayed:
                unresolved += 1
            elif edge.met:
                met += 1
            else:
                unmet += 1
        return rules.EdgeCounts(unresolved=unresolved, met=met, unmet=unmet, gates=gates)

    def needed_by(self, key: uuid.UUID, replayed: set[uuid.UUID]) -> int:
        """Return how many dependencies a task will need after these tasks are replayed."""
        return rules.needed(self.rows[key].join_count, self.tally(key, replayed))

    def without_lost(self, replayed: set[uuid.UUID], sources: set[uuid.UUID]) -> set[uuid.UUID]:
        """Return those of these tasks whose joins can still be met, and the sources.

        A task that is left out makes the joins of its dependents be checked again.
        """
        lost = (rules.JoinDecision.SKIP, rules.JoinDecision.FAIL)
        replayed, checked = set(replayed), replayed - sources
        while checked:
            removed = {
                key
                for key in checked
                if rules.join_decision(self.rows[key].join_count, self.tally(key, replayed), "")
                in lost
            }
            replayed -= removed
            checked = {
                under for key in removed for under in self.under.get(key, ()) if under in replayed
            } - sources
        return replayed

    def first_unmet(self, key: uuid.UUID) -> _Edge | None:
        """Return an edge of a task that is not met; None if there is none."""
        unmet = (
            edge for edge in self.above[key] if edge.met is False and edge.depends_on_id is not None
        )
        return next(unmet, None)

    def reached(self, sources: set[uuid.UUID], replayed: set[uuid.UUID]) -> set[uuid.UUID]:
        """Return the sources and those of these tasks that depend on them.

        Tasks that were skipped or failed only because of other upstreams are not returned.
        """
        reached, frontier = set(sources), set(sources)
        while frontier:
            frontier = {
                under for key in frontier for under in self.under.get(key, ()) if under in replayed
            } - reached
            reached |= frontier
        return reached

    def force(self, forced: Iterable[uuid.UUID]) -> None:
        """Set the edges of force-run tasks to met, as ``edges.force`` did in the table."""
        self.forced.update(forced)
        for key in self.forced:
            for edge in self.above[key]:
                if not edge.met:
                    edge.resolved, edge.outcome, edge.met = True, rules.FORCED, True

    def rearm(self, replayed: set[uuid.UUID]) -> None:
        """Make the edges of these upstreams unresolved, and write what their dependents need.

        This includes the edges of tasks that do not wait, because these may be blocked or replayed
        later.
        """
        # The dependents of a replayed task are locked, so no other edges to it exist.
        edges.arm_again(edges.edges().below(replayed).filter(outcome__isnull=False))
        dependents = {
            edge.task_id
            for above in self.above.values()
            for edge in above
            if edge.depends_on_id in replayed and edge.outcome is not None
        } - replayed
        waiting = {
            key
            for key in dependents
            if self.rows[key].status == Status.BLOCKED or key in self.blocked_again
        }
        dependencies.set_needed(
            {key: self.needed_by(key, replayed) for key in sorted(waiting - self.forced)}
        )
        # Tasks that stay ended although their upstream is replayed get another cause.
        causes = {
            key: unmet.depends_on_id
            for key in dependents & self.doomed()
            if (unmet := self.first_unmet(key)) and unmet.depends_on_id
        }
        roots = dict(tables.tasks().filter(pk__in=set(causes.values())).values_list("pk", "cause"))
        blamed = [(key, roots.get(cause) or cause) for key, cause in causes.items()]
        for first in range(0, len(blamed), _BATCH):
            dependencies.blame(dict(blamed[first : first + _BATCH]))


def _with_all_below(requested: set[uuid.UUID]) -> list[uuid.UUID]:
    """Return the tasks and their dependents, recursively below dependents that ended with them."""
    seen, frontier = set(requested), set(requested)
    while frontier:
        below = edges.edges().below(frontier).order_by()
        rows = below.values_list("task", "task__status", "task__cause").distinct()
        frontier = set()
        for key, status, cause in rows:
            if key not in seen and cause is not None and status in _DOOMED:
                frontier.add(key)
            seen.add(key)
    return sorted(seen)


def lock_runs(keys: Sequence[uuid.UUID]) -> set[uuid.UUID]:
    """Lock the workflow runs of these tasks in primary-key order, and return their ids."""
    in_runs = tables.tasks().filter(pk__in=keys, workflow__isnull=False).order_by()
    runs = set(in_runs.values_list("workflow", flat=True))
    if runs:
        rows = edges.workflow_runs().filter(pk__in=runs).order_by("pk")
        list(tables.locked_for_change(rows).values_list("pk"))
    return runs


# The edges from a replayed task become unresolved again, because it will end again. Dependents
# that were skipped or failed because of it are replayed too, if no other upstream prevents it, and
# so on downstream. All these tasks are locked in primary-key order before anything is decided.
# Dead letters, operator actions and workflow operations call these functions.


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
        ids = endings.replay(queryset, reason=reason, **changes)
        _reopen_runs(runs)
        return ids, []
    subgraph = LockedSubgraph(requested)
    replayable, replayed = subgraph.replayable(REPLAYABLE)
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
    replayable, replayed = subgraph.replayable(TERMINAL)
    if not replayable & replayed:
        raise TransitionRefused(
            _unmet_edge_message(subgraph, min(replayable))
            if replayable
            else "None of these tasks has ended."
        )
    below = {under for key in replayed for under in subgraph.under.get(key, ())} - replayed
    for key in sorted(below):
        row = subgraph.rows[key]
        if row.status == Status.RUNNING:
            raise TransitionRefused(
                f"{row.step or row.name} ({key}) is RUNNING and depends on a task that would run"
                " again: wait for its end, or cancel it first."
            )
    # Dependents that were released and have not started are blocked again if they need these tasks.
    blocked = [
        key
        for key in sorted(below)
        if subgraph.rows[key].status in RELEASED and subgraph.needed_by(key, replayed)
    ]
    tasks = tables.tasks().filter(pk__in=blocked)
    claims.return_to_pending(tasks, 0)
    dependencies.block(tasks)
    subgraph.blocked_again.update(blocked)
    subgraph.rearm(replayed)
    _write_replay(subgraph, replayed, {}, reason)
    return sorted(replayed)


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
        for task_ids, writes in (
            (at_once & subgraph.requested, changes),
            (at_once - subgraph.requested, {}),
        ):
            if task_ids:
                tasks = tables.tasks().filter(pk__in=sorted(task_ids))
                endings.replay(tasks, name, reason=reason, **writes)
        blocked = [(key, subgraph.rows[key].epoch) for key in needs if key in keys and needs[key]]
        dependencies.replay_blocked(blocked, name, reason=reason)
    waiting = {key: number for key, number in needs.items() if number}
    edited = sorted(subgraph.requested & waiting.keys())
    if changes and edited:
        inserts.edit(tables.tasks().filter(pk__in=edited), **changes)
    dependencies.set_needed(waiting)
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
        edges.workflow_runs()
        .filter(pk__in=keys)
        .exclude(status=WorkflowStatus.STARTING)
        .filter(Q(completed_at__isnull=False) | Q(cancel_requested_at__isnull=False))
    )
    for row in stopped.filter(key__isnull=False, open_key__isnull=True):
        owners = edges.workflow_runs().filter(tenant_id=row.tenant_id, open_key=row.key)
        for key in owners.values_list("pk", flat=True):
            raise TransitionRefused(
                f"{row} cannot run again: its key {row.key!r} belongs to the open run {key}."
            )
    missed = Q(reason=DEADLINE) | Q(deadline_at__lte=tables.NOW)
    run_ids = [row.pk for row in stopped]
    edges.workflow_runs().filter(pk__in=run_ids).update(
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
    row, edge = subgraph.rows[key], subgraph.first_unmet(key)
    name = row.step or row.name
    upstream = edge.depends_on_id if edge else "one of its upstreams"
    outcome = edge.outcome if edge else "not met"
    action = "force-run" if row.status == Status.SKIPPED else "force-complete"
    return (
        f"{name} ({key}) waits for task {upstream}, which is {outcome}: replay that one, or"
        f" {action} this one."
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
    skipped = subgraph.requested_in([Status.SKIPPED])
    forced = dependencies.force_run(tables.tasks().filter(pk__in=requested), reason)
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
