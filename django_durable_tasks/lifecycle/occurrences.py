"""A run by hand, beside the schedule: once a request, whatever the fire times, the bounds and the pauses say."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction

from django_durable_tasks import conf, ports
from django_durable_tasks.exceptions import InvalidOption, TransitionRefused, UniqueConflict
from django_durable_tasks.lifecycle import (
    births,
    cancellation,
    claims,
    ledger,
    overlap,
    transitions,
    workflow_deadlines,
)
from django_durable_tasks.lifecycle.agendas import readable
from django_durable_tasks.lifecycle.clock import database_now
from django_durable_tasks.lifecycle.edges import runs
from django_durable_tasks.lifecycle.ringing import may_be_rung
from django_durable_tasks.lifecycle.schedules import locked, refuse_ended
from django_durable_tasks.models import RecurringTask, Task
from django_durable_tasks.rules.agenda import Planned
from django_durable_tasks.rules.comments import comment
from django_durable_tasks.rules.options import checked_key
from django_durable_tasks.rules.overlaps import Verdict, decide
from django_durable_tasks.rules.recurring import Fate, Overlap
from django_durable_tasks.rules.states import Status

REQUEST_MAX = 150


def trigger_now(row: RecurringTask, *, request_id: str | None = None, by: str = "", reason: str = "") -> Task:
    """Run once now and return the Task; the same ``request_id`` (at most 150 characters) runs once.

    It stands outside the fire times: the watermark and ``runs_count`` stay, a pause does not hold it. Its turn it waits
    for: under SKIP and QUEUE_* it is held until the open runs have ended, CANCEL_RUNNING and REPLACE_PENDING make room.
    Raises TransitionRefused for a schedule that has ended or a request whose task is no longer kept, UniqueConflict.
    """
    request = uuid.uuid4().hex if request_id is None else _checked(request_id)
    try:
        with transitions.atomic():
            now, found = database_now(), locked(row)
            refuse_ended(found, "triggered")
            known = ledger.ledger().filter(recurring_task=found.pk, request_id=request).first()
            task_id = known.task_id if known and known.task_id else _bear(found, now, request, comment("", by, reason))
    except IntegrityError as taken:
        raise UniqueConflict(f"Recurring task {row.name!r} cannot run now: an open task has its unique key.") from taken
    task: Task | None = transitions.tasks().filter(pk=task_id).first()
    if task is None:
        raise TransitionRefused(f"request_id={request!r} ran as task {task_id}, which is no longer kept.")
    return task


def _checked(request_id: str) -> str:
    if len(checked_key("request_id", request_id)) > REQUEST_MAX:
        raise InvalidOption(f"request_id has {len(request_id)} characters, at most {REQUEST_MAX} are allowed.")
    return request_id


@readable
def _bear(row: RecurringTask, now: datetime, request: str, reason: str) -> uuid.UUID:
    overlap_key, planned = births.template(row)["overlap_key"], Planned(now, now)
    opened = overlap.open_runs([overlap_key])[overlap_key] if overlap_key is not None else []
    # Somebody asked for this run by name: where a fire time would be skipped, it waits its turn.
    verdict = decide(Overlap(row.overlap), opened, caught_up=True)
    cancellation.cancel(transitions.tasks().filter(pk__in=verdict.replaces), reason="REPLACED")
    workflow_deadlines.call_off(runs().filter(pk__in=verdict.replaces), "REPLACED")
    values = births.task_values(row, planned, now, verdict, births.request_key(row.pk, request))
    values |= _rung(values, verdict, now)
    ledger.write([
        births.line(row, planned, Fate.MANUAL, term=None, values=values, request_id=request, reason=reason,
                    blocked_by=verdict.blocked_by)
    ])  # fmt: skip
    transitions.create_many([values])
    task_id: uuid.UUID = values["id"]
    if values["status"] == Status.QUEUED:
        _ring_after_commit(task_id)
    return task_id


def _ring_after_commit(task_id: uuid.UUID) -> None:
    # A function, because Django names a robust hook that fails by its ``__qualname__``, which a partial lacks.
    def ring() -> None:
        _ring(task_id)

    transaction.on_commit(ring, using=transitions.database(), robust=True)


def _rung(values: dict[str, Any], verdict: Verdict, now: datetime) -> dict[str, Any]:
    """Return what is different in a row that is born QUEUED, to be rung at commit; nothing where it must wait."""
    if verdict.held or not may_be_rung({**values, "run_at": None}):
        return {}
    due_at = now + timedelta(seconds=conf.settings().REPUBLISH_AFTER)
    return {"status": Status.QUEUED, "epoch": 1, "publish_count": 1, "due_at": due_at}


def _ring(task_id: uuid.UUID) -> None:
    """Ring a row born QUEUED, if it may use its overlap key: checked after the commit, as in every claim."""
    rows = transitions.tasks().queued().filter(pk=task_id).values_list(*transitions.RING_COLUMNS)
    ports.ring(claims.rings_of(overlap.admitted(list(rows))))
