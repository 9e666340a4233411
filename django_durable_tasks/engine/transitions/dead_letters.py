"""Opens and closes dead letters, in the transaction of the transition of their tasks.

A FAILED task has exactly one open dead letter. ``open_task`` is unique, so a second one cannot be
inserted.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django_durable_tasks.encryption import current_key_id
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.transitions.attempt_log import AttemptResult
from django_durable_tasks.models import DeadLetter
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.dead_letter import DeadLetterQuerySet
from django_durable_tasks.models.encrypted_json import undecrypted
from django_durable_tasks.rules.states import Resolution
from django_durable_tasks.rules.tasks.endings import fingerprint


def dead_letters() -> DeadLetterQuerySet:
    """Return all dead letters."""
    letters: DeadLetterQuerySet = DeadLetter.objects.using(tables.database()).unguarded()
    return letters


def open_many(results: Sequence[tuple[AttemptResult, str]]) -> None:
    """Open the dead letter of each task that has failed, with its reason."""
    dead_letters().bulk_create([_dead_letter(result, reason) for result, reason in results])


def _dead_letter(result: AttemptResult, reason: str) -> DeadLetter:
    task, outcome = result.task, result.outcome
    return DeadLetter(
        task_id=task.pk,
        open_task=task.pk,
        tenant_id=task.tenant_id,
        reason=reason,
        fingerprint=fingerprint(task.name, outcome.error_type, outcome.error),
        error_message=outcome.error,
        attempts=task.attempts,
        args=undecrypted(task, "args"),
        kwargs=undecrypted(task, "kwargs"),
        encryption_key=task.encryption_key or current_key_id(),
        created_at=DatabaseNow(),
    )


def close(letters: DeadLetterQuerySet, resolution: Resolution, *, by: str, reason: str) -> int:
    """Close open dead letters; return how many."""
    return (
        letters.open()
        .order_by()
        .update(
            resolved_at=DatabaseNow(),
            resolution=resolution,
            resolved_by=by[:200],
            comment=reason[:500],
            open_task=None,
        )
    )


def close_replayed(tasks: Sequence[uuid.UUID], *, by: str, reason: str) -> int:
    """Close the open dead letters of replayed tasks; return how many."""
    return close(
        dead_letters().filter(task_id__in=tasks), Resolution.REPLAYED, by=by, reason=reason
    )
