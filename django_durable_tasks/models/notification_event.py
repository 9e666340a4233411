"""NotificationEvent: an event that a notification setting selected. It is inserted in the
transaction of the event, and a leader assigns it to a delivery when it is due.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.clock import StatementTime
from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.models.indexes import PartialIndex
from django_durable_tasks.models.instants import InstantField
from django_durable_tasks.rules.notifications.events import EventType


class NotificationEventQuerySet(GuardedQuerySet["NotificationEvent"]):
    """The queryset of events."""


class NotificationEvent(GuardedModel):
    """An event for one setting. ``delivery`` identifies the message that contains it.

    ``subject`` is the name of the task or schedule, by which a digest counts. ``data`` is masked.
    """

    instead: ClassVar[str] = "capture.record_events(...) inserts events with the transitions."

    id = models.BigAutoField(primary_key=True)
    setting = models.ForeignKey(
        "django_durable_tasks.NotificationSetting",
        models.DO_NOTHING,
        db_index=False,
        db_constraint=False,
        related_name="+",
    )
    type = ExactCharField(
        _("type"), max_length=20, choices=[(one.value, one.value) for one in EventType]
    )
    subject = ExactCharField(_("subject"), max_length=200, blank=True, default="")
    data = models.JSONField(_("data"), default=dict)
    created_at = InstantField(_("created at"), db_default=StatementTime())
    due_at = InstantField(_("due at"), db_default=StatementTime())
    delivery = models.UUIDField(_("delivery"), null=True, blank=True)

    objects = NotificationEventQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_notification_event"
        verbose_name = _("notification event")
        verbose_name_plural = _("notification events")
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            PartialIndex(
                fields=["due_at", "id"],
                where=Q(delivery__isnull=True),
                elsewhere=("delivery", "due_at", "id"),
                name="durable_notification_event_due",
            ),
            PartialIndex(
                fields=["delivery", "id"],
                where=Q(delivery__isnull=False),
                elsewhere=("delivery", "id"),
                name="durable_notification_delivery",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.subject}"
