"""Operations on tasks and dead letters: cancel, reschedule, edit, retry, replay, discard,
complete.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from django.db import IntegrityError
from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, ngettext_lazy

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.audit import acting, comment, current_actor, done_by, recorded
from django_durable_tasks.choices import OPEN, REPLAYABLE, LogStatus, Resolution, Status, TargetType
from django_durable_tasks.dependencies import replay as dependency_replay
from django_durable_tasks.dependencies.rules import REFERS
from django_durable_tasks.exceptions import EncryptionError, TransitionRefused
from django_durable_tasks.models import DEFAULT_TENANT_ID, DeadLetter, RequestKind, Task
from django_durable_tasks.models.tasks import DeadLetterQuerySet, TaskQuerySet
from django_durable_tasks.operations import Argument, Reason, Target, operation
from django_durable_tasks.option_values import checked_key, checked_name, instant
from django_durable_tasks.signals import dead_letters_grew
from django_durable_tasks.states import attempt_log, claims, endings, guarded_update, inserts
from django_durable_tasks.states.machine import EndingKind, Outcome, Verdict
from django_durable_tasks.store import tables
from django_durable_tasks.store.errors import retry_on_deadlock
from django_durable_tasks.targets.http_request import after_edit
from django_durable_tasks.tasks import requests
from django_durable_tasks.tasks.arguments import JSON_MAX_DEPTH, encode
from django_durable_tasks.tasks.enqueue import (
    Call,
    changes_request,
    check_options,
    limit_key,
    prepared_kwargs,
)
from django_durable_tasks.tasks.options import CallOptions, call_options

# Edits a task that has not started: its arguments, times, queue and priority.


_BATCH = 1_000
"""Tasks per statement, because a statement has a limited number of parameters."""
_NOT_STARTED = Q(status__in=sorted(OPEN - {Status.RUNNING}))
_BY_OTHER_PAGES = "its pages show waiting tasks, and edit only the arguments of ended ones"
_RUN_AT = Argument(_("Run at"), _("The earliest start."))
_Args = Annotated[
    Sequence[Any] | None, Argument(_("Arguments"), _("A JSON list of the positional arguments."))
]
_Kwargs = Annotated[
    Mapping[str, Any] | None,
    Argument(_("Keyword arguments"), _("A JSON object of the keyword arguments.")),
]


@operation(
    Target.TASKS,
    title=_("Edit tasks"),
    help=_("Tasks that have not started get other times, arguments, queues or priorities."),
    permission="change_task",
    applies_to=_NOT_STARTED,
    not_in_admin=_BY_OTHER_PAGES,
    counted="edited",
    done=ngettext_lazy("Edited %(number)d task.", "Edited %(number)d tasks.", "number"),
)
def edit(
    queryset: TaskQuerySet,
    *,
    run_at: Annotated[datetime | None, _RUN_AT] = None,
    expires_at: Annotated[
        datetime | None, Argument(_("Expires at"), _("The latest start."))
    ] = None,
    priority: Annotated[
        int | None, Argument(_("Priority"), _("0 to 9, 9 first."), metavar="N")
    ] = None,
    queue: Annotated[
        str | None, Argument(_("Queue"), _("The queue in which it runs."), metavar="QUEUE")
    ] = None,
    args: _Args = None,
    kwargs: _Kwargs = None,
) -> int:
    """Edit the tasks that have not started; None keeps a value. Return how many.

    Raises DurableTasksError for values that a new task could not have, before anything is written.
    The messages of QUEUED tasks become stale.
    """
    new = {"run_at": run_at, "expires_at": expires_at, "priority": priority, "queue": queue}
    changes = {**new, "args": args, "kwargs": kwargs}
    return _edit(queryset, changes, "tasks.edit", "edited")


@operation(
    Target.TASKS,
    title=_("Reschedule tasks"),
    help=_("Tasks that have not started run at another time."),
    permission="change_task",
    applies_to=_NOT_STARTED,
    not_in_admin=_BY_OTHER_PAGES,
    counted="rescheduled",
    done=ngettext_lazy("Rescheduled %(number)d task.", "Rescheduled %(number)d tasks.", "number"),
)
def reschedule(queryset: TaskQuerySet, run_at: Annotated[datetime, _RUN_AT]) -> int:
    """Move the tasks that have not started to another time (aware) that a new task could have;
    return how many.

    The messages of QUEUED tasks become stale.
    """
    changes = {"run_at": instant("run_at", run_at)}
    return _edit(queryset, changes, "tasks.reschedule", "rescheduled")


def move(queryset: TaskQuerySet, run_at: datetime, *, by: str = "", reason: str = "") -> int:
    """Move the tasks that have not started to another time (aware), also to one after they expire;
    return how many.

    The statements are as many as for one task. The messages of QUEUED tasks become stale.
    """
    when = instant("run_at", run_at)
    with acting(by=by, reason=reason), recorded("tasks.reschedule") as entry:
        entry.detail(run_at=when)
        claims.return_to_pending(queryset, 0)
        return inserts.edit(queryset, run_at=when, **_reason_change("rescheduled"))


@retry_on_deadlock
def _edit(queryset: TaskQuerySet, changes: Mapping[str, Any], name: str, action: str) -> int:
    """Write new values of ``edit``, in batches whose rows are locked; None keeps a value."""
    changes, edited = {key: value for key, value in changes.items() if value is not None}, 0
    with recorded(name) as entry, tables.atomic():
        # Without the arguments, which may be secret.
        entry.detail(**{key: changes[key] for key in changes if key not in ("args", "kwargs")})
        waiting = queryset.filter(status__in=guarded_update.WAITING).order_by("pk")
        ids = list(waiting.values_list("pk", flat=True))
        more = _reason_change(action)
        for first in range(0, len(ids), _BATCH):
            # Locked before they are read, so that the new arguments are derived from the present
            # ones.
            batch = ids[first : first + _BATCH]
            tasks = tables.tasks().filter(pk__in=batch, status__in=guarded_update.WAITING)
            rows = list(tables.locked_for_change(tasks).order_by("pk"))
            # The tasks whose new values are the same. Values that are independent of the task are
            # one group, so the number of statements is constant.
            groups: dict[str, tuple[list[uuid.UUID], dict[str, Any]]] = {}
            for row in rows:
                columns = {**_columns(row, changes), **more}
                group = json.dumps(columns, sort_keys=True, default=str)
                groups.setdefault(group, ([], columns))[0].append(row.pk)
            claims.return_to_pending(tasks, 0)
            for keys, columns in groups.values():
                edited += inserts.edit(tables.tasks().filter(pk__in=keys), **columns)
    return edited


def _columns(row: Task, changes: Mapping[str, Any]) -> dict[str, Any]:
    options = {
        "run_at": changes.get("run_at", row.run_at),
        "expires_at": changes.get("expires_at", row.expires_at),
        "priority": changes.get("priority"),
        "queue": changes.get("queue"),
    }
    check_options(call_options(CallOptions(), options), conf.settings())
    columns = {
        name: changes[name] for name in ("run_at", "expires_at", "priority") if name in changes
    }
    # The stored arguments are read only if they are needed: a task whose arguments cannot be
    # decrypted can still be rescheduled.
    if "args" in changes or "kwargs" in changes:
        columns |= _arguments_columns(row, changes.get("args"), changes.get("kwargs"))
    if "queue" in changes:
        # A named queue does not depend on the arguments.
        queue = ports.queue_of(row.name, changes["queue"], (), {})
        columns["queue"] = checked_name("queue", queue)
    return columns


def _arguments_columns(
    row: Task, new_args: Sequence[Any] | None, new_kwargs: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the columns of changed arguments of a task, of which None keeps the stored ones;
    raises DurableTasksError if a call could not have them.

    Arguments with references to results are checked by the target when the references are resolved.
    """
    args = list(row.args if new_args is None else new_args)
    kwargs: Mapping[str, Any] = dict(row.kwargs if new_kwargs is None else new_kwargs)
    task = registry.get(row.name)
    refers = REFERS in (row.options or {})
    if refers:
        task.check(args, kwargs)
        stored: Mapping[str, Any] = kwargs
    else:
        stored = prepared_kwargs(task, tuple(args), kwargs)
    if task.types is not None:
        converted, stored = task.types.to_json(row.name, args, stored, refers=refers)
        args, kwargs = list(converted), stored
    call = Call(task, tuple(args), kwargs, CallOptions(tenant=row.tenant_id))
    max_bytes = conf.settings().PAYLOAD_MAX_BYTES
    payload = encode(
        row.name,
        args,
        stored,
        max_bytes=max_bytes,
        max_depth=JSON_MAX_DEPTH,
        signature=task.signature,
    )
    columns = {
        "args": json.loads(payload.args),
        "kwargs": json.loads(payload.kwargs),
        "limit_key": limit_key(call),
    }
    if row.attempts and task.target.type is TargetType.HTTP_CALLBACK:
        try:
            is_edited = changes_request(row, columns["args"], columns["kwargs"])
        except EncryptionError:  # the present arguments cannot be decrypted
            is_edited = True
        if is_edited:
            columns["options"] = after_edit(row.options)
    return columns


