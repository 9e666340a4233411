"""Creates a manual run of a schedule, once per ``request_id``.

Start and end of the schedule, its pauses and its fire times do not apply. Called by
``RecurringTask.trigger_now``.
"""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction

from django_durable_tasks import conf, ports
from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.audit.recorder import recorded
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.dependencies import run_tree
from django_durable_tasks.engine.dependencies.edges import runs
from django_durable_tasks.engine.limits import overlap
from django_durable_tasks.engine.recurring import ledger, occurrence_tasks
from django_durable_tasks.engine.recurring.schedule_cache import readable
from django_durable_tasks.engine.recurring.schedules import locked, refuse_ended
from django_durable_tasks.engine.tasks import operator_actions
from django_durable_tasks.engine.tasks.fast_path import may_publish_at_once
from django_durable_tasks.exceptions import InvalidOption, TransitionRefused, UniqueConflict
from django_durable_tasks.models import RecurringTask, Task
from django_durable_tasks.rules.recurring.effective import PlannedRun
from django_durable_tasks.rules.recurring.overlaps import OverlapDecision, decide
from django_durable_tasks.rules.recurring.policies import FireOutcome, Overlap
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tasks.comments import comment
from django_durable_tasks.rules.tasks.new_task import NewTask
from django_durable_tasks.rules.tasks.options import checked_key

REQUEST_MAX = 150


def trigger_now(
    row: RecurringTask, *, request_id: str | None = None, by: str = "", reason: str = ""
) -> Task:
    """Create a run that starts now and return its Task; a repeated ``request_id`` (at most 150
    characters) returns the same task.

    The watermark and ``runs_count`` do not change, and a pause does not delay the run. The overlap
    policy applies. With SKIP or QUEUE_* the task waits until the open runs have ended. With
    CANCEL_RUNNING or REPLACE_PENDING the open runs are cancelled as the policy requires. Raises
    TransitionRefused if the schedule has ended or the task of the request was deleted, and
    UniqueConflict if an open task has its unique key.
    """
    request = uuid.uuid4().hex if request_id is None else _checked(request_id)
    try:
        with recorded("schedule.run_now", by=by, reason=reason) as entry:
            entry.subject("schedule", row.pk, row.tenant_id)
            now, found = database_now(), locked(row)
            refuse_ended(found, "triggered")
            known = ledger.ledger().filter(recurring_task=found.pk, request_id=request).first()
            task_id = known.task_id if known else None
            if task_id is None:
                task_id = _create(found, now, request, comment("", by, reason))
                entry.detail(task=task_id, request_id=request)
    except IntegrityError as taken:
        raise UniqueConflict(
            f"Recurring task {row.name!r} cannot run now: an open task has its unique key."
        ) from taken
    task: Task | None = tables.tasks().filter(pk=task_id).first()
    if task is None:
        raise TransitionRefused(
            f"request_id={request!r} ran as task {task_id}, which is no longer kept."
        )
    return task


def _checked(request_id: str) -> str:
    if len(checked_key("request_id", request_id)) > REQUEST_MAX:
        raise InvalidOption(
            f"request_id has {len(request_id)} characters, at most {REQUEST_MAX} are allowed."
        )
    return request_id


@readable
def _create(row: RecurringTask, now: datetime, request: str, reason: str) -> uuid.UUID:
    shared, planned = occurrence_tasks.template(row), PlannedRun(now, now)
    overlap_key = shared.overlap_key
    opened = overlap.open_runs([overlap_key])[overlap_key] if overlap_key is not None else []
    # An operator requested this run, so it waits where the run of a fire time would be skipped.
    verdict = decide(Overlap(row.overlap), opened, caught_up=True)
    operator_actions.cancel(tables.tasks().filter(pk__in=verdict.replaces), reason="REPLACED")
    run_tree.request_cancel_runs(runs().filter(pk__in=verdict.replaces), "REPLACED")
    new = occurrence_tasks.occurrence_task(
        shared, planned, now, verdict, occurrence_tasks.request_key(row.pk, request)
    )
    new = _queued_if_possible(new, verdict, now)
    ledger.write(
        [
            occurrence_tasks.entry(
                shared,
                planned,
                FireOutcome.MANUAL,
                term=None,
                task=new,
                request_id=request,
                reason=reason,
                blocked_by=verdict.blocked_by,
            )
        ]
    )
    transitions.create_many([new])
    if new.status == Status.QUEUED:
        _publish_after_commit(new.id)
    return new.id


def _publish_after_commit(task_id: uuid.UUID) -> None:
    # A function, because Django names a robust hook that fails by its ``__qualname__``, which a
    # partial lacks.
    def publish() -> None:
        _publish(task_id)

    transaction.on_commit(publish, using=tables.database(), robust=True)


def _queued_if_possible(new: NewTask, verdict: OverlapDecision, now: datetime) -> NewTask:
    """Return the task as QUEUED if it may be published at commit, unchanged if it has to wait."""
    if verdict.held or not may_publish_at_once(new, None):
        return new
    due_at = now + timedelta(seconds=conf.settings().REPUBLISH_AFTER)
    return new._replace(status=Status.QUEUED, epoch=1, publish_count=1, due_at=due_at)


def _publish(task_id: uuid.UUID) -> None:
    """Publish a task that was inserted as QUEUED, if its overlap key is free. This is checked after
    the commit, as in every claim.
    """
    claimed = transitions.claimed_tasks(tables.tasks().queued().filter(pk=task_id))
    ports.publish(transitions.messages_for(overlap.admitted(claimed)))
