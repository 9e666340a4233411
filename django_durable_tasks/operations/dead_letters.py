"""Operations on the dead letters of a queryset."""

from __future__ import annotations

from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_durable_tasks.models.dead_letter import DeadLetterQuerySet
from django_durable_tasks.operations.operation import Operation, OperationResult, Reason, Target
from django_durable_tasks.operations.tasks import replayed

OPEN_LETTER = Q(open_task__isnull=False)


def _replay(letters: DeadLetterQuerySet, *, by: str, reason: str) -> OperationResult:
    done = len(letters.replay(by=by, reason=reason))
    return OperationResult({"replayed": done}, replayed(done))


def _discard(letters: DeadLetterQuerySet, *, by: str, reason: str) -> OperationResult:
    done = letters.discard(by=by, reason=reason)
    message = ngettext("Discarded %d dead letter.", "Discarded %d dead letters.", done) % done
    return OperationResult({"discarded": done}, message)


REPLAY = Operation(
    target=Target.DEAD_LETTERS,
    name="replay",
    title=_("Replay tasks"),
    help=_(
        "Failed tasks run again now, and their dead letters are closed. Failures and crashes are"
        " counted from zero."
    ),
    permission="replay_deadletter",
    opens_tasks=True,
    perform=_replay,
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

OPERATIONS = (REPLAY, DISCARD)
