"""Ended rows of a graph come back: with them exactly what was skipped or failed because of them.

A row that comes back arms its edges again wherever the row below has not started: it will end once more. What had been
skipped or failed for want of it comes back too, if nothing else stands against it, and so on downwards. All rows in
question are locked together in primary-key order before anything is decided.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db import connections
from django.db.models import Case, F, Q, When
from django.utils import timezone

from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.lifecycle import edges, transitions
from django_durable_tasks.models import Task, TaskDependency, WorkflowRun
from django_durable_tasks.models.task import TaskQuerySet
from django_durable_tasks.rules.graphs import FORCED, Fate, Tally, fate, needed
from django_durable_tasks.rules.states import REPLAYABLE, TERMINAL, TRANSITIONS, Status
from django_durable_tasks.rules.workflows import DEADLINE, WorkflowStatus

_DOOMED = frozenset({Status.SKIPPED, Status.FAILED})
_RELEASED = frozenset({Status.PENDING, Status.QUEUED, Status.RUNNING})
_FEW = 500


class _Neighbourhood:
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
        """Lock until nothing is found below that is not held: edges may be added between a look and its locks.

        Whoever adds an edge holds the row above it, so that below rows which we hold nothing comes any more.
        """
        known: set[uuid.UUID] = set()
        while keys := sorted(set(_with_all_below(self.asked)) - known):
            _lock_runs(keys)
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
        """Return which of these rows come back: nothing stands against them, or they are the sources themselves."""
        back, looked_at = set(back), back - sources
        while looked_at:
            leaving = {key for key in looked_at if not self._comes_back(key, back)}
            back -= leaving
            looked_at = {under for key in leaving for under in self.under.get(key, ()) if under in back} - sources
        return back

    def _comes_back(self, key: uuid.UUID, back: set[uuid.UUID]) -> bool:
        return fate(self.rows[key].join_count, self.tally(key, back), "") in (Fate.STAY, Fate.RELEASE)

    def reached(self, sources: set[uuid.UUID], back: set[uuid.UUID]) -> set[uuid.UUID]:
        """Return what of these hangs on the sources: a row doomed by others alone is none of our business."""
        found, frontier = set(sources), set(sources)
        while frontier:
            frontier = {under for key in frontier for under in self.under.get(key, ()) if under in back} - found
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

        Of a row that does not wait too: should it be held or replayed one day, its edges say how its upstreams stand.
        """
        armed = {
            edge.pk: edge
            for above in self.above.values()
            for edge in above
            if edge.depends_on_id in back and edge.outcome is not None
        }
        edges.arm_again(armed)
        waiting = {edge.task_id for edge in armed.values() if self._waits(edge.task_id)} - back
        transitions.set_needed({key: self.wants(key, back) for key in sorted(waiting - self.forced)})
        self._blame_others({edge.task_id for edge in armed.values()} & self.doomed() - back)

    def _waits(self, key: uuid.UUID) -> bool:
        return self.rows[key].status == Status.BLOCKED or key in self.held

    def _blame_others(self, staying: set[uuid.UUID]) -> None:
        """What stays ended although an upstream came back, stays so because of another one."""
        others = {
            key: next(
                (e.depends_on_id for e in self.above[key] if e.met is False and e.depends_on_id is not None), None
            )
            for key in staying
        }
        found = {key: other for key, other in others.items() if other is not None}
        roots = dict(transitions.tasks().filter(pk__in=set(found.values())).values_list("pk", "cause"))
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


def _lock_runs(keys: Sequence[uuid.UUID]) -> set[uuid.UUID]:
    """Lock the runs of these rows in primary-key order, and return them."""
    of = transitions.tasks().filter(pk__in=keys, workflow__isnull=False).order_by()
    runs = set(of.values_list("workflow", flat=True))
    if runs:
        no_key = connections[transitions.database()].features.has_select_for_no_key_update
        list(edges.runs().filter(pk__in=runs).order_by("pk").select_for_update(no_key=no_key).values_list("pk"))
    return runs


