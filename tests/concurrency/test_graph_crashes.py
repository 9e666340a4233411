"""A process dies at each statement of what it does to a graph, before and after it; whoever goes on loses nothing."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import DatabaseError

from django_durable_tasks import Workflow
from django_durable_tasks.lifecycle import attempts, dead_letters, dependencies, edges, workflow_runs
from django_durable_tasks.models import Ending, Task, TaskDependency, TaskExecutionLog, WorkflowRun
from django_durable_tasks.rules.building import Growth
from django_durable_tasks.rules.runs import Run
from django_durable_tasks.rules.states import LogStatus
from tests.database.graphs.playing import HOPELESS, begin, of, question, recount, stands
from tests.factories import QUEUE, a_run
from tests.project.tasks import echo, noop
from tests.runs import ROOT
from tests.waiting import until

MANY = 80  # more statements than any of these deeds has
NOBODY = uuid.UUID(int=0)
READY = ("PENDING", "QUEUED")


def a_workflow() -> Workflow:
    """Return a graph: a body and a second root, what waits for both, for one, and for those; and a sub-workflow."""
    wf, sub = Workflow("dying", on_complete=echo), Workflow("sub")
    task = noop.using(queue=QUEUE)
    sub.add(task, step="inner")
    body, root = wf.add(task, step="body"), wf.add(task, step="root")
    both = wf.add(task, after=[body, root], step="both")
    wf.add(task, after=[body, both], step="last")
    wf.add(task, after=wf.add_workflow(sub, after=body, step="sub"), step="end")
    return wf


def a_growth() -> Growth:
    """Return what the body adds: a task and one that waits for it."""
    growth = Growth("growth")
    task = noop.using(queue=QUEUE)
    growth.add(task, after=growth.add(task, step="first"), step="second")
    return growth


@pytest.fixture
def killed() -> Iterator[Callable[[int, str, str, uuid.UUID], str]]:
    """Give what lets a process die at a point of a deed, and returns how it ended."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.concurrency.dying_teller"], cwd=ROOT, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        ask, answers = program.stdin, program.stdout

        def dies(*words: object) -> str:
            ask.write(f"{' '.join(map(str, words))}\n")
            ask.flush()
            return answers.readline().strip()

        yield dies
        ask.close()


def _scene(deed: str) -> uuid.UUID:
    """Set the scene for a deed; return the row that it is done to."""
    for table in (Task, TaskDependency, Ending, WorkflowRun, TaskExecutionLog):
        table.objects.all().delete()
    if deed == "start":
        return NOBODY
    body = begin(of(a_workflow().start(key="the one"), "body"))
    if deed in ("spread", "fold"):
        assert attempts.succeed(body, None, "w")
    if deed == "fold":
        dependencies.spread(500)
    if deed == "replay":
        assert attempts.fail(body, HOPELESS, "w")
        while dependencies.spread(500).notes:
            pass
    return body.task_id


def _go_on(deed: str, task_id: uuid.UUID) -> None:
    """Do what those do who find what the dead one left: the caller calls again, the worker tells its ending again."""
    if deed == "start":
        a_workflow().start(key="the one")
    row = Task.objects.filter(pk=task_id).first()
    if deed in ("graft", "end_and_tell") and row is not None and row.status == "RUNNING":
        growth = (a_growth(),) if deed == "graft" else ()
        assert attempts.succeed(a_run(row), None, "w", growth)
    if deed == "replay" and row is not None and row.status == "FAILED":
        dead_letters.replay(question(row), by="bob")


def _run_all() -> Counter[uuid.UUID]:
    """Run the graph to its end as workers and leader do; return how often each body was started."""
    started: Counter[uuid.UUID] = Counter()
    while True:
        ready = list(Task.objects.filter(workflow__isnull=False, status__in=READY).order_by("pk"))
        for row in ready:
            run: Run = begin(row)
            started[run.task_id] += 1
            assert attempts.succeed(run, None, "w")
            dependencies.spread_of(run.task_id)
        if not (dependencies.spread(500).notes or workflow_runs.fold(500) or ready):
            return started


def _all_is_well(deed: str, started: Counter[uuid.UUID]) -> None:
    run = WorkflowRun.objects.get(parent=None)
    expected = {"body", "root", "both", "last", "sub", "inner", "end"} | (
        {"first", "second"} if deed == "graft" else set()
    )
    rows = {row.step: row for row in Task.objects.filter(workflow__isnull=False)}
    assert set(rows) == expected
    assert len(rows) == Task.objects.filter(workflow__isnull=False).count()
    assert {row.status for row in rows.values()} == {"SUCCESS"}
    assert run.status == "SUCCESS"
    assert not recount()
    assert not edges.endings().exists()
    replayed = deed == "replay"
    for step, row in rows.items():
        begun_before = step == "body" and deed != "start"
        assert started[row.pk] == (not begun_before or replayed), step
        assert row.attempts == 1 + (step == "body" and replayed), step
        accepted = TaskExecutionLog.objects.filter(task_id=row.pk, status=LogStatus.SUCCESS)
        assert accepted.count() == 1, step
    assert Task.objects.filter(idempotency_key=f"workflow-{run.pk}-on_complete").count() == 1


def _dies_and_is_followed(deed: str, place: int, when: str, killed: Callable[..., str]) -> str:
    """Let a process die at this point, and others go on to the end; return how it ended."""
    task_id = _scene(deed)
    answer = killed(place, when, deed, task_id)
    assert answer in ("killed", "lived")

    def gone_on() -> bool:
        # The server may still hold the rows of the one who died: they are left to it until it notices.
        try:
            _go_on(deed, task_id)
        except DatabaseError:
            return False
        return True

    until(gone_on, within=20)
    _nothing_was_let_go_early()
    started: Counter[uuid.UUID] = Counter()

    def ended() -> bool:
        started.update(_run_all())
        return WorkflowRun.objects.get(parent=None).status != "RUNNING"

    until(ended, within=20)
    _all_is_well(deed, started)
    return answer


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("deed", "least"), [
    ("spread", 1), ("end_and_tell", 2), ("fold", 6), ("start", 6), ("graft", 9), ("replay", 9),
])  # fmt: skip
def test_whoever_dies_at_any_statement_leaves_a_graph_that_runs_to_its_end(
    deed: str, least: int, killed: Callable[..., str]
) -> None:
    for place in range(MANY):
        if _dies_and_is_followed(deed, place, "before", killed) == "lived":
            break
    assert least <= place < MANY - 1
    # After a statement is before the next one, but for the last.
    assert _dies_and_is_followed(deed, place - 1, "after", killed) == "killed"


def _nothing_was_let_go_early() -> None:
    """No task may be let go before all that it waits for has succeeded."""
    for row in Task.objects.filter(workflow__isnull=False).exclude(status="BLOCKED"):
        above: list[Any] = list(TaskDependency.objects.filter(task=row).values_list("depends_on", flat=True))
        assert row.status == "SKIPPED" or set(stands(*above)) <= {"SUCCESS"}, row
