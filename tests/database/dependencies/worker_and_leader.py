"""Acts as worker and leader on the tasks of a graph, with the functions that the real ones call."""

from __future__ import annotations

import uuid
from collections import Counter

from django_durable_tasks.choices import Status
from django_durable_tasks.dependencies import edges, resolve
from django_durable_tasks.dependencies.rules import EdgeCounts, needed
from django_durable_tasks.models import Task, WorkflowRun
from django_durable_tasks.states.machine import EndingKind, Outcome
from django_durable_tasks.task_values import Run
from django_durable_tasks.tasks import attempts
from django_durable_tasks.tasks.attempts import Refusal
from django_durable_tasks.workflows import runs
from tests.database.transitions.transition_calls import PLACE, question
from tests.factories import take_these

HOPELESS = Outcome(
    kind=EndingKind.FAILED, error="Hopeless: no", error_type="Hopeless", retryable=False
)


def begin(task: Task | uuid.UUID) -> Run:
    """Start a task that is PENDING and due, or QUEUED. Raises AssertionError if it may not start."""
    row = Task.objects.get(pk=getattr(task, "pk", task))
    if row.status == Status.PENDING:
        (taken,) = take_these(question(row), 1, PLACE)
        return taken
    run = attempts.open_run(row.pk, row.epoch, PLACE, "celery", None)
    assert not isinstance(run, Refusal), (row.status, run)
    return run


def succeed(*tasks: Task | uuid.UUID, result: str | None = None) -> None:
    """Run tasks to their success, without resolving their endings."""
    for task in tasks:
        assert attempts.succeed(begin(task), result, "worker@host")


def fail(*tasks: Task | uuid.UUID) -> None:
    """Run tasks to a failure that is not retried, without resolving their endings."""
    for task in tasks:
        run = begin(task)
        assert attempts.fail(run, HOPELESS, "worker@host") is not None


def resolve_all(batch: int = 500) -> None:
    """Resolve all endings, level by level, and count them into their workflows."""
    while resolve.resolve_endings(batch).events:
        pass
    while runs.count_endings(batch):
        pass


def succeed_steps(run: WorkflowRun, *steps: str) -> None:
    """Run these steps to their success one after the other, and resolve each ending."""
    for step in steps:
        succeed(of(run, step))
        resolve_all()


def fail_steps(run: WorkflowRun, *steps: str) -> None:
    """Run these steps to a failure one after the other, and resolve each ending."""
    for step in steps:
        fail(of(run, step))
        resolve_all()


def statuses(*tasks: Task | uuid.UUID) -> list[str]:
    """Return the statuses of these tasks, in this order."""
    keys: list[uuid.UUID] = [task.pk if isinstance(task, Task) else task for task in tasks]
    found = dict(Task.objects.filter(pk__in=keys).values_list("pk", "status"))
    return [found[key] for key in keys]


def statuses_of(run: WorkflowRun, *steps: str) -> list[str]:
    """Return the statuses of these steps, in this order."""
    return statuses(*(of(run, step) for step in steps))


def of(run: WorkflowRun, step: str) -> Task:
    """Return the task of this step."""
    found: Task = Task.objects.get(workflow__root=run.root, step=step)
    return found


def recount() -> list[str]:
    """Return differences of counters, edges and workflows from a full recount. Empty if there are
    none.
    """
    wrong = []
    for row in Task.objects.filter(status=Status.BLOCKED):
        tally = edges.tallies([row.pk]).get(row.pk, EdgeCounts())
        wants = needed(row.join_count, tally)
        if row.unresolved_dependencies_count != wants or not wants:
            wrong.append(
                f"{row.step or row.pk} counts {row.unresolved_dependencies_count}, a recount gives"
                f" {wants}"
            )
    return wrong + _wrong_runs()


def _wrong_runs() -> list[str]:
    wrong = []
    for run in WorkflowRun.objects.all():
        stand = Counter(Task.objects.filter(workflow=run).values_list("status", flat=True))
        counted = (run.succeeded, run.failed, run.cancelled, run.skipped, run.expired, run.total)
        truth = (
            *(stand[s] for s in ("SUCCESS", "FAILED", "CANCELLED", "SKIPPED", "EXPIRED")),
            sum(stand.values()),
        )
        if counted != truth:
            wrong.append(f"{run.name} counts {counted}, a recount gives {truth}")
    return wrong


__all__ = ["begin", "fail", "of", "question", "recount", "resolve_all", "statuses", "succeed"]
