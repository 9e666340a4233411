"""Graphs in real workers and schedulers: small ones with every feature, a large one while processes
are killed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from time import monotonic

import pytest
from django.contrib.auth.models import Group

from django_durable_tasks import Workflow
from django_durable_tasks.models import Task, TaskExecutionLog, WorkflowRun
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.workflows import operations
from tests.database.dependencies.worker_and_leader import of, recount
from tests.processes.cluster import Cluster, Program
from tests.processes.rows import accepted_twice, ended
from tests.processes.workflows import (
    layered,
    nested,
    progress,
    started_after,
    started_early,
    tasks_of,
    whole,
    wrongly_ended,
)
from tests.project import nodes
from tests.repetitions import repetitions
from tests.waiting import until

pytestmark = pytest.mark.long
SMALL, LARGE = 60, 500
"""The time limits of a small and of a large graph, in seconds."""
SIZES = {"postgresql": repetitions(2_000, least=1_000), "mariadb": 1_000, "sqlite": 300}


def _ended(run: WorkflowRun, *, within: float = SMALL) -> WorkflowRun:
    until(lambda: not progress(run)[1], within=within, message=f"{run.name} ends")
    run.refresh_from_db()
    return run


# Features -----------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_a_small_workflow_with_every_feature_completes(cluster: Cluster) -> None:
    cluster.worker()
    cluster.scheduler()
    cluster.ready()
    wf = Workflow("small", on_success=nodes.report, on_complete=nodes.report)
    first = [wf.add(nodes.node, number, step=f"first {number}") for number in range(3)]
    grown = wf.add(nodes.node, after=first, grows=4, step="grown")
    deep = wf.add_workflow(nested("deep", 3), after=grown, step="deep")
    both = wf.add(nodes.write_and_grow, "written", after=grown, step="both")
    wf.add(nodes.total, [one.result["value"] for one in first], after=[deep, both], step="sum")
    another = wf.add(nodes.start_another, [5, 6], after=deep, step="another")
    run = _ended(wf.start())
    assert (run.status, run.succeeded, run.total) == ("SUCCESS", 13, 13)
    assert {one.status for one in whole(run)} == {"SUCCESS"}
    assert len(whole(run)) == 4
    assert of(run, "sum").result == 3
    assert set(Group.objects.filter(name__startswith="written").values_list("name", flat=True)) == {
        "written",
        "written-more",
    }
    assert started_early(run) == []
    returned = _ended(WorkflowRun.objects.get(name="returned"))
    assert (returned.status, of(returned, "sum").result) == ("SUCCESS", 11)
    assert another.name == "another"
    reports = Task.objects.filter(name="tests.project.nodes.report")
    until(
        lambda: reports.filter(status="SUCCESS").count() == 3,
        within=SMALL,
        message="all callbacks have run",
    )
    assert sorted(reports.values_list("args", flat=True)) == sorted(
        [[str(run.pk)], [str(run.pk)], [str(returned.pk)]]
    )
    assert recount() == []
    Group.objects.filter(name__startswith="written").delete()


def test_a_soft_limit_is_a_failure_on_which_others_depend(cluster: Cluster) -> None:
    cluster.worker()
    cluster.scheduler()
    cluster.ready()
    wf = Workflow("limited", on_failure=nodes.report)
    slow = wf.add(nodes.over_soft_limit, step="slow")
    wf.add(nodes.node, after=slow, step="skipped")
    wf.add(nodes.node, after={slow: "MUST_FAIL"}, step="instead")
    run = _ended(wf.start())
    assert [of(run, step).status for step in ("slow", "skipped", "instead")] == [
        "FAILED",
        "SKIPPED",
        "SUCCESS",
    ]
    assert (run.status, of(run, "skipped").cause) == ("FAILED", of(run, "slow").pk)
    assert ended(Task.objects.get(name="tests.project.nodes.report")).result == str(run.pk)
    assert recount() == []


def test_a_late_workflow_is_ended_by_the_leader(cluster: Cluster) -> None:
    cluster.worker()
    cluster.scheduler()
    cluster.ready()
    wf = Workflow("late", deadline=2)
    wf.add(
        nodes.node,
        after=wf.add(nodes.node.using(run_at=_tomorrow()), step="tomorrow"),
        step="after",
    )
    run = _ended(wf.start())
    assert (run.status, run.reason) == ("FAILED", "DEADLINE")
    assert {task.status for task in tasks_of(run)} == {"CANCELLED"}
    assert recount() == []


def _tomorrow() -> datetime:
    return database_now().replace(year=database_now().year + 1, day=1)


# Killed processes ---------------------------------------------------------------------------------


class _Deaths:
    """Kills and replaces workers and leaders, each at a certain progress of the first graph, and
    cancels the second.

    Nothing else intervenes; the engine must do the rest.
    """

    def __init__(self, cluster: Cluster, first: WorkflowRun, second: WorkflowRun) -> None:
        self.cluster, self.first, self.second = cluster, first, second
        self.cancelled_at: datetime | None = None
        self._to_come: list[tuple[float, Callable[[], bool]]] = [
            (0.1, self._kill_a_worker),
            (0.3, self._kill_the_leader),
            (0.5, self._kill_a_worker),
            (0.7, self._kill_the_leader),
        ]

    def all_done(self) -> bool:
        """Do the next kill when its progress is reached. Returns whether both graphs have ended and
        all kills were done.
        """
        share, is_open = progress(self.first)
        if self._to_come and share >= self._to_come[0][0] and self._to_come[0][1]():
            self._to_come.pop(0)
        if self.cancelled_at is None:
            self._cancel_in_the_middle()
            return False
        return not (self._to_come or is_open or progress(self.second)[1])

    def _cancel_in_the_middle(self) -> None:
        share, is_open = progress(self.second)
        assert is_open, "it was over before it could be cancelled"
        if share >= 0.3:
            operations.cancel_workflow(self.second, by="anna")
            self.cancelled_at = database_now()

    def _kill_a_worker(self) -> bool:
        """Kill a worker that runs a task."""
        busy = set(Task.objects.running().values_list("node", flat=True))
        for program in self._living("worker"):
            node = program.node()
            if node is not None and node.pk in busy:
                program.kill()
                self.cluster.worker(slots=3)
                return True
        return False

    def _kill_the_leader(self) -> bool:
        leader = self.cluster.leading()
        if leader is None:
            return False
        leader.kill()
        self.cluster.scheduler()
        return True

    def _living(self, kind: str) -> list[Program]:
        return [
            program
            for program in self.cluster.programs
            if program.name.startswith(kind) and program.alive()
        ]


@pytest.mark.timeout(600)
def test_a_large_graph_completes_while_workers_and_leaders_are_killed(
    cluster: Cluster, vendor: str, record_testsuite_property: Callable[[str, object], None]
) -> None:
    for _ in range(2):
        cluster.worker(slots=3)
        cluster.scheduler()
    cluster.ready()
    first = layered("first", SIZES[vendor]).start()
    second = layered("second", SIZES[vendor] // 5, failing=False).start(priority=9)
    deaths = _Deaths(cluster, first, second)
    began = monotonic()
    until(
        deaths.all_done,
        within=LARGE,
        message=f"both graphs have ended: {progress(first)}, {progress(second)}",
    )
    record_testsuite_property("seconds of the large graph", round(monotonic() - began, 1))
    for run in (first, second):
        run.refresh_from_db()
    assert (first.status, wrongly_ended(first), started_early(first)) == ("FAILED", [], [])
    assert (second.status, second.reason) == ("CANCELLED", "CANCELLED by anna")
    assert deaths.cancelled_at is not None
    assert started_after(second, deaths.cancelled_at) == []
    assert started_early(second) == []
    assert {task.status for task in tasks_of(second)} >= {"SUCCESS", "CANCELLED"}
    assert recount() == []
    assert accepted_twice() == []
    succeeded = TaskExecutionLog.objects.filter(status="SUCCESS")
    assert succeeded.count() == Task.objects.filter(status="SUCCESS").count()
    assert len(tasks_of(first)) > SIZES[vendor]
