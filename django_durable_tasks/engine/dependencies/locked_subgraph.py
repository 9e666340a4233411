"""The replayed tasks and their dependents, locked in primary-key order, with their edges.

``replay`` calls it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from django.db import connections

from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.dependencies import edges
from django_durable_tasks.host_clock import host_now
from django_durable_tasks.models import Task, TaskDependency
from django_durable_tasks.rules.dependencies import (
    FORCED,
    EdgeCounts,
    JoinDecision,
    join_decision,
    needed,
)
from django_durable_tasks.rules.states import Status

_DOOMED = frozenset({Status.SKIPPED, Status.FAILED})


RELEASED = frozenset({Status.PENDING, Status.QUEUED, Status.RUNNING})


_BATCH = 500


class LockedSubgraph:
    """The requested tasks and their dependents, locked, with all edges to their upstreams.

    ``above``: the edges of each task. ``under``: the dependents of each upstream. Workflow runs are
    locked before the tasks, in the same order as when a task function adds tasks to its workflow.
    """

    def __init__(self, requested: Iterable[uuid.UUID]) -> None:
        self.requested = set(requested)
        self.rows: dict[uuid.UUID, Task] = {}
        self._lock_all()
        self.above: dict[uuid.UUID, list[TaskDependency]] = {key: [] for key in self.rows}
        self.under: dict[uuid.UUID, list[uuid.UUID]] = {}
        self.forced: set[uuid.UUID] = set()
        self.blocked_again: set[uuid.UUID] = set()
        for edge in edges.edges().above(self.rows):
            self.above[edge.task_id].append(edge)
            if edge.depends_on_id is not None:
                self.under.setdefault(edge.depends_on_id, []).append(edge.task_id)

    def _lock_all(self) -> None:
        """Lock until all dependents that are found are locked.

        Edges may be added between the query and the locks. A transaction that adds an edge locks
        its upstream, so no dependents are added to locked tasks.
        """
        seen: set[uuid.UUID] = set()
        while keys := sorted(set(_with_all_below(self.requested)) - seen):
            lock_runs(keys)
            self.rows |= transitions.lock_rows(keys)
            seen.update(keys)

    def runs_of(self, keys: Iterable[uuid.UUID]) -> set[uuid.UUID]:
        """Return the workflow runs of these tasks."""
        found = (self.rows[key].workflow_id for key in keys)
        return {run for run in found if run is not None}

    def doomed(self) -> set[uuid.UUID]:
        """Return the tasks that were skipped or failed because of an upstream."""
        return {key for key, row in self.rows.items() if _is_doomed(row)}

    def tally(self, key: uuid.UUID, replayed: set[uuid.UUID]) -> EdgeCounts:
        """Count the edges of a task as they will be after these tasks are replayed."""
        unresolved = met = unmet = gates = 0
        for edge in self.above[key]:
            if edge.depends_on_id is None:
                gates += edge.resolved_at is None
            elif edge.resolved_at is None or edge.depends_on_id in replayed:
                unresolved += 1
            elif edge.met:
                met += 1
            else:
                unmet += 1
        return EdgeCounts(unresolved=unresolved, met=met, unmet=unmet, gates=gates)

    def needed_by(self, key: uuid.UUID, replayed: set[uuid.UUID]) -> int:
        """Return how many dependencies a task will need after these tasks are replayed."""
        return needed(self.rows[key].join_count, self.tally(key, replayed))

    def without_lost(self, replayed: set[uuid.UUID], sources: set[uuid.UUID]) -> set[uuid.UUID]:
        """Return those of these tasks whose joins can still be met, and the sources.

        A task that is left out makes the joins of its dependents be checked again.
        """
        replayed, checked = set(replayed), replayed - sources
        while checked:
            removed = {key for key in checked if not self._can_be_met(key, replayed)}
            replayed -= removed
            checked = {
                under for key in removed for under in self.under.get(key, ()) if under in replayed
            } - sources
        return replayed

    def _can_be_met(self, key: uuid.UUID, replayed: set[uuid.UUID]) -> bool:
        return join_decision(self.rows[key].join_count, self.tally(key, replayed), "") in (
            JoinDecision.STAY,
            JoinDecision.RELEASE,
        )

    def reached(self, sources: set[uuid.UUID], replayed: set[uuid.UUID]) -> set[uuid.UUID]:
        """Return the sources and those of these tasks that depend on them.

        Tasks that were skipped or failed only because of other upstreams are not returned.
        """
        found, frontier = set(sources), set(sources)
        while frontier:
            frontier = {
                under for key in frontier for under in self.under.get(key, ()) if under in replayed
            } - found
            found |= frontier
        return found

    def force(self, forced: Iterable[uuid.UUID]) -> None:
        """Set the edges of force-run tasks to met, as ``edges.force`` did in the table."""
        self.forced.update(forced)
        for key in self.forced:
            for edge in self.above[key]:
                if not edge.met:
                    edge.resolved_at, edge.outcome, edge.met = host_now(), FORCED, True

    def rearm(self, replayed: set[uuid.UUID]) -> None:
        """Make the edges of these upstreams unresolved, and write what their dependents need.

        This includes the edges of tasks that do not wait, because these may be blocked or replayed
        later.
        """
        rearmed = {
            edge.pk: edge
            for above in self.above.values()
            for edge in above
            if edge.depends_on_id in replayed and edge.outcome is not None
        }
        edges.arm_again(rearmed)
        waiting = {
            edge.task_id for edge in rearmed.values() if self._waits(edge.task_id)
        } - replayed
        transitions.set_needed(
            {key: self.needed_by(key, replayed) for key in sorted(waiting - self.forced)}
        )
        self._blame_others({edge.task_id for edge in rearmed.values()} & self.doomed() - replayed)

    def _waits(self, key: uuid.UUID) -> bool:
        return self.rows[key].status == Status.BLOCKED or key in self.blocked_again

    def _blame_others(self, unchanged: set[uuid.UUID]) -> None:
        """Write another cause to tasks that stay ended although their upstream is replayed."""
        others = {
            key: next(
                (
                    e.depends_on_id
                    for e in self.above[key]
                    if e.met is False and e.depends_on_id is not None
                ),
                None,
            )
            for key in unchanged
        }
        found = {key: other for key, other in others.items() if other is not None}
        roots = dict(tables.tasks().filter(pk__in=set(found.values())).values_list("pk", "cause"))
        blamed = [(key, roots.get(other) or other) for key, other in found.items()]
        for first in range(0, len(blamed), _BATCH):
            transitions.blame(dict(blamed[first : first + _BATCH]))


def _is_doomed(row: Task) -> bool:
    return row.cause is not None and row.status in _DOOMED


def _with_all_below(requested: set[uuid.UUID]) -> list[uuid.UUID]:
    """Return the tasks and their dependents, recursively below dependents that ended with them."""
    seen, frontier = set(requested), set(requested)
    while frontier:
        below = edges.edges().below(frontier).values_list("task", "task__status", "task__cause")
        frontier = set()
        for key, status, cause in below:
            if key not in seen and cause is not None and status in _DOOMED:
                frontier.add(key)
            seen.add(key)
    return sorted(seen)


def lock_runs(keys: Sequence[uuid.UUID]) -> set[uuid.UUID]:
    """Lock the workflow runs of these tasks in primary-key order, and return their ids."""
    in_runs = tables.tasks().filter(pk__in=keys, workflow__isnull=False).order_by()
    runs = set(in_runs.values_list("workflow", flat=True))
    if runs:
        no_key = connections[tables.database()].features.has_select_for_no_key_update
        list(
            edges.runs()
            .filter(pk__in=runs)
            .order_by("pk")
            .select_for_update(no_key=no_key)
            .values_list("pk")
        )
    return runs
