"""``/notification-settings``: which events of the tenant are sent where."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks import conf
from django_durable_tasks.api import problems
from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.endpoint import address_of
from django_durable_tasks.api.fields import (
    KEY_LENGTH,
    Body,
    Flag,
    Instant,
    Integer,
    JsonObject,
    OneOf,
    Seconds,
    Text,
    WallTime,
)
from django_durable_tasks.api.lists import (
    PAGE_PARAMETERS,
    cursor_of,
    entity_tag,
    limit_of,
    listed,
    page_of,
    require_version,
    shown_by,
    tagged,
)
from django_durable_tasks.api.openapi import list_of
from django_durable_tasks.api.problems import Problem
from django_durable_tasks.api.views.object_operations import ObjectAction, Resource
from django_durable_tasks.api.writes import Answer, WritingEndpoint
from django_durable_tasks.choices import DeliveryType
from django_durable_tasks.exceptions import EncryptionError
from django_durable_tasks.masking import text_for_tenants
from django_durable_tasks.models import NotificationSetting
from django_durable_tasks.notifications import deliveries
from django_durable_tasks.notifications.messages import LONGEST_DIGEST, SHORTEST_DIGEST
from django_durable_tasks.operations.operation import Operation, OperationResult
from django_durable_tasks.tenants.values import ApiScope

_PATTERN = "A pattern with * and ?; empty: all."
_CONFIG = (
    'Of EMAIL {"to": ["ops@example.com"]}, of the others {"url": "https://..."}. A masked URL that'
    " is sent back leaves it unchanged."
)
_CONFIG_FIELDS = ("delivery_config", "delivery_config_error")
_UNREADABLE = "The stored destination cannot be decrypted. The operator was informed by the log."
logger = logging.getLogger("django_durable_tasks.api")


def _pattern() -> Text:
    return Text(required=False, allow_blank=True, max_length=KEY_LENGTH, help_text=_PATTERN)


class NotificationSettingEditBody(Body):
    """The fields of a notification setting that can be changed."""

    user_id = Text(required=False, allow_blank=True, max_length=KEY_LENGTH)
    enabled = Flag(required=False)
    on_success = Flag(required=False)
    on_failure = Flag(required=False)
    on_retry = Flag(required=False)
    on_dead_letter = Flag(required=False)
    on_missed = Flag(required=False)
    on_late = Flag(required=False)
    on_endpoint = Flag(required=False)
    on_quota = Flag(required=False)
    task_name = _pattern()
    queue = _pattern()
    schedule = _pattern()
    delivery_type = OneOf(choices=[one.value for one in DeliveryType], required=False)
    delivery_config = JsonObject(required=False, help_text=_CONFIG)
    digest = Seconds(
        required=False, allow_null=True, min_value=SHORTEST_DIGEST, max_value=LONGEST_DIGEST
    )
    quiet_from = WallTime(required=False, allow_null=True)
    quiet_until = WallTime(required=False, allow_null=True)
    time_zone = Text(required=False, max_length=64)
    reason = Text(required=False, allow_blank=True, max_length=500)


class NewNotificationSettingBody(NotificationSettingEditBody):
    """A notification setting to create."""

    name = Text(max_length=KEY_LENGTH)
    delivery_type = OneOf(choices=[one.value for one in DeliveryType])
    delivery_config = JsonObject(help_text=_CONFIG)


class NotificationSettingAnswer(Body):
    """A notification setting, with the result of its last delivery."""

    notification_setting_id = Integer(source="pk")
    name = Text()
    user_id = Text(allow_blank=True)
    enabled = Flag()
    on_success = Flag()
    on_failure = Flag()
    on_retry = Flag()
    on_dead_letter = Flag()
    on_missed = Flag()
    on_late = Flag()
    on_endpoint = Flag()
    on_quota = Flag()
    task_name = Text(allow_blank=True)
    queue = Text(allow_blank=True)
    schedule = Text(allow_blank=True)
    delivery_type = OneOf(choices=[one.value for one in DeliveryType])
    delivery_config = JsonObject(source="shown_config", allow_null=True)
    delivery_config_error = Text(
        allow_blank=True, help_text="Why delivery_config is null. A PATCH can set it again."
    )
    digest = Seconds(allow_null=True)
    quiet_from = WallTime(allow_null=True)
    quiet_until = WallTime(allow_null=True)
    time_zone = Text()
    last_delivery_status = Text(allow_blank=True, help_text="SENT, RETRYING or FAILED.")
    last_delivery_at = Instant(allow_null=True)
    last_delivery_error = Text(allow_blank=True)
    created_at = Instant()
    updated_at = Instant()
    updated_by = Text(allow_blank=True)


def _settings(tenant_id: int) -> Any:
    rows = NotificationSetting.objects.using(conf.settings().DATABASE)
    return rows.filter(tenant_id=tenant_id)


def setting_json(row: NotificationSetting, _caller: Caller) -> dict[str, Any]:
    """Return a setting as JSON values. Its URL is masked for every key.

    A destination that cannot be decrypted is null, so that the other settings remain readable.
    """
    found = shown_by(NotificationSettingAnswer, row, _CONFIG_FIELDS)
    found["last_delivery_error"] = text_for_tenants(row.last_delivery_error)
    try:
        return {**found, "delivery_config": row.shown_config, "delivery_config_error": ""}
    except EncryptionError as error:
        # The text names the key and the row, which concern operators only.
        logger.error("Notification setting %s cannot be decrypted: %s", row.pk, error)
        return {**found, "delivery_config": None, "delivery_config_error": _UNREADABLE}


def find_setting(caller: Caller, key: int) -> NotificationSetting:
    """Return a setting of the caller's tenant; raises Problem."""
    _require_notifications()
    row: NotificationSetting | None = _settings(caller.tenant.pk).filter(pk=key).first()
    if row is None:
        raise Problem(problems.NOT_FOUND, "There is no notification setting with this id.")
    return row


