"""Checks the workflows: each run has ended, and no task started before its upstreams had ended."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Count, Min

from django_durable_tasks.models import (
    OccurrenceRecord,
    Task,
    TaskDependency,
    TaskExecutionLog,
    WorkflowRun,
)


@dataclass(frozen=True)
class Graphs:
    """The figures."""

    started: int
    succeeded: int
    nodes: int
    skipped: int
    early: list[str]
    wrong: list[str]


def read() -> Graphs:
    """Read everything from the database."""
    roots = WorkflowRun.objects.filter(parent=None)
    return Graphs(
        started=roots.count(),
        succeeded=roots.filter(status="SUCCESS").count(),
        nodes=Task.objects.filter(workflow__isnull=False).count(),
        skipped=OccurrenceRecord.objects.filter(
            outcome="SKIPPED_OVERLAP", reason__startswith="workflow run"
        ).count(),
        early=sorted(_early()),
        wrong=sorted(_wrong()),
    )


def _early() -> Iterator[str]:
    """Tasks whose first attempt started before a required upstream had succeeded."""
    logs = TaskExecutionLog.objects.filter(
        task__workflow__isnull=False, started_at__isnull=False
    ).order_by()
    first: dict[UUID, datetime] = dict(logs.values_list("task").annotate(Min("started_at")))
    above: dict[UUID, list[tuple[str, datetime | None]]] = defaultdict(list)
    edges = TaskDependency.objects.filter(depends_on__isnull=False)
    for task, status, ended in edges.values_list(
        "task", "depends_on__status", "depends_on__completed_at"
    ):
        above[task].append((status, ended))
    for task, started in first.items():
        for status, ended in above[task]:
            if status != "SUCCESS" or ended is None or ended > started:
                yield (
                    f"{task} started at {started}, and what it waits for is {status} since {ended}"
                )


def _wrong() -> Iterator[str]:
    """Runs that have not ended or whose counters are wrong, and fires that started two runs."""
    for run in WorkflowRun.objects.all():
        stands = dict(
            Task.objects.filter(workflow=run).order_by().values_list("status").annotate(Count("pk"))
        )
        if run.is_open:
            yield f"workflow run {run} is still {run.status}"
        elif (run.succeeded, run.failed, run.total) != (
            stands.get("SUCCESS", 0),
            stands.get("FAILED", 0),
            sum(stands.values()),
        ):
            yield (
                f"workflow run {run} counts {run.succeeded} of {run.total}, and its tasks are"
                f" {stands}"
            )
    fires = WorkflowRun.objects.filter(parent=None).values("recurring_task", "fire_time")
    for fire in fires.annotate(number=Count("pk")).filter(number__gt=1):
        yield f"the fire at {fire['fire_time']} started {fire['number']} workflows"
