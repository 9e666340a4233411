"""Notification settings, their events, and alerts."""

from __future__ import annotations

from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from django.db import models
from django.db.models import Q
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.choices import DEFAULT_TENANT_ID, FLAGS, DeliveryType, EventType
from django_durable_tasks.contrib.notifications import messages
from django_durable_tasks.models import fields
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet, TenantQuerySet

# NotificationSetting: which events of a tenant are sent where.


_PATTERN = _("A pattern with * and ?. Empty: all.")


class NotificationSettingQuerySet(TenantQuerySet["NotificationSetting"]):
    """The queryset, which mypy's plugin resolves by its name only."""


class NotificationSetting(GuardedModel):
    """A destination, the events that are sent to it, and when.

    ``collecting`` is the delivery to which the events of an ended period are being assigned.
    """

    instead: ClassVar[str] = (
        "Use the page of notification settings in the admin, or /notification-settings of the HTTP"
        " API, which call notifications.create_setting(...)."
    )

    id = models.BigAutoField(primary_key=True)
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant",
        models.PROTECT,
        db_default=DEFAULT_TENANT_ID,
        db_index=False,
        related_name="+",
    )
    name = fields.ExactCharField(_("name"), max_length=200)
    user_id = fields.ExactCharField(
        _("user"),
        max_length=200,
        blank=True,
        default="",
        help_text=_("For whom the setting is; a label of your own."),
    )
    enabled = models.BooleanField(_("enabled"), default=True)
    on_success = models.BooleanField(_("on success"), default=False)
    on_failure = models.BooleanField(_("on failure"), default=False)
    on_retry = models.BooleanField(_("on retry"), default=False)
    on_dead_letter = models.BooleanField(_("on dead letter"), default=False)
    on_missed = models.BooleanField(
        _("on missed"), default=False, help_text=_("Fire times of schedules that did not run.")
    )
    on_late = models.BooleanField(
        _("on late"), default=False, help_text=_("Fire times of schedules that were caught up.")
    )
    on_endpoint = models.BooleanField(
        _("on endpoint"),
        default=False,
        help_text=_("Receivers of HTTP callbacks that fail, or that end deliveries."),
    )
    on_quota = models.BooleanField(
        _("on quota"), default=False, help_text=_("Requests that a quota of the tenant refused.")
    )
    on_alert = models.BooleanField(
        _("on alert"), default=False, help_text=_("State of the whole installation.")
    )
    task_name = fields.ExactCharField(
        _("task name"), max_length=200, blank=True, default="", help_text=_PATTERN
    )
    queue = fields.ExactCharField(
        _("queue"), max_length=200, blank=True, default="", help_text=_PATTERN
    )
    schedule = fields.ExactCharField(
        _("schedule"), max_length=200, blank=True, default="", help_text=_PATTERN
    )
    delivery_type = fields.ExactCharField(
        _("delivery type"), max_length=13, choices=fields.choices_of(DeliveryType)
    )
    delivery_config = fields.EncryptedJSONField(_("delivery configuration"), default=dict)
    digest = models.FloatField(
        _("digest"),
        null=True,
        blank=True,
        help_text=_("Seconds; the events of each period are one message. Empty: one per event."),
    )
    quiet_from = models.TimeField(_("quiet from"), null=True, blank=True)
    quiet_until = models.TimeField(_("quiet until"), null=True, blank=True)
    time_zone = fields.ExactCharField(
        _("time zone"), max_length=64, default="UTC", help_text=_("Of the quiet hours.")
    )
    collecting = models.UUIDField(null=True, editable=False)
    revision = models.BigIntegerField(_("revision"), default=1)
    created_at = fields.InstantField(_("created at"), db_default=fields.StatementTime())
    updated_at = fields.InstantField(_("updated at"), db_default=fields.StatementTime())
    updated_by = fields.ExactCharField(_("updated by"), max_length=200, blank=True, default="")
    reason = fields.ExactCharField(_("reason"), max_length=500, blank=True, default="")
    last_delivery_status = fields.ExactCharField(
        _("last delivery"), max_length=8, blank=True, default=""
    )
    last_delivery_at = fields.InstantField(_("last delivery at"), null=True, blank=True)
    last_delivery_error = fields.ExactCharField(
        _("error of the last delivery"), max_length=200, blank=True, default=""
    )

    encryption_key = fields.ExactCharField(
        _("encryption key"), max_length=40, null=True, blank=True, editable=False
    )

    objects = NotificationSettingQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_notification_setting"
        verbose_name = _("notification setting")
        verbose_name_plural = _("notification settings")
        ordering: ClassVar = ["name"]
        permissions: ClassVar = [("test_notificationsetting", "Can send a test")]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["tenant", "name"], name="durable_notification_setting_name"
            )
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def shown_config(self) -> dict[str, Any]:
        """``delivery_config`` without secrets. Raises EncryptionError."""
        return messages.shown_config(self.delivery_type, self.delivery_config)

    @property
    def events(self) -> list[str]:
        """The flags that are set."""
        return [name for name in FLAGS if getattr(self, name)]

    # Cached, because each event is compared with all settings of its tenant.
    @cached_property
    def types(self) -> frozenset[EventType]:
        """The types of events that the flags select."""
        return frozenset(kind for name in self.events for kind in FLAGS[name])

    def selected(
        self, event: messages.OccurredEvent, *, any_schedule: bool = False
    ) -> EventType | None:
        """Return the first type of the event that is selected, or None. The filters are patterns
        with ``*`` and ``?``; empty ones match all.
        """
        filters = (
            (self.task_name, event.task_name),
            (self.queue, event.queue),
            ("" if any_schedule else self.schedule, event.schedule),
        )
        if self.tenant_id == event.tenant_id and all(
            not pattern or fnmatchcase(value, pattern) for pattern, value in filters
        ):
            return next((kind for kind in event.types if kind in self.types), None)
        return None

    def quiet_end_after(self, now: datetime) -> datetime | None:
        """Return when the quiet hours that contain ``now`` end; None if it is outside of them."""
        if self.quiet_from is None or self.quiet_until is None:
            return None
        return messages.quiet_end(self.quiet_from, self.quiet_until, self.time_zone, now)

    def due_at(self, now: datetime) -> datetime:
        """Return when an event that occurs now is sent: at the end of its period and of the quiet
        hours.
        """
        due = now if self.digest is None else messages.period_end(now, self.digest)
        return self.quiet_end_after(due) or due