def in_graph(ids: Iterable[uuid.UUID]) -> bool:
    """Return whether others hang on these rows, or they on others."""
    keys = list(ids)
    return transitions.tasks().filter(pk__in=keys, has_dependents=True).exists() or edges.edges().above(keys).exists()


def replay(question: TaskQuerySet, reason: str = "", **changes: Any) -> tuple[list[uuid.UUID], list[uuid.UUID]]:
    """Replay ended rows; return them, and what came back with them. In the caller's transaction.

    ``changes`` are written to the rows that were asked for, ``reason`` to all.

    A row that an upstream still stands against is left alone: replay that upstream, or force-run the row. Raises
    TransitionRefused when this leaves nothing of what was asked for.
    """
    asked = list(question.filter(status__in=REPLAYABLE).values_list("pk", flat=True))
    if not in_graph(asked):
        runs = _lock_runs(asked)
        replayed = transitions.replay(question, reason=reason, **changes)
        _go_on(runs)
        return replayed, []
    there = _Neighbourhood(asked)
    wanted = {key for key in there.asked if key in there.rows and there.rows[key].status in REPLAYABLE}
    back = there.without_lost(wanted | there.doomed(), set())
    back = there.reached(wanted & back, back)
    if wanted and not wanted & back:
        raise TransitionRefused(_stands_against(there, min(wanted)))
    there.arm(back)
    _bring(there, back, changes, reason)
    return sorted(wanted & back), sorted(back - wanted)


def again(asked: Sequence[uuid.UUID], reason: str = "") -> list[uuid.UUID]:
    """Run ended rows again, successes too, each after those of its upstreams that do; return all that came back.

    What had been released below them and has not started waits again. Raises TransitionRefused while a row below
    runs, and when nothing comes back. In the caller's transaction.
    """
    there = _Neighbourhood(asked)
    wanted = {key for key in there.asked if key in there.rows and there.rows[key].status in TERMINAL}
    back = there.without_lost(wanted | there.doomed(), set())
    back = there.reached(wanted & back, back)
    if not wanted & back:
        raise TransitionRefused(_stands_against(there, min(wanted)) if wanted else "None of these tasks has ended.")
    below = {under for key in back for under in there.under.get(key, ())} - back
    _refuse_running(there, below)
    _hold_released(there, below, back)
    there.arm(back)
    _bring(there, back, {}, reason)
    return sorted(back)


def _refuse_running(there: _Neighbourhood, below: set[uuid.UUID]) -> None:
    for key in sorted(below):
        row = there.rows[key]
        if row.status == Status.RUNNING:
            raise TransitionRefused(
                f"{row.step or row.name} ({key}) runs, and waited for a task that would run again: let it end, or"
                " cancel it first."
            )


def _hold_released(there: _Neighbourhood, below: set[uuid.UUID], back: set[uuid.UUID]) -> None:
    """Block again what was released and has not started, where it needs one of these rows."""
    held = [key for key in sorted(below) if there.rows[key].status in _RELEASED and there.wants(key, back)]
    these = transitions.tasks().filter(pk__in=held)
    transitions.hand_back(these, 0)
    transitions.hold_back(these)
    there.held.update(held)


def _bring(
    there: _Neighbourhood, back: set[uuid.UUID], changes: Mapping[str, Any], reason: str = "",
    sources: Iterable[uuid.UUID] = (),
) -> None:  # fmt: skip
    """Move these rows, but the sources, which stand where they should; each waits for those that come back too.

    ``changes`` are for the rows that were asked for: those that only come back with them keep their arguments.
    """
    wants = {key: there.wants(key, back) for key in sorted(back - set(sources))}
    for name in ("replay", "rerun"):
        keys = {key for key in wants if there.rows[key].status in TRANSITIONS[name].sources}
        at_once = {key for key in wants if key in keys and not wants[key]}
        for part, writes in ((at_once & there.asked, changes), (at_once - there.asked, {})):
            if part:
                these = transitions.tasks().filter(pk__in=sorted(part))
                transitions.replay(these, name, reason=reason, **writes)
        blocked = [(key, there.rows[key].epoch) for key in wants if key in keys and wants[key]]
        transitions.replay_blocked(blocked, name, reason=reason)
    waiting = {key: number for key, number in wants.items() if number}
    edited = sorted(there.asked & waiting.keys())
    if changes and edited:
        transitions.edit(transitions.tasks().filter(pk__in=edited), **changes)
    transitions.set_needed(waiting)
    _go_on(there.runs_of(wants))


