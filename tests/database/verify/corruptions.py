"""One corruption for each check of ``durable verify``, as caused by a bug, a person or a restore.

Each function writes rows directly and returns the primary key of the row that must be found.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from django.db.models import Model

from django_durable_tasks import __version__
from django_durable_tasks.choices import Status
from django_durable_tasks.models import (
    DeadLetter,
    EndingEvent,
    NodeKind,
    OccurrenceRecord,
    RecurringTask,
    SchedulerLease,
    Task,
    TaskDependency,
    TaskExecutionLog,
    WorkflowRun,
)
from django_durable_tasks.models.tasks import NEVER
from tests.database.dependencies.worker_and_leader import of, succeed
from tests.database.verify.healthy_rows import (
    a_fired_schedule,
    a_waiting_task,
    a_workflow,
    ago,
    an_ended_workflow,
)
from tests.factories import QUEUE, a_dead_letter, a_node, a_task


def _alter(model: type[Model], key: Any, **columns: Any) -> Any:
    """Write columns of a row; return its key."""
    assert model._base_manager.filter(pk=key).update(**columns) == 1
    return key


def _edge_of(task: Task) -> TaskDependency:
    edge: TaskDependency = TaskDependency.objects.get(task=task)
    return edge


def _blocked_by_nothing() -> Any:
    row = a_waiting_task()
    _alter(TaskDependency, _edge_of(row).pk, resolved_at=ago(1), outcome="FORCED", met=True)
    return _alter(Task, row.pk, unresolved_dependencies_count=0)


def _unmarked_upstream() -> Any:
    edge = _edge_of(a_waiting_task())
    _alter(Task, edge.depends_on_id, has_dependents=False)
    return edge.pk


def _ending_event() -> EndingEvent:
    succeed(of(a_workflow(), "first"))
    return EndingEvent.objects.get()


def _duplicate_ending_event() -> Any:
    event = _ending_event()
    event.pk = None
    event.save(force_insert=True)
    return event.pk


def _late_ending_event() -> Any:
    event = _ending_event()
    _alter(Task, event.task_id, updated_at=ago(1_000))
    return event.pk


def _abandoned_start() -> Any:
    run = a_workflow()
    Task.objects.unguarded().filter(workflow=run, step="first").update(
        status="BLOCKED", due_at=None
    )
    return _alter(WorkflowRun, run.pk, status="STARTING", updated_at=ago(5_000))


def _missing_dead_letter() -> Any:
    row = a_task(Status.FAILED)
    DeadLetter.objects.unguarded().filter(task=row).delete()
    return row.pk


def _not_republished_task() -> Any:
    a_node(queues=[QUEUE], concurrency=1, active={"number": 0, "ids": []})
    return a_task(Status.QUEUED, due=-600).pk


def _fire_without_task() -> Any:
    row = a_fired_schedule()
    Task.objects.unguarded().filter(recurring_task=row).delete()
    return OccurrenceRecord.objects.get(recurring_task=row).pk


def _task_without_entry() -> Any:
    row = a_fired_schedule()
    OccurrenceRecord.objects.unguarded().filter(recurring_task=row).delete()
    return Task.objects.get(recurring_task=row).pk


def _missing_lease() -> Any:
    SchedulerLease.objects.all().delete()
    return "leader"


def _task_in_a_wrong_shard() -> Any:
    row = a_task(due=3_600)
    return _alter(Task, row.pk, shard_key=70 if row.shard_key else 1)


def _region_with_holes() -> Any:
    here: dict[str, Any] = {"region": "south", "started_at": ago(1_000)}
    SchedulerLease.objects.create(name="leader@south", expires_at=ago(-30))
    a_node(NodeKind.SCHEDULER, shards=list(range(48)), keeps_to_shards=True, **here)
    return "leader@south"


def _scheduler_that_serves_too_little() -> Any:
    here: dict[str, Any] = {"region": "north", "started_at": ago(1_000), "version": __version__}
    a_node(NodeKind.SCHEDULER, shards=list(range(32)), keeps_to_shards=True, **here)
    return a_node(NodeKind.SCHEDULER, shards=[*range(32, 40), 63], **here).pk


def _orphan(model: Any, **columns: Any) -> Any:
    """Create a row whose owner does not exist."""
    [row] = model.objects.unguarded().bulk_create([model(**columns)])
    return row.pk


DAMAGES: Mapping[str, Callable[[], Any]] = {
    "dependency-counts": lambda: _alter(Task, a_waiting_task().pk, unresolved_dependencies_count=7),
    "blocked-by-nothing": _blocked_by_nothing,
    "unresolved-edges": lambda: _edge_of(a_waiting_task(a_task(Status.SUCCESS))).pk,
    "edges-resolved-early": lambda: _alter(
        TaskDependency,
        _edge_of(a_waiting_task()).pk,
        resolved_at=ago(1),
        outcome="SUCCESS",
        met=True,
    ),
    "has-dependents-flag": _unmarked_upstream,
    "duplicate-endings": _duplicate_ending_event,
    "ending-events-waiting": _late_ending_event,
    "orphan-ending-events": lambda: (
        EndingEvent.objects.create(task_id=uuid.uuid4(), epoch=3, status="SUCCESS").pk
    ),
    "workflow-counts": lambda: _alter(WorkflowRun, a_workflow().pk, succeeded=1),
    "workflow-status": lambda: _alter(
        WorkflowRun, an_ended_workflow().pk, status="RUNNING", completed_at=None
    ),
    "workflow-starts": _abandoned_start,
    "dead-letters-missing": _missing_dead_letter,
    "dead-letters-stale": lambda: a_dead_letter(a_task(Status.SUCCESS)).pk,
    "key-markers": lambda: a_task(Status.SUCCESS, key="k", open_key="k").pk,
    "completion-times": lambda: a_task(Status.CANCELLED, completed_at=None).pk,
    "attempts": lambda: _alter(Task, a_task(Status.SUCCESS).pk, attempts=0),
    "expired-leases": lambda: a_task(Status.RUNNING, due=-600).pk,
    "not-republished": _not_republished_task,
    "unpublished": lambda: a_task(due=-600).pk,
    "stuck-on-overlap": lambda: a_task(overlap_key="s", due_at=NEVER, updated_at=ago(600)).pk,
    "limit-columns": lambda: a_task(due_at=NEVER, updated_at=ago(600)).pk,
    "stuck-on-limit": lambda: (
        a_task(due_at=NEVER, waiting_for_limit="task:nobody", updated_at=ago(600)).pk
    ),
    "watermarks": lambda: _alter(RecurringTask, a_fired_schedule().pk, next_run_at=ago(-86_400)),
    "late-schedules": lambda: _alter(
        RecurringTask, a_fired_schedule().pk, watermark_at=ago(9_000), next_run_at=ago(600)
    ),
    "runs-counts": lambda: _alter(RecurringTask, a_fired_schedule().pk, runs_count=5),
    "occurrence-tasks": _fire_without_task,
    "occurrence-entries": _task_without_entry,
    "seed-rows": _missing_lease,
    "leases": lambda: _alter(SchedulerLease, "leader", expires_at=ago(-86_400)),
    "nodes-without-heartbeat": lambda: a_node(seen=1_000).pk,
    "shard-keys": _task_in_a_wrong_shard,
    "unserved-shards": _region_with_holes,
    "shard-maps": _scheduler_that_serves_too_little,
    "orphan-log-entries": lambda: _orphan(
        TaskExecutionLog,
        task_id=uuid.uuid4(),
        attempt_number=1,
        status="SUCCESS",
        completed_at=ago(1),
    ),
    "orphan-edges": lambda: _orphan(
        TaskDependency, task_id=uuid.uuid4(), depends_on=a_task(due=3_600, has_dependents=True)
    ),
    "orphan-ledger-entries": lambda: _orphan(
        OccurrenceRecord, recurring_task_id=uuid.uuid4(), fire_time=ago(1), outcome="MISSED"
    ),
}
# The checks whose findings cannot be repaired automatically.
FOR_PEOPLE = frozenset(
    {"unpublished", "late-schedules", "occurrence-tasks", "unserved-shards", "shard-maps"}
)
