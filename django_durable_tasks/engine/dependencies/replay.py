"""Ended rows of a graph come back: with them exactly what was skipped or failed because of them.

A row that comes back arms its edges again wherever the row below has not started: it will end once
more. What had been skipped or failed for want of it comes back too, if nothing else stands against
it, and so on downwards. All rows in question are locked together in primary-key order before
anything is decided.
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
    """Return whether others hang on these rows, or they on others."""
    keys = list(ids)
    return (
        tables.tasks().filter(pk__in=keys, has_dependents=True).exists()
        or edges.edges().above(keys).exists()
    )


def replay(
    question: TaskQuerySet, reason: str = "", **changes: Any
) -> tuple[list[uuid.UUID], list[uuid.UUID]]:
    """Replay ended rows; return them, and what came back with them. In the caller's transaction.

    ``changes`` are written to the rows that were asked for, ``reason`` to all.

    A row that an upstream still stands against is left alone: replay that upstream, or force-run
    the row. Raises TransitionRefused when this leaves nothing of what was asked for.
    """
    asked = list(question.filter(status__in=REPLAYABLE).values_list("pk", flat=True))
    if not in_graph(asked):
        runs = lock_runs(asked)
        replayed = transitions.replay(question, reason=reason, **changes)
        _go_on(runs)
        return replayed, []
    there = LockedSubgraph(asked)
    wanted = {
        key for key in there.asked if key in there.rows and there.rows[key].status in REPLAYABLE
    }
    back = there.without_lost(wanted | there.doomed(), set())
    back = there.reached(wanted & back, back)
    if wanted and not wanted & back:
        raise TransitionRefused(_stands_against(there, min(wanted)))
    there.arm(back)
    _bring(there, back, changes, reason)
    return sorted(wanted & back), sorted(back - wanted)


def again(asked: Sequence[uuid.UUID], reason: str = "") -> list[uuid.UUID]:
    """Run ended rows again, successes too, each after those of its upstreams that do; return all
    that came back.

    What had been released below them and has not started waits again. Raises TransitionRefused
    while a row below runs, and when nothing comes back. In the caller's transaction.
    """
    there = LockedSubgraph(asked)
    wanted = {
        key for key in there.asked if key in there.rows and there.rows[key].status in TERMINAL
    }
    back = there.without_lost(wanted | there.doomed(), set())
    back = there.reached(wanted & back, back)
    if not wanted & back:
        raise TransitionRefused(
            _stands_against(there, min(wanted)) if wanted else "None of these tasks has ended."
        )
    below = {under for key in back for under in there.under.get(key, ())} - back
    _refuse_running(there, below)
    _hold_released(there, below, back)
    there.arm(back)
    _bring(there, back, {}, reason)
    return sorted(back)


def _refuse_running(there: LockedSubgraph, below: set[uuid.UUID]) -> None:
    for key in sorted(below):
        row = there.rows[key]
        if row.status == Status.RUNNING:
            raise TransitionRefused(
                f"{row.step or row.name} ({key}) runs, and waited for a task that would run again:"
                " let it end, or cancel it first."
            )


def _hold_released(there: LockedSubgraph, below: set[uuid.UUID], back: set[uuid.UUID]) -> None:
    """Block again what was released and has not started, where it needs one of these rows."""
    held = [
        key
        for key in sorted(below)
        if there.rows[key].status in RELEASED and there.wants(key, back)
    ]
    these = tables.tasks().filter(pk__in=held)
    transitions.hand_back(these, 0)
    transitions.block(these)
    there.held.update(held)


def _bring(
    there: LockedSubgraph,
    back: set[uuid.UUID],
    changes: Mapping[str, Any],
    reason: str = "",
    sources: Iterable[uuid.UUID] = (),
) -> None:
    """Move these rows, but the sources, which stand where they should; each waits for those that
    come back too.

    ``changes`` are for the rows that were asked for: those that only come back with them keep their
    arguments.
    """
    wants = {key: there.wants(key, back) for key in sorted(back - set(sources))}
    for name in ("replay", "rerun"):
        keys = {key for key in wants if there.rows[key].status in TRANSITIONS[name].sources}
        at_once = {key for key in wants if key in keys and not wants[key]}
        for part, writes in ((at_once & there.asked, changes), (at_once - there.asked, {})):
            if part:
                these = tables.tasks().filter(pk__in=sorted(part))
                transitions.replay(these, name, reason=reason, **writes)
        blocked = [(key, there.rows[key].epoch) for key in wants if key in keys and wants[key]]
        transitions.replay_blocked(blocked, name, reason=reason)
    waiting = {key: number for key, number in wants.items() if number}
    edited = sorted(there.asked & waiting.keys())
    if changes and edited:
        transitions.edit(tables.tasks().filter(pk__in=edited), **changes)
    transitions.set_needed(waiting)
    _go_on(there.runs_of(wants))


def _go_on(keys: set[uuid.UUID]) -> None:
    """Let runs whose rows came back go on: nobody cancels them any more, their keys are theirs
    again.

    A deadline that is over is forgotten, or they would be cancelled at once. Raises
    TransitionRefused where another run holds the key.
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
                f"{row} cannot run again: its key {row.key!r} is held by the run {key}."
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


def _stands_against(there: LockedSubgraph, key: uuid.UUID) -> str:
    unmet = (
        edge for edge in there.above[key] if edge.met is False and edge.depends_on_id is not None
    )
    edge = next(unmet, None)
    name = there.rows[key].step or there.rows[key].name
    upstream = edge.depends_on_id if edge else "one of its upstreams"
    outcome = edge.outcome if edge else "not met"
    other = "force-run" if there.rows[key].status == Status.SKIPPED else "force-complete"
    return (
        f"{name} ({key}) waits for task {upstream}, which is {outcome}: replay that one, or {other}"
        " this one."
    )


def force_run(
    question: TaskQuerySet, reason: str, *, by: str = ""
) -> tuple[list[uuid.UUID], list[uuid.UUID]]:
    """Run BLOCKED and SKIPPED rows whatever their upstreams say; return them, and what came back
    below them.
    """
    asked = list(
        question.filter(status__in=TRANSITIONS["force_run"].sources).values_list("pk", flat=True)
    )
    there = LockedSubgraph(asked)
    skipped = {
        key for key in asked if key in there.rows and there.rows[key].status == Status.SKIPPED
    }
    forced = transitions.force_run(tables.tasks().filter(pk__in=asked), reason)
    edges.force(forced, by=by)
    there.force(forced)
    _go_on(there.runs_of(forced))
    return forced, _revive(there, skipped & set(forced))


def hold(question: TaskQuerySet) -> None:
    """Lock these rows of a graph with what hangs on them before any of them moves, in the order of
    everybody else.
    """
    keys = set(question.values_list("pk", flat=True))
    if in_graph(keys):
        LockedSubgraph(keys)


def revive_below(done: Iterable[uuid.UUID]) -> list[uuid.UUID]:
    """Bring back what ended for want of these rows, which an operator calls done now; return it."""
    keys = set(done)
    return _revive(LockedSubgraph(keys), keys) if in_graph(keys) else []


def _revive(there: LockedSubgraph, sources: set[uuid.UUID]) -> list[uuid.UUID]:
    back = there.without_lost((there.doomed() - there.asked) | sources, sources)
    back = there.reached(sources, back)
    there.arm(back)
    _bring(there, back, {}, sources=sources)
    return sorted(back - sources)