# NotificationEvent: an event that a notification setting selected. It is inserted in the
# transaction of the event, and a leader assigns it to a delivery when it is due.


class NotificationEventQuerySet(GuardedQuerySet["NotificationEvent"]):
    """The queryset, which mypy's plugin resolves by its name only."""


class NotificationEvent(GuardedModel):
    """An event for one setting. ``delivery`` identifies the message that contains it.

    ``subject`` is the name of the task or schedule, by which a digest counts. ``data`` is masked.
    """

    instead: ClassVar[str] = "capture.record_events(...) inserts events with the transitions."

    id = models.BigAutoField(primary_key=True)
    setting = models.ForeignKey(
        NotificationSetting,
        models.DO_NOTHING,
        db_index=False,
        db_constraint=False,
        related_name="+",
    )
    type = fields.ExactCharField(_("type"), max_length=20, choices=fields.choices_of(EventType))
    subject = fields.ExactCharField(_("subject"), max_length=200, blank=True, default="")
    data = models.JSONField(_("data"), default=dict)
    created_at = fields.InstantField(_("created at"), db_default=fields.StatementTime())
    due_at = fields.InstantField(_("due at"), db_default=fields.StatementTime())
    delivery = models.UUIDField(_("delivery"), null=True, blank=True)

    objects = NotificationEventQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_notification_event"
        verbose_name = _("notification event")
        verbose_name_plural = _("notification events")
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            fields.PartialIndex(
                fields=["due_at", "id"],
                where=Q(delivery__isnull=True),
                elsewhere=("delivery", "due_at", "id"),
                name="durable_notification_event_due",
            ),
            fields.PartialIndex(
                fields=["delivery", "id"],
                where=Q(delivery__isnull=False),
                elsewhere=("delivery", "id"),
                name="durable_notification_delivery",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.subject}"


# Alert: a condition of the whole installation that holds now.


class AlertQuerySet(GuardedQuerySet["Alert"]):
    """The queryset, which mypy's plugin resolves by its name only."""


class Alert(GuardedModel):
    """A condition that began and has not ended. The row is deleted when it ends, so that a new
    leader sends neither event again. ``subject`` is the queue, schedule or host.
    """

    instead: ClassVar[str] = "deliveries.watch_alerts(...), a job of the leader, writes it."

    id = models.BigAutoField(primary_key=True)
    kind = fields.ExactCharField(_("kind"), max_length=30)
    subject = fields.ExactCharField(_("subject"), max_length=200, blank=True, default="")
    detail = fields.ExactCharField(_("detail"), max_length=300, blank=True, default="")
    since = fields.InstantField(_("since"), db_default=fields.StatementTime())
    last_seen_at = fields.InstantField(_("last seen at"), db_default=fields.StatementTime())

    objects = AlertQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_alert"
        verbose_name = _("alert")
        verbose_name_plural = _("alerts")
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["kind", "subject"], name="durable_alert_once")
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}".strip()
