"""Hypothesis runs random histories on random graphs and compares them with a small reference
without counters.
"""

from __future__ import annotations

import os
import uuid
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from django_durable_tasks.choices import Gate
from django_durable_tasks.dependencies import edges, edit, resolve
from django_durable_tasks.dependencies import replay as dependency_replay
from django_durable_tasks.dependencies.rules import edges_to
from django_durable_tasks.exceptions import DependencyCycle, InvalidDependency, TransitionRefused
from django_durable_tasks.models import EndingEvent, Task, WorkflowRun
from django_durable_tasks.states import attempt_log, endings
from django_durable_tasks.tasks import attempts, operator_actions
from django_durable_tasks.workflows import runs
from django_durable_tasks.workflows.builder import AddedTasks
from tests.database.dependencies import random_graphs as drawn
from tests.database.dependencies.history_graph import HistoryGraph
from tests.database.dependencies.random_graphs import among, picks, points, some, whole
from tests.database.dependencies.reference import ENDED, READY, Edge, Node
from tests.database.dependencies.worker_and_leader import HOPELESS, begin, recount
from tests.database.transitions.transition_calls import CRASH, FAILURE
from tests.project.tasks import noop
from tests.repetitions import repetitions
from tests.stateful import applies_if, run_machine

EXAMPLES = int(
    os.environ.get("TEST_HISTORIES")
    or repetitions(60 if os.environ["TEST_DATABASE"] == "sqlite" else 20)
)
MOST = 14  # tasks in a graph