# Operations on dead letters: replay their tasks, or discard them. User and time are stored.
#
# The engine opens a dead letter in the transaction in which its task fails
# (``states.attempt_log``).


def open_letters() -> int:
    """Return how many dead letters are open."""
    return attempt_log.dead_letters().open().count()


def open_letters_up_to(limit: int) -> int:
    """Return how many dead letters are open; ``limit`` if there are more."""
    return attempt_log.dead_letters().open().order_by()[:limit].count()


def send_growth_signal(number: int) -> None:
    """Send ``dead_letters_grew`` with the number of open dead letters."""
    dead_letters_grew.send_robust(DeadLetter, number=number)


OPEN_LETTER = Q(open_task__isnull=False)
_REPLAYED = ngettext_lazy("Replayed %(number)d task.", "Replayed %(number)d tasks.", "number")


@operation(
    Target.TASKS,
    title=_("Replay tasks"),
    title_of_one=_("Replay task"),
    help=_(
        "Failed, cancelled, skipped and expired tasks run again now, and their dead letters are"
        " closed. Failures and crashes are counted from zero."
    ),
    permission="retry_task",
    opens_tasks=True,
    applies_to=Q(status__in=REPLAYABLE),
    only_if_chosen=Q(status=Status.CANCELLED),
    left_out=ngettext_lazy(
        "%(number)s CANCELLED task is left out: select it itself to replay it.",
        "%(number)s CANCELLED tasks are left out: select them one by one to replay them.",
        "number",
    ),
    group_by=("status", "name"),
    counted="replayed",
    done=_REPLAYED,
)
def replay(queryset: TaskQuerySet) -> list[uuid.UUID]:
    """Run ended tasks again under the same idempotency key; return their ids.

    Both budgets are renewed, and open dead letters are closed. Raises TransitionRefused if a newer
    open task owns one of the keys.
    """
    return _replay(queryset, "tasks.replay", {})


