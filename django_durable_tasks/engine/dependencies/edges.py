"""Reads and writes dependency edges and gates, ending events and workflow runs.

An edge is changed only under the lock of its task's row. The other modules of ``engine`` that work
on graphs call these functions.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping

from django.db.models import Count, Q

from django_durable_tasks import ports
from django_durable_tasks.engine.db import tables
from django_durable_tasks.models import EndingEvent, TaskDependency, WorkflowRun
from django_durable_tasks.models.ending_event import EndingEventQuerySet
from django_durable_tasks.models.task_dependency import TaskDependencyQuerySet
from django_durable_tasks.models.workflow_run import WorkflowRunQuerySet
from django_durable_tasks.rules.dependencies import FORCED, EdgeCounts, EdgeOutcome, NewEdge


def edges() -> TaskDependencyQuerySet:
    """Return a queryset of all edges and gates."""
    found: TaskDependencyQuerySet = TaskDependency.objects.using(tables.database()).unguarded()
    return found


def write_outcomes(outcomes: Mapping[int, tuple[str, EdgeOutcome]]) -> None:
    """Write the upstream's status and the outcome of these edges; one statement per combination."""
    by_verdict: dict[tuple[str, bool, bool], list[int]] = {}
    for edge, (outcome, verdict) in outcomes.items():
        by_verdict.setdefault((outcome, verdict.resolved, verdict.met), []).append(edge)
    for (outcome, is_resolved, is_met), ids in sorted(by_verdict.items()):
        when = tables.NOW if is_resolved else None
        edges().filter(pk__in=ids, resolved_at__isnull=True).update(
            resolved_at=when, outcome=outcome, met=is_met
        )


def arm_again(ids: Iterable[int]) -> None:
    """Make resolved edges unresolved again, so that they wait for their upstreams."""
    edges().filter(pk__in=list(ids)).update(resolved_at=None, outcome=None, met=None)


_UNMET = Q(resolved_at__isnull=False, met=False)


def force(tasks: Iterable[uuid.UUID], *, by: str) -> None:
    """Set all unresolved or unmet edges and gates of these locked tasks to met.

    ``by`` is the user. If an upstream is replayed later, its edges become unresolved again.
    """
    these = edges().above(tasks).filter(_UNMET | Q(resolved_at__isnull=True))
    these.update(resolved_at=tables.NOW, outcome=FORCED, met=True, resolved_by=by[:200])


def waive(tasks: Iterable[uuid.UUID]) -> None:
    """Set those edges of these locked tasks to met that were resolved as not met."""
    edges().above(tasks).filter(_UNMET).update(resolved_at=tables.NOW, outcome=FORCED, met=True)


def first_unmet(task_id: uuid.UUID) -> TaskDependency:
    """Return the unmet edge that was resolved first; raises TaskDependency.DoesNotExist."""
    unmet = (
        edges()
        .above([task_id])
        .filter(depends_on__isnull=False, resolved_at__isnull=False, met=False)
    )
    found: TaskDependency = unmet.order_by("resolved_at", "pk")[:1].get()
    return found


def open_tallies(children: Iterable[uuid.UUID]) -> dict[uuid.UUID, EdgeCounts]:
    """Count the unresolved edges and gates of these tasks; resolved edges are not read."""
    counted = (
        edges()
        .above(children)
        .unresolved()
        .order_by()
        .values_list("task")
        .annotate(edges=Count("depends_on"), gates=Count("gate"))
    )
    return {task: EdgeCounts(unresolved=number, gates=gates) for task, number, gates in counted}


def tallies(children: Iterable[uuid.UUID]) -> dict[uuid.UUID, EdgeCounts]:
    """Count all edges and gates of these tasks."""
    unresolved, upstream = Q(resolved_at__isnull=True), Q(depends_on__isnull=False)
    counted = (
        edges()
        .above(children)
        .order_by()
        .values_list("task")
        .annotate(
            open_edges=Count("pk", filter=unresolved & upstream),
            was_met=Count("pk", filter=Q(met=True, resolved_at__isnull=False) & upstream),
            was_not=Count("pk", filter=Q(met=False, resolved_at__isnull=False) & upstream),
            open_gates=Count("pk", filter=unresolved & ~upstream),
        )
    )
    return {
        task: EdgeCounts(unresolved=number, met=met, unmet=unmet, gates=gates)
        for task, number, met, unmet, gates in counted
    }


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
    found: EndingEventQuerySet = EndingEvent.objects.using(tables.database())
    return found


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


def runs() -> WorkflowRunQuerySet:
    """Return a queryset of all workflow runs."""
    found: WorkflowRunQuerySet = WorkflowRun.objects.using(tables.database()).unguarded()
    return found