class Histories(HistoryGraph):
    """The actions of workers, leader and operators as rules. Each may die at any statement and is
    then repeated.
    """

    @rule(pick=picks, point=points)
    def work(self, pick: int, point: int | None) -> None:
        """A task starts."""
        (name,) = self._names([pick], READY)
        if self.graph.nodes[name].status == READY:
            self.runs[name] = self._do(whole(lambda: begin(self.ids[name])), point)
            self.graph.nodes[name].status = "RUNNING"

    @rule(
        pick=picks,
        how=st.sampled_from(["SUCCESS", "SUCCESS", "FAILED", "AGAIN", "LOST"]),
        point=points,
    )
    def finish(self, pick: int, how: str, point: int | None) -> None:
        """A run ends."""
        (name,) = self._names([pick], "RUNNING", READY)
        node = self.graph.nodes[name]
        if node.status == READY:
            self.work(pick, None)
            name = next(key for key, known in self.graph.nodes.items() if known.status == "RUNNING")
            node = self.graph.nodes[name]
        if node.status != "RUNNING":
            return
        run = self.runs[name]
        if how == "SUCCESS":
            assert self._do(lambda: attempts.succeed(run, None, "w"), point)
            node.end("SUCCESS")
            return
        outcome = {"FAILED": HOPELESS, "AGAIN": FAILURE, "LOST": CRASH}[how]
        self._do(lambda: attempts.end_runs(self._question([name]), lambda _: outcome), point)
        gave_up = how == "FAILED" or Task.objects.get(pk=self.ids[name]).status == "FAILED"
        node.end("CANCELLED" if node.asked else "FAILED" if gave_up else READY)

    @rule(pick=picks, point=points, second=st.booleans())
    @applies_if(lambda self: len(self.ids) < MOST)
    def grow(self, pick: int, point: int | None, second: bool) -> None:
        """A run of the workflow succeeds and adds one or two tasks."""
        inside = set(
            Task.objects.filter(workflow__isnull=False, status="RUNNING").values_list(
                "pk", flat=True
            )
        )
        names = [name for name, task_id in self.ids.items() if task_id in inside]
        if not names or WorkflowRun.objects.get().status != "RUNNING":
            return
        name, growth = names[pick % len(names)], AddedTasks("growth")
        steps = [growth.add(noop, step=f"g{len(self.ids)}")]
        if second:
            steps.append(growth.add(noop, step=f"g{len(self.ids) + 1}", after=steps[0]))
        below = self.graph.waiting_for(name)
        assert self._do(lambda: runs.succeed(self.runs[name], None, "w", (growth,)), point)
        self.graph.nodes[name].end("SUCCESS")
        for number, step in enumerate(steps):
            edges_above = {len(self.ids) - 1: ("MUST_SUCCEED", None)} if number else {}
            shape = {"edges": edges_above, "join": "ALL", "policy": "SKIP", "gates": []}
            self._created(Task.objects.get(workflow__isnull=False, step=step.name).pk, shape)
        for key, edge in below.items():
            node = self.graph.nodes[key]
            if node.status == "BLOCKED":
                node.edges[f"t{len(self.ids) - 1}"] = Edge(edge.kind, edge.policy)

    # Operators and maintenance --------------------------------------------------------------------

    @rule(picked=some, point=points)
    def cancel(self, picked: list[int], point: int | None) -> None:
        """Waiting tasks are cancelled; cancellation of running ones is requested."""
        names = self._names(picked, "BLOCKED", READY, "RUNNING")
        self._do(lambda: operator_actions.cancel(self._question(names), by="bob"), point)
        for node in map(self.graph.nodes.__getitem__, names):
            if node.status in ("BLOCKED", READY):
                node.end("CANCELLED")
            node.asked = node.status == "RUNNING"

    @rule(picked=some, operation=st.sampled_from(["expire", "skip"]), point=points)
    def leave_out(self, picked: list[int], operation: str, point: int | None) -> None:
        """Waiting tasks expire, or are found to be duplicates."""
        names = self._names(picked, "BLOCKED", READY)
        question = self._question(names)
        expires = operation == "expire"
        self._do(
            lambda: endings.expire(question, 9) if expires else endings.skip(question, "DUPLICATE"),
            point,
        )
        for node in map(self.graph.nodes.__getitem__, names):
            if node.status in ("BLOCKED", READY):
                node.end("EXPIRED" if expires else "SKIPPED")

    @rule(picked=some, point=points)
    def replay(self, picked: list[int], point: int | None) -> None:
        """Ended tasks run again, with those that ended because of them, or the replay is refused."""
        names = self._names(picked, "FAILED", "SKIPPED", "CANCELLED", "EXPIRED")
        ended = {name for name in names if self.graph.nodes[name].status in ENDED - {"SUCCESS"}}
        back = self.graph.replay(names)
        if ended and not back:
            with pytest.raises(TransitionRefused):
                operator_actions.replay(self._question(names), by="bob")
            return
        found = self._do(
            lambda: operator_actions.replay(self._question(names), by="bob"), point, foreseen=True
        )
        assert set(found) == {self.ids[name] for name in ended & back}

    @rule(picked=some, point=points)
    def complete(self, picked: list[int], point: int | None) -> None:
        """An operator force-completes tasks."""
        names = self._names(picked, "FAILED", "SKIPPED", "BLOCKED")
        done = self.graph.complete(names)
        found = self._do(
            lambda: operator_actions.force_complete(self._question(names), by="bob"),
            point,
            foreseen=True,
        )
        assert set(found) == {self.ids[name] for name in done}

    @rule(picked=some, point=points)
    def force_run(self, picked: list[int], point: int | None) -> None:
        """An operator forces tasks to run whatever their upstreams became."""
        names = self._names(picked, "SKIPPED", "BLOCKED")
        forced = self.graph.force_run(names)
        found = self._do(whole(lambda: self._forced(names)), point, foreseen=True)
        assert set(found) == {self.ids[name] for name in forced}

    def _forced(self, names: list[str]) -> list[uuid.UUID]:
        forced, returned = dependency_replay.force_run(self._question(names), "forced")
        attempt_log.close_replayed_letters([*forced, *returned], by="bob", reason="")
        return forced

    @rule(
        pick=picks,
        other=picks,
        kind=drawn.kinds,
        policy=st.one_of(st.none(), drawn.policies),
        point=points,
    )
    def link(self, pick: int, other: int, kind: str, policy: str | None, point: int | None) -> None:
        """One task gets another upstream: new, existing, refused, or one that would close a cycle."""
        (low,), (high,) = self._names([pick], "BLOCKED", READY), self._names([other])
        node, wish = self.graph.nodes[low], (str(kind), policy and str(policy))
        wanted = edges_to({self.ids[high]: wish})
        refusal: type[Exception] | None = None
        if node.status not in ("BLOCKED", READY):
            refusal = TransitionRefused
        elif self.graph.waits_for(high, low):
            refusal = DependencyCycle
        elif high in node.edges and node.edges[high].kind != kind:
            refusal = InvalidDependency
        if refusal is not None:
            with pytest.raises(refusal):
                edit.link(self.ids[low], wanted)
        elif high in node.edges:
            assert edit.link(self.ids[low], wanted) == 0
            self.graph.link(low, {})
        else:
            assert self._do(lambda: edit.link(self.ids[low], wanted), point) == 1
            self.graph.link(low, {high: Edge(wish[0], wish[1] or node.policy)})

    @rule(pick=picks, picked=some, point=points)
    def unlink(self, pick: int, picked: list[int], point: int | None) -> None:
        """Some upstreams of a task are removed."""
        (low,) = self._names([pick], "BLOCKED")
        above = sorted(self.graph.nodes[low].edges)
        if self.graph.nodes[low].status != "BLOCKED" or not above:
            return
        names = sorted({above[number % len(above)] for number in picked})
        self._do(lambda: edit.unlink(self.ids[low], [self.ids[name] for name in names]), point)
        self.graph.unlink(low, names)

    @rule(pick=picks, gate=st.sampled_from([*Gate]), point=points)
    def hold(self, pick: int, gate: str, point: int | None) -> None:
        """A gate is added to a task."""
        (name,) = self._names([pick], "BLOCKED", READY)
        node, there = self.graph.nodes[name], gate in self.graph.nodes[name].gates
        if node.status in ("BLOCKED", READY):
            assert self._do(lambda: edit.place_gate(self.ids[name], gate, by="bob"), point) != there
            self.graph.hold(name, str(gate))

    @rule(pick=picks, point=points)
    def open(self, pick: int, point: int | None) -> None:
        """A gate is opened."""
        gated = sorted(
            name
            for name, node in self.graph.nodes.items()
            if node.gates and node.status == "BLOCKED"
        )
        if gated:
            name = gated[pick % len(gated)]
            gate = min(self.graph.nodes[name].gates)
            self._do(lambda: edit.open_gate(self.ids[name], gate, by="ann"), point)
            self.graph.open(name, gate)

    @rule(shape=drawn.shapes(MOST), point=points)
    @applies_if(lambda self: len(self.ids) < MOST)
    def add(self, shape: dict[str, Any], point: int | None) -> None:
        """A new task depends on some existing ones, in any status."""
        shape = among(shape, len(self.ids))
        if all(self.graph.nodes[f"t{up}"].status != "DELETED" for up in shape["edges"]):
            self._alone({**shape, "gates": []}, point)

    # The leader -----------------------------------------------------------------------------------

    def _fresh(self, notes: list[EndingEvent]) -> list[str]:
        rows = dict(Task.objects.values_list("pk", "epoch"))
        resolved = {note.task_id for note in notes if rows.get(note.task_id, 0) == note.epoch}
        return [name for name, task_id in self.ids.items() if task_id in resolved]

    @rule(number=st.integers(1, 3), twice=st.booleans(), point=points)
    def resolve_some(self, number: int, twice: bool, point: int | None) -> None:
        """Some endings are resolved, perhaps twice because of a duplicate ending event."""
        notes = list(edges.endings().unresolved()[:number])
        names = self._fresh(notes)
        self._do(lambda: resolve.resolve_endings(number), point)
        self.graph.resolve(names)
        if twice and notes:
            self.the_database_is_as_the_reference_says()
            again = [
                EndingEvent(task_id=note.task_id, epoch=note.epoch, status=note.status, delta=0)
                for note in notes
            ]
            EndingEvent.objects.bulk_create(again)
            resolve.resolve_given_endings([note.pk for note in again])

    @rule(pick=picks, point=points)
    def resolve_out_of_order(self, pick: int, point: int | None) -> None:
        """A worker resolves its own ending before older ones."""
        notes = list(edges.endings().unresolved())
        if notes:
            task_id = notes[pick % len(notes)].task_id
            names = self._fresh([note for note in notes if note.task_id == task_id])
            self._do(lambda: resolve.resolve_endings_of(task_id), point)
            self.graph.resolve(names)

    @rule(number=st.integers(1, 5), point=points)
    def count(self, number: int, point: int | None) -> None:
        """Some endings are counted."""
        self._do(lambda: runs.count_endings(number), point)

    @rule(pick=picks)
    def everything_is_resolved(self, pick: int) -> None:
        """All endings are resolved and counted. Then each edge equals its upstream's state, and a
        recount agrees.
        """
        while edges.endings().unresolved().exists():
            self.resolve_some(1 + pick % 4, False, None)
        while runs.count_endings(1 + pick % 4):
            pass
        assert not EndingEvent.objects.exists()
        assert not recount()
        for node in self.graph.nodes.values():
            assert node.status != "BLOCKED" or (node.needs and not node.lost()), node
            for name, edge in node.edges.items():
                upstream = self.graph.nodes[name].status
                resolved_before = upstream == "DELETED" and edge.ending in ENDED
                assert resolved_before or edge.ending in (
                    upstream if upstream in ENDED else None,
                    "FORCED",
                )

    @rule(pick=picks, really=st.integers(0, 7), point=points)
    def delete(self, pick: int, really: int, point: int | None) -> None:
        """A task outside of the workflow is deleted by hand after everything was resolved, and the
        leader notices it.
        """
        if really:
            return
        self.everything_is_resolved(0)
        (name,) = self._names([pick])
        if Task.objects.unguarded().filter(pk=self.ids[name], workflow=None).delete()[0]:
            self.graph.nodes[name] = Node("DELETED")
            self._do(lambda: resolve.find_deleted(0, 1_000), point)
            self.graph.resolve([name] if EndingEvent.objects.exists() else [])
            self._do(lambda: resolve.resolve_endings(100), point, foreseen=True)


@pytest.mark.django_db
@pytest.mark.timeout(600)
def test_any_history_of_a_graph_equals_a_reference_without_counters() -> None:
    run_machine(Histories, examples=EXAMPLES, steps=40)
