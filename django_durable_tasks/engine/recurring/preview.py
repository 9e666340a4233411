"""Shows the schedule that ``upsert`` would save, and the next fire times of schedules.

Validates as ``upsert`` does and writes nothing. Called by the admin and the command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from django_durable_tasks import ports
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.recurring import explain, occurrence_tasks
from django_durable_tasks.engine.recurring.schedule_cache import agenda_of
from django_durable_tasks.engine.recurring.schedules import recurring
from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.models import DEFAULT_TENANT_ID, RecurringTask
from django_durable_tasks.rules.recurring.explain import FireTime
from django_durable_tasks.rules.recurring.options import KINDS, columns
from django_durable_tasks.rules.recurring.policies import RecurringStatus
from django_durable_tasks.rules.tasks.options import checked_key, checked_name


@dataclass(frozen=True, slots=True)
class Preview:
    """The row as it would be saved, the time of the preview (UTC), and the fire times after it."""

    row: RecurringTask
    now: datetime
    fires: list[FireTime]


def preview(
    *,
    name: str,
    task: Any,
    tenant: Any = None,
    paused: bool = False,
    number: int = 10,
    **given: Any,
) -> Preview:
    """Return the schedule that ``upsert`` would save with these arguments, and its next ``number``
    fire times.

    Raises the same errors as ``upsert``: InvalidSchedule, InvalidOption, InvalidArguments and
    UnknownTask.
    """
    tenant_id = DEFAULT_TENANT_ID if tenant is None else getattr(tenant, "pk", tenant)
    checked_key("name", name)
    values = columns(name, given, may_never_fire=paused) | {
        "task": checked_name("task", getattr(task, "name", task))
    }
    now = database_now()
    row = recurring().filter(tenant_id=tenant_id, name=name).first()
    if row is None:
        row = RecurringTask(
            tenant_id=tenant_id, name=name, start_time=now, time_zone=ports.schedule_zone()
        )
    for column, value in values.items():
        setattr(row, column, value)
    if not row.timetable:
        raise InvalidSchedule(f"Recurring task {name!r} needs one of {', '.join(KINDS)}.")
    occurrence_tasks.template(row)
    return Preview(row, now, list(islice(explain.fires(row, agenda_of(row), now), number)))


def upcoming(row: RecurringTask, number: int, now: datetime) -> list[FireTime]:
    """Return at most ``number`` fire times after ``now``.

    For a paused schedule, returns the fire times that it would have if it were resumed. An ended
    schedule has none.
    """
    if row.status == RecurringStatus.CANCELLED:
        return []
    left = number if row.max_runs is None else min(number, max(0, row.max_runs - row.runs_count))
    after = max(now, row.paused_until) if row.paused_until else now
    return list(islice(explain.fires(row, agenda_of(row), after), left))
