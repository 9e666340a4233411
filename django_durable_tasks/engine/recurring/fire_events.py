"""Events of schedules for notification settings: missed and late fire times of a tick."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from django_durable_tasks.engine.notification_events.capture import OccurredEvent, capture
from django_durable_tasks.engine.recurring.known_schedules import KnownSchedule
from django_durable_tasks.engine.recurring.ledger import LedgerEntry
from django_durable_tasks.engine.recurring.tick_plan import Tick
from django_durable_tasks.rules.notifications.events import OWN_TASKS, EventType
from django_durable_tasks.rules.notifications.message_types import FireEventData
from django_durable_tasks.rules.notifications.subscriptions import EventSubject
from django_durable_tasks.rules.recurring.policies import FireOutcome


def capture_fires(tick: Tick) -> None:
    """Record the missed and late fire times of a tick, in its transaction."""
    missed = [entry for entry in tick.entries if entry.outcome == FireOutcome.MISSED]
    if not missed and not tick.late:
        return

    def occurred() -> Iterator[OccurredEvent]:
        yield from _events(tick.schedules, missed, EventType.MISSED)
        yield from _events(tick.schedules, tick.late, EventType.LATE)

    capture((EventType.MISSED, EventType.LATE), occurred)


def _events(
    schedules: Mapping[uuid.UUID, KnownSchedule], entries: Iterable[LedgerEntry], kind: EventType
) -> Iterator[OccurredEvent]:
    for entry in entries:
        row = schedules.get(entry.recurring_task_id)
        if row is not None and row.task not in OWN_TASKS:
            yield _event(row, entry, kind)


def _event(row: KnownSchedule, entry: LedgerEntry, kind: EventType) -> OccurredEvent:
    data: FireEventData = {
        "schedule_id": str(row.pk),
        "schedule": row.name,
        "task_name": row.task,
        "fire_time": _instant(entry.fire_time),
        "count": entry.count,
        "reason": entry.reason,
    }
    if entry.last_fire_time is not None:
        data["last_fire_time"] = _instant(entry.last_fire_time)
    if entry.task_id is not None:
        data["task_id"] = str(entry.task_id)
    subject = EventSubject(
        tenant_id=row.tenant_id, task_name=row.task, queue=row.queue, schedule=row.name
    )
    return OccurredEvent(types=(kind,), subject=subject, shown_as=row.name, data=data)


def _instant(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")
