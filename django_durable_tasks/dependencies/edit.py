"""Inserts and deletes edges and gates of existing tasks under lock, without creating a cycle.

Only one transaction per tenant adds edges between existing tasks at a time, because two edges
could form a cycle that each of them alone does not. An ending locks the row of its task, and
so does an insertion of an edge to this task. Therefore either the ending resolves the edge,
or the insertion reads how the task ended. Enqueueing, workflows and their operations call
these functions.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

from django_durable_tasks.choices import TERMINAL, Gate, Status
from django_durable_tasks.dependencies import edges, resolve, rules
from django_durable_tasks.exceptions import DependencyCycle, InvalidDependency, TransitionRefused
from django_durable_tasks.models import Task, Tenant
from django_durable_tasks.models.workflows import TaskDependencyQuerySet
from django_durable_tasks.option_values import chosen
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.states import claims, dependencies, endings
from django_durable_tasks.store import tables
from django_durable_tasks.store.errors import retry_on_deadlock
from django_durable_tasks.store.tables import publish_after_commit

_LINKABLE = (Status.BLOCKED, Status.PENDING, Status.QUEUED)
# Each level costs a statement, while the tenant is locked. A client of the HTTP API decides how
# long its chains of tasks are.
_LEVELS_MAX = 1_000


def new_edge(
    edge: rules.PlannedEdge,
    task_id: uuid.UUID,
    upstream: Task | None,
    policy: str,
    *,
    by: str = "",
    reason: str = "",
) -> rules.NewEdge:
    """Return a new edge: met if its upstream has already ended as required, else unresolved.

    If the upstream has ended otherwise, ``insert_edges`` inserts an ending event, so that only
    ``resolve`` decides about unmet edges.
    """
    outcome = None
    if upstream is not None and upstream.status in TERMINAL:
        verdict = rules.edge_outcome(edge.kind, upstream.status, edge.policy or policy)
        outcome = upstream.status if verdict.met else None
    return rules.NewEdge(
        task_id=task_id,
        depends_on_id=_id(edge),
        dependency_type=edge.kind,
        on_upstream_failure=edge.policy,
        placed_by=by[:200],
        comment=reason[:500],
        outcome=outcome,
    )


def insert_edges(new_edges: Sequence[rules.NewEdge], rows: Mapping[uuid.UUID, Task]) -> None:
    """Insert edges to locked upstreams, and set ``has_dependents`` on the upstreams.

    Ending events are inserted for upstreams that have ended. In a transaction that the caller
    opened, RUNNING upstreams are not locked. ``has_dependents`` of these is set after the commit.
    """
    edges.insert_edges(new_edges)
    waiting = [rows[edge.upstream_id] for edge in new_edges if edge.outcome is None]
    unlocked = [
        row.pk
        for row in rows.values()
        if row.status == Status.RUNNING and tables.callers_transaction()
    ]
    above = {edge.upstream_id for edge in new_edges}
    dependencies.mark_upstreams(sorted(above - set(unlocked)))
    endings.leave_marks(sorted(above & set(unlocked)))
    ended = {row.pk: (row.epoch, row.status) for row in waiting if row.status in TERMINAL}
    edges.insert_events_again(ended)


def _id(edge: rules.PlannedEdge) -> uuid.UUID:
    if not isinstance(edge.upstream, uuid.UUID):
        raise TypeError(f"The upstream at place {edge.upstream} of the plan has no row yet.")
    return edge.upstream


def check_upstreams(
    planned: Iterable[rules.PlannedEdge], rows: Mapping[uuid.UUID, Task], tenant_id: int
) -> None:
    """Raise InvalidDependency if one of the upstreams does not exist for this tenant."""
    for edge in planned:
        upstream = rows.get(_id(edge))
        if upstream is None or upstream.tenant_id != tenant_id:
            raise InvalidDependency(
                f"depends_on names task {edge.upstream}, and there is none for this tenant."
            )


@retry_on_deadlock
def link(
    task_id: uuid.UUID,
    planned: Mapping[uuid.UUID, rules.PlannedEdge],
    *,
    by: str = "",
    reason: str = "",
) -> int:
    """Add upstreams to a task that has not started; return how many edges are new.

    Raises DependencyCycle with the path, InvalidDependency, or TransitionRefused if the task has
    started or ended.
    """
    with tables.atomic():
        this = tables.tasks().filter(pk=task_id)
        tenant_id = this.values_list("tenant_id", flat=True).first()
        if tenant_id is None:
            raise InvalidDependency(f"There is no task {task_id}.")
        lock_tenant(tenant_id)
        rows = _lock_unstarted(task_id, planned)
        check_upstreams(planned.values(), rows, tenant_id)
        above = edges.edges().above([task_id]).below(planned)
        existing = dict(above.values_list("depends_on", "dependency_type"))
        check_circle([task_id], planned.keys() - existing.keys())
        _waive_unmet(rows[task_id])
        policy = rows[task_id].on_upstream_failure
        for upstream, kind in existing.items():
            if planned[upstream].kind != kind:
                raise InvalidDependency(
                    f"Task {task_id} already waits for {upstream} with {kind}; remove that edge"
                    " first."
                )
        new = [
            new_edge(edge, task_id, rows.get(upstream), policy, by=by, reason=reason)
            for upstream, edge in planned.items()
            if upstream not in existing
        ]
        insert_edges(new, rows)
        _block_or_release(rows[task_id])
    return len(new)


def lock_tenant(tenant_id: int) -> None:
    """Lock the tenant's row, so that no other transaction adds edges between its existing tasks.

    Must be called before any task is locked, so that the lock order is the same everywhere.
    """
    this = Tenant.objects.using(tables.database()).filter(pk=tenant_id)
    list(this.select_for_update().values_list("pk"))


def _lock_unstarted(
    task_id: uuid.UUID, upstreams: Iterable[uuid.UUID] = ()
) -> dict[uuid.UUID, Task]:
    """Lock a task that has not started, together with ``upstreams``; a QUEUED task becomes PENDING.

    Raises InvalidDependency if the task does not exist, TransitionRefused if it has started.
    """
    dependencies.lock_rows([task_id, *upstreams])
    claims.return_to_pending(tables.tasks().filter(pk=task_id), 0)
    rows = dependencies.lock_rows([task_id, *upstreams])
    row = rows.get(task_id)
    if row is None:
        raise InvalidDependency(f"There is no task {task_id}.")
    if row.status not in _LINKABLE:
        raise TransitionRefused(
            f"Task {task_id} is {row.status}: only a task that has not started can wait for more."
        )
    return rows


def check_circle(lows: Iterable[uuid.UUID], planned: Iterable[uuid.UUID]) -> None:
    """Raise DependencyCycle, with the path, if one of the tasks ``lows`` is an upstream of the new
    upstreams.

    Reads a level of upstreams of the new upstreams and a level of dependents of ``lows`` by turns,
    one per statement, until one side has no further level. A task without dependents therefore
    costs two statements. Raises InvalidDependency if both sides have more than ``_LEVELS_MAX``
    levels together. The caller has locked the tenant.
    """
    above, below = [set(planned)], [set(lows)]
    over, under = set(above[0]), set(below[0])
    met = over & under
    while not met and above[-1] and below[-1]:
        if len(above) + len(below) > _LEVELS_MAX:
            raise InvalidDependency(
                "The tasks above and below this dependency are too many levels deep:"
                f" {_LEVELS_MAX:,} levels were searched for a cycle. Let the task wait for an"
                " upstream that has fewer levels above it, or create another task."
            )
        if len(above) <= len(below):
            read = edges.edges().above(above[-1]).filter(depends_on__isnull=False)
            above.append(_others(read, "depends_on") - over)
            over |= above[-1]
            met = above[-1] & under
        else:
            below.append(_others(edges.edges().below(below[-1]), "task") - under)
            under |= below[-1]
            met = below[-1] & over
    if met:
        path = _cycle(min(met), above, below)
        labels = {task.pk: task.step or task.name for task in tables.tasks().filter(pk__in=path)}
        raise DependencyCycle(
            "The tasks would wait for each other: "
            + " -> ".join(f"{labels.get(key, '?')} ({key})" for key in path)
        )


def _others(read: TaskDependencyQuerySet, end: str) -> set[uuid.UUID]:
    """Return the tasks at this end of the edges, each once."""
    return set(read.order_by().values_list(end, flat=True).distinct())


def _cycle(
    met: uuid.UUID, above: Sequence[set[uuid.UUID]], below: Sequence[set[uuid.UUID]]
) -> list[uuid.UUID]:
    """Return the cycle through ``met``, in which each task waits for the one before it.

    ``above`` and ``below`` are the levels of the two searches. Both contain ``met``.
    """
    path = [met]
    for level in reversed(below[: _level_of(met, below)]):
        upstreams = edges.edges().above(path[:1]).below(level)
        path[:0] = upstreams.values_list("depends_on", flat=True)[:1]
    for level in reversed(above[: _level_of(met, above)]):
        dependents = edges.edges().below(path[-1:]).above(level)
        path += dependents.values_list("task", flat=True)[:1]
    return [*path, path[0]]


def _level_of(task_id: uuid.UUID, levels: Sequence[set[uuid.UUID]]) -> int:
    return next(number for number, level in enumerate(levels) if task_id in level)


def _waive_unmet(row: Task) -> None:
    """Set the unmet edges of a task to met if it was released although they are not met.

    Then the task waits only for the new edges.
    """
    tally = edges.tallies([row.pk]).get(row.pk, rules.EdgeCounts())
    if (
        row.status != Status.BLOCKED
        and rules.join_decision(row.join_count, tally, "") == rules.JoinDecision.SKIP
    ):
        edges.waive([row.pk])


def _block_or_release(row: Task) -> None:
    """Block a locked task that needs upstreams or gates now, and write how many it needs.

    If it needs none and is BLOCKED, it is released.
    """
    number = rules.needed(row.join_count, edges.tallies([row.pk]).get(row.pk, rules.EdgeCounts()))
    if number and row.status != Status.BLOCKED:
        dependencies.block(tables.tasks().filter(pk=row.pk))
    if number:
        dependencies.set_needed({row.pk: number})
    elif row.status == Status.BLOCKED:
        _reevaluate(row)


@retry_on_deadlock
def unlink(task_id: uuid.UUID, upstreams: Iterable[uuid.UUID]) -> list[TaskMessage]:
    """Delete edges of a BLOCKED task; release it if it needs no other edge or gate.

    Return the messages that are published after the commit. If its join
    needs more edges than remain, it needs all that remain. Raises TransitionRefused if the task is
    not BLOCKED.
    """
    with tables.atomic():
        row = dependencies.lock_rows([task_id]).get(task_id)
        if row is None or row.status != Status.BLOCKED:
            raise TransitionRefused(
                f"Task {task_id} does not wait for anything: {row.status if row else 'missing'}."
            )
        edges.edges().above([task_id]).below(upstreams).delete()
        remaining = edges.edges().above([task_id]).filter(depends_on__isnull=False).count()
        if row.join_count is not None and row.join_count >= remaining:
            row.join_count = None
            tables.tasks().filter(pk=task_id).update(join_count=None)
        return _reevaluate(row)


# Gates --------------------------------------------------------------------------------------------


@retry_on_deadlock
def place_gate(task_id: uuid.UUID, gate: str, *, by: str, reason: str = "") -> bool:
    """Add a gate (APPROVAL or HOLD) to a task that has not started; return False if it has one.

    Raises InvalidOption, InvalidDependency or TransitionRefused.
    """
    kind = chosen("gate", gate, Gate)
    with tables.atomic():
        rows = _lock_unstarted(task_id)
        if edges.edges().above([task_id]).gates().unresolved().filter(gate=kind).exists():
            return False
        _waive_unmet(rows[task_id])
        edges.insert_edges(
            [rules.NewEdge(task_id, gate=kind, placed_by=by[:200], comment=reason[:500])]
        )
        _block_or_release(rows[task_id])
    return True


@retry_on_deadlock
def open_gate(task_id: uuid.UUID, gate: str, *, by: str, reason: str = "") -> list[TaskMessage]:
    """Resolve the gates of this kind of a task: it is approved, or an operator releases it.

    If the task needs nothing else, it is released. Return the messages that are published after the
    commit. Raises TransitionRefused if the task has no such unresolved gate.
    """
    kind = chosen("gate", gate, Gate)
    with tables.atomic():
        row = dependencies.lock_rows([task_id]).get(task_id)
        closed = edges.edges().above([task_id]).gates().unresolved().filter(gate=kind)
        outcome = "APPROVED" if kind == Gate.APPROVAL else "RELEASED"
        changes = {"comment": reason[:500]} if reason else {}
        opened = closed.update(
            resolved_at=tables.NOW, met=True, outcome=outcome, resolved_by=by[:200], **changes
        )
        if row is None or not opened:
            raise TransitionRefused(f"Task {task_id} waits for no {kind}.")
        return _reevaluate(row)


def _reevaluate(row: Task) -> list[TaskMessage]:
    """Count the edges of a locked task again, and publish it after the commit if it is released."""
    done = resolve.reevaluate_joins({row.pk: row}, [row.pk], {})
    publish_after_commit(done.messages)
    return done.messages
