"""Dead letters are read by people and then replayed or discarded; who and when is written down."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import IntegrityError

from django_durable_tasks import conf, registry
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.lifecycle import records, reopening, scheduling, transitions
from django_durable_tasks.lifecycle.deadlocks import through_deadlocks
from django_durable_tasks.models import DeadLetter, Task
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.dead_letter import DeadLetterQuerySet
from django_durable_tasks.models.task import TaskQuerySet
from django_durable_tasks.rules.arguments import bind, encode
from django_durable_tasks.rules.comments import comment, done_by
from django_durable_tasks.rules.endings import Kind, Outcome
from django_durable_tasks.rules.options import CallOptions
from django_durable_tasks.rules.states import LogStatus, Resolution
from django_durable_tasks.signals import dead_letters_grew


def open_count() -> int:
    """Return how many dead letters nobody has closed."""
    return _letters().open().count()


def announce_growth(number: int) -> None:
    """Tell the receivers of ``dead_letters_grew`` how many are open."""
    dead_letters_grew.send_robust(DeadLetter, number=number)


def _letters() -> DeadLetterQuerySet:
    letters: DeadLetterQuerySet = DeadLetter.objects.using(transitions.database()).unguarded()
    return letters


@through_deadlocks
def replay(
    question: TaskQuerySet,
    *,
    by: str,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    reason: str = "",
) -> list[uuid.UUID]:
    """Run ended tasks again under the same idempotency key, with both budgets renewed; their dead letters are closed.

    The tasks keep ``by`` and ``reason``, and so do the dead letters.

    ``args`` and ``kwargs`` replace the arguments, of exactly one task. Raises TransitionRefused when a newer open task
    holds one of their keys, and our argument errors.
    """
    changes = _changed_arguments(question, args, kwargs)
    try:
        with transitions.atomic():
            replayed, returned = reopening.replay(question, done_by("replayed", by, reason), **changes)
            close_replayed([*replayed, *returned], by=by, reason=reason)
    except IntegrityError as taken:
        raise TransitionRefused(f"A newer open task holds the key of one of these tasks: {taken}") from taken
    return replayed


def _changed_arguments(
    question: TaskQuerySet, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> dict[str, Any]:
    if args is None and kwargs is None:
        return {}
    rows: list[Task] = list(question[:2])
    if len(rows) != 1:
        raise TransitionRefused("Edited arguments can replay one task at a time.")
    new_args = rows[0].args if args is None else list(args)
    new_kwargs = rows[0].kwargs if kwargs is None else dict(kwargs)
    settings, task = conf.settings(), registry.get(rows[0].name)
    bind(task.signature, rows[0].name, new_args, new_kwargs)
    payload = encode(
        rows[0].name, new_args, new_kwargs, max_bytes=settings.PAYLOAD_MAX_BYTES, max_depth=settings.JSON_MAX_DEPTH
    )
    key = scheduling.limit_key(scheduling.Call(task, tuple(new_args), new_kwargs, CallOptions()))
    return {"args": json.loads(payload.args), "kwargs": json.loads(payload.kwargs), "limit_key": key}


@through_deadlocks
def discard(letters: DeadLetterQuerySet, *, by: str, reason: str) -> int:
    """Close open dead letters without running their tasks again; the tasks stay FAILED."""
    with transitions.atomic():
        return _close(letters.using(transitions.database()).unguarded().open(), Resolution.DISCARDED, by, reason)


@through_deadlocks
def force_complete(question: TaskQuerySet, *, by: str, reason: str = "") -> list[uuid.UUID]:
    """Call tasks done by an operator's word: a log row says by whom, open dead letters are closed."""
    completed = comment("completed", by, reason)
    with transitions.atomic():
        reopening.hold(question.exclude(status="SUCCESS"))
        rows = list(question.exclude(status="SUCCESS").order_by("pk"))
        done = set(transitions.force_complete(question, completed))
        returned = reopening.revive_below(done)
        outcome = Outcome(kind=Kind.SUCCEEDED, error=reason or completed)
        for row in rows:
            row.run_id = None  # a body that still runs must not take this success for its own
        closings = [records.Closing(task=row, log=LogStatus.SUCCESS, outcome=outcome) for row in rows if row.pk in done]
        records.log_endings(closings)
        _close(_letters().open().filter(task_id__in=done), Resolution.DISCARDED, by, reason or completed)
        close_replayed(returned, by=by, reason=reason or completed)
    return sorted(done)


def close_replayed(tasks: Sequence[uuid.UUID], *, by: str, reason: str) -> int:
    """Close the open dead letters of tasks that run again; in the caller's transaction."""
    return _close(_letters().open().filter(task_id__in=tasks), Resolution.REPLAYED, by, reason)


def _close(letters: DeadLetterQuerySet, resolution: Resolution, by: str, reason: str) -> int:
    return letters.order_by().update(
        resolved_at=DatabaseNow(), resolution=resolution, resolved_by=by[:200], note=reason[:500], open_task=None
    )
