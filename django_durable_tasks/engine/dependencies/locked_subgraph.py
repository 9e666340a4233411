"""The tasks around replayed ones, locked in primary-key order, and what their joins need."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from django.db import connections
from django.utils import timezone

from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.dependencies import edges
from django_durable_tasks.models import Task, TaskDependency
from django_durable_tasks.rules.dependencies import FORCED, Fate, Tally, fate, needed
from django_durable_tasks.rules.states import Status

_DOOMED = frozenset({Status.SKIPPED, Status.FAILED})


RELEASED = frozenset({Status.PENDING, Status.QUEUED, Status.RUNNING})


_FEW = 500


class LockedSubgraph:
    """Rows that were asked for and whatever hangs on them, locked, with all the edges above them.

    Their runs are locked before them, as a body that adds tasks does.
    """

    def __init__(self, asked: Iterable[uuid.UUID]) -> None:
        self.asked = set(asked)
        self.rows: dict[uuid.UUID, Task] = {}
        self._lock_all()
        self.above: dict[uuid.UUID, list[TaskDependency]] = {key: [] for key in self.rows}
        self.under: dict[uuid.UUID, list[uuid.UUID]] = {}
        self.forced: set[uuid.UUID] = set()
        self.held: set[uuid.UUID] = set()
        for edge in edges.edges().above(self.rows):
            self.above[edge.task_id].append(edge)
            if edge.depends_on_id is not None:
                self.under.setdefault(edge.depends_on_id, []).append(edge.task_id)

    def _lock_all(self) -> None:
        """Lock until nothing is found below that is not held: edges may be added between a look and
        its locks.

        Whoever adds an edge holds the row above it, so that below rows which we hold nothing comes
        any more.
        """
        known: set[uuid.UUID] = set()
        while keys := sorted(set(_with_all_below(self.asked)) - known):
            lock_runs(keys)
            self.rows |= transitions.lock_rows(keys)
            known.update(keys)

    def runs_of(self, keys: Iterable[uuid.UUID]) -> set[uuid.UUID]:
        """Return the runs of these rows."""
        found = (self.rows[key].workflow_id for key in keys)
        return {run for run in found if run is not None}

    def doomed(self) -> set[uuid.UUID]:
        """Return the rows that ended only because an upstream did."""
        return {key for key, row in self.rows.items() if _is_doomed(row)}

    def tally(self, key: uuid.UUID, back: set[uuid.UUID]) -> Tally:
        """Count the edges of a row as they will be when these rows are back."""
        unresolved = met = unmet = gates = 0
        for edge in self.above[key]:
            if edge.depends_on_id is None:
                gates += edge.resolved_at is None
            elif edge.resolved_at is None or edge.depends_on_id in back:
                unresolved += 1
            elif edge.met:
                met += 1
            else:
                unmet += 1
        return Tally(unresolved=unresolved, met=met, unmet=unmet, gates=gates)

    def wants(self, key: uuid.UUID, back: set[uuid.UUID]) -> int:
        """Return what a row will still need when these rows are back."""
        return needed(self.rows[key].join_count, self.tally(key, back))

    def without_lost(self, back: set[uuid.UUID], sources: set[uuid.UUID]) -> set[uuid.UUID]:
        """Return which of these rows come back: nothing stands against them, or they are the
        sources themselves.
        """
        back, looked_at = set(back), back - sources
        while looked_at:
            leaving = {key for key in looked_at if not self._comes_back(key, back)}
            back -= leaving
            looked_at = {
                under for key in leaving for under in self.under.get(key, ()) if under in back
            } - sources
        return back

    def _comes_back(self, key: uuid.UUID, back: set[uuid.UUID]) -> bool:
        return fate(self.rows[key].join_count, self.tally(key, back), "") in (
            Fate.STAY,
            Fate.RELEASE,
        )

    def reached(self, sources: set[uuid.UUID], back: set[uuid.UUID]) -> set[uuid.UUID]:
        """Return what of these hangs on the sources: a row doomed by others alone is none of our
        business.
        """
        found, frontier = set(sources), set(sources)
        while frontier:
            frontier = {
                under for key in frontier for under in self.under.get(key, ()) if under in back
            } - found
            found |= frontier
        return found

    def force(self, forced: Iterable[uuid.UUID]) -> None:
        """Know what was written of rows that an operator runs: they need nothing any more."""
        self.forced.update(forced)
        for key in self.forced:
            for edge in self.above[key]:
                if not edge.met:
                    edge.resolved_at, edge.outcome, edge.met = timezone.now(), FORCED, True

    def arm(self, back: set[uuid.UUID]) -> None:
        """Let the edges from these rows wait again, and count anew what waits.

        Of a row that does not wait too: should it be held or replayed one day, its edges say how
        its upstreams stand.
        """
        armed = {
            edge.pk: edge
            for above in self.above.values()
            for edge in above
            if edge.depends_on_id in back and edge.outcome is not None
        }
        edges.arm_again(armed)
        waiting = {edge.task_id for edge in armed.values() if self._waits(edge.task_id)} - back
        transitions.set_needed(
            {key: self.wants(key, back) for key in sorted(waiting - self.forced)}
        )
        self._blame_others({edge.task_id for edge in armed.values()} & self.doomed() - back)

    def _waits(self, key: uuid.UUID) -> bool:
        return self.rows[key].status == Status.BLOCKED or key in self.held

    def _blame_others(self, staying: set[uuid.UUID]) -> None:
        """What stays ended although an upstream came back, stays so because of another one."""
        others = {
            key: next(
                (
                    e.depends_on_id
                    for e in self.above[key]
                    if e.met is False and e.depends_on_id is not None
                ),
                None,
            )
            for key in staying
        }
        found = {key: other for key, other in others.items() if other is not None}
        roots = dict(tables.tasks().filter(pk__in=set(found.values())).values_list("pk", "cause"))
        blamed = [(key, roots.get(other) or other) for key, other in found.items()]
        for first in range(0, len(blamed), _FEW):
            transitions.blame(dict(blamed[first : first + _FEW]))


def _is_doomed(row: Task) -> bool:
    return row.cause is not None and row.status in _DOOMED


def _with_all_below(asked: set[uuid.UUID]) -> list[uuid.UUID]:
    """Return the rows, their dependents, and those below what ended because of them."""
    seen, frontier = set(asked), set(asked)
    while frontier:
        below = edges.edges().below(frontier).values_list("task", "task__status", "task__cause")
        frontier = set()
        for key, status, cause in below:
            if key not in seen and cause is not None and status in _DOOMED:
                frontier.add(key)
            seen.add(key)
    return sorted(seen)


def lock_runs(keys: Sequence[uuid.UUID]) -> set[uuid.UUID]:
    """Lock the runs of these rows in primary-key order, and return them."""
    of = tables.tasks().filter(pk__in=keys, workflow__isnull=False).order_by()
    runs = set(of.values_list("workflow", flat=True))
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
