"""The enabled notification settings as this process knows them.

A background thread reads them while they are used. Events that occur within a few seconds after a
setting was changed may still follow the old one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from django.db import Error
from django.db.models import Count, Max, Sum

from django_durable_tasks import ports, process_state
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.background_refresh import Refresher
from django_durable_tasks.engine.db.connections import (
    dedicated_connection,
    has_one_connection,
    in_transaction,
)
from django_durable_tasks.models import NotificationSetting
from django_durable_tasks.models.notification_setting import NotificationSettingQuerySet
from django_durable_tasks.rules.notifications.events import FLAGS, EventType
from django_durable_tasks.rules.notifications.subscriptions import (
    EventSubject,
    QuietHours,
    Subscription,
)

_REFRESH_EVERY, _USABLE, _PATIENCE = 2.0, 10.0, 1.0
"""Seconds between two reads, the age up to which a caller does not read itself, and how long it
waits for another reader.
"""


def settings_rows() -> NotificationSettingQuerySet:
    """Return a queryset of all notification settings, without the guard against writes."""
    found: NotificationSettingQuerySet = NotificationSetting.objects.using(tables.database())
    return found.unguarded()


def subscription_of(row: NotificationSetting) -> Subscription:
    """Return what a setting asks for."""
    quiet_hours = None
    if row.quiet_from is not None and row.quiet_until is not None:
        quiet_hours = QuietHours(begin=row.quiet_from, end=row.quiet_until, time_zone=row.time_zone)
    return Subscription(
        setting_id=row.pk,
        tenant_id=row.tenant_id,
        types=frozenset(kind for name in row.events for kind in FLAGS[name]),
        task_name=row.task_name,
        queue=row.queue,
        schedule=row.schedule,
        digest=row.digest,
        quiet_hours=quiet_hours,
    )


class Subscriptions:
    """The subscriptions at one moment."""

    def __init__(self, found: Sequence[Subscription] = ()) -> None:
        self._by_tenant: dict[int, list[Subscription]] = {}
        self.types: frozenset[EventType] = frozenset()
        for one in found:
            self._by_tenant.setdefault(one.tenant_id, []).append(one)
            self.types |= one.types

    @property
    def tenants(self) -> frozenset[int]:
        """The tenants that have a subscription."""
        return frozenset(self._by_tenant)

    def may_select(self, types: Sequence[EventType], subject: EventSubject) -> bool:
        """Return whether a subscription selects an event of this subject, whatever its schedule."""
        return any(
            replace(one, schedule="").selected(types, subject) is not None
            for one in self._by_tenant.get(subject.tenant_id, ())
        )

    def selecting(
        self, types: Sequence[EventType], subject: EventSubject
    ) -> list[tuple[Subscription, EventType]]:
        """Return the subscriptions that select an event, each with the type of its message."""
        candidates = self._by_tenant.get(subject.tenant_id, ())
        chosen = [(one, one.selected(types, subject)) for one in candidates]
        return [(one, kind) for one, kind in chosen if kind is not None]


class RecentSubscriptions:
    """The subscriptions that this process read last."""

    in_background = True
    """Whether a thread may read. Without it the caller always reads."""

    def __init__(self) -> None:
        self._read_at = float("-inf")
        self._version: Any = None
        self._found = Subscriptions()
        self._lock = threading.Lock()
        self._refresher = Refresher(
            "durable-notification-settings", self._read_in_thread, _REFRESH_EVERY
        )

    def get(self) -> Subscriptions:
        """Return the subscriptions. Raises the errors of the database if they have to be read."""
        age = time.monotonic() - self._read_at
        if not self._refresher.runs and (
            not self.in_background or has_one_connection() or ports.eager()
        ):
            self._read()
            return self._found
        if age > _USABLE:
            self._read()
        self._refresher.ask()
        return self._found

    def expire(self) -> None:
        """Read the settings again at the next call, because this process changed one."""
        self._read_at = float("-inf")

    def stop(self, patience: float) -> None:
        """End the background thread and wait for it for at most ``patience`` seconds."""
        self._refresher.stop(patience)

    def _read_in_thread(self) -> None:
        # After an error the last settings are used until they are too old.
        try:
            with dedicated_connection():
                self._read()
        except Error:
            return

    def _read(self) -> None:
        # If another thread reads, and its connection is slow, the last settings are used.
        if not self._lock.acquire(timeout=_PATIENCE):
            return
        try:
            with tables.atomic() if in_transaction() else nullcontext():
                self._read_changed()
            self._read_at = time.monotonic()
        finally:
            self._lock.release()

    def _read_changed(self) -> None:
        # Each change raises a revision, each creation the greatest id, each deletion changes the
        # number, so that one statement shows whether a setting has changed.
        version = settings_rows().aggregate(Count("pk"), Sum("revision"), Max("pk"))
        if version != self._version:
            rows = settings_rows().filter(enabled=True).order_by("pk")
            self._found = Subscriptions([subscription_of(row) for row in rows])
            self._version = version


def subscriptions() -> Subscriptions:
    """Return the subscriptions of this process."""
    return process_state.of(RecentSubscriptions).get()