def _require_notifications() -> None:
    if not conf.settings().NOTIFICATIONS:
        raise Problem(problems.NOT_FOUND, problems.NOT_FOUND.title)


class NotificationSettingsEndpoint(WritingEndpoint):
    """The notification settings of the tenant, by name."""

    reads = ("notificationsetting",)
    permissions: ClassVar = {"POST": (deliveries.create_setting.permission,)}
    scopes: ClassVar = {"GET": ApiScope.READ, "POST": ApiScope.NOTIFICATIONS}
    parameters: ClassVar = {"GET": PAGE_PARAMETERS}
    bodies: ClassVar = {"POST": NewNotificationSettingBody}
    answers: ClassVar = {
        "GET": list_of(NotificationSettingAnswer),
        "POST": NotificationSettingAnswer,
    }
    operations: ClassVar[tuple[Operation, ...]] = (deliveries.create_setting,)
    creates = True

    def get(self, request: Request) -> Response:
        """Return the settings."""
        _require_notifications()
        tenant_id = self.caller.tenant.pk
        after = cursor_of(request, tenant_id, NotificationSetting, "name")
        page = page_of(_settings(tenant_id), after, limit_of(request), by="name")
        return listed(request, tenant_id, page, lambda row: setting_json(row, self.caller))

    def post(self, request: Request) -> Response:
        """Create a setting. Events that match it are sent from now on."""
        _require_notifications()
        valid = NewNotificationSettingBody.valid(self.body(request))
        given: Mapping[str, Any] = {"reason": "", **valid}

        def act() -> Answer:
            done = deliveries.create_setting.perform(
                self.caller.tenant, by=self.caller.name, **given
            )
            row = done.value
            shown = setting_json(row, self.caller)
            address = address_of("notification-setting", notification_setting_id=row.pk)
            tag = entity_tag(row.revision, shown)
            return Answer(201, shown, {"Location": address, "ETag": tag})

        return self.write(request, act)


class NotificationSettingEndpoint(WritingEndpoint):
    """One notification setting."""

    reads = ("notificationsetting",)
    permissions: ClassVar = {
        "PATCH": (deliveries.change_setting.permission,),
        "DELETE": (deliveries.delete_setting.permission,),
    }
    scopes: ClassVar = {
        "GET": ApiScope.READ,
        "PATCH": ApiScope.NOTIFICATIONS,
        "DELETE": ApiScope.NOTIFICATIONS,
    }
    bodies: ClassVar = {"PATCH": NotificationSettingEditBody}
    answers: ClassVar = dict.fromkeys(("GET", "PATCH", "DELETE"), NotificationSettingAnswer)
    operations: ClassVar[tuple[Operation, ...]] = (
        deliveries.change_setting,
        deliveries.delete_setting,
    )

    def get(self, request: Request, notification_setting_id: int) -> Response:
        """Return the setting."""
        row = find_setting(self.caller, notification_setting_id)
        return tagged(request, row.revision, setting_json(row, self.caller))

    def patch(self, request: Request, notification_setting_id: int) -> Response:
        """Change the setting."""
        caller = self.caller
        _require_notifications()
        valid = NotificationSettingEditBody.valid(self.body(request))
        given: Mapping[str, Any] = {"reason": "", **valid}

        def act() -> Answer:
            row = find_setting(caller, notification_setting_id)
            require_version(request, row.revision)
            deliveries.change_setting.perform(row, by=caller.name, revision=row.revision, **given)
            changed = find_setting(caller, notification_setting_id)
            shown = setting_json(changed, caller)
            return Answer(200, shown, {"ETag": entity_tag(changed.revision, shown)})

        def before() -> dict[str, Any]:
            return setting_json(find_setting(caller, notification_setting_id), caller)

        return self.write(request, act, before)

    def delete(self, request: Request, notification_setting_id: int) -> Response:
        """Delete the setting; return it as it was. Messages that were not sent are not sent."""

        def act() -> Answer:
            row = find_setting(self.caller, notification_setting_id)
            shown = setting_json(row, self.caller)
            deliveries.delete_setting.perform(row, by=self.caller.name, reason="")
            return Answer(200, shown)

        return self.write(request, act)


def _task_of(result: OperationResult) -> dict[str, Any]:
    return {"task_id": str(result.value)}


class NotificationTestAnswer(NotificationSettingAnswer):
    """A notification setting, and the task that sends a test message."""

    task_id = Text()


RESOURCE = Resource(
    name="notification-setting",
    reads="notificationsetting",
    find=find_setting,
    show=setting_json,
    answer=NotificationTestAnswer,
    version=lambda row: int(row.revision),
)
ACTIONS = (
    ObjectAction(
        path="test",
        scope=ApiScope.NOTIFICATIONS,
        operations=(deliveries.create_test,),
        result=_task_of,
    ),
)
