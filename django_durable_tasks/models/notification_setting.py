"""NotificationSetting: which events of a tenant are sent where."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.clock import StatementTime
from django_durable_tasks.models.encrypted_json import EncryptedJSONField
from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.models.instants import InstantField
from django_durable_tasks.models.tenant import DEFAULT_TENANT_ID
from django_durable_tasks.rules.notifications.destinations import DeliveryType, shown_config
from django_durable_tasks.rules.notifications.events import FLAGS

_PATTERN = _("A pattern with * and ?. Empty: all.")


class NotificationSettingQuerySet(GuardedQuerySet["NotificationSetting"]):
    """The queryset of notification settings."""

    def for_tenant(self, tenant: Any) -> Self:
        """Settings of this tenant (a Tenant or its id)."""
        return self.filter(tenant_id=getattr(tenant, "pk", tenant))


class NotificationSetting(GuardedModel):
    """A destination, the events that are sent to it, and when.

    ``collecting`` is the delivery to which the events of an ended period are being assigned.
    """

    instead: ClassVar[str] = (
        "Use the page of notification settings in the admin, or /notification-settings of the HTTP"
        " API, which call setting_changes.create(...)."
    )

    id = models.BigAutoField(primary_key=True)
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant",
        models.PROTECT,
        db_default=DEFAULT_TENANT_ID,
        db_index=False,
        related_name="+",
    )
    name = ExactCharField(_("name"), max_length=200)
    user_id = ExactCharField(
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
    task_name = ExactCharField(
        _("task name"), max_length=200, blank=True, default="", help_text=_PATTERN
    )
    queue = ExactCharField(_("queue"), max_length=200, blank=True, default="", help_text=_PATTERN)
    schedule = ExactCharField(
        _("schedule"), max_length=200, blank=True, default="", help_text=_PATTERN
    )
    delivery_type = ExactCharField(
        _("delivery type"),
        max_length=13,
        choices=[(kind.value, kind.value) for kind in DeliveryType],
    )
    delivery_config = EncryptedJSONField(_("delivery configuration"), default=dict)
    digest = models.FloatField(
        _("digest"),
        null=True,
        blank=True,
        help_text=_("Seconds; the events of each period are one message. Empty: one per event."),
    )
    quiet_from = models.TimeField(_("quiet from"), null=True, blank=True)
    quiet_until = models.TimeField(_("quiet until"), null=True, blank=True)
    time_zone = ExactCharField(
        _("time zone"), max_length=64, default="UTC", help_text=_("Of the quiet hours.")
    )
    collecting = models.UUIDField(null=True, editable=False)
    revision = models.BigIntegerField(_("revision"), default=1)
    created_at = InstantField(_("created at"), db_default=StatementTime())
    updated_at = InstantField(_("updated at"), db_default=StatementTime())
    updated_by = ExactCharField(_("updated by"), max_length=200, blank=True, default="")
    reason = ExactCharField(_("reason"), max_length=500, blank=True, default="")
    last_delivery_status = ExactCharField(_("last delivery"), max_length=8, blank=True, default="")
    last_delivery_at = InstantField(_("last delivery at"), null=True, blank=True)
    last_delivery_error = ExactCharField(
        _("error of the last delivery"), max_length=200, blank=True, default=""
    )

    encryption_key = ExactCharField(
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
        return shown_config(self.delivery_type, self.delivery_config)

    @property
    def events(self) -> list[str]:
        """The flags that are set."""
        return [name for name in FLAGS if getattr(self, name)]