@operation(
    Target.TASKS,
    title=_("Replay with edited arguments"),
    help=_(
        "An ended task runs again now with other arguments, under the same idempotency key. Its"
        " failures and crashes are counted from zero, and its dead letter is closed."
    ),
    permission="replay_deadletter",
    opens_tasks=True,
    applies_to=Q(status__in=REPLAYABLE),
    counted="replayed",
    done=_REPLAYED,
)
def replay_edited(
    queryset: TaskQuerySet, *, args: _Args = None, kwargs: _Kwargs = None
) -> list[uuid.UUID]:
    """Run one ended task again with other arguments; None keeps the present ones, and without
    any it may be several tasks.

    Raises TransitionRefused as ``replay``, and the errors of invalid arguments.
    """
    changes = _changed_arguments(queryset, args, kwargs)
    return _replay(queryset, "tasks.replay_edited" if changes else "tasks.replay", changes)


@operation(
    Target.DEAD_LETTERS,
    name="replay",
    title=_("Replay tasks"),
    title_of_one=_("Replay task"),
    help=_(
        "Failed tasks run again now, and their dead letters are closed. Failures and crashes are"
        " counted from zero."
    ),
    permission="replay_deadletter",
    opens_tasks=True,
    applies_to=OPEN_LETTER,
    group_by=("reason", "task__name"),
    counted="replayed",
    done=_REPLAYED,
)
def replay_letters(
    letters: DeadLetterQuerySet,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> list[uuid.UUID]:
    """Run the tasks of the open dead letters again, as ``replay`` and ``replay_edited`` do."""
    task_ids = letters.using(tables.database()).open().order_by().values("task_id")
    queryset = tables.tasks().filter(pk__in=task_ids)
    changes = _changed_arguments(queryset, args, kwargs)
    return _replay(queryset, "tasks.replay_edited" if changes else "dead_letters.replay", changes)


@retry_on_deadlock
def _replay(queryset: TaskQuerySet, name: str, changes: Mapping[str, Any]) -> list[uuid.UUID]:
    actor = current_actor()
    try:
        with recorded(name):
            replayed, dependents = dependency_replay.replay(
                queryset, done_by("replayed", actor.by, actor.reason), **changes
            )
            attempt_log.close_replayed_letters(
                [*replayed, *dependents], by=actor.by, reason=actor.reason
            )
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
    return _arguments_columns(rows[0], args, kwargs)


@operation(
    Target.DEAD_LETTERS,
    name="discard",
    title=_("Discard dead letters"),
    title_of_one=_("Discard dead letter"),
    help=_("The dead letters are closed and their tasks stay FAILED."),
    permission="discard_deadletter",
    reason=Reason.REQUIRED,
    applies_to=OPEN_LETTER,
    counted="discarded",
    done=ngettext_lazy(
        "Discarded %(number)d dead letter.", "Discarded %(number)d dead letters.", "number"
    ),
)
@retry_on_deadlock
def discard_letters(letters: DeadLetterQuerySet) -> int:
    """Close open dead letters without replaying their tasks, which remain FAILED."""
    actor = current_actor()
    with recorded("dead_letters.discard") as entry:
        chosen = letters.using(tables.database()).open().order_by().values_list("pk", flat=True)
        still_open = attempt_log.dead_letters().open().filter(pk__in=list(chosen))
        # Locked first, so that the entry contains exactly the closed ones.
        rows = list(
            tables.locked_for_change(still_open).order_by("pk").values_list("pk", "tenant_id")
        )
        entry.several("dead letter", rows, {"resolution": ""}, {"resolution": "DISCARDED"})
        closed = attempt_log.dead_letters().filter(pk__in=[pk for pk, _tenant in rows])
        return attempt_log.close_dead_letters(
            closed, Resolution.DISCARDED, by=actor.by, reason=actor.reason
        )


# Waiting tasks are changed at once. For RUNNING tasks a cancellation is requested.


def open_task_of(key: str, tenant: Any) -> TaskQuerySet:
    """Return the open task that owns this key, or will own it after the caller's commit. Raises
    InvalidOption.
    """
    checked_key("key", key)
    tenant_id = getattr(tenant, "pk", tenant) or DEFAULT_TENANT_ID
    next_owner = requests.next_owner(RequestKind.KEY, tenant_id, key)
    if next_owner is not None:
        return tables.tasks().filter(pk=next_owner.pk)
    return tables.tasks().for_tenant(tenant_id).filter(open_key=key)


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


def _cancelled(done: Cancelled, **_values: Any) -> str:
    message = ngettext("Cancelled %d task.", "Cancelled %d tasks.", done.at_once) % done.at_once
    if done.stop_requested:
        message += " " + ngettext(
            "Requested %d running task to stop.",
            "Requested %d running tasks to stop.",
            done.stop_requested,
        ) % (done.stop_requested)
    return message


@operation(
    Target.TASKS,
    title=_("Cancel tasks"),
    title_of_one=_("Cancel task"),
    help=_(
        "Waiting tasks are cancelled immediately and never run. Running tasks receive a request to"
        " stop."
    ),
    permission="cancel_task",
    applies_to=Q(status__in=OPEN, cancel_requested_at__isnull=True),
    counted=lambda done: {"cancelled": done.at_once, "stop_requested": done.stop_requested},
    done=_cancelled,
)
def cancel(queryset: TaskQuerySet) -> Cancelled:
    """Cancel waiting tasks and request the cancellation of RUNNING ones; ended tasks do not change.

    The call may be repeated. User and reason are stored in the tasks.
    """
    by, reason = current_actor().by, current_actor().reason
    return cancel_with(queryset, reason if reason and not by else comment("CANCELLED", by, reason))


@retry_on_deadlock
def cancel_with(queryset: TaskQuerySet, text: str) -> Cancelled:
    """Cancel tasks as ``cancel`` does, with this text as their reason."""
    with recorded("tasks.cancel"):
        return Cancelled(endings.cancel(queryset, text), endings.request_cancel(queryset, text))


@operation(
    Target.TASKS,
    title=_("Retry tasks now"),
    title_of_one=_("Retry task now"),
    help=_("Tasks that wait for their next attempt run now. Their failures stay counted."),
    permission="retry_task",
    applies_to=Q(status=Status.PENDING, failures__gt=0),
    group_by=("name",),
    counted="released",
    done=ngettext_lazy(
        "Made %(number)d retry due now.", "Made %(number)d retries due now.", "number"
    ),
)
def retry(queryset: TaskQuerySet) -> int:
    """Make waiting retries due now; return how many. Their budgets do not change."""
    with recorded("tasks.retry"):
        return inserts.edit(queryset.retrying(), due_at=tables.NOW, **_reason_change("retried"))


def _reason_change(action: str) -> dict[str, Any]:
    text = done_by(action, current_actor().by, current_actor().reason)
    return {"reason": text} if text else {}


@operation(
    Target.TASKS,
    title=_("Force-complete tasks"),
    title_of_one=_("Force-complete task"),
    help=_(
        "The tasks become SUCCESS without running, and tasks that depend on them are released. A"
        " function that is running continues, but its result is ignored."
    ),
    permission="force_complete_task",
    reason=Reason.REQUIRED_IN_FORMS,
    applies_to=~Q(status=Status.SUCCESS),
    counted="completed",
    done=ngettext_lazy(
        "Force-completed %(number)d task.", "Force-completed %(number)d tasks.", "number"
    ),
)
@retry_on_deadlock
def force_complete(queryset: TaskQuerySet) -> list[uuid.UUID]:
    """Set tasks to SUCCESS without running them; return their ids.

    A log entry contains user and reason, and open dead letters are closed. Dependents that were
    skipped because of these tasks wait again.
    """
    by, reason = current_actor().by, current_actor().reason
    completed = comment("completed", by, reason)
    reason = reason or completed
    with recorded("tasks.force_complete"):
        open_or_failed = queryset.exclude(status=Status.SUCCESS)
        dependency_replay.hold(open_or_failed)
        rows = list(open_or_failed.order_by("pk"))
        done = set(endings.force_complete(queryset, completed))
        returned = dependency_replay.revive_below(done)
        outcome = Outcome(kind=EndingKind.SUCCEEDED, error=reason)
        for row in rows:
            # Without the run id, a task function that still runs does not find this success as its
            # own.
            row.run_id = None
        verdict = Verdict(transition="force_complete", status=Status.SUCCESS, log=LogStatus.SUCCESS)
        attempt_log.log_endings(
            [
                attempt_log.AttemptResult(task=row, verdict=verdict, outcome=outcome)
                for row in rows
                if row.pk in done
            ]
        )
        letters = attempt_log.dead_letters().filter(task_id__in=done)
        attempt_log.close_dead_letters(letters, Resolution.DISCARDED, by=by, reason=reason)
        attempt_log.close_replayed_letters(returned, by=by, reason=reason)
    return sorted(done)
