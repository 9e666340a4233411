"""Reads a workflow run, or a task and its surroundings, as a Diagram of plain nodes and edges.

Called by the admin and the command line.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping

from django_durable_tasks import conf
from django_durable_tasks.dependencies import edges
from django_durable_tasks.dependencies.edges import workflow_runs
from django_durable_tasks.masking import masked_text
from django_durable_tasks.models import Task, WorkflowRun
from django_durable_tasks.store import tables
from django_durable_tasks.workflows.diagrams import Diagram, DiagramEdge, DiagramNode
from django_durable_tasks.workflows.operations import in_parts

NEAR = 1_000
_ROW = ("pk", "step", "name", "status", "started_at", "completed_at", "reason", "workflow")
_EDGE = ("depends_on", "task", "dependency_type", "resolved_at", "outcome")


def of_run(run: WorkflowRun) -> Diagram:
    """Return the diagram of a run; each run inside it is a group."""
    groups = _groups(run)
    keys = list(tables.tasks().filter(workflow__in=list(groups)).values_list("pk", flat=True))
    return _diagram(f"{run.name} {run.pk}", run.status, keys, groups)


def around(task: Task, most: int = NEAR) -> Diagram:
    """Return the diagram of a task and its upstreams and downstreams, the nearest first.

    It has at most ``most`` tasks. The diagram counts edges to other tasks but does not draw them.
    """
    keys, frontier = [task.pk], {task.pk}
    seen = {task.pk}
    while frontier and len(keys) < most:
        near = set[uuid.UUID]()
        for part in in_parts(sorted(frontier)):
            near.update(edges.edges().below(part).values_list("task", flat=True))
            above = edges.edges().above(part).filter(depends_on__isnull=False)
            near.update(above.values_list("depends_on", flat=True))
        frontier = near - seen
        seen |= frontier
        keys += sorted(frontier)
    root = None if task.workflow is None else workflow_runs().filter(pk=task.workflow.root).first()
    name = task.step or task.name
    return _diagram(
        f"{name} {task.pk}", task.status, keys[:most], {} if root is None else _groups(root)
    )


def _groups(run: WorkflowRun) -> dict[uuid.UUID, str]:
    """Return the path of names of each run inside this one; equal paths get a number."""
    rows = list(
        workflow_runs().filter(root=run.root).order_by("pk").values_list("pk", "parent", "name")
    )
    found, taken, growing = {run.pk: ""}, set(), True
    while growing:
        growing = False
        for key, parent, name in rows:
            if key in found or parent not in found:
                continue
            path = plain = f"{found[parent]}/{name.replace('/', '-')}".lstrip("/")
            number = 1
            while path in taken:
                number += 1
                path = f"{plain}-{number}"
            taken.add(path)
            found[key], growing = path, True
    return found


def _diagram(
    title: str, status: str, keys: Iterable[uuid.UUID], groups: Mapping[uuid.UUID, str]
) -> Diagram:
    secret = conf.settings().SECRET_NAMES
    nodes: list[DiagramNode] = []
    drawn_edges: list[DiagramEdge] = []
    for some in in_parts(keys):
        gates = _closed_gates(some)
        for key, step, name, task_status, started, completed, reason, run in (
            tables.tasks().filter(pk__in=some).values_list(*_ROW)
        ):
            nodes.append(
                DiagramNode(
                    id=str(key),
                    label=step or name.rpartition(".")[2],
                    status=task_status,
                    name=name,
                    started_at=started,
                    completed_at=completed,
                    reason=masked_text(gates.get(key, "") or reason, secret),
                    group=groups.get(run, ""),
                )
            )
        for source, target, kind, resolved_at, outcome in (
            edges.edges().above(some).filter(depends_on__isnull=False).values_list(*_EDGE)
        ):
            drawn_edges.append(
                DiagramEdge(
                    source=str(source),
                    target=str(target),
                    kind=kind,
                    resolved=resolved_at is not None,
                    outcome=outcome or "",
                )
            )
    return Diagram(title=title, status=status, nodes=tuple(nodes), edges=tuple(drawn_edges))


def _closed_gates(keys: Collection[uuid.UUID]) -> dict[uuid.UUID, str]:
    """Return the approvals and holds that these tasks wait for, as text."""
    gates: dict[uuid.UUID, str] = {}
    for key, gate, comment in (
        edges.edges().above(keys).gates().unresolved().values_list("task", "gate", "comment")
    ):
        text = f"{gate}: {comment}" if comment else str(gate)
        gates[key] = f"{gates[key]}, {text}" if key in gates else f"waits for {text}"
    return gates
