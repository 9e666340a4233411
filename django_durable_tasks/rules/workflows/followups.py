"""``Schedule``: returned by a task function to create another task in the transaction of its
success.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django_durable_tasks.rules.workflows.builder import Builder


@dataclass(frozen=True, slots=True)
class Schedule:
    """One task to create: ``Schedule(send_reminder, (event.pk,), run_at=...)``; options as for
    ``.using()``.
    """

    task: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    run_at: datetime | None = None
    options: dict[str, Any] = field(default_factory=dict)


FollowUp = Schedule | Builder
"""A task or a workflow that is created in the transaction of a success."""


def followups_of(value: Any) -> tuple[FollowUp, ...]:
    """Return the schedules and workflows that a task function returned: one, a list of them, or
    none.
    """
    if isinstance(value, FollowUp):
        return (value,)
    if (
        isinstance(value, list | tuple)
        and value
        and all(isinstance(item, FollowUp) for item in value)
    ):
        return tuple(value)
    return ()
