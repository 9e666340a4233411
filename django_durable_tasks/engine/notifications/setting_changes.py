"""Creates, changes and deletes notification settings, and records the result of deliveries."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import IntegrityError
from django.db.models import F

from django_durable_tasks import conf, process_state
from django_durable_tasks.engine.audit.recorder import recorded
from django_durable_tasks.engine.audit.task_values import encrypted_mark
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.clock_estimate import estimated_now
from django_durable_tasks.engine.notification_events.capture import notification_events
from django_durable_tasks.engine.notification_events.subscriptions import (
    RecentSubscriptions,
    settings_rows,
)
from django_durable_tasks.exceptions import EncryptionError, InvalidOption, TransitionRefused
from django_durable_tasks.models import DEFAULT_TENANT_ID, NotificationSetting, Tenant
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.encrypted_json import stored_columns, undecrypted
from django_durable_tasks.rules.notifications.destinations import (
    checked_config,
    merged_config,
    shown_config,
)
from django_durable_tasks.rules.notifications.setting_values import check_together, checked_values
from django_durable_tasks.rules.targets.policy import address_policy
from django_durable_tasks.rules.tasks.comments import comment
from django_durable_tasks.rules.tasks.masking import shortened

logger = logging.getLogger("django_durable_tasks.notifications")
_DESTINATION = ("delivery_type", "delivery_config")
_NOT_AUDITED = frozenset(
    {
        *("id", "tenant", "revision", "collecting", "updated_at", "updated_by", "reason"),
        *("delivery_config", "encryption_key"),
    }
)
_AUDITED = "notification setting"
_MADE_DUE = 5_000
# Settings of one tenant. Each event is compared with all of them.
_SETTINGS_MAX = 100
SENT, RETRYING, FAILED = "SENT", "RETRYING", "FAILED"


def create(*, tenant: Any = None, by: str = "", reason: str = "", **values: Any) -> Any:
    """Create a setting and return it. Raises InvalidOption, or TransitionRefused if the tenant has
    one of this name or 100 settings.
    """
    tenant_id = DEFAULT_TENANT_ID if tenant is None else getattr(tenant, "pk", tenant)
    missing = [one for one in ("name", *_DESTINATION) if one not in values]
    if missing:
        raise InvalidOption(f"{missing[0]} is missing: a notification setting needs it.")
    row = NotificationSetting(tenant_id=tenant_id)
    checked = _checked(row, values)
    config = checked.pop("delivery_config")
    for name, value in checked.items():
        setattr(row, name, value)
    row.updated_by, row.reason = by[:200], reason[:500]
    try:
        with recorded("tenant.create_notification_setting", by=by, reason=reason) as entry:
            # The tenant is locked, so that concurrent calls do not exceed the maximum.
            tenants = Tenant.objects.using(tables.database())
            tables.locked_for_change(tenants).get(pk=tenant_id)
            if settings_rows().for_tenant(tenant_id).count() >= _SETTINGS_MAX:
                raise TransitionRefused(
                    f"The tenant has {_SETTINGS_MAX} notification settings, the most that are"
                    " allowed: delete one first."
                )
            settings_rows().bulk_create([row])
            found = settings_rows().get(tenant_id=tenant_id, name=row.name)
            # A ciphertext is bound to the id, which is known only after the insert.
            settings_rows().filter(pk=found.pk).update(**_set_config(found, config))
            entry.changed(_AUDITED, found.pk, {}, _shown(found), tenant_id)
    except IntegrityError:
        raise TransitionRefused(
            f"name={row.name!r}: the tenant has a notification setting of this name."
        ) from None
    process_state.of(RecentSubscriptions).expire()
    return found


def change(
    row: NotificationSetting,
    *,
    revision: int | None = None,
    by: str = "",
    reason: str = "",
    **values: Any,
) -> NotificationSetting:
    """Change a setting and return it as it is now.

    A ``delivery_config`` that is the masked form of the present one leaves it unchanged. Messages
    that wait for the end of a period or of quiet hours become due now if these were changed. Raises
    InvalidOption, and TransitionRefused if the setting was deleted or has another revision.
    """
    with recorded("notification_setting.change", by=by, reason=reason) as entry:
        rows = tables.locked_for_change(settings_rows().filter(pk=row.pk))
        present = rows.first()
        if present is None or (revision is not None and present.revision != revision):
            raise TransitionRefused(
                f"Notification setting {row.name!r} was changed or deleted meanwhile: read it"
                " again."
            )
        before = _shown(present)
        checked = _checked(present, values)
        if not checked.get("enabled", True):
            checked["collecting"] = None
        if "delivery_config" in checked:
            checked |= _set_config(present, checked["delivery_config"])
        settings_rows().filter(pk=present.pk).update(
            **checked,
            revision=F("revision") + 1,
            updated_at=DatabaseNow(),
            updated_by=by[:200],
            reason=reason[:500],
        )
        changed = settings_rows().get(pk=present.pk)
        if _times(changed) != _times(present):
            _make_due(changed.pk)
        entry.changed(_AUDITED, row.pk, before, _shown(changed), present.tenant_id)
    process_state.of(RecentSubscriptions).expire()
    found: NotificationSetting = changed
    return found


def _shown(row: NotificationSetting) -> dict[str, Any]:
    """Return the values of a setting for an audit entry, without secrets of its destination."""
    names = (one.name for one in row._meta.concrete_fields if not one.name.startswith("last_"))
    values = {name: getattr(row, name) for name in names if name not in _NOT_AUDITED}
    if row.encryption_key is not None:
        return {**values, "delivery_config": encrypted_mark(undecrypted(row, "delivery_config"))}
    return {**values, "delivery_config": row.shown_config}


def _set_config(row: NotificationSetting, config: dict[str, Any]) -> dict[str, Any]:
    """Set the destination of a row that has an id; return the columns to write."""
    row.delivery_config = config
    stored = stored_columns(row)
    for name, value in stored.items():
        setattr(row, name, value)
    return stored


def _times(row: NotificationSetting) -> tuple[Any, ...]:
    return row.digest, row.quiet_from, row.quiet_until, row.time_zone


def _make_due(setting_id: int) -> None:
    """Make waiting events due, at most _MADE_DUE; the others stay due at their time.

    Events that the leader's job has locked are skipped: it locks events before their settings.
    """
    waiting = notification_events().filter(
        setting_id=setting_id, delivery__isnull=True, due_at__gt=DatabaseNow()
    )
    free = waiting.order_by("due_at", "id").select_for_update(skip_locked=True)
    ids = list(free.values_list("pk", flat=True)[:_MADE_DUE])
    notification_events().filter(pk__in=ids).update(due_at=DatabaseNow())


def _checked(row: NotificationSetting, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that a change writes; raises InvalidOption."""
    plain = {name: value for name, value in values.items() if name not in _DESTINATION}
    checked = checked_values(plain)
    if checked.get("on_alert") and row.tenant_id != DEFAULT_TENANT_ID:
        raise InvalidOption(
            "on_alert=True: alerts are about the whole installation, which only settings of the"
            " default tenant may follow."
        )
    names = ("quiet_from", "quiet_until")
    check_together({name: checked.get(name, getattr(row, name)) for name in names})
    if any(name in values for name in _DESTINATION):
        checked |= _destination(row, values)
    return checked


