"""One corruption for each check of ``durable verify``, as caused by a bug, a person or a restore.

Each function writes rows directly and returns the primary key of the row that must be found.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from django.db.models import QuerySet

from django_durable_tasks import __version__
from django_durable_tasks.choices import Status
from django_durable_tasks.models import (
    DeadLetter,
    EndingEvent,
    NodeKind,
    OccurrenceOverride,
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


def _alter(rows: QuerySet[Any], pk: Any, **columns: Any) -> Any:
    assert rows.model._base_manager.filter(pk=pk).update(**columns) == 1
    return pk


def _miscounted_task() -> Any:
    return _alter(Task.objects.all(), a_waiting_task().pk, unresolved_dependencies_count=7)


def _blocked_by_nothing() -> Any:
    row = a_waiting_task()
    TaskDependency.objects.unguarded().filter(task=row).update(
        resolved_at=ago(1), outcome="FORCED", met=True
    )
    return _alter(Task.objects.all(), row.pk, unresolved_dependencies_count=0)


def _unresolved_edge() -> Any:
    return TaskDependency.objects.get(task=a_waiting_task(a_task(Status.SUCCESS))).pk


def _early_edge() -> Any:
    edge = TaskDependency.objects.get(task=a_waiting_task()).pk
    return _alter(
        TaskDependency.objects.all(), edge, resolved_at=ago(1), outcome="SUCCESS", met=True
    )


def _unmarked_upstream() -> Any:
    edge = TaskDependency.objects.get(task=a_waiting_task())
    _alter(Task.objects.all(), edge.depends_on_id, has_dependents=False)
    return edge.pk


def _ending_event() -> EndingEvent:
    succeed(of(a_workflow(), "first"))
    return EndingEvent.objects.get()


def _duplicate_ending_event() -> Any:
    note = _ending_event()
    note.pk = None
    note.save(force_insert=True)
    return note.pk


def _wrong_ending_event() -> Any:
    note = _ending_event()
    _alter(Task.objects.all(), note.task_id, updated_at=ago(1_000))
    return note.pk


def _orphan_ending_event() -> Any:
    return EndingEvent.objects.create(task_id=uuid.uuid4(), epoch=3, status="SUCCESS").pk


def _miscounted_run() -> Any:
    return _alter(WorkflowRun.objects.all(), a_workflow().pk, succeeded=1)


def _wrong_statuses_run() -> Any:
    return _alter(
        WorkflowRun.objects.all(), an_ended_workflow().pk, status="RUNNING", completed_at=None
    )


def _abandoned_start() -> Any:
    run = a_workflow()
    Task.objects.unguarded().filter(workflow=run, step="first").update(
        status="BLOCKED", due_at=None
    )
    return _alter(WorkflowRun.objects.all(), run.pk, status="STARTING", updated_at=ago(5_000))


def _missing_dead_letter() -> Any:
    row = a_task(Status.FAILED)
    DeadLetter.objects.unguarded().filter(task=row).delete()
    return row.pk


def _stale_dead_letter() -> Any:
    return a_dead_letter(a_task(Status.SUCCESS)).pk


def _ended_owner_of_a_key() -> Any:
    return a_task(Status.SUCCESS, key="k", open_key="k").pk


def _ended_without_timestamp() -> Any:
    return a_task(Status.CANCELLED, completed_at=None).pk


def _fallen_attempts() -> Any:
    return _alter(Task.objects.all(), a_task(Status.SUCCESS).pk, attempts=0)


def _silent_run() -> Any:
    return a_task(Status.RUNNING, due=-600).pk


def _not_republished_task() -> Any:
    a_node(queues=[QUEUE], concurrency=1, active={"number": 0, "ids": []})
    return a_task(Status.QUEUED, due=-600).pk


def _unpublished_row() -> Any:
    return a_task(due=-600).pk


def _waiting_for_overlap() -> Any:
    return a_task(overlap_key="s", due_at=NEVER, updated_at=ago(600)).pk


def _partly_waiting_for_limit() -> Any:
    return a_task(due_at=NEVER, updated_at=ago(600)).pk


def _waiting_for_limit() -> Any:
    return a_task(due_at=NEVER, waiting_for_limit="task:nobody", updated_at=ago(600)).pk


def _late_next_run() -> Any:
    return _alter(RecurringTask.objects.all(), a_fired_schedule().pk, next_run_at=ago(-86_400))


def _late_schedule() -> Any:
    row = a_fired_schedule()
    return _alter(
        RecurringTask.objects.all(), row.pk, watermark_at=ago(9_000), next_run_at=ago(600)
    )


def _miscounted_schedule() -> Any:
    return _alter(RecurringTask.objects.all(), a_fired_schedule().pk, runs_count=5)


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


def _endless_lease() -> Any:
    return _alter(SchedulerLease.objects.all(), "leader", expires_at=ago(-86_400))


def _silent_node() -> Any:
    return a_node(seen=1_000).pk


def _row_in_a_wrong_shard() -> Any:
    row = a_task(due=3_600)
    return _alter(Task.objects.all(), row.pk, shard_key=70 if row.shard_key else 1)


def _region_with_holes() -> Any:
    here: dict[str, Any] = {"region": "south", "started_at": ago(1_000)}
    SchedulerLease.objects.create(name="leader@south", expires_at=ago(-30))
    a_node(NodeKind.SCHEDULER, shards=list(range(48)), keeps_to_shards=True, **here)
    return "leader@south"


def _scheduler_that_serves_too_little() -> Any:
    here: dict[str, Any] = {"region": "north", "started_at": ago(1_000), "version": __version__}
    a_node(NodeKind.SCHEDULER, shards=list(range(32)), keeps_to_shards=True, **here)
    return a_node(NodeKind.SCHEDULER, shards=[*range(32, 40), 63], **here).pk


def _orphan_log_row() -> Any:
    row = TaskExecutionLog(
        task_id=uuid.uuid4(), attempt_number=1, status="SUCCESS", completed_at=ago(1)
    )
    TaskExecutionLog.objects.unguarded().bulk_create([row])
    return row.pk


def _orphan_edge() -> Any:
    upstream = a_task(due=3_600, has_dependents=True)
    return TaskDependency.objects.unguarded().create(task_id=uuid.uuid4(), depends_on=upstream).pk


def _orphan_entry() -> Any:
    return (
        OccurrenceRecord.objects.unguarded()
        .create(recurring_task_id=uuid.uuid4(), fire_time=ago(1), outcome="MISSED")
        .pk
    )


def _orphan_override() -> Any:
    overrides = OccurrenceOverride.objects.unguarded()
    return overrides.create(recurring_task_id=uuid.uuid4(), fire_time=ago(-60), action="SKIP").pk


DAMAGES: Mapping[str, Callable[[], Any]] = {
    "dependency-counts": _miscounted_task,
    "blocked-by-nothing": _blocked_by_nothing,
    "unresolved-edges": _unresolved_edge,
    "edges-resolved-early": _early_edge,
    "has-dependents-flag": _unmarked_upstream,
    "duplicate-endings": _duplicate_ending_event,
    "ending-events-waiting": _wrong_ending_event,
    "orphan-ending-events": _orphan_ending_event,
    "workflow-counts": _miscounted_run,
    "workflow-status": _wrong_statuses_run,
    "workflow-starts": _abandoned_start,
    "dead-letters-missing": _missing_dead_letter,
    "dead-letters-stale": _stale_dead_letter,
    "key-markers": _ended_owner_of_a_key,
    "completion-times": _ended_without_timestamp,
    "attempts": _fallen_attempts,
    "expired-leases": _silent_run,
    "not-republished": _not_republished_task,
    "unpublished": _unpublished_row,
    "stuck-on-overlap": _waiting_for_overlap,
    "limit-columns": _partly_waiting_for_limit,
    "stuck-on-limit": _waiting_for_limit,
    "watermarks": _late_next_run,
    "late-schedules": _late_schedule,
    "runs-counts": _miscounted_schedule,
    "occurrence-tasks": _fire_without_task,
    "occurrence-entries": _task_without_entry,
    "seed-rows": _missing_lease,
    "leases": _endless_lease,
    "nodes-without-heartbeat": _silent_node,
    "shard-keys": _row_in_a_wrong_shard,
    "unserved-shards": _region_with_holes,
    "shard-maps": _scheduler_that_serves_too_little,
    "orphan-log-entries": _orphan_log_row,
    "orphan-edges": _orphan_edge,
    "orphan-ledger-entries": _orphan_entry,
    "orphan-overrides": _orphan_override,
}
FOR_PEOPLE = frozenset(
    {"unpublished", "late-schedules", "occurrence-tasks", "unserved-shards", "shard-maps"}
)
"""The checks whose findings cannot be repaired automatically."""
