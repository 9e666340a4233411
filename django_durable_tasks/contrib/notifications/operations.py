"""Operations on notification settings."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_durable_tasks import conf
from django_durable_tasks.choices import DeliveryType
from django_durable_tasks.contrib.callbacks import http
from django_durable_tasks.contrib.callbacks.signing_secrets import (
    SigningSecrets,
    record_read_secrets,
)
from django_durable_tasks.contrib.notifications import deliveries
from django_durable_tasks.contrib.notifications.messages import endpoint_of_setting, url_of
from django_durable_tasks.contrib.notifications.models import NotificationSetting
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.operations.operation import Operation, OperationResult, Target


def _create(tenant: Any, *, by: str, reason: str, **values: Any) -> OperationResult:
    """Take the same keywords as ``notifications.deliveries.create_setting``."""
    row = deliveries.create_setting(tenant=tenant, by=by, reason=reason, **values)
    message = _now("Created notification setting %s.") % row.name
    return OperationResult({"created": 1}, message, value=row)


def _change(
    setting: NotificationSetting, *, by: str, reason: str, **values: Any
) -> OperationResult:
    """Take the same keywords as ``notifications.deliveries.change_setting``."""
    row = deliveries.change_setting(setting, by=by, reason=reason, **values)
    message = _now("Changed notification setting %s.") % row.name
    return OperationResult({"changed": 1}, message, value=row)


def _delete(setting: NotificationSetting, *, by: str, reason: str) -> OperationResult:
    done = deliveries.remove_setting([setting], by=by, reason=reason)
    message = _now("Deleted notification setting %s.") % setting.name
    return OperationResult({"deleted": done}, message)


def _deleted(number: int) -> str:
    text = ngettext("Deleted %d notification setting.", "Deleted %d notification settings.", number)
    return text % number


def _test(setting: NotificationSetting, *, by: str, reason: str) -> OperationResult:
    """Create the task that sends a test message; ``value`` is its id."""
    if not conf.settings().NOTIFICATIONS:
        raise TransitionRefused(
            "DURABLE_TASKS['NOTIFICATIONS'] is False: nothing is sent. Set it to True first."
        )
    task_id = deliveries.create_test(setting, by, reason)
    message = _now("Created task %s, which sends the test message.") % task_id
    return OperationResult({"created": 1}, message, value=task_id)


def _tested(number: int) -> str:
    text = ngettext(
        "Created %d task, which sends the test message.",
        "Created %d tasks, which send the test messages.",
        number,
    )
    return text % number


_NO_COMMAND = "settings are written in the admin or through the API"
CREATE = Operation(
    target=Target.TENANT,
    name="create_notification_setting",
    title=_("Create a notification setting"),
    help=_("Events that match the setting are sent from now on."),
    permission="durable_tasks_notifications.add_notificationsetting",
    perform=_create,
    confirm=False,
    not_in_command=_NO_COMMAND,
)
CHANGE = Operation(
    target=Target.NOTIFICATION_SETTING,
    name="change",
    title=_("Change notification setting"),
    help=_(
        "Messages that wait for the end of a period or of quiet hours are sent at once if these"
        " are changed."
    ),
    permission="durable_tasks_notifications.change_notificationsetting",
    perform=_change,
    confirm=False,
    not_in_command=_NO_COMMAND,
)
DELETE = Operation(
    target=Target.NOTIFICATION_SETTING,
    name="delete",
    title=_("Delete notification settings"),
    help=_("Messages that were not sent are not sent any more."),
    permission="durable_tasks_notifications.delete_notificationsetting",
    perform=_delete,
    applies_to=Q(),
    summary=_deleted,
    not_in_command=_NO_COMMAND,
)
TEST = Operation(
    target=Target.NOTIFICATION_SETTING,
    name="test",
    title=_("Send a test message"),
    help=_(
        "Creates a task that sends a test message to the destination of the setting, also if the"
        " setting is disabled. Its result is shown as the last delivery."
    ),
    permission="durable_tasks_notifications.test_notificationsetting",
    perform=_test,
    confirm=False,
    applies_to=Q(),
    summary=_tested,
)

OPERATIONS = (CREATE, CHANGE, DELETE, TEST)


def secrets_of_setting(setting: NotificationSetting, *, by: str) -> SigningSecrets:
    """Return the secrets of the messages of a notification setting."""
    name, origin, found = endpoint_of_setting(setting.pk), None, list[str]()
    if DeliveryType(setting.delivery_type).is_http:
        target = url_of(setting.delivery_config)
        origin = target.origin
        found = http.signing_secrets(setting.tenant_id, target, name)
    result = SigningSecrets(origin=origin, endpoint=name, secrets=found)
    record_read_secrets("notification setting", setting.pk, setting.tenant_id, result, by)
    return result
