"""The notification settings of a tenant in the HTTP API."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.choices import DeliveryType
from django_durable_tasks.contrib.api import fields, views
from django_durable_tasks.contrib.api.access import ApiScope
from django_durable_tasks.contrib.api.callbacks import SigningSecretAnswer
from django_durable_tasks.contrib.api.idempotent_requests import StoredAnswer
from django_durable_tasks.contrib.api.serializers import Answer, Options
from django_durable_tasks.contrib.notifications import deliveries
from django_durable_tasks.contrib.notifications.messages import LONGEST_DIGEST, SHORTEST_DIGEST
from django_durable_tasks.contrib.notifications.models import NotificationSetting
from django_durable_tasks.operations import OperationResult, Target

_CONFIG = (
    'Of EMAIL {"to": ["ops@example.com"]}, of the others {"url": "https://..."}. A masked URL that'
    " is sent back leaves it unchanged."
)


class NotificationSettingAnswer(Answer):
    """A notification setting, with the result of its last delivery."""

    notification_setting_id = fields.Integer(source="pk")
    delivery_config = fields.SecretObject(source="shown_config", allow_null=True)
    delivery_config_error = fields.Text(
        allow_blank=True, help_text="Why delivery_config is null. A PATCH can set it again."
    )
    last_delivery_status = fields.Text(allow_blank=True, help_text="SENT, RETRYING or FAILED.")
    last_delivery_error = fields.ErrorText(allow_blank=True)

    class Meta:
        model = NotificationSetting
        hidden = ("revision", "reason", "on_alert")


class NotificationTestAnswer(NotificationSettingAnswer):
    """A notification setting, and the task that sends a test message."""

    task_id = fields.Text()


class NotificationSettingEditBody(Options):
    """The fields of a notification setting that can be changed."""

    delivery_config = fields.JsonObject(required=False, help_text=_CONFIG)
    digest = fields.Seconds(
        required=False, allow_null=True, min_value=SHORTEST_DIGEST, max_value=LONGEST_DIGEST
    )
    reason = views.reason_field()

    class Meta(Options.Meta):
        model = NotificationSetting
        options = tuple(column.name for column in NotificationSetting._meta.concrete_fields)
        nullable = ("quiet_from", "quiet_until")
        hidden: Any = frozenset(
            {"id", "tenant", "name", "revision", "collecting", "encryption_key", "on_alert"}
            | {"created_at", "updated_at", "updated_by", "last_delivery_status"}
            | {"last_delivery_at", "last_delivery_error"}
        )


class NewNotificationSettingBody(NotificationSettingEditBody):
    """A notification setting to create."""

    name = fields.Key()
    delivery_type = fields.OneOf(choices=DeliveryType)
    delivery_config = fields.JsonObject(help_text=_CONFIG)


class NotificationSettingViewSet(views.OperationsMixin, views.ReadMixin):
    """The notification settings of the tenant, by name."""

    answer = NotificationSettingAnswer
    order = "name"
    targets = (Target.NOTIFICATION_SETTING,)
    performed = (deliveries.change_setting, deliveries.delete_setting)
    operates = ApiScope.NOTIFICATIONS
    operation_answer = NotificationTestAnswer

    @views.endpoint(
        scope=ApiScope.NOTIFICATIONS,
        operations=(deliveries.create_setting,),
        body=NewNotificationSettingBody,
    )
    def create(self, request: Request) -> Response:
        """Create a setting. Events that match it are sent from now on."""
        data = {"reason": "", **self.valid()}

        def act() -> StoredAnswer:
            row = deliveries.create_setting.perform(
                self.caller.tenant, by=self.caller.name, **data
            ).value
            location = views.address_of(
                "notification-setting-detail", notification_setting_id=row.pk
            )
            return self.changed(row, 201, Location=location)

        return self.write(act)

    @views.endpoint(
        scope=ApiScope.NOTIFICATIONS,
        operations=(deliveries.change_setting,),
        body=NotificationSettingEditBody,
    )
    def partial_update(self, request: Request, notification_setting_id: int) -> Response:
        """Change the setting."""
        return self.edit_with(
            lambda row, data: deliveries.change_setting.perform(
                row, by=self.caller.name, revision=row.revision, **{"reason": "", **data}
            )
        )

    @views.endpoint(scope=ApiScope.NOTIFICATIONS, operations=(deliveries.delete_setting,))
    def destroy(self, request: Request, notification_setting_id: int) -> Response:
        """Delete the setting; return it as it was. Messages that were not sent are not sent."""
        return self.delete_with(deliveries.delete_setting)

    def result(self, done: OperationResult) -> dict[str, Any]:
        """Return the task that sends the test message."""
        return {"task_id": str(done.value)}

    @views.endpoint(
        "signing-secret",
        reads=("durable_tasks_notifications.notificationsetting", "task_arguments"),
        answer=SigningSecretAnswer,
    )
    def signing_secret(self, request: Request, notification_setting_id: int) -> Response:
        """Return the secrets with which a server checks `webhook-signature` of the messages of this
        setting. The key needs the scope `secrets` too.
        """
        self.require_scope(ApiScope.SECRETS)

        def act() -> StoredAnswer:
            secrets = deliveries.secrets_of_setting(self.find(), by=self.caller.name)
            return StoredAnswer(200, SigningSecretAnswer.shown(secrets))

        return self.write(act)


RESOURCES = (("notification-settings", "notification-setting", NotificationSettingViewSet),)
