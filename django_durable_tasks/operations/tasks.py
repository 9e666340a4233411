"""Operations on the tasks and the dead letters of a queryset."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_durable_tasks.choices import OPEN, REPLAYABLE, Status
from django_durable_tasks.models.tasks import DeadLetterQuerySet, TaskQuerySet
from django_durable_tasks.operations.operation import (
    Argument,
    ArgumentType,
    Operation,
    OperationResult,
    Reason,
    Target,
)
from django_durable_tasks.tasks import operator_actions

WAITS_FOR_RETRY = Q(status=Status.PENDING, failures__gt=0)


def replayed(number: int) -> str:
    """Return the sentence about replayed tasks."""
    return ngettext("Replayed %d task.", "Replayed %d tasks.", number) % number


def _cancel(tasks: TaskQuerySet, *, by: str, reason: str) -> OperationResult:
    done = operator_actions.cancel(tasks, by=by, reason=reason)
    message = ngettext("Cancelled %d task.", "Cancelled %d tasks.", done.at_once) % done.at_once
    if done.stop_requested:
        message += " " + ngettext(
            "Requested %d running task to stop.",
            "Requested %d running tasks to stop.",
            done.stop_requested,
        ) % (done.stop_requested)
    return OperationResult(
        {"cancelled": done.at_once, "stop_requested": done.stop_requested}, message
    )


def _retry(tasks: TaskQuerySet, *, by: str, reason: str) -> OperationResult:
    done = tasks.retry(by=by, reason=reason)
    message = ngettext("Made %d retry due now.", "Made %d retries due now.", done) % done
    return OperationResult({"released": done}, message)


def _replay(tasks: TaskQuerySet, *, by: str, reason: str, **edited: Any) -> OperationResult:
    done = len(tasks.replay(by=by, reason=reason, **edited))
    return OperationResult({"replayed": done}, replayed(done))


def _force_complete(tasks: TaskQuerySet, *, by: str, reason: str) -> OperationResult:
    done = len(tasks.force_complete(by=by, reason=reason))
    message = ngettext("Force-completed %d task.", "Force-completed %d tasks.", done) % done
    return OperationResult({"completed": done}, message)


def _reschedule(tasks: TaskQuerySet, *, by: str, reason: str, run_at: datetime) -> OperationResult:
    change = operator_actions.TaskEdit(run_at=run_at)
    done = operator_actions.edit_waiting(tasks, change, by=by, reason=reason, action="rescheduled")
    message = ngettext("Rescheduled %d task.", "Rescheduled %d tasks.", done) % done
    return OperationResult({"rescheduled": done}, message)


def _edit(tasks: TaskQuerySet, *, by: str, reason: str, **changes: Any) -> OperationResult:
    """Take the fields of TaskEdit as keywords; None keeps a value."""
    done = operator_actions.edit_waiting(
        tasks, operator_actions.TaskEdit(**changes), by=by, reason=reason
    )
    message = ngettext("Edited %d task.", "Edited %d tasks.", done) % done
    return OperationResult({"edited": done}, message)


def _cancelled_left_out(number: int) -> str:
    return (
        ngettext(
            "%d CANCELLED task is left out: select it itself to replay it.",
            "%d CANCELLED tasks are left out: select them one by one to replay them.",
            number,
        )
        % number
    )


CANCEL = Operation(
    target=Target.TASKS,
    name="cancel",
    title=_("Cancel tasks"),
    help=_(
        "Waiting tasks are cancelled immediately and never run. Running tasks receive a request to"
        " stop."
    ),
    permission="cancel_task",
    perform=_cancel,
    applies_to=Q(status__in=OPEN, cancel_requested_at__isnull=True),
)
RETRY = Operation(
    target=Target.TASKS,
    name="retry",
    title=_("Retry tasks now"),
    help=_("Tasks that wait for their next attempt run now. Their failures stay counted."),
    permission="retry_task",
    perform=_retry,
    applies_to=WAITS_FOR_RETRY,
    group_by=("name",),
)
REPLAY = Operation(
    target=Target.TASKS,
    name="replay",
    title=_("Replay tasks"),
    help=_(
        "Failed, cancelled, skipped and expired tasks run again now, and their dead letters are"
        " closed. Failures and crashes are counted from zero."
    ),
    permission="retry_task",
    opens_tasks=True,
    perform=_replay,
    applies_to=Q(status__in=REPLAYABLE),
    only_if_chosen=Q(status=Status.CANCELLED),
    left_out=_cancelled_left_out,
    group_by=("status", "name"),
)
REPLAY_EDITED = Operation(
    target=Target.TASKS,
    name="replay_edited",
    title=_("Replay with edited arguments"),
    help=_(
        "An ended task runs again now with other arguments, under the same idempotency key. Its"
        " failures and crashes are counted from zero, and its dead letter is closed."
    ),
    permission="replay_deadletter",
    opens_tasks=True,
    perform=_replay,
    applies_to=Q(status__in=REPLAYABLE),
    fields=(
        Argument(
            name="args",
            kind=ArgumentType.JSON_LIST,
            label=_("Arguments"),
            help=_("A JSON list of the positional arguments."),
        ),
        Argument(
            name="kwargs",
            kind=ArgumentType.JSON_OBJECT,
            label=_("Keyword arguments"),
            help=_("A JSON object of the keyword arguments."),
        ),
    ),
)
FORCE_COMPLETE = Operation(
    target=Target.TASKS,
    name="force_complete",
    title=_("Force-complete tasks"),
    help=_(
        "The tasks become SUCCESS without running, and tasks that depend on them are released. A"
        " function that is running continues, but its result is ignored."
    ),
    permission="force_complete_task",
    perform=_force_complete,
    reason=Reason.REQUIRED_IN_FORMS,
    applies_to=~Q(status=Status.SUCCESS),
)

_NOT_STARTED = Q(status__in=sorted(OPEN - {Status.RUNNING}))
_RUN_AT = Argument(
    name="run_at",
    kind=ArgumentType.INSTANT,
    label=_("Run at"),
    help=_("The earliest start."),
    metavar="INSTANT",
)
_BY_OTHER_PAGES = "its pages show waiting tasks, and edit only the arguments of ended ones"
RESCHEDULE = Operation(
    target=Target.TASKS,
    name="reschedule",
    title=_("Reschedule tasks"),
    help=_("Tasks that have not started run at another time."),
    permission="change_task",
    perform=_reschedule,
    applies_to=_NOT_STARTED,
    fields=(replace(_RUN_AT, required=True),),
    not_in_admin=_BY_OTHER_PAGES,
)
EDIT = Operation(
    target=Target.TASKS,
    name="edit",
    title=_("Edit tasks"),
    help=_("Tasks that have not started get other times, arguments, queues or priorities."),
    permission="change_task",
    perform=_edit,
    applies_to=_NOT_STARTED,
    fields=(
        _RUN_AT,
        Argument(
            name="expires_at",
            kind=ArgumentType.INSTANT,
            label=_("Expires at"),
            help=_("The latest start."),
            metavar="INSTANT",
        ),
        Argument(
            name="priority",
            kind=ArgumentType.INTEGER,
            label=_("Priority"),
            help=_("0 to 9, 9 first."),
            metavar="N",
        ),
        Argument(
            name="queue",
            kind=ArgumentType.TEXT,
            label=_("Queue"),
            help=_("The queue in which it runs."),
            metavar="QUEUE",
        ),
        *REPLAY_EDITED.fields,
    ),
    not_in_admin=_BY_OTHER_PAGES,
)

TASK_OPERATIONS = (CANCEL, RETRY, REPLAY, REPLAY_EDITED, FORCE_COMPLETE, RESCHEDULE, EDIT)


OPEN_LETTER = Q(open_task__isnull=False)


def _replay_letters(letters: DeadLetterQuerySet, *, by: str, reason: str) -> OperationResult:
    done = len(letters.replay(by=by, reason=reason))
    return OperationResult({"replayed": done}, replayed(done))


def _discard(letters: DeadLetterQuerySet, *, by: str, reason: str) -> OperationResult:
    done = letters.discard(by=by, reason=reason)
    message = ngettext("Discarded %d dead letter.", "Discarded %d dead letters.", done) % done
    return OperationResult({"discarded": done}, message)


REPLAY_LETTERS = Operation(
    target=Target.DEAD_LETTERS,
    name="replay",
    title=_("Replay tasks"),
    help=_(
        "Failed tasks run again now, and their dead letters are closed. Failures and crashes are"
        " counted from zero."
    ),
    permission="replay_deadletter",
    opens_tasks=True,
    perform=_replay_letters,
    applies_to=OPEN_LETTER,
    group_by=("reason", "task__name"),
)
DISCARD = Operation(
    target=Target.DEAD_LETTERS,
    name="discard",
    title=_("Discard dead letters"),
    help=_("The dead letters are closed and their tasks stay FAILED."),
    permission="discard_deadletter",
    perform=_discard,
    reason=Reason.REQUIRED,
    applies_to=OPEN_LETTER,
)

DEAD_LETTER_OPERATIONS = (REPLAY_LETTERS, DISCARD)


OPERATIONS = (
    *TASK_OPERATIONS,
    *DEAD_LETTER_OPERATIONS,
)
