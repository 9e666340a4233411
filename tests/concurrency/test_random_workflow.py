"""Eight workers run one random graph to its end while tasks fail, are cancelled and replayed, and
edges are added.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from django_durable_tasks import Workflow
from django_durable_tasks.choices import REPLAYABLE, TERMINAL, LogStatus, Status
from django_durable_tasks.dependencies import edges, edit, resolve
from django_durable_tasks.dependencies.rules import edges_to
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import Task, TaskDependency, TaskExecutionLog, WorkflowRun
from django_durable_tasks.task_values import Run
from django_durable_tasks.tasks import attempts, operator_actions
from django_durable_tasks.workflows import operations, runs
from django_durable_tasks.workflows.builder import AddedTasks
from tests.concurrency.racing import no_errors, race
from tests.database.dependencies.worker_and_leader import HOPELESS, recount, resolve_all
from tests.database.transitions.transition_calls import FAILURE, PLACE
from tests.factories import QUEUE, take_these
from tests.project.tasks import noop
from tests.repetitions import drawn

NODES, WORKERS, OPERATIONS = 240, 8, 25
_READY = (Status.PENDING, Status.QUEUED)


def _graph(dice: random.Random) -> WorkflowRun:
    wf, steps = Workflow("random"), list[Any]()
    for number in range(NODES):
        above = dice.sample(steps[-30:], min(len(steps), dice.randint(0, 4)))
        after = {step: dice.choice(["MUST_SUCCEED"] * 4 + ["MUST_FINISH"]) for step in above}
        join: Any = dice.choice(["ALL", "ALL", "ANY", len(above)]) if above else "ALL"
        policy = dice.choice(["SKIP", "SKIP", "FAIL", "WAIT", "RUN"])
        task = noop.using(queue=QUEUE)
        steps.append(
            wf.add(task, step=f"s{number}", after=after, join=join, on_upstream_failure=policy)
        )
    return wf.start()


class _Crew:
    """What the workers did: every run that was started, and every one whose ending was accepted."""

    def __init__(self) -> None:
        self.started: list[Run] = []
        self.accepted: list[Run] = []
        self.stop = threading.Event()

    def _start(self, dice: random.Random) -> Run | None:
        ready = list(Task.objects.filter(status__in=_READY).order_by("pk")[: 3 * WORKERS])
        if not ready:
            return None
        row = dice.choice(ready)
        if row.status == Status.PENDING:
            taken = take_these(Task.objects.filter(pk=row.pk), 1, PLACE)
            return taken[0] if taken else None
        run = attempts.open_run(row.pk, row.epoch, PLACE, "id", None)
        return run if isinstance(run, Run) else None

    def work(self, dice: random.Random, failing: float) -> bool:
        """Run one task if there is one, and resolve its dependents as a worker does."""
        run = self._start(dice)
        if run is None:
            return False
        self.started.append(run)
        if dice.random() < failing:
            accepted = (
                attempts.fail(run, dice.choice([HOPELESS, HOPELESS, FAILURE]), "w") is not None
            )
        else:
            growth = AddedTasks("growth")
            growth.add(noop.using(queue=QUEUE))
            accepted = runs.succeed(
                run, None, "w", (growth,) if failing and dice.random() < 0.05 else ()
            )
        if accepted:
            self.accepted.append(run)
        else:
            attempts.fence(run, "w")
        resolve.resolve_endings_of(run.task_id)
        return True

    def until_stopped(self, number: int) -> None:
        """Work, and act as leader if there is no work."""
        dice = random.Random(number)
        while not self.stop.is_set():
            if not self.work(dice, 0.15):
                resolve.resolve_endings(dice.randint(1, 20))
                runs.count_endings(dice.randint(1, 50))

    def until_done(self, number: int) -> None:
        """Work without a failure until there is nothing to do."""
        dice = random.Random(number)
        while self.work(dice, 0.0) or resolve.resolve_endings(50).events or runs.count_endings(50):
            pass


def _operate(dice: random.Random, crew: _Crew) -> None:
    """Perform random operations, and stop the workers afterwards."""
    try:
        for _ in range(OPERATIONS):
            ids = list(Task.objects.order_by("pk").values_list("pk", flat=True))
            these = Task.objects.filter(pk__in=dice.sample(ids, 5))
            low, high = these[0], these[3]
            choices: list[Callable[[], Any]] = [
                partial(operator_actions.cancel, these, by="bob"),
                partial(operator_actions.replay, these, by="bob"),
                partial(
                    operator_actions.replay,
                    Task.objects.filter(status__in=REPLAYABLE),
                    by="bob",
                ),
                partial(operator_actions.force_complete, these, by="bob"),
                partial(edit.link, low.pk, edges_to([high])),
                partial(edit.link, high.pk, edges_to([low])),
                partial(edit.place_gate, low.pk, "HOLD", by="bob"),
                partial(operations.force_run, these, by="bob"),
            ]
            try:
                dice.choice(choices)()
            except DurableTasksError:
                # refused: it has started, it would close a cycle, or another task prevents it
                continue
    finally:
        crew.stop.set()


def _release_all() -> None:
    for edge in TaskDependency.objects.gates().unresolved():
        edit.open_gate(edge.task_id, str(edge.gate), by="bob")
    for row in Task.objects.filter(status__in=REPLAYABLE):
        try:
            operator_actions.replay(Task.objects.filter(pk=row.pk), by="bob")
        except DurableTasksError:
            continue  # its upstream is replayed together with another one of these


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", drawn(range(2), 2))
def test_a_random_graph_runs_to_its_end_whatever_operations_occur_meanwhile(seed: int) -> None:
    run, crew = _graph(random.Random(seed)), _Crew()
    operators = [partial(_operate, random.Random(f"{seed} bob"), crew)]
    no_errors(
        race([*(partial(crew.until_stopped, number) for number in range(WORKERS)), *operators])
    )
    resolve_all()
    assert not recount()
    _release_all()
    no_errors(race([partial(crew.until_done, number) for number in range(WORKERS)]))
    resolve_all()
    assert not recount()
    assert not edges.endings().exists()
    assert not Task.objects.exclude(status__in=TERMINAL).exclude(status=Status.BLOCKED).exists()
    # How many runs the operations add or prevent depends on the timing.
    assert len(crew.started) > NODES // 2
    _each_attempt_ran_once(crew)
    run.refresh_from_db()
    stuck = Task.objects.filter(status=Status.BLOCKED)
    assert run.is_open == stuck.exists()
    for row in stuck:
        assert _waits_for_a_replay(row), _description_of(row)


def _each_attempt_ran_once(crew: _Crew) -> None:
    started = Counter(run.task_id for run in crew.started)
    assert started == Counter(
        dict(Task.objects.filter(attempts__gt=0).values_list("pk", "attempts"))
    )
    assert len({(run.task_id, run.attempt) for run in crew.started}) == len(crew.started)
    logged = TaskExecutionLog.objects.exclude(status=LogStatus.FENCED).exclude(run_id=None)
    ran = Counter(logged.values_list("run_id", flat=True))
    assert ran == Counter(run.run_id for run in crew.accepted)


def _description_of(row: Task) -> str:
    """Describe the upstreams of a task, for the message of a failed test."""
    above = TaskDependency.objects.filter(task=row).values_list(
        "pk",
        "depends_on__status",
        "depends_on__epoch",
        "dependency_type",
        "gate",
        "outcome",
        "met",
        "resolved_at",
    )
    return (
        f"{row.step} {row.unresolved_dependencies_count} {row.join_count} {row.reason}:"
        f" {list(above)}"
    )


def _waits_for_a_replay(row: Task) -> bool:
    """Return whether each unmet edge has an upstream that ended otherwise, or one that waits for
    such an upstream.
    """
    holding = TaskDependency.objects.filter(task=row).unresolved()
    ups = Task.objects.filter(pk__in=holding.values("depends_on"))
    return bool(ups) and all(up.status in (Status.BLOCKED, *REPLAYABLE) for up in ups)
