"""Edges and gates of rows that exist: placed and taken away under lock, never so that tasks wait in
a circle.

Edges between existing rows are added one transaction at a time for each tenant: two that are each
harmless could close a circle together. Facts: a row that is being ended is locked by its ending, so
an edge to it is either seen by that ending or born knowing how it ended.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.deadlocks import retry_on_deadlock
from django_durable_tasks.engine.db.publish_on_commit import publish_after_commit
from django_durable_tasks.engine.dependencies import edges, resolve
from django_durable_tasks.exceptions import DependencyCycle, InvalidDependency, TransitionRefused
from django_durable_tasks.models import Task, TaskDependency, Tenant
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.rules.dependencies import (
    Fate,
    Gate,
    Tally,
    chosen,
    cycle_in,
    edge_outcome,
    fate,
    needed,
)
from django_durable_tasks.rules.states import TERMINAL, Status
from django_durable_tasks.rules.workflows.plan import PlannedEdge

_LINKABLE = (Status.BLOCKED, Status.PENDING, Status.QUEUED)


def new_edge(
    edge: PlannedEdge,
    task_id: uuid.UUID,
    upstream: Task | None,
    policy: str,
    *,
    by: str = "",
    reason: str = "",
) -> TaskDependency:
    """Return the edge as it is born: resolved where its upstream has ended as it asks for, else
    waiting.

    An upstream that ended otherwise is told to the edge like any ending, so that one engine decides
    what follows.
    """
    row = TaskDependency(
        task_id=task_id,
        depends_on_id=_id(edge),
        dependency_type=edge.kind,
        on_upstream_failure=edge.policy,
        placed_by=by[:200],
        note=reason[:500],
    )
    if upstream is not None and upstream.status in TERMINAL:
        verdict = edge_outcome(edge.kind, upstream.status, edge.policy or policy)
        if verdict.met:
            row.resolved_at, row.outcome, row.met = tables.NOW, upstream.status, True
    return row


def insert_edges(born_edges: Sequence[TaskDependency], rows: Mapping[uuid.UUID, Task]) -> None:
    """Insert edges to locked upstreams, mark these, and see to it that those which have ended are
    told.

    RUNNING upstreams, which a caller's transaction does not lock, are marked after its commit.
    """
    edges.insert(born_edges)
    waiting = [rows[edge.upstream_id] for edge in born_edges if edge.resolved_at is None]
    unlocked = [
        row.pk
        for row in rows.values()
        if row.status == Status.RUNNING and tables.callers_transaction()
    ]
    above = {edge.upstream_id for edge in born_edges}
    transitions.mark_upstreams(sorted(above - set(unlocked)))
    transitions.leave_marks(sorted(above & set(unlocked)))
    ended = {row.pk: (row.epoch, row.status) for row in waiting if row.status in TERMINAL}
    edges.insert_events_again(ended)


def _upstream(edge: PlannedEdge, rows: Mapping[uuid.UUID, Task]) -> Task | None:
    return rows.get(_id(edge))


def _id(edge: PlannedEdge) -> uuid.UUID:
    if not isinstance(edge.upstream, uuid.UUID):
        raise TypeError(f"The edge to place {edge.upstream} of a plan has no row yet.")
    return edge.upstream


def check_upstreams(
    wanted: Iterable[PlannedEdge], rows: Mapping[uuid.UUID, Task], tenant_id: int
) -> None:
    """Refuse upstreams that do not exist for this tenant; raises InvalidDependency."""
    for edge in wanted:
        upstream = _upstream(edge, rows)
        if upstream is None or upstream.tenant_id != tenant_id:
            raise InvalidDependency(
                f"depends_on names task {edge.upstream}, and there is none for this tenant."
            )


@retry_on_deadlock
def link(
    task_id: uuid.UUID, wanted: Mapping[uuid.UUID, PlannedEdge], *, by: str = "", reason: str = ""
) -> int:
    """Let a task that has not started wait for more upstreams; return how many edges are new.

    Raises DependencyCycle with the path, InvalidDependency, TransitionRefused when the task has
    started or ended.
    """
    with tables.atomic():
        this = tables.tasks().filter(pk=task_id)
        tenant_id = this.values_list("tenant_id", flat=True).first()
        if tenant_id is None:
            raise InvalidDependency(f"There is no task {task_id}.")
        lock_tenant(tenant_id)
        rows = _held(task_id, wanted)
        check_upstreams(wanted.values(), rows, tenant_id)
        check_circle([task_id], wanted)
        _waive(rows[task_id])
        policy = rows[task_id].on_upstream_failure
        new = [
            new_edge(edge, task_id, _upstream(edge, rows), policy, by=by, reason=reason)
            for edge in _new_edges(task_id, wanted)
        ]
        insert_edges(new, rows)
        _wait_anew(rows[task_id])
    return len(new)


def lock_tenant(tenant_id: int) -> None:
    """Let nobody else add edges between existing rows of this tenant; before any row is locked, as
    all others do.
    """
    list(
        Tenant.objects.using(tables.database())
        .filter(pk=tenant_id)
        .select_for_update()
        .values_list("pk")
    )


def _held(task_id: uuid.UUID, others: Iterable[uuid.UUID] = ()) -> dict[uuid.UUID, Task]:
    """Lock a task that has not started, published or not, with these others."""
    transitions.lock_rows([task_id, *others])
    transitions.hand_back(tables.tasks().filter(pk=task_id), 0)
    rows = transitions.lock_rows([task_id, *others])
    row = rows.get(task_id)
    if row is None:
        raise InvalidDependency(f"There is no task {task_id}.")
    if row.status not in _LINKABLE:
        raise TransitionRefused(
            f"Task {task_id} is {row.status}: only a task that has not started can wait for more."
        )
    return rows


def _new_edges(task_id: uuid.UUID, wanted: Mapping[uuid.UUID, PlannedEdge]) -> list[PlannedEdge]:
    there = dict(
        edges.edges().above([task_id]).below(wanted).values_list("depends_on", "dependency_type")
    )
    for upstream, kind in there.items():
        if wanted[upstream].kind != kind:
            raise InvalidDependency(
                f"Task {task_id} waits for {upstream} already, by {kind}: take that edge away"
                " first."
            )
    return [edge for upstream, edge in wanted.items() if upstream not in there]


def check_circle(lows: Iterable[uuid.UUID], wanted: Iterable[uuid.UUID]) -> None:
    """Walk up from the upstreams that these tasks are to wait for, a level a statement; none of
    them must be there.

    The caller holds the tenant. Raises DependencyCycle with the path.
    """
    highs = list(wanted)
    above: dict[uuid.UUID, list[uuid.UUID]] = dict.fromkeys(lows, highs)
    below, frontier = set(above), set(highs)
    while frontier and not below & frontier:
        found = list(
            edges.edges()
            .above(frontier)
            .filter(depends_on__isnull=False)
            .values_list("task", "depends_on")
        )
        for task, upstream in found:
            above.setdefault(task, []).append(upstream)
        reached = {upstream for _, upstream in found}
        frontier = reached & below or reached - set(above)
    path = cycle_in(above)
    if path:
        known = {task.pk: task.step or task.name for task in tables.tasks().filter(pk__in=path)}
        raise DependencyCycle(
            "The tasks would wait for each other: "
            + " -> ".join(f"{known.get(key, '?')} ({key})" for key in path)
        )


def _waive(row: Task) -> None:
    """Forget what a task that was let go could not meet any more: it has to wait for something new
    alone.
    """
    tally = edges.tallies([row.pk]).get(row.pk, Tally())
    if row.status != Status.BLOCKED and fate(row.join_count, tally, "") == Fate.SKIP:
        edges.waive([row.pk])


def _wait_anew(row: Task) -> None:
    """Block a locked task that needs something now, and count it; release one that needed only what
    is met already.
    """
    wants = needed(row.join_count, edges.tallies([row.pk]).get(row.pk, Tally()))
    if wants and row.status != Status.BLOCKED:
        transitions.block(tables.tasks().filter(pk=row.pk))
    if wants:
        transitions.set_needed({row.pk: wants})
    elif row.status == Status.BLOCKED:
        _settled(row)


@retry_on_deadlock
def unlink(task_id: uuid.UUID, upstreams: Iterable[uuid.UUID]) -> list[TaskMessage]:
    """Take edges of a task that waits away; it is released when nothing else holds it. Rung after
    the commit.

    A join of some needs no more than the edges that are left. Raises TransitionRefused when the
    task does not wait.
    """
    with tables.atomic():
        row = transitions.lock_rows([task_id]).get(task_id)
        if row is None or row.status != Status.BLOCKED:
            raise TransitionRefused(
                f"Task {task_id} does not wait for anything: {row.status if row else 'missing'}."
            )
        edges.edges().above([task_id]).below(upstreams).delete()
        left = edges.edges().above([task_id]).filter(depends_on__isnull=False).count()
        if row.join_count is not None and row.join_count >= left:
            row.join_count = None
            tables.tasks().filter(pk=task_id).update(join_count=None)
        return _settled(row)


# Gates --------------------------------------------------------------------------------------------


@retry_on_deadlock
def place_gate(task_id: uuid.UUID, gate: str, *, by: str, reason: str = "") -> bool:
    """Let a task that has not started wait for a person (APPROVAL or HOLD); False when it does
    already.
    """
    kind = chosen("gate", gate, Gate)
    with tables.atomic():
        rows = _held(task_id)
        if edges.edges().above([task_id]).gates().unresolved().filter(gate=kind).exists():
            return False
        _waive(rows[task_id])
        edges.insert(
            [TaskDependency(task_id=task_id, gate=kind, placed_by=by[:200], note=reason[:500])]
        )
        _wait_anew(rows[task_id])
    return True


@retry_on_deadlock
def open_gate(task_id: uuid.UUID, gate: str, *, by: str, reason: str = "") -> list[TaskMessage]:
    """Open the gates of this kind for a task: it was approved, or its hold is over; it runs when
    nothing else holds it.

    Raises TransitionRefused when none is closed.
    """
    kind = chosen("gate", gate, Gate)
    with tables.atomic():
        row = transitions.lock_rows([task_id]).get(task_id)
        closed = edges.edges().above([task_id]).gates().unresolved().filter(gate=kind)
        outcome = "APPROVED" if kind == Gate.APPROVAL else "RELEASED"
        note_too = {"note": reason[:500]} if reason else {}
        opened = closed.update(
            resolved_at=tables.NOW, met=True, outcome=outcome, resolved_by=by[:200], **note_too
        )
        if row is None or not opened:
            raise TransitionRefused(f"Task {task_id} waits for no {kind}.")
        return _settled(row)


def _settled(row: Task) -> list[TaskMessage]:
    """Count a locked task anew and release it if nothing holds it; it is rung after the commit."""
    done = resolve.reevaluate_joins({row.pk: row}, [row.pk], {})
    publish_after_commit(done.messages)
    return done.messages
