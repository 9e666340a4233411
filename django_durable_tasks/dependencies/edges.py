"""Reads and writes edges, gates, ending events and runs, and the tree of a run."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Any

from django.db.models import Count, Q

from django_durable_tasks import ports
from django_durable_tasks.dependencies.rules import FORCED, EdgeCounts, EdgeOutcome, NewEdge
from django_durable_tasks.models import EndingEvent, TaskDependency, WorkflowRun
from django_durable_tasks.models.workflows import (
    EndingEventQuerySet,
    TaskDependencyQuerySet,
    WorkflowRunQuerySet,
)
from django_durable_tasks.store import tables
from django_durable_tasks.store.dialects import POSTGRESQL, recordset, sql, verb
from django_durable_tasks.store.postgresql import NULL, copied, copy_time, copying

# An edge is changed only under the lock of its task's row. All modules that work on graphs
# call these functions.


def edges() -> TaskDependencyQuerySet:
    """Return a queryset of all edges and gates."""
    queryset: TaskDependencyQuerySet = TaskDependency.objects.using(tables.database()).unguarded()
    return queryset


def write_outcomes(outcomes: Mapping[int, tuple[str, EdgeOutcome]]) -> None:
    """Write the upstream's status and the outcome of these edges; one statement per combination."""
    by_verdict = defaultdict[tuple[str, bool, bool], list[int]](list)
    for edge, (outcome, verdict) in outcomes.items():
        by_verdict[outcome, verdict.resolved, verdict.met].append(edge)
    for (outcome, is_resolved, is_met), ids in sorted(by_verdict.items()):
        when = tables.NOW if is_resolved else None
        edges().filter(pk__in=ids, resolved_at__isnull=True).update(
            resolved_at=when, outcome=outcome, met=is_met
        )


def arm_again(resolved: TaskDependencyQuerySet) -> None:
    """Make resolved edges unresolved again, so that they wait for their upstreams."""
    resolved.update(resolved_at=None, outcome=None, met=None)


_UNMET = Q(resolved_at__isnull=False, met=False)


def force(tasks: Iterable[uuid.UUID], *, by: str) -> None:
    """Set all unresolved or unmet edges and gates of these locked tasks to met.

    ``by`` is the user. If an upstream is replayed later, its edges become unresolved again.
    """
    unmet = edges().above(tasks).filter(_UNMET | Q(resolved_at__isnull=True))
    unmet.update(resolved_at=tables.NOW, outcome=FORCED, met=True, resolved_by=by[:200])


def waive(tasks: Iterable[uuid.UUID]) -> None:
    """Set those edges of these locked tasks to met that were resolved as not met."""
    edges().above(tasks).filter(_UNMET).update(resolved_at=tables.NOW, outcome=FORCED, met=True)


def first_unmet(task_id: uuid.UUID) -> TaskDependency:
    """Return the unmet edge that was resolved first; raises TaskDependency.DoesNotExist."""
    unmet = edges().above([task_id]).filter(_UNMET, depends_on__isnull=False)
    edge: TaskDependency = unmet.order_by("resolved_at", "pk")[:1].get()
    return edge


def open_tallies(children: Iterable[uuid.UUID]) -> dict[uuid.UUID, EdgeCounts]:
    """Count the unresolved edges and gates of these tasks; resolved edges are not read."""
    groups = edges().above(children).unresolved().order_by().values_list("task")
    counted = groups.annotate(edges=Count("depends_on"), gates=Count("gate"))
    return {task: EdgeCounts(unresolved=number, gates=gates) for task, number, gates in counted}


def tallies(children: Iterable[uuid.UUID]) -> dict[uuid.UUID, EdgeCounts]:
    """Count all edges and gates of these tasks."""
    unresolved, upstream = Q(resolved_at__isnull=True), Q(depends_on__isnull=False)
    counted = edges().above(children).order_by().values_list("task")
    counted = counted.annotate(
        open_edges=Count("pk", filter=unresolved & upstream),
        was_met=Count("pk", filter=Q(met=True, resolved_at__isnull=False) & upstream),
        was_not=Count("pk", filter=_UNMET & upstream),
        open_gates=Count("pk", filter=unresolved & ~upstream),
    )
    return {row[0]: EdgeCounts(*row[1:]) for row in counted}


def tally_of(new_edges: Iterable[NewEdge]) -> EdgeCounts:
    """Count edges and gates that are about to be inserted."""
    counted = Counter(
        "gates" if edge.depends_on_id is None else "unresolved" if edge.outcome is None else "met"
        for edge in new_edges
    )
    return EdgeCounts(**counted)


# Endings ------------------------------------------------------------------------------------------


def endings() -> EndingEventQuerySet:
    """Return a queryset of all ending events."""
    queryset: EndingEventQuerySet = EndingEvent.objects.using(tables.database())
    return queryset


def insert_events_again(upstreams: Mapping[uuid.UUID, tuple[int, str]]) -> None:
    """Insert another ending event for each of these ended upstreams, and wake the leader.

    ``upstreams``: epoch and status by task id. Used for edges that were inserted after the events
    of the ending were resolved. The events do not change the counts of workflows.
    """
    endings().bulk_create(
        [
            EndingEvent(task_id=task_id, epoch=epoch, status=status, delta=0)
            for task_id, (epoch, status) in sorted(upstreams.items())
        ]
    )
    if upstreams:
        ports.due.leader_work()