def _go_on(keys: set[uuid.UUID]) -> None:
    """Let runs whose rows came back go on: nobody cancels them any more, their keys are theirs again.

    A deadline that is over is forgotten, or they would be cancelled at once. Raises TransitionRefused where another
    run holds the key.
    """
    if not keys:
        return
    stopped = edges.runs().filter(pk__in=keys).exclude(status=WorkflowStatus.STARTING).filter(
        Q(completed_at__isnull=False) | Q(cancel_requested_at__isnull=False)
    )  # fmt: skip
    for row in stopped.filter(key__isnull=False, open_key__isnull=True):
        other = edges.runs().filter(tenant_id=row.tenant_id, open_key=row.key)
        for key in other.values_list("pk", flat=True):
            raise TransitionRefused(f"{row} cannot run again: its key {row.key!r} is held by the run {key}.")
    missed = Q(reason=DEADLINE) | Q(deadline_at__lte=transitions.NOW)
    these = [row.pk for row in stopped]
    WorkflowRun.objects.using(transitions.database()).unguarded().filter(pk__in=these).update(
        # The deadline first: MariaDB assigns from left to right.
        deadline_at=Case(When(missed, then=None), default=F("deadline_at")), status=WorkflowStatus.RUNNING,
        completed_at=None, open_key=F("key"), cancel_requested_at=None, reason="", updated_at=transitions.NOW,
    )  # fmt: skip


def _stands_against(there: _Neighbourhood, key: uuid.UUID) -> str:
    unmet = (edge for edge in there.above[key] if edge.met is False and edge.depends_on_id is not None)
    edge = next(unmet, None)
    name = there.rows[key].step or there.rows[key].name
    upstream = edge.depends_on_id if edge else "one of its upstreams"
    outcome = edge.outcome if edge else "not met"
    other = "force-run" if there.rows[key].status == Status.SKIPPED else "force-complete"
    return f"{name} ({key}) waits for task {upstream}, which is {outcome}: replay that one, or {other} this one."


def force_run(question: TaskQuerySet, reason: str, *, by: str = "") -> tuple[list[uuid.UUID], list[uuid.UUID]]:
    """Run BLOCKED and SKIPPED rows whatever their upstreams say; return them, and what came back below them."""
    asked = list(question.filter(status__in=TRANSITIONS["force_run"].sources).values_list("pk", flat=True))
    there = _Neighbourhood(asked)
    skipped = {key for key in asked if key in there.rows and there.rows[key].status == Status.SKIPPED}
    forced = transitions.force_run(transitions.tasks().filter(pk__in=asked), reason)
    edges.force(forced, by=by)
    there.force(forced)
    _go_on(there.runs_of(forced))
    return forced, _revive(there, skipped & set(forced))


def hold(question: TaskQuerySet) -> None:
    """Lock these rows of a graph with what hangs on them before any of them moves, in the order of everybody else."""
    keys = set(question.values_list("pk", flat=True))
    if in_graph(keys):
        _Neighbourhood(keys)


def revive_below(done: Iterable[uuid.UUID]) -> list[uuid.UUID]:
    """Bring back what ended for want of these rows, which an operator calls done now; return it."""
    keys = set(done)
    return _revive(_Neighbourhood(keys), keys) if in_graph(keys) else []


def _revive(there: _Neighbourhood, sources: set[uuid.UUID]) -> list[uuid.UUID]:
    back = there.without_lost((there.doomed() - there.asked) | sources, sources)
    back = there.reached(sources, back)
    there.arm(back)
    _bring(there, back, {}, sources=sources)
    return sorted(back - sources)
