"""Operations on limits and queues."""

from __future__ import annotations

from datetime import datetime

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.limits import operator_limits
from django_durable_tasks.models import QueueControl
from django_durable_tasks.operations.operation import (
    Argument,
    ArgumentType,
    Operation,
    OperationResult,
    Reason,
    Target,
)

# Operations on the limit of a scope: ``global``, ``queue:NAME``, ``task:NAME``, ``tenant:ID`` or
# ``key:TEXT``.


def _set(
    scope: str,
    *,
    by: str,
    reason: str,
    max_concurrency: int | None = None,
    rate: str | None = None,
    burst: float | None = None,
    seen_at: datetime | None = None,
) -> OperationResult:
    operator_limits.set_limit(
        scope,
        max_concurrency=max_concurrency,
        rate=rate,
        burst=burst,
        by=by,
        reason=reason,
        seen_at=seen_at,
    )
    return OperationResult({"set": 1}, gettext("Set the limit of %s.") % scope)


def _remove(scope: str, *, by: str, reason: str) -> OperationResult:
    removed = operator_limits.remove_limit(scope, by=by, reason=reason)
    message = (
        gettext("Removed the limit of %s. Limits of code and settings apply.")
        if removed
        else gettext("No operator has set a limit of %s.")
    )
    return OperationResult({"removed": int(removed)}, message % scope)


_SHARED = "an operator sets the limits of tenants"
SET = Operation(
    target=Target.LIMIT,
    name="set",
    title=_("Set a limit"),
    help=_(
        "Limits how many tasks of a scope run at the same time or start in a period. It replaces"
        " limits of code and settings, within a second in all processes."
    ),
    permission="change_limit",
    perform=_set,
    not_in_api=_SHARED,
    confirm=False,
    fields=(
        Argument(
            name="max_concurrency",
            kind=ArgumentType.INTEGER,
            label=_("Max concurrency"),
            help=_("How many tasks are published or running at the same time."),
            metavar="N",
        ),
        Argument(
            name="rate",
            kind=ArgumentType.TEXT,
            label=_("Rate"),
            help=_("How many tasks start per second, minute, hour or day, for example 10/m."),
            metavar="N/UNIT",
        ),
        Argument(
            name="burst",
            kind=ArgumentType.SECONDS,
            label=_("Burst"),
            help=_("How many tasks of the rate may start at once after a pause."),
            metavar="N",
        ),
    ),
)
REMOVE = Operation(
    target=Target.LIMIT,
    name="remove",
    title=_("Remove the limit"),
    help=_("Limits of code and settings apply again."),
    permission="delete_limit",
    perform=_remove,
    not_in_api=_SHARED,
)

LIMIT_OPERATIONS = (SET, REMOVE)


# Operations on a queue, given by its name.


def _pause(name: str, *, by: str, reason: str) -> OperationResult:
    QueueControl.objects.pause(name, by=by, reason=reason)
    return OperationResult(
        {"paused": 1}, gettext("Paused queue %s. Running tasks continue.") % name
    )


def _resume(name: str, *, by: str, reason: str) -> OperationResult:
    resumed = QueueControl.objects.resume(name, by=by, reason=reason)
    message = gettext("Resumed queue %s.") if resumed else gettext("Queue %s was not paused.")
    return OperationResult({"resumed": int(resumed)}, message % name)


PAUSE = Operation(
    target=Target.QUEUE,
    name="pause",
    title=_("Pause queue"),
    help=_("No task of the queue starts until it is resumed. Running tasks continue."),
    permission="pause_queuecontrol",
    perform=_pause,
    reason=Reason.REQUIRED_IN_FORMS,
)
RESUME = Operation(
    target=Target.QUEUE,
    name="resume",
    title=_("Resume queue"),
    help=_("The tasks of a paused queue are published again."),
    permission="pause_queuecontrol",
    perform=_resume,
    confirm=False,
)

QUEUE_OPERATIONS = (PAUSE, RESUME)


OPERATIONS = (
    *LIMIT_OPERATIONS,
    *QUEUE_OPERATIONS,
)
