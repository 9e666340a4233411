"""Operations on tasks and dead letters: cancel, reschedule, edit, retry, replay, discard,
complete.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import IntegrityError

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.audit import recorded
from django_durable_tasks.choices import LogStatus, Resolution, Status, TargetType
from django_durable_tasks.dependencies import replay as dependency_replay
from django_durable_tasks.dependencies.references import REFERS
from django_durable_tasks.exceptions import EncryptionError, TransitionRefused
from django_durable_tasks.models import DeadLetter, Task
from django_durable_tasks.models.tasks import DeadLetterQuerySet, TaskQuerySet
from django_durable_tasks.option_values import checked_name
from django_durable_tasks.signals import dead_letters_grew
from django_durable_tasks.states import attempt_log, transitions
from django_durable_tasks.states.decisions import EndingKind, Outcome
from django_durable_tasks.store import tables
from django_durable_tasks.store.errors import retry_on_deadlock
from django_durable_tasks.targets.http_request import after_edit
from django_durable_tasks.tasks.arguments import JSON_MAX_DEPTH, encode
from django_durable_tasks.tasks.explanations import comment, done_by
from django_durable_tasks.tasks.new_task import Call, check_options, limit_key, prepared_kwargs
from django_durable_tasks.tasks.options import CallOptions, call_options

# Edits a task that has not started: its arguments, times, queue and priority.


_BATCH = 1_000
"""Tasks per statement, because a statement has a limited number of parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEdit:
    """New values; None keeps the present one."""

    run_at: datetime | None = None
    expires_at: datetime | None = None
    priority: int | None = None
    queue: str | None = None
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None


@retry_on_deadlock
def edit_waiting(
    queryset: TaskQuerySet,
    change: TaskEdit,
    *,
    by: str = "",
    reason: str = "",
    action: str = "edited",
) -> int:
    """Edit the tasks that have not started; return how many.

    Raises DurableTasksError for values that a new task could not have, before anything is written.
    The messages of QUEUED tasks become stale.
    """
    with recorded(f"tasks.{_NAMES[action]}", by=by, reason=reason) as entry, tables.atomic():
        entry.detail(**_given(change))
        waiting = queryset.filter(status__in=transitions.WAITING).order_by("pk")
        ids = list(waiting.values_list("pk", flat=True))
        more = {"reason": done_by(action, by, reason)} if by or reason else {}
        batches = (ids[first : first + _BATCH] for first in range(0, len(ids), _BATCH))
        return sum(_edit_batch(batch, change, more) for batch in batches)


def _edit_batch(ids: list[uuid.UUID], change: TaskEdit, more: dict[str, Any]) -> int:
    # Locked before they are read, so that the new arguments are derived from the present ones.
    these = tables.tasks().filter(pk__in=ids, status__in=transitions.WAITING)
    rows = list(tables.locked_for_change(these).order_by("pk"))
    groups = _alike({row.pk: {**_columns(row, change), **more} for row in rows})
    transitions.return_to_pending(these, 0)
    return sum(
        transitions.edit(tables.tasks().filter(pk__in=keys), **columns) for keys, columns in groups
    )


def _alike(
    columns: Mapping[uuid.UUID, dict[str, Any]],
) -> list[tuple[list[uuid.UUID], dict[str, Any]]]:
    """Return the tasks in groups whose new values are the same, with these values. Values that are
    independent of the task are one group, so the number of statements is constant.
    """
    groups: dict[str, tuple[list[uuid.UUID], dict[str, Any]]] = {}
    for key, values in columns.items():
        name = json.dumps(values, sort_keys=True, default=str)
        groups.setdefault(name, ([], values))[0].append(key)
    return list(groups.values())


_NAMES = {"edited": "edit", "rescheduled": "reschedule"}


def _given(change: TaskEdit) -> dict[str, Any]:
    """Return the new values for the audit entry, without the arguments, which may be secret."""
    names = ("run_at", "expires_at", "priority", "queue")
    return {name: value for name in names if (value := getattr(change, name)) is not None}


