"""Operations on a queue, given by its name."""

from __future__ import annotations

from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models import QueueControl
from django_durable_tasks.operations.operation import Operation, OperationResult, Reason, Target


def _pause(name: str, *, by: str, reason: str) -> OperationResult:
    QueueControl.objects.pause(name, by=by, reason=reason)
    return OperationResult({"paused": 1}, _now("Paused queue %s. Running tasks continue.") % name)


def _resume(name: str, *, by: str, reason: str) -> OperationResult:
    resumed = QueueControl.objects.resume(name, by=by, reason=reason)
    message = _now("Resumed queue %s.") if resumed else _now("Queue %s was not paused.")
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

OPERATIONS = (PAUSE, RESUME)
