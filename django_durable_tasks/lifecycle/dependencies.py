"""Endings are told to dependents: edges are resolved, joins met, rows released, skipped or failed with a cause.

One batch is one transaction: the notes are taken with SKIP LOCKED, upstreams and children are locked together in
primary-key order, edges are resolved once, and each child's count is taken anew under its lock. So a note that is told
twice, or by two tellers at once, changes nothing more; a skipped child leaves a note of its own, and a cascade walks
one level a batch. Facts: counts under the child's lock, PostgreSQL documentation 13.2.1 (READ COMMITTED).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from django.db.models import Exists, OuterRef

from django_durable_tasks import conf, ports
from django_durable_tasks.lifecycle import edges, limits, records, transitions
from django_durable_tasks.lifecycle.claims import rings_of
from django_durable_tasks.lifecycle.deadlocks import through_deadlocks
from django_durable_tasks.lifecycle.isolation import Isolation
from django_durable_tasks.models import EndingEvent, Task, TaskDependency
from django_durable_tasks.models.ending_event import EndingEventQuerySet
from django_durable_tasks.ports import Ring
from django_durable_tasks.rules.endings import Kind, Outcome
from django_durable_tasks.rules.graphs import DELETED, Fate, Tally, Told, fate, needed, tell
from django_durable_tasks.rules.states import TERMINAL, LogStatus, Status

SMALL = 100
"""A worker tells its own ending when it has at most so many dependents ..."""
FEW = 64
"""... none of which waits for more than this; else the leader does it, many endings a batch."""
_EDGES = 2_000


@dataclass(slots=True)
class Spread:
    """What one batch did: notes dealt with, rows moved, what to ring after the commit, whether more is left."""

    notes: int = 0
    moved: int = 0
    rings: list[Ring] = field(default_factory=list)
    left: bool = False

    def add(self, other: Spread) -> None:
        """Add what another batch did."""
        self.notes, self.moved = self.notes + other.notes, self.moved + other.moved
        self.rings, self.left = self.rings + other.rings, self.left or other.left


_isolation = Isolation[uuid.UUID]("ending of task")


def spread(limit: int) -> Spread:
    """Tell one batch of endings to their dependents; the caller rings what was released. Call until nothing is left.

    A task whose dependents cannot be moved is postponed; the others go on.
    """
    untold = edges.endings().unresolved().exclude(task_id__in=_isolation.postponed())
    notes: dict[uuid.UUID, list[int]] = {}
    for note, task_id in untold.values_list("pk", "task_id")[:limit]:
        notes.setdefault(task_id, []).append(note)
    if not notes:
        return Spread()
    whole = Spread()
    for done in _isolation.batch(
        lambda: _spread_met([*chain(*notes.values())], (), ()), lambda: list(notes),
        lambda task_id: _spread_met(notes[task_id], (), ()),
    ):  # fmt: skip
        whole.add(done)
    return whole


def spread_of(task_id: uuid.UUID) -> Spread:
    """Tell the ending of one task where that is little work; the rest is left to the leader."""
    below = transitions.below(task_id, SMALL + 1)
    if below is None:
        return _spread_of(task_id)
    if not below or len(below) > SMALL or any(wants > FEW for wants, *_ in below):
        return Spread(left=bool(below))
    ready = [(name, queue, tenant) for wants, queue, due, _, name, tenant in below if wants == 1 and due]
    settings = conf.settings()
    may_ring = settings.FAST_PATH and len(ready) <= settings.FAST_PATH_MAX and ports.broker_open()
    queues = (
        {queue for name, queue, tenant in ready if limits.fast_path_open(name, queue, tenant)} if may_ring else set()
    )
    limited = {name for _, queue, _, _, name, tenant in below if limits.can_bind(name, queue, tenant)}
    return _spread_met(below[0][3], queues, limited)


def _spread_of(task_id: uuid.UUID) -> Spread:
    mine = list(edges.endings().unresolved().filter(task_id=task_id).values_list("pk", flat=True))
    if not mine:
        return Spread()
    waiting = edges.edges().below([task_id]).untold().order_by()
    wants = list(waiting.values_list("task__unresolved_dependencies_count", flat=True)[: SMALL + 1])
    if len(wants) > SMALL or any(number > FEW for number in wants):
        return Spread(left=True)
    return _spread(edges.endings().unresolved().filter(pk__in=mine), len(mine))


def _spread_met(notes: Sequence[int], queues: Iterable[str], limited: Iterable[str]) -> Spread:
    """Tell these by one statement where there is one, and what it leaves by the other hand.

    What may be rung at once: tasks of these queues, but those of the ``limited`` names.
    """
    done = through_deadlocks(transitions.release_met)(
        notes, _EDGES, list(queues), list(limited), conf.settings().REPUBLISH_AFTER
    )
    if done is None:
        return _spread(edges.endings().unresolved().filter(pk__in=list(notes)), len(notes))
    found = Spread(notes=done.notes, moved=done.moved, rings=rings_of(done.rung), left=done.more)
    if done.left and not done.more:
        rest = _spread(edges.endings().unresolved().filter(pk__in=list(done.left)), len(done.left))
        found.moved += rest.moved
        found.rings += rest.rings
    return found


def spread_notes(notes: Iterable[int]) -> Spread:
    """Tell these endings, of an operation that follows its own to the end; the caller rings what was released.

    By transitions of rows alone, never by one statement: the operation watches which rows they move.
    """
    return _spread(edges.endings().unresolved().filter(pk__in=list(notes)), _EDGES)


@through_deadlocks
def _spread(question: EndingEventQuerySet, limit: int) -> Spread:
    found = list(question.values_list("pk", flat=True)[:limit])
    if not found:
        return Spread()
    with transitions.atomic():
        # By the primary key alone: of a note that it leaves to its holder MariaDB keeps the entry of any other index.
        held = edges.endings().filter(pk__in=found).order_by("pk").select_for_update(skip_locked=True)
        notes = [note for note in held if not note.resolved]
        upstreams = _news(notes)
        waiting = edges.edges().below(upstreams).untold().order_by("task", "pk")
        children = list(waiting.values_list("task", flat=True)[:_EDGES])
        rows = transitions.lock_rows([*upstreams, *children])
        outcomes = _outcomes([note for note in notes if note.task_id in upstreams], rows)
        told = _tell_edges(outcomes, set(children), rows)
        done = settle(rows, set(children) & set(told), told)
        if len(children) < _EDGES:
            _deal_with(notes)
        done.notes = len(notes)
    return done


def _news(notes: Sequence[EndingEvent]) -> set[uuid.UUID]:
    """Return the rows that these notes say something of; a note of an earlier ending never will again."""
    keys = {note.task_id for note in notes}
    epochs = dict(transitions.tasks().filter(pk__in=keys).values_list("pk", "epoch"))
    return {note.task_id for note in notes if epochs.get(note.task_id, note.epoch) == note.epoch}


def _outcomes(notes: Iterable[EndingEvent], rows: Mapping[uuid.UUID, Task]) -> dict[uuid.UUID, str]:
    """Return how each upstream ended, as its row says now; a note of an earlier ending says nothing.

    Of a row that was deleted before its ending was told the last note says how it had ended.
    """
    found: dict[uuid.UUID, str] = {}
    for note in sorted(notes, key=lambda note: note.epoch):
        row = rows.get(note.task_id)
        if row is None:
            found[note.task_id] = note.status
        elif row.epoch == note.epoch and row.status in TERMINAL:
            found[note.task_id] = row.status
    return found


def _tell_edges(
    outcomes: Mapping[uuid.UUID, str], children: set[uuid.UUID], rows: Mapping[uuid.UUID, Task]
) -> dict[uuid.UUID, list[tuple[TaskDependency, Told]]]:
    told: dict[uuid.UUID, list[tuple[TaskDependency, Told]]] = {}
    writes: dict[int, tuple[str, Told]] = {}
    for edge in edges.edges().below(outcomes).untold().filter(task__in=children):
        child, outcome = rows.get(edge.task_id), outcomes[edge.upstream_id]
        verdict = tell(
            edge.dependency_type, outcome, edge.on_upstream_failure or (child.on_upstream_failure if child else "")
        )
        writes[edge.pk] = outcome, verdict
        edge.outcome = outcome
        told.setdefault(edge.task_id, []).append((edge, verdict))
    edges.tell(writes)
    return told


def _deal_with(notes: Iterable[EndingEvent]) -> None:
    """Delete notes that nobody needs any more, and leave those that a workflow has to count."""
    counted = [note.pk for note in notes if note.workflow_id is not None and note.delta]
    edges.endings().filter(pk__in=counted).update(resolved=True)
    edges.endings().filter(pk__in=[note.pk for note in notes if note.pk not in set(counted)]).delete()


# What becomes of those that wait ------------------------------------------------------------------------------------


def settle(
    rows: Mapping[uuid.UUID, Task],
    children: Iterable[uuid.UUID],
    told: Mapping[uuid.UUID, Sequence[tuple[TaskDependency, Told]]],
) -> Spread:
    """Count anew what these locked rows still need, and move those whose fate is clear; others are left alone.

    ``told``: the news of each child; ``rows`` may hold the upstreams that are to blame.
    """
    waiting = [rows[child] for child in sorted(children) if child in rows and rows[child].status == Status.BLOCKED]
    tallies = _tallies(waiting, told)
    fates: dict[Fate, list[Task]] = {kind: [] for kind in Fate}
    for row in waiting:
        fates[fate(row.join_count, tallies[row.pk], _policy(row, told.get(row.pk, ())))].append(row)
    transitions.set_needed({row.pk: needed(row.join_count, tallies[row.pk]) for row in fates[Fate.STAY]})
    rings = release(fates[Fate.RELEASE])
    doomed = fates[Fate.SKIP] + fates[Fate.FAIL]
    blame = {row.pk: _blame(row, told.get(row.pk, ()), rows) for row in doomed}
    reasons, causes = {key: found[0] for key, found in blame.items()}, {key: found[1] for key, found in blame.items()}
    transitions.skip_blocked([(row.pk, row.epoch) for row in fates[Fate.SKIP]], reasons, causes)
    _fail(fates[Fate.FAIL], reasons, causes)
    return Spread(moved=len(waiting) - len(fates[Fate.STAY]), rings=rings)


def _tallies(
    waiting: Sequence[Task], told: Mapping[uuid.UUID, Sequence[tuple[TaskDependency, Told]]]
) -> dict[uuid.UUID, Tally]:
    """Count the edges: of a task that needs them all and hears news only what is open, of others all.

    A task that needs them all cannot have waited on after an edge was not met, so that the news are all of these.
    """
    brief = [row.pk for row in waiting if row.join_count is None and row.pk in told]
    some = [row.pk for row in waiting if row.join_count is not None or row.pk not in told]
    found = edges.tallies(some) if some else {}
    every = edges.open_tallies(brief)
    for row in waiting:
        if row.join_count is None and row.pk in told:
            open_ones = every.get(row.pk, Tally())
            unmet = sum(1 for _, verdict in told.get(row.pk, ()) if verdict.resolved and not verdict.met)
            found[row.pk] = Tally(unresolved=open_ones.unresolved, gates=open_ones.gates, unmet=unmet)
    return {row.pk: found.get(row.pk, Tally()) for row in waiting}


def _policy(row: Task, told: Sequence[tuple[TaskDependency, Told]]) -> str:
    unmet = [verdict.policy for _, verdict in told if verdict.resolved and not verdict.met]
    return unmet[0] if unmet else row.on_upstream_failure


def _blame(
    row: Task, told: Sequence[tuple[TaskDependency, Told]], rows: Mapping[uuid.UUID, Task]
) -> tuple[str, uuid.UUID]:
    news = (edge for edge, verdict in told if verdict.resolved and not verdict.met)
    edge = next(news, None) or edges.first_unmet(row.pk)
    upstream = rows.get(edge.upstream_id) or transitions.tasks().filter(pk=edge.upstream_id).first()
    name = str(edge.depends_on_id) if upstream is None else upstream.step or upstream.name
    cause = edge.upstream_id if upstream is None or upstream.cause is None else upstream.cause
    return f"upstream {name} ended {edge.outcome}"[:200], cause


def release(rows: Sequence[Task]) -> list[Ring]:
    """Release locked BLOCKED rows; return the rings of those that are due now and may be rung at once."""
    settings = conf.settings()
    rung = [row for row in rows if _may_be_rung(row)][: settings.FAST_PATH_MAX] if settings.FAST_PATH else []
    keys = {row.pk for row in rung}
    transitions.release([(row.pk, row.epoch) for row in rows if row.pk not in keys])
    if not rung:
        return []
    transitions.release_rung([(row.pk, row.epoch) for row in rung], settings.REPUBLISH_AFTER)
    return rings_of(transitions.tasks().filter(pk__in=keys).values_list(*transitions.RING_COLUMNS))


def _may_be_rung(row: Any) -> bool:
    in_time = row.run_at <= row.read_at and row.expires_at is None and row.overlap_key is None
    return in_time and ports.broker_open() and limits.fast_path_open(row.name, row.queue, row.tenant_id)


def _fail(rows: Sequence[Task], reasons: Mapping[uuid.UUID, str], causes: Mapping[uuid.UUID, uuid.UUID]) -> None:
    if not rows:
        return
    transitions.fail_blocked([(row.pk, row.epoch) for row in rows], reasons, causes)
    whole = transitions.tasks().filter(pk__in=[row.pk for row in rows]).order_by("pk")
    records.open_cases([
        (
            records.Closing(
                task=row, log=LogStatus.FAILED,
                outcome=Outcome(kind=Kind.FAILED, error=reasons[row.pk], error_type="UpstreamFailed"),
            ),
            "UPSTREAM",
        )
        for row in whole
    ])  # fmt: skip


# Deleted upstreams ------------------------------------------------------------------------------------------------


def find_deleted(past: int, limit: int) -> int:
    """Note, among so many unresolved edges past this one, the upstreams whose rows are gone.

    Return the last edge that was looked at, 0 at the end. A row may be deleted by hand or by SQL: nobody tells us.
    """
    window = edges.edges().unresolved().filter(depends_on__isnull=False, pk__gt=past).order_by("pk")
    looked = list(window.values_list("pk", flat=True)[:limit])
    if not looked:
        return 0
    upstream = transitions.tasks().filter(pk=OuterRef("depends_on"))
    gone = edges.edges().filter(pk__in=looked).filter(~Exists(upstream), outcome__isnull=True)
    edges.note_again(dict.fromkeys(set(gone.values_list("depends_on", flat=True)), (0, DELETED)))
    return looked[-1]
