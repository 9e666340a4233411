"""The graph of a random history: creation, and comparison with the reference."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.db import connection
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from django_durable_tasks import Workflow
from django_durable_tasks.models import DeadLetter, EndingEvent, Task, TaskDependency, WorkflowRun
from django_durable_tasks.store import tables
from django_durable_tasks.task_values import Run
from tests.database.dependencies.random_graphs import Crash, Edges, dying_at, graphs, whole
from tests.database.dependencies.reference import READY, Edge, Graph, Node
from tests.process_state import new_process_state
from tests.project.tasks import noop

MOST = 14  # tasks in a graph


class HistoryGraph(RuleBasedStateMachine):
    """A random graph in the database and in the reference, which are compared after every step."""

    @initialize(graph=graphs(), inside=st.integers(1, 9))
    def start(self, graph: list[dict[str, Any]], inside: int) -> None:
        """Some tasks are a workflow; the others depend on them and belong to no workflow."""
        for table in (Task, EndingEvent, TaskDependency, WorkflowRun):
            table._base_manager.all().delete()
        connection.run_on_commit.clear()
        new_process_state()
        self.graph, self.ids, self.runs = Graph(), dict[str, uuid.UUID](), dict[str, Run]()
        flow = Workflow("history")
        steps: list[Any] = []
        for shape in graph[:inside]:
            after = {steps[up]: kind for up, kind in shape["edges"].items()}
            gates = {gate.lower(): "" for gate in shape["gates"]}
            steps.append(
                flow.add(
                    noop,
                    after=after,
                    join=shape["join"],
                    on_upstream_failure=shape["policy"],
                    **gates,
                )
            )
        run = flow.start()
        for shape, step in zip(graph, steps, strict=False):
            self._created(Task.objects.get(workflow=run, step=step.name).pk, shape)
        for shape in graph[inside:]:
            self._alone({**shape, "gates": []}, None)

    def _alone(self, shape: dict[str, Any], point: int | None) -> None:
        after = {self.ids[f"t{up}"]: kind for up, kind in shape["edges"].items()}
        options = {"depends_on": after, "join": shape["join"]} if after else {}
        call = noop.using(on_upstream_failure=shape["policy"], **options)
        self._created(self._do(whole(lambda: call.schedule().pk), point), shape)

    def _created(self, task_id: uuid.UUID, shape: dict[str, Any]) -> None:
        name, join, number = f"t{len(self.ids)}", shape["join"], len(shape["edges"])
        self.ids[name] = task_id
        wants = {"ALL": None, "ANY": 1}.get(join, join)
        node = Node(
            READY, None if wants == number else wants, shape["policy"], gates=set(shape["gates"])
        )
        self.graph.nodes[name] = node
        self.graph.link(name, self._edges(node, shape["edges"]))
        if node.gates:
            node.status = "BLOCKED"

    def _edges(self, node: Node, wants: Edges) -> dict[str, Edge]:
        return {f"t{up}": Edge(kind, policy or node.policy) for up, (kind, policy) in wants.items()}

    def _do(
        self, act: Callable[[], Any], point: int | None = None, *, foreseen: bool = False
    ) -> Any:
        """Call the function, and again if the process dies. ``foreseen``: the reference has done it
        already.
        """
        try:
            with dying_at(point):
                return act()
        except Crash:
            if not foreseen:
                self.the_database_is_as_the_reference_says()
            return act()

    def _names(self, picked: list[int], *statuses: str) -> list[str]:
        """Return some names, of tasks in these statuses if there are any, otherwise of any tasks."""
        there = [name for name, node in self.graph.nodes.items() if node.status != "DELETED"]
        fitting = [
            name for name in there if not statuses or self.graph.nodes[name].status in statuses
        ] or there
        return sorted({fitting[number % len(fitting)] for number in picked})

    def _question(self, names: list[str]) -> Any:
        return tables.tasks().filter(pk__in=[self.ids[name] for name in names])

    # Workers --------------------------------------------------------------------------------------

    @invariant()
    def the_database_is_as_the_reference_says(self) -> None:
        """Statuses, counters, edges, gates and dead letters equal those of the reference after
        every event.
        """
        names = {task_id: name for name, task_id in self.ids.items()}
        found = {names[row.pk]: row for row in Task.objects.all()}
        alive = {
            name: node.status for name, node in self.graph.nodes.items() if node.status != "DELETED"
        }
        assert {name: _status(row) for name, row in found.items()} == alive
        for name, row in found.items():
            node = self.graph.nodes[name]
            assert row.status != "BLOCKED" or row.unresolved_dependencies_count == node.needs, name
            assert (row.cause is not None and row.status in ("SKIPPED", "FAILED")) == node.doomed, (
                name
            )
        rows = TaskDependency.objects.filter(depends_on__isnull=False)
        stand = {
            (names[e.task_id], names[e.upstream_id]): (e.outcome, e.met, e.resolved_at is None)
            for e in rows
        }
        assert stand == {
            (name, key): (edge.ending, None if edge.ending is None else edge.met, edge.holds)
            for name, node in self.graph.nodes.items()
            for key, edge in node.edges.items()
        }
        closed = TaskDependency.objects.gates().unresolved().values_list("task", "gate")
        assert {(names[task], gate) for task, gate in closed} == {
            (name, gate) for name, node in self.graph.nodes.items() for gate in node.gates
        }
        failed = sorted(row.pk for row in found.values() if row.status == "FAILED")
        assert sorted(DeadLetter.objects.open().values_list("task_id", flat=True)) == failed


def _status(row: Task) -> str:
    return READY if row.status in ("PENDING", "QUEUED") else row.status