# Runs ---------------------------------------------------------------------------------------------


def workflow_runs() -> WorkflowRunQuerySet:
    """Return a queryset of all workflow runs."""
    queryset: WorkflowRunQuerySet = WorkflowRun.objects.using(tables.database()).unguarded()
    return queryset


# Inserts edges and gates. On PostgreSQL many are written by COPY.


COLUMNS = {
    "task_id": "uuid",
    "depends_on_id": "uuid",
    "dependency_type": "text",
    "gate": "text",
    "on_upstream_failure": "text",
    "placed_by": "text",
    "comment": "text",
}
"""The columns of ``copy_edges`` and their types, in its order: the first fields of NewEdge."""
_SHARED = tuple(COLUMNS.values())[2:]
_BULK, _SENT = 5_000, 500
"""The numbers of edges of a statement, and of a part of a COPY that is sent at once."""
_COPIED = 200
"""From this number of edges on, COPY and the query before it take less time than one INSERT."""
_start = Struct(">hi16si16s").pack
_start_of_gate = Struct(">hi16s").pack


def insert_edges(new_edges: Sequence[NewEdge]) -> None:
    """Insert edges and gates, up to 5,000 per statement.

    On PostgreSQL by COPY, fewer than 200 by one INSERT, and if one of them is met by INSERTs of
    the ORM, as on other databases.
    """
    if any(edge.outcome is not None for edge in new_edges):
        _insert.orm(new_edges)
    else:
        _insert(new_edges)


@verb
def _insert(new_edges: Sequence[NewEdge]) -> None:
    rows = []
    for edge in new_edges:
        met = edge.outcome is not None
        values = {"resolved_at": tables.NOW, "met": True} if met else {}
        rows.append(TaskDependency(**edge._asdict(), **values))
    edges().bulk_create(rows, batch_size=_BULK)


@_insert.on(POSTGRESQL)
def _insert_by_parts(new_edges: Sequence[NewEdge]) -> None:
    by_copy = len(new_edges) >= _COPIED and copy_time() is not None
    # The columns after the ids differ little between the edges of a workflow.
    shared, width = dict[tuple[Any, ...], bytes](), len(COLUMNS)
    for first in range(0, len(new_edges), _BULK):
        chunk = new_edges[first : first + _BULK]
        if not by_copy:
            records = (dict(zip(COLUMNS, edge, strict=False)) for edge in chunk)
            tables.count(sql("insert_edges"), {"rows": recordset(records)})
            continue
        with copying(sql("copy_edges")) as send:
            for at in range(0, len(chunk), _SENT):
                rows = list[bytes]()
                for edge in chunk[at : at + _SENT]:
                    values = edge[2:width]
                    end = shared.get(values)
                    if end is None:
                        end = shared[values] = b"".join(map(copied, values, _SHARED))
                    task, upstream = edge.task_id.bytes, edge.depends_on_id
                    if upstream is None:
                        rows += (_start_of_gate(width, 16, task), NULL, end)
                    else:
                        rows += (_start(width, 16, task, 16, upstream.bytes), end)
                send(b"".join(rows))


def sub_workflows_of(rows: Sequence[WorkflowRun]) -> dict[uuid.UUID, list[WorkflowRun]]:
    """Return the runs of all sub-workflows, at any depth, for each of these runs; one statement.

    Only their ids and parents are read, because a workflow may have thousands.
    """
    inside: dict[uuid.UUID | None, list[WorkflowRun]] = defaultdict(list)
    roots = {row.root for row in rows}
    queryset = workflow_runs().filter(root__in=roots, parent__isnull=False).order_by("pk")
    for run in queryset.only("pk", "parent"):
        inside[run.parent].append(run)
    sub_workflows = {row.pk: list(inside[row.pk]) for row in rows}
    for below in sub_workflows.values():
        for run in below:
            below += inside[run.pk]
    return sub_workflows


def request_cancel_runs(queryset: WorkflowRunQuerySet, reason: str) -> int:
    """Request the cancellation of open runs and their sub-workflows; return how many of the runs
    were open.

    The sub-workflows are not counted. ``cancel_called_off`` cancels the tasks.
    """
    requested = list(queryset.open().filter(cancel_requested_at__isnull=True))
    if not requested:
        return 0
    flags: dict[uuid.UUID, str] = {}
    sub_workflows = sub_workflows_of(requested)
    for run in requested:
        flags |= dict.fromkeys(
            (sub.pk for sub in sub_workflows[run.pk]), f"{reason} of {run.name}"[:200]
        )
    flags |= {run.pk: reason[:200] for run in requested}
    with tables.atomic():
        unflagged = workflow_runs().open().filter(pk__in=list(flags), cancel_requested_at=None)
        locked = list(unflagged.order_by("pk").select_for_update().values_list("pk", flat=True))
        for text in sorted({flags[key] for key in locked}):
            runs = workflow_runs().filter(pk__in=[key for key in locked if flags[key] == text])
            runs.update(cancel_requested_at=tables.NOW, reason=text, updated_at=tables.NOW)
    return len({run.pk for run in requested} & set(locked))
