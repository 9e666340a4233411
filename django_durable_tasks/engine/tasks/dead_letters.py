"""Operations on dead letters: replay their tasks, or discard them. User and time are stored.

The engine opens a dead letter in the transaction in which its task fails
(``transitions.dead_letters``).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import IntegrityError

from django_durable_tasks.engine.audit.recorder import recorded
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.deadlocks import retry_on_deadlock
from django_durable_tasks.engine.dependencies import replay as dependency_replay
from django_durable_tasks.engine.tasks.edit_waiting import arguments_columns
from django_durable_tasks.engine.transitions import dead_letters
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.models import DeadLetter, Task
from django_durable_tasks.models.dead_letter import DeadLetterQuerySet
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.rules.states import Resolution
from django_durable_tasks.rules.tasks.comments import done_by
from django_durable_tasks.signals import dead_letters_grew


def open_count() -> int:
    """Return how many dead letters are open."""
    return dead_letters.dead_letters().open().count()


def open_count_up_to(limit: int) -> int:
    """Return how many dead letters are open; ``limit`` if there are more."""
    return dead_letters.dead_letters().open().order_by()[:limit].count()


def send_growth_signal(number: int) -> None:
    """Send ``dead_letters_grew`` with the number of open dead letters."""
    dead_letters_grew.send_robust(DeadLetter, number=number)


@retry_on_deadlock
def replay(
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
            dead_letters.close_replayed([*replayed, *dependents], by=by, reason=reason)
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
def discard(letters: DeadLetterQuerySet, *, by: str, reason: str) -> int:
    """Close open dead letters without replaying their tasks, which remain FAILED."""
    with recorded("dead_letters.discard", by=by, reason=reason) as entry:
        chosen = letters.using(tables.database()).open().order_by().values_list("pk", flat=True)
        these = dead_letters.dead_letters().open().filter(pk__in=list(chosen))
        # Locked first, so that the entry contains exactly the closed ones.
        rows = list(tables.locked_for_change(these).order_by("pk").values_list("pk", "tenant_id"))
        entry.several("dead letter", rows, {"resolution": ""}, {"resolution": "DISCARDED"})
        closed = dead_letters.dead_letters().filter(pk__in=[pk for pk, _tenant in rows])
        return dead_letters.close(closed, Resolution.DISCARDED, by=by, reason=reason)