def _destination(row: NotificationSetting, values: Mapping[str, Any]) -> dict[str, Any]:
    kind = values.get("delivery_type", row.delivery_type)
    if "delivery_config" not in values:
        if kind == row.delivery_type:
            return {}
        # A URL must not become readable by a type whose masks show more of it.
        raise InvalidOption(f"delivery_config is missing: delivery_type={kind!r} needs a new one.")
    known = _known_config(row)
    given = values["delivery_config"]
    merged = merged_config(kind, given, row.delivery_type, known)
    slug = Tenant.objects.using(tables.database()).get(pk=row.tenant_id).slug
    config = checked_config(
        kind,
        merged,
        policy=address_policy(conf.settings().HTTP_PORTS, conf.allowed("HTTP_ALLOW", slug)),
        allowed=conf.allowed("NOTIFICATION_EMAIL_ALLOW", slug),
    )
    # Compared as it is shown: otherwise an editor could guess a destination by what changes.
    if kind == row.delivery_type and given == shown_config(kind, known):
        return {}
    return {"delivery_type": kind, "delivery_config": config}


def _known_config(row: NotificationSetting) -> dict[str, Any]:
    """Return the present destination; empty if it cannot be decrypted, so that it can be
    replaced.
    """
    try:
        known: dict[str, Any] = row.delivery_config
    except EncryptionError:
        return {}
    return known


def remove(rows: Sequence[NotificationSetting], *, by: str = "", reason: str = "") -> int:
    """Delete settings; return how many. Messages that were not sent are not sent any more."""
    with recorded("notification_setting.delete", by=by, reason=reason) as entry:
        deleted = settings_rows().filter(pk__in=[row.pk for row in rows]).delete()[0]
        for row in rows if deleted else ():
            entry.changed(_AUDITED, row.pk, _shown(row), {}, row.tenant_id)
    process_state.of(RecentSubscriptions).expire()
    for row in rows if deleted else ():
        logger.info("%s.", comment(f"Notification setting {row.name!r} was deleted", by, reason))
    return deleted


def disable(setting_id: int, reason: str) -> None:
    """Disable a setting whose receiver wants no more messages."""
    disabled = (
        settings_rows()
        .filter(pk=setting_id, enabled=True)
        .update(
            enabled=False,
            collecting=None,
            revision=F("revision") + 1,
            updated_at=DatabaseNow(),
            updated_by="",
            reason=reason[:500],
        )
    )
    if disabled:
        logger.warning("Notification setting %d was disabled: %s", setting_id, reason)


def record_result(setting_id: int, status: str, error: str = "") -> None:
    """Record the result of the last delivery, unless another transaction has locked the setting.
    The revision stays the same.
    """
    this = settings_rows().filter(pk=setting_id)
    with tables.atomic():
        free = tables.locked_for_change(this, skip_locked=True)
        if free.values_list("pk", flat=True).first() is not None:
            this.update(
                last_delivery_status=status,
                last_delivery_at=estimated_now(),
                last_delivery_error=shortened(error, 200),
            )