def _columns(row: Task, change: TaskEdit) -> dict[str, Any]:
    options = call_options(
        CallOptions(),
        {
            "run_at": change.run_at or row.run_at,
            "expires_at": change.expires_at or row.expires_at,
            "priority": change.priority,
            "queue": change.queue,
        },
    )
    check_options(options, conf.settings())
    columns: dict[str, Any] = {
        name: value
        for name in ("run_at", "expires_at", "priority")
        if (value := getattr(change, name)) is not None
    }
    # The stored arguments are read only if they are needed: a task whose arguments cannot be
    # decrypted can still be rescheduled.
    if change.args is not None or change.kwargs is not None:
        args = list(row.args if change.args is None else change.args)
        kwargs = dict(row.kwargs if change.kwargs is None else change.kwargs)
        columns |= arguments_columns(row, args, kwargs)
    if change.queue is not None:
        # A named queue does not depend on the arguments.
        queue = ports.queue_of(row.name, change.queue, (), {})
        columns["queue"] = checked_name("queue", queue)
    return columns


def arguments_columns(row: Task, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of changed arguments of a task; raises DurableTasksError if a call could
    not have them.

    Arguments with references to results are checked by the target when the references are resolved.
    """
    settings, task = conf.settings(), registry.get(row.name)
    call = Call(task, tuple(args), kwargs, CallOptions(tenant=row.tenant_id))
    if REFERS in (row.options or {}):
        task.check(args, kwargs)
        stored: Mapping[str, Any] = kwargs
    else:
        stored = prepared_kwargs(task, call.args, kwargs)
    payload = encode(
        row.name,
        args,
        stored,
        max_bytes=settings.PAYLOAD_MAX_BYTES,
        max_depth=JSON_MAX_DEPTH,
    )
    columns = {
        "args": json.loads(payload.args),
        "kwargs": json.loads(payload.kwargs),
        "limit_key": limit_key(call),
    }
    sends_requests = row.attempts and task.target.type is TargetType.HTTP_CALLBACK
    if sends_requests and not _has_arguments(row, columns["args"], columns["kwargs"]):
        columns["options"] = after_edit(row.options)
    return columns


def _has_arguments(row: Task, args: Any, kwargs: Any) -> bool:
    """Return whether the task has these arguments; False if its own cannot be decrypted."""
    try:
        return bool((args, kwargs) == (row.args, row.kwargs))
    except EncryptionError:
        return False


# Operations on dead letters: replay their tasks, or discard them. User and time are stored.
#
# The engine opens a dead letter in the transaction in which its task fails
# (``transitions.attempt_log``).


def open_letters() -> int:
    """Return how many dead letters are open."""
    return attempt_log.dead_letters().open().count()


def open_letters_up_to(limit: int) -> int:
    """Return how many dead letters are open; ``limit`` if there are more."""
    return attempt_log.dead_letters().open().order_by()[:limit].count()


def send_growth_signal(number: int) -> None:
    """Send ``dead_letters_grew`` with the number of open dead letters."""
    dead_letters_grew.send_robust(DeadLetter, number=number)


@retry_on_deadlock
def replay_letters(
    queryset: TaskQuerySet,
    *,
    by: str,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    reason: str = "",
    operation: str = "tasks.replay",
) -> list[uuid.UUID]:
    """Run ended tasks again under the same idempotency key; return their ids.

    Both budgets are renewed, and open dead letters are closed. ``args`` and ``kwargs`` replace the
    arguments of exactly one task. ``operation`` is the name in the audit entry. Raises
    TransitionRefused if a newer open task owns one of the keys, and the errors of invalid
    arguments.
    """
    changes = _changed_arguments(queryset, args, kwargs)
    try:
        with recorded("tasks.replay_edited" if changes else operation, by=by, reason=reason):
            replayed, dependents = dependency_replay.replay(
                queryset, done_by("replayed", by, reason), **changes
            )
            attempt_log.close_replayed_letters([*replayed, *dependents], by=by, reason=reason)
    except IntegrityError as error:
        raise TransitionRefused(
            "A newer open task owns the key of one of these tasks: cancel it first."
        ) from error
    return replayed


def _changed_arguments(
    queryset: TaskQuerySet, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> dict[str, Any]:
    if args is None and kwargs is None:
        return {}
    rows: list[Task] = list(queryset[:2])
    if len(rows) != 1:
        raise TransitionRefused("Edited arguments can replay one task at a time.")
    new_args = list(rows[0].args if args is None else args)
    new_kwargs = dict(rows[0].kwargs if kwargs is None else kwargs)
    return arguments_columns(rows[0], new_args, new_kwargs)


@retry_on_deadlock
def discard_letters(letters: DeadLetterQuerySet, *, by: str, reason: str) -> int:
    """Close open dead letters without replaying their tasks, which remain FAILED."""
    with recorded("dead_letters.discard", by=by, reason=reason) as entry:
        chosen = letters.using(tables.database()).open().order_by().values_list("pk", flat=True)
        these = attempt_log.dead_letters().open().filter(pk__in=list(chosen))
        # Locked first, so that the entry contains exactly the closed ones.
        rows = list(tables.locked_for_change(these).order_by("pk").values_list("pk", "tenant_id"))
        entry.several("dead letter", rows, {"resolution": ""}, {"resolution": "DISCARDED"})
        closed = attempt_log.dead_letters().filter(pk__in=[pk for pk, _tenant in rows])
        return attempt_log.close_dead_letters(closed, Resolution.DISCARDED, by=by, reason=reason)


# They are called through ``ports.tasks``. Waiting tasks are changed at once. For RUNNING tasks a
# cancellation is requested.


@dataclass(frozen=True, slots=True)
class Cancelled:
    """How many tasks were cancelled (``at_once``), and how many running ones were requested to stop
    (``stop_requested``).
    """

    at_once: int
    stop_requested: int

    @property
    def total(self) -> int:
        """Return the sum of both."""
        return self.at_once + self.stop_requested


@dataclass(frozen=True, slots=True)
class Retried:
    """How many waiting retries became due now, and which ended tasks run again."""

    released: int
    replayed: list[uuid.UUID]


@retry_on_deadlock
def cancel(queryset: TaskQuerySet, *, by: str = "", reason: str = "") -> Cancelled:
    """Cancel waiting tasks and request the cancellation of RUNNING ones; ended tasks do not change.

    The call may be repeated. ``by`` and ``reason`` are stored in the tasks.
    """
    comment_text = reason if reason and not by else comment("CANCELLED", by, reason)
    with recorded("tasks.cancel", by=by, reason=reason):
        return Cancelled(
            transitions.cancel(queryset, comment_text),
            transitions.request_cancel(queryset, comment_text),
        )


def reschedule(queryset: TaskQuerySet, run_at: datetime, *, by: str = "", reason: str = "") -> int:
    """Move tasks that have not started to another time; return how many.

    The messages of QUEUED tasks become stale.
    """
    with recorded("tasks.reschedule", by=by, reason=reason) as entry:
        entry.detail(run_at=run_at)
        transitions.return_to_pending(queryset, 0)
        return transitions.edit(
            queryset, run_at=run_at, **_reason_change("rescheduled", by, reason)
        )


def retry_now(queryset: TaskQuerySet, *, by: str = "", reason: str = "") -> int:
    """Make waiting retries due now; return how many. Their budgets do not change."""
    with recorded("tasks.retry", by=by, reason=reason):
        return transitions.edit(
            queryset.retrying(), due_at=tables.NOW, **_reason_change("retried", by, reason)
        )


def _reason_change(action: str, by: str, reason: str) -> dict[str, Any]:
    return {"reason": done_by(action, by, reason)} if by or reason else {}


def retry(queryset: TaskQuerySet, *, by: str, reason: str = "") -> Retried:
    """Make waiting retries due now and replay ended tasks; other tasks do not change."""
    with recorded("tasks.retry", by=by, reason=reason):
        released = retry_now(queryset, by=by, reason=reason)
        return Retried(released, replay_letters(queryset, by=by, reason=reason))


@retry_on_deadlock
def force_complete(queryset: TaskQuerySet, *, by: str, reason: str = "") -> list[uuid.UUID]:
    """Set tasks to SUCCESS without running them; return their ids.

    A log entry contains ``by`` and ``reason``, and open dead letters are closed. Dependents that
    were skipped because of these tasks wait again.
    """
    completed = comment("completed", by, reason)
    with recorded("tasks.force_complete", by=by, reason=reason):
        open_or_failed = queryset.exclude(status=Status.SUCCESS)
        dependency_replay.hold(open_or_failed)
        rows = list(open_or_failed.order_by("pk"))
        done = set(transitions.force_complete(queryset, completed))
        returned = dependency_replay.revive_below(done)
        outcome = Outcome(kind=EndingKind.SUCCEEDED, error=reason or completed)
        for row in rows:
            # Without the run id, a task function that still runs does not find this success as its
            # own.
            row.run_id = None
        attempt_log.log_endings(
            [
                attempt_log.AttemptResult(task=row, log=LogStatus.SUCCESS, outcome=outcome)
                for row in rows
                if row.pk in done
            ]
        )
        letters = attempt_log.dead_letters().filter(task_id__in=done)
        attempt_log.close_dead_letters(
            letters, Resolution.DISCARDED, by=by, reason=reason or completed
        )
        attempt_log.close_replayed_letters(returned, by=by, reason=reason or completed)
    return sorted(done)
