"""Turns due events into tasks that deliver them, and reads the events of a delivery.

The leader's job calls ``create_due``. Events and tasks change in one transaction, so that a crash
leaves each event either due or assigned to a task. Two leaders lock different events.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Count, Q

from django_durable_tasks import conf, registry
from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.audit.recorder import recorded
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.notification_events.capture import notification_events
from django_durable_tasks.engine.notification_events.subscriptions import (
    settings_rows,
    subscription_of,
)
from django_durable_tasks.engine.tasks.new_task import Call, new_task
from django_durable_tasks.models import NotificationEvent, NotificationSetting
from django_durable_tasks.models.notification_event import NotificationEventQuerySet
from django_durable_tasks.rules.notifications.events import NOTIFICATION_TASK, EventType
from django_durable_tasks.rules.notifications.message_types import NotificationTestData
from django_durable_tasks.rules.notifications.messages import (
    SHOWN,
    EventFacts,
    NotificationContent,
)
from django_durable_tasks.rules.tasks.new_task import NewTask
from django_durable_tasks.rules.tasks.options import CallOptions

_COUNTED = 20
"""How many kinds of events a digest counts separately, the most frequent first."""


def has_due(now: datetime) -> bool:
    """Return whether events are due; one index lookup."""
    return _due(now).exists()


def _due(now: datetime) -> NotificationEventQuerySet:
    return notification_events().filter(delivery__isnull=True, due_at__lte=now)


def create_due(now: datetime, limit: int) -> int:
    """Assign at most ``limit`` due events to new deliveries, postpone those of quiet hours, and
    delete those of settings that are disabled or deleted; return how many events changed.

    The row of a setting with a digest is locked. If another transaction has locked it, its events
    wait for the next call and do not delay those of other settings.
    """
    if not has_due(now):
        return 0
    with tables.atomic():
        batch = _Batch(now, limit)
        if batch.blocked:
            batch = _Batch(now, limit, without=batch.blocked)
        new_tasks = list[NewTask]()
        for setting_id, found in batch.of_setting.items():
            setting = batch.settings.get(setting_id)
            if setting is None:
                _all(found).delete()
            else:
                new_tasks += _assigned(setting, found, now, more=batch.is_full)
        if new_tasks:
            transitions.create_many(new_tasks)
    return sum(map(len, batch.of_setting.values()))


class _Batch:
    """Locked due events by their settings, and those of the settings that are enabled.

    ``blocked``: the settings that another transaction has locked. Their events are left out.
    """

    def __init__(self, now: datetime, limit: int, without: Collection[int] = ()) -> None:
        due = _due(now).exclude(setting_id__in=list(without))
        rows = list(due.order_by("due_at", "id").select_for_update(skip_locked=True)[:limit])
        self.is_full = len(rows) == limit
        self.of_setting = defaultdict[int, list[NotificationEvent]](list)
        for row in rows:
            self.of_setting[row.setting_id].append(row)
        enabled = settings_rows().filter(pk__in=list(self.of_setting), enabled=True)
        self.settings = {row.pk: row for row in enabled}
        digests = enabled.filter(Q(digest__isnull=False) | Q(collecting__isnull=False))
        free = {
            row.pk: row
            for row in tables.locked_for_change(digests.order_by("pk"), skip_locked=True)
        }
        self.blocked = {
            pk for pk, row in self.settings.items() if _is_collected(row) and pk not in free
        }
        # As they are after the lock.
        self.settings |= free
        for pk in self.blocked:
            del self.of_setting[pk]


def _is_collected(setting: NotificationSetting) -> bool:
    """Return whether due events are one message. A digest that was begun is also finished after
    ``digest`` was removed from the setting.
    """
    return setting.digest is not None or setting.collecting is not None


def _all(rows: Sequence[NotificationEvent]) -> NotificationEventQuerySet:
    return notification_events().filter(pk__in=[row.pk for row in rows])


def _assigned(
    setting: NotificationSetting, rows: Sequence[NotificationEvent], now: datetime, *, more: bool
) -> list[NewTask]:
    """Assign events of one setting and return the tasks that deliver them."""
    quiet_hours = subscription_of(setting).quiet_hours
    quiet_until = None if quiet_hours is None else quiet_hours.end_after(now)
    if quiet_until is not None:
        _all(rows).update(due_at=quiet_until)
        return []
    if _is_collected(setting):
        return _collected(setting, rows, now, more=more)
    for row in rows:
        row.delivery = uuid.uuid4()
    notification_events().bulk_update(rows, ["delivery"])
    return [delivery_task(setting, row.delivery) for row in rows if row.delivery is not None]


def _collected(
    setting: NotificationSetting, rows: Sequence[NotificationEvent], now: datetime, *, more: bool
) -> list[NewTask]:
    """Add events to the open delivery of a digest. Its task is created with the last due event, so
    that many events are one message and each transaction changes a limited number.
    """
    delivery = setting.collecting or uuid.uuid4()
    _all(rows).update(delivery=delivery)
    rest = _due(now).filter(setting_id=setting.pk)
    collecting = delivery if more and rest.exists() else None
    if collecting != setting.collecting:
        settings_rows().filter(pk=setting.pk).update(collecting=collecting)
    return [] if collecting else [delivery_task(setting, delivery)]


def delivery_task(setting: NotificationSetting, delivery: uuid.UUID) -> NewTask:
    """Return the task that sends the events of this delivery."""
    options = CallOptions(tenant=setting.tenant_id, queue=conf.settings().NOTIFICATION_QUEUE)
    kwargs = {"setting": setting.pk, "delivery": str(delivery)}
    return new_task(Call(registry.get(NOTIFICATION_TASK), (), kwargs, options))


def create_test(setting: NotificationSetting, by: str, reason: str = "") -> uuid.UUID:
    """Create the delivery of a test message; return the id of its task."""
    delivery = uuid.uuid4()
    data: NotificationTestData = {"setting": setting.name, "sent_by": by}
    event = NotificationEvent(
        setting_id=setting.pk,
        type=EventType.TEST,
        subject=setting.name,
        data=dict(data),
        delivery=delivery,
    )
    task = delivery_task(setting, delivery)
    with recorded("notification_setting.test", by=by, reason=reason) as entry:
        entry.subject("notification setting", setting.pk, setting.tenant_id)
        entry.detail(task_id=str(task.id))
        notification_events().bulk_create([event])
        transitions.create_many([task])
    return task.id


def setting_of(setting_id: int, tenant_id: int) -> NotificationSetting | None:
    """Return a setting of this tenant, or None."""
    return settings_rows().for_tenant(tenant_id).filter(pk=setting_id).first()


def content_of(setting: NotificationSetting, delivery: uuid.UUID) -> NotificationContent | None:
    """Return the events of a delivery; None if they were deleted."""
    rows = notification_events().filter(delivery=delivery, setting_id=setting.pk)
    found = [_facts(row) for row in rows.order_by("id")[:SHOWN]]
    if not found:
        return None
    if setting.digest is None and len(found) == 1:
        return NotificationContent(setting_name=setting.name, events=found, total=1)
    kinds = rows.order_by().values_list("type", "subject").annotate(number=Count("pk"))
    counts = list(kinds.order_by("-number", "type", "subject")[:_COUNTED])
    total = rows.count()
    is_test = found[0].type == EventType.TEST
    return NotificationContent(
        setting_name=setting.name,
        events=found,
        total=total,
        counts=counts,
        is_digest=not is_test,
    )


def _facts(row: NotificationEvent) -> EventFacts:
    return EventFacts(type=EventType(row.type), created_at=row.created_at, data=row.data)


def prune_events(now: datetime, limit: int) -> int:
    """Delete at most ``limit`` of the oldest events after NOTIFICATION_RETENTION; return how many.

    Ids grow with time, so that no index on the time is needed.
    """
    oldest = notification_events().order_by("pk").values_list("pk", "created_at")[:limit]
    kept = conf.settings().NOTIFICATION_RETENTION
    old = [pk for pk, created_at in oldest if (now - created_at).total_seconds() > kept]
    return notification_events().filter(pk__in=old).delete()[0] if old else 0


def shown_result(task_id: uuid.UUID) -> dict[str, Any] | None:
    """Return status, result and error of a delivery; None if the task was deleted."""
    columns = ("status", "result", "last_error", "attempts")
    found: dict[str, Any] | None = tables.tasks().filter(pk=task_id).values(*columns).first()
    return found
