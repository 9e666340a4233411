"""Notification settings, the delivery of their events, alerts, and the watchdog."""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError
from django.db.models import Count, F, Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from django_durable_tasks import conf, process_state, registry
from django_durable_tasks.audit import NAMED, comment, current_actor, encrypted_mark, recorded
from django_durable_tasks.choices import DeliveryType, EventType, RecurringStatus
from django_durable_tasks.cluster import queues, status
from django_durable_tasks.contrib.callbacks import http
from django_durable_tasks.contrib.callbacks.http import SigningSecrets, record_read_secrets
from django_durable_tasks.contrib.notifications import capture, messages
from django_durable_tasks.contrib.notifications.models import (
    Alert,
    NotificationEvent,
    NotificationSetting,
)
from django_durable_tasks.exceptions import EncryptionError, InvalidOption, TransitionRefused
from django_durable_tasks.masking import shortened
from django_durable_tasks.models import DEFAULT_TENANT_ID, Node, Tenant
from django_durable_tasks.models.fields import DatabaseNow, stored_columns, undecrypted
from django_durable_tasks.models.guarded import GuardedQuerySet
from django_durable_tasks.operations import Target, operation
from django_durable_tasks.registry import NOTIFICATION_TASK
from django_durable_tasks.schedules.schedule_cache import recurring
from django_durable_tasks.states import inserts
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.targets.addresses import address_policy, parsed_url
from django_durable_tasks.task_values import NewTask
from django_durable_tasks.tasks import operator_actions
from django_durable_tasks.tasks.enqueue import Call, new_task
from django_durable_tasks.tasks.options import CallOptions
from django_durable_tasks.texts import counted

# Creates, changes and deletes notification settings, and records the result of deliveries.


logger = logging.getLogger("django_durable_tasks.contrib.notifications")
_DESTINATION = ("delivery_type", "delivery_config")
_NOT_AUDITED = frozenset(
    {
        *("id", "tenant", "revision", "collecting", "updated_at", "updated_by", "reason"),
        *("delivery_config", "encryption_key"),
    }
)
_AUDITED = "notification setting"
NAMED[_AUDITED] = (NotificationSetting, "name")
_AT_ONCE = 5_000
# Settings of one tenant. Each event is compared with all of them.
_SETTINGS_MAX = 100
SENT, RETRYING, FAILED = "SENT", "RETRYING", "FAILED"


_NO_COMMAND = "settings are written in the admin or through the API"


@operation(
    Target.TENANT,
    name="create_notification_setting",
    title=_("Create a notification setting"),
    help=_("Events that match the setting are sent from now on."),
    permission="durable_tasks_notifications.add_notificationsetting",
    confirm=False,
    not_in_command=_NO_COMMAND,
    counted="created",
    done=_("Created notification setting %(value)s."),
)
def create_setting(tenant: Any = None, **values: Any) -> NotificationSetting:
    """Create a setting and return it. Raises InvalidOption, or TransitionRefused if the tenant has
    one of this name or 100 settings.
    """
    tenant_id = DEFAULT_TENANT_ID if tenant is None else getattr(tenant, "pk", tenant)
    missing = [field for field in ("name", *_DESTINATION) if field not in values]
    if missing:
        raise InvalidOption(
            f"{missing[0]} is missing: a notification setting needs it.", option=missing[0]
        )
    row = NotificationSetting(tenant_id=tenant_id)
    checked = _checked(row, values)
    config = checked.pop("delivery_config")
    for name, value in checked.items():
        setattr(row, name, value)
    row.updated_by, row.reason = current_actor().by[:200], current_actor().reason[:500]
    try:
        with recorded("tenant.create_notification_setting") as entry:
            # The tenant is locked, so that concurrent calls do not exceed the maximum.
            tenants = Tenant.objects.using(tables.database())
            tables.locked_for_change(tenants).get(pk=tenant_id)
            if (
                tables.unguarded(NotificationSetting).filter(tenant_id=tenant_id).count()
                >= _SETTINGS_MAX
            ):
                raise TransitionRefused(
                    f"The tenant has {_SETTINGS_MAX} notification settings, the most that are"
                    " allowed: delete one first."
                )
            tables.unguarded(NotificationSetting).bulk_create([row])
            created = tables.unguarded(NotificationSetting).get(tenant_id=tenant_id, name=row.name)
            # A ciphertext is bound to the id, which is known only after the insert.
            tables.unguarded(NotificationSetting).filter(pk=created.pk).update(
                **_set_config(created, config)
            )
            entry.changed(_AUDITED, created.pk, {}, _shown(created), tenant_id)
    except IntegrityError:
        raise TransitionRefused(
            f"name={row.name!r}: the tenant has a notification setting of this name."
        ) from None
    process_state.of(capture.RecentSubscriptions).expire()
    return created


@operation(
    Target.NOTIFICATION_SETTING,
    name="change",
    title=_("Change notification setting"),
    help=_(
        "Messages that wait for the end of a period or of quiet hours are sent at once if these"
        " are changed."
    ),
    permission="durable_tasks_notifications.change_notificationsetting",
    confirm=False,
    not_in_command=_NO_COMMAND,
    counted="changed",
    done=_("Changed notification setting %(value)s."),
)
def change_setting(
    row: NotificationSetting, *, revision: int | None = None, **values: Any
) -> NotificationSetting:
    """Change a setting and return it as it is now.

    A ``delivery_config`` that is the masked form of the present one leaves it unchanged. Messages
    that wait for the end of a period or of quiet hours become due now if these were changed. Raises
    InvalidOption, and TransitionRefused if the setting was deleted or has another revision.
    """
    with recorded("notification_setting.change") as entry:
        rows = tables.locked_for_change(tables.unguarded(NotificationSetting).filter(pk=row.pk))
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
        tables.unguarded(NotificationSetting).filter(pk=present.pk).update(
            **checked,
            revision=F("revision") + 1,
            updated_at=DatabaseNow(),
            updated_by=current_actor().by[:200],
            reason=current_actor().reason[:500],
        )
        changed = tables.unguarded(NotificationSetting).get(pk=present.pk)
        if _times(changed) != _times(present):
            _make_due(changed.pk)
        entry.changed(_AUDITED, row.pk, before, _shown(changed), present.tenant_id)
    process_state.of(capture.RecentSubscriptions).expire()
    return changed


def _shown(row: NotificationSetting) -> dict[str, Any]:
    """Return the values of a setting for an audit entry, without secrets of its destination."""
    names = (
        field.name for field in row._meta.concrete_fields if not field.name.startswith("last_")
    )
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
    """Make waiting events due, at most _AT_ONCE; the others stay due at their time.

    Events that the leader's job has locked are skipped: it locks events before their settings.
    """
    waiting = tables.unguarded(NotificationEvent).filter(
        setting_id=setting_id, delivery__isnull=True, due_at__gt=DatabaseNow()
    )
    free = waiting.order_by("due_at", "id").select_for_update(skip_locked=True)
    ids = list(free.values_list("pk", flat=True)[:_AT_ONCE])
    tables.unguarded(NotificationEvent).filter(pk__in=ids).update(due_at=DatabaseNow())


def _checked(row: NotificationSetting, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that a change writes; raises InvalidOption."""
    plain = {name: value for name, value in values.items() if name not in _DESTINATION}
    checked = messages.checked_values(plain)
    if checked.get("on_alert") and row.tenant_id != DEFAULT_TENANT_ID:
        raise InvalidOption(
            "on_alert=True: alerts are about the whole installation, which only settings of the"
            " default tenant may follow.",
            option="on_alert",
        )
    names = ("quiet_from", "quiet_until")
    messages.check_together({name: checked.get(name, getattr(row, name)) for name in names})
    kind = values.get("delivery_type", row.delivery_type)
    if "delivery_config" in values:
        try:
            present: dict[str, Any] = row.delivery_config
        except EncryptionError:
            present = {}  # a destination that cannot be decrypted can be replaced
        new = values["delivery_config"]
        # Compared as it is shown: otherwise an editor could guess a destination by what changes.
        is_kept = kind == row.delivery_type and new == messages.shown_config(kind, present)
        slug = Tenant.objects.using(tables.database()).get(pk=row.tenant_id).slug
        config = messages.checked_config(
            kind,
            dict(present) if is_kept else new,
            policy=address_policy(conf.settings().HTTP_PORTS, conf.allowed("HTTP_ALLOW", slug)),
            allowed=conf.allowed("NOTIFICATION_EMAIL_ALLOW", slug),
        )
        if not is_kept:
            checked |= {"delivery_type": kind, "delivery_config": config}
    elif kind != row.delivery_type:
        # A URL must not become readable by a type whose masks show more of it.
        raise InvalidOption(
            f"delivery_config is missing: delivery_type={kind!r} needs a new one.",
            option="delivery_config",
        )
    return checked


@operation(
    Target.NOTIFICATION_SETTING,
    name="delete",
    title=_("Delete notification settings"),
    help=_("Messages that were not sent are not sent any more."),
    permission="durable_tasks_notifications.delete_notificationsetting",
    applies_to=Q(),
    not_in_command=_NO_COMMAND,
    counted="deleted",
    done=_("Deleted notification setting %(subject)s."),
    summary=ngettext_lazy(
        "Deleted %(number)d notification setting.",
        "Deleted %(number)d notification settings.",
        "number",
    ),
)
def delete_setting(row: NotificationSetting) -> bool:
    """Delete a setting; return whether it existed. Messages that were not sent are not sent any
    more.
    """
    key, actor = row.pk, current_actor()
    with recorded("notification_setting.delete") as entry:
        deleted = bool(tables.unguarded(NotificationSetting).filter(pk=key).delete()[0])
        if deleted:
            entry.changed(_AUDITED, key, _shown(row), {}, row.tenant_id)
    process_state.of(capture.RecentSubscriptions).expire()
    if deleted:
        text = comment(f"Notification setting {row.name!r} was deleted", actor.by, actor.reason)
        logger.info("%s.", text)
    return deleted


def disable_setting(setting_id: int, reason: str) -> None:
    """Disable a setting whose receiver wants no more messages."""
    rows = tables.unguarded(NotificationSetting).filter(pk=setting_id, enabled=True)
    disabled = rows.update(
        enabled=False,
        collecting=None,
        revision=F("revision") + 1,
        updated_at=DatabaseNow(),
        updated_by="",
        reason=reason[:500],
    )
    if disabled:
        logger.warning("Notification setting %d was disabled: %s", setting_id, reason)


def secrets_of_setting(setting: NotificationSetting, *, by: str) -> SigningSecrets:
    """Return the secrets with which the messages of a notification setting are signed."""
    name, origin, secrets = messages.endpoint_of_setting(setting.pk), None, list[str]()
    if DeliveryType(setting.delivery_type).is_http:
        target = parsed_url(setting.delivery_config.get("url"))
        origin = target.origin
        secrets = http.signing_secrets(setting.tenant_id, target, name)
    result = SigningSecrets(origin=origin, endpoint=name, secrets=secrets)
    record_read_secrets("notification setting", setting.pk, setting.tenant_id, result, by)
    return result


def record_result(setting_id: int, status: str, error: str = "") -> None:
    """Record the result of the last delivery, unless another transaction has locked the setting.
    The revision stays the same.
    """
    this = tables.unguarded(NotificationSetting).filter(pk=setting_id)
    with tables.atomic():
        free = tables.locked_for_change(this, skip_locked=True)
        if free.values_list("pk", flat=True).first() is not None:
            this.update(
                last_delivery_status=status,
                last_delivery_at=estimated_now(),
                last_delivery_error=shortened(error, 200),
            )


# Turns due events into tasks that deliver them, and reads the events of a delivery.
#
# The leader's job calls ``create_due``. Events and tasks change in one transaction, so that a
# crash leaves each event either due or assigned to a task. Two leaders lock different events.


_COUNTED = 20
"""How many kinds of events a digest counts separately, the most frequent first."""
_WAITING_MAX = 20
"""Deliveries of a setting that wait for their first attempt: as many as a receiver that answers in
50 ms gets until the next call, two at a time.
"""
_KNOWN_MAX = 10_000
"""Deliveries that are known until all of them are read again, so that memory stays small."""
_AGAIN, _AGAIN_AFTER = 1_000, timedelta(seconds=1)
"""Postponed events that become due in a second, and when the first of them does."""


def _due(now: datetime) -> GuardedQuerySet[NotificationEvent]:
    return tables.unguarded(NotificationEvent).filter(delivery__isnull=True, due_at__lte=now)


class StartedDeliveries:
    """The deliveries that this process has created, so that each setting has few tasks at a time.

    It is a limit and not a count: what another leader created before is not known.
    """

    def __init__(self) -> None:
        self._waiting = dict[int, set[uuid.UUID]]()
        self._known = 0
        self._postponed_until: datetime | None = None

    def free(self, settings: Collection[int]) -> dict[int, int]:
        """Return how many further deliveries each of these settings may have now.

        One that was attempted does not count: it may wait for hours until its next attempt.
        """
        full = [pk for pk in settings if len(self._waiting.get(pk, ())) >= _WAITING_MAX]
        for pk in self._waiting if self._known > _KNOWN_MAX else full:
            ids = self._waiting[pk]
            waiting = tables.tasks().filter(pk__in=ids, attempts=0, completed_at__isnull=True)
            ids.intersection_update(waiting.values_list("pk", flat=True))
        self._waiting = {pk: ids for pk, ids in self._waiting.items() if ids}
        self._known = sum(map(len, self._waiting.values()))
        return {pk: max(0, _WAITING_MAX - len(self._waiting.get(pk, ()))) for pk in settings}

    def created(self, setting_id: int, task_ids: Collection[uuid.UUID]) -> None:
        """Record new deliveries of a setting, after their commit."""
        self._waiting.setdefault(setting_id, set()).update(task_ids)
        self._known += len(task_ids)

    def postponed(self, number: int, now: datetime) -> datetime:
        """Return when events that exceed the limit are due again: _AGAIN of all settings in a
        second, so that a long backlog costs as little as a short one.
        """
        last = max(self._postponed_until or now, now + _AGAIN_AFTER)
        self._postponed_until = last + timedelta(seconds=number / _AGAIN)
        return last


def create_due_deliveries(now: datetime, limit: int, started: StartedDeliveries) -> int:
    """Assign at most ``limit`` due events to new deliveries, postpone those of quiet hours and of
    settings with enough deliveries, and delete those of settings that are disabled or deleted;
    return how many events changed.

    The row of a setting with a digest is locked. If another transaction has locked it, its events
    wait for the next call and do not delay those of other settings.
    """
    if not _due(now).exists():  # one index lookup
        return 0
    created = dict[int, list[NewTask]]()
    with tables.atomic():
        batch = _Batch(now, limit)
        if batch.blocked:
            batch = _Batch(now, limit, without=batch.blocked)
        free = started.free(batch.of_setting)
        full, changed = set[int](), 0
        for setting_id, events in batch.of_setting.items():
            setting = batch.settings.get(setting_id)
            if setting is None:
                changed += _all(events).delete()[0]
                continue
            if not _is_collected(setting) and len(events) > free[setting_id]:
                events = events[: free[setting_id]]
                full.add(setting_id)
            changed += len(events)
            created[setting_id] = []
            quiet_until = setting.quiet_end_after(now)
            if quiet_until is not None:
                _all(events).update(due_at=quiet_until)
            elif _is_collected(setting):
                created[setting_id] = _collected(setting, events, now, more=batch.is_full)
            else:
                for event in events:
                    event.delivery = uuid.uuid4()
                    created[setting_id].append(delivery_task(setting, event.delivery))
        if each := [
            row for rows in batch.of_setting.values() for row in rows if row.delivery is not None
        ]:
            tables.unguarded(NotificationEvent).bulk_update(each, ["delivery"])
        if full:
            # Otherwise the events of settings with enough deliveries stand before those of others.
            due = _due(now).filter(setting_id__in=full).order_by("due_at", "id")
            free_rows = due.select_for_update(skip_locked=True)
            ids = list(free_rows.values_list("pk", flat=True)[:_AT_ONCE])
            again = started.postponed(len(ids), now)
            changed += tables.unguarded(NotificationEvent).filter(pk__in=ids).update(due_at=again)
        if new_tasks := [task for tasks in created.values() for task in tasks]:
            inserts.create_many(new_tasks)
    for setting_id, tasks in created.items():
        started.created(setting_id, [task.id for task in tasks])
    return changed


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
        enabled = tables.unguarded(NotificationSetting).filter(
            pk__in=list(self.of_setting), enabled=True
        )
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


def _all(rows: Sequence[NotificationEvent]) -> GuardedQuerySet[NotificationEvent]:
    return tables.unguarded(NotificationEvent).filter(pk__in=[row.pk for row in rows])


def _collected(
    setting: NotificationSetting, rows: Sequence[NotificationEvent], now: datetime, *, more: bool
) -> list[NewTask]:
    """Add events to the open delivery of a digest. Its task is created with the last due event, so
    that many events are one message and each transaction changes a limited number.
    """
    delivery = setting.collecting or uuid.uuid4()
    _all(rows).update(delivery=delivery)
    remaining = _due(now).filter(setting_id=setting.pk)
    collecting = delivery if more and remaining.exists() else None
    if collecting != setting.collecting:
        tables.unguarded(NotificationSetting).filter(pk=setting.pk).update(collecting=collecting)
    return [] if collecting else [delivery_task(setting, delivery)]


def delivery_task(setting: NotificationSetting, delivery: uuid.UUID) -> NewTask:
    """Return the task that sends the events of this delivery."""
    options = CallOptions(tenant=setting.tenant_id)
    kwargs = {"setting": setting.pk, "delivery": str(delivery)}
    return new_task(Call(registry.get(NOTIFICATION_TASK), (), kwargs, options))


@operation(
    Target.NOTIFICATION_SETTING,
    name="test",
    title=_("Send a test message"),
    help=_(
        "Creates a task that sends a test message to the destination of the setting, also if the"
        " setting is disabled. Its result is shown as the last delivery."
    ),
    permission="durable_tasks_notifications.test_notificationsetting",
    opens_tasks=True,
    confirm=False,
    applies_to=Q(),
    counted="created",
    done=_("Created task %(value)s, which sends the test message."),
    summary=ngettext_lazy(
        "Created %(number)d task, which sends the test message.",
        "Created %(number)d tasks, which send the test messages.",
        "number",
    ),
)
def create_test(setting: NotificationSetting) -> uuid.UUID:
    """Create the delivery of a test message; return the id of its task."""
    delivery = uuid.uuid4()
    data: messages.NotificationTestData = {"setting": setting.name, "sent_by": current_actor().by}
    event = NotificationEvent(
        setting_id=setting.pk,
        type=EventType.TEST,
        subject=setting.name,
        data=dict(data),
        delivery=delivery,
    )
    task = delivery_task(setting, delivery)
    with recorded("notification_setting.test") as entry:
        entry.subject("notification setting", setting.pk, setting.tenant_id)
        entry.detail(task_id=str(task.id))
        tables.unguarded(NotificationEvent).bulk_create([event])
        inserts.create_many([task])
    return task.id


def content_of(
    setting: NotificationSetting, delivery: uuid.UUID
) -> messages.NotificationContent | None:
    """Return the events of a delivery; None if they were deleted."""
    rows = tables.unguarded(NotificationEvent).filter(delivery=delivery, setting_id=setting.pk)
    facts = [
        messages.EventFacts(type=EventType(row.type), created_at=row.created_at, data=row.data)
        for row in rows.order_by("id")[: messages.SHOWN]
    ]
    if not facts:
        return None
    if setting.digest is None and len(facts) == 1:
        return messages.NotificationContent(setting_name=setting.name, events=facts, total=1)
    kinds = rows.order_by().values_list("type", "subject").annotate(number=Count("pk"))
    counts = list(kinds.order_by("-number", "type", "subject")[:_COUNTED])
    total = rows.count()
    is_test = facts[0].type == EventType.TEST
    return messages.NotificationContent(
        setting_name=setting.name, events=facts, total=total, counts=counts, is_digest=not is_test
    )


def prune_events(now: datetime, limit: int) -> int:
    """Delete at most ``limit`` of the oldest events after their retention; return how many.

    Ids grow with time, so that no index on the time is needed.
    """
    oldest = (
        tables.unguarded(NotificationEvent).order_by("pk").values_list("pk", "created_at")[:limit]
    )
    kept_from = conf.kept_from("NOTIFICATIONS", now)
    old = [pk for pk, created_at in oldest if created_at < kept_from]
    return tables.unguarded(NotificationEvent).filter(pk__in=old).delete()[0] if old else 0


# Alerts: conditions of the whole installation, with one event when one begins and one when it
# ends.
#
# The open alerts are rows, so that a new leader repeats no event. A condition ends when it did not
# hold for CALM seconds, so that one that comes and goes is one alert.


CALM = 60.0
"""Seconds."""
_TOGETHER = 100
"""How many alerts of one kind are open at most."""
_SUBJECT_MAX, _DETAIL_MAX = 200, 300
_ALERT_TYPES = (EventType.ALERT_BEGAN, EventType.ALERT_ENDED)


Condition = tuple[str, str]
"""A kind and its subject; the subject of a schedule is its id."""


def watch_alerts(now: datetime) -> int:
    """Open and close alerts; return how many. Nothing is read unless a setting has ``on_alert``, or
    alerts are open.
    """
    enabled = capture.subscriptions()
    selected = not enabled.types.isdisjoint(_ALERT_TYPES)
    if not selected and not tables.unguarded(Alert).exists():
        return 0
    present = dict(conditions(now)) if selected else {}
    try:
        with tables.atomic():
            return _changed(enabled, present, now, CALM if selected else 0.0)
    except IntegrityError:
        # Another scheduler opened one of these alerts at the same time. The next call sees it.
        return 0


def _changed(
    enabled: capture.Subscriptions, present: Mapping[Condition, str], now: datetime, calm: float
) -> int:
    """Write the difference between the open alerts and the present conditions, with its events."""
    rows = tables.locked_for_change(tables.unguarded(Alert).order_by("pk"))
    known = {(row.kind, row.subject): row for row in rows}
    began = {condition: detail for condition, detail in present.items() if condition not in known}
    held = [row.pk for condition, row in known.items() if condition in present]
    calm_since = now - timedelta(seconds=calm)
    ended = [
        row
        for condition, row in known.items()
        if condition not in present and row.last_seen_at <= calm_since
    ]
    if held:
        tables.unguarded(Alert).filter(pk__in=held).update(last_seen_at=now)
    tables.unguarded(Alert).bulk_create(
        [
            Alert(kind=kind, subject=subject, detail=detail, since=now, last_seen_at=now)
            for (kind, subject), detail in began.items()
        ]
    )
    tables.unguarded(Alert).filter(pk__in=[row.pk for row in ended]).delete()
    events = [
        _event(EventType.ALERT_BEGAN, kind, subject, detail)
        for (kind, subject), detail in began.items()
    ]
    events += [_event(EventType.ALERT_ENDED, row.kind, row.subject, row.detail) for row in ended]
    capture.record_events(enabled, events)
    return len(began) + len(ended)


def open_alerts(limit: int) -> list[Alert]:
    """Return the open alerts, the oldest first."""
    return list(tables.unguarded(Alert).order_by("pk")[:limit])


def _event(type_: EventType, kind: str, subject: str, detail: str) -> messages.OccurredEvent:
    data: messages.AlertData = {
        "alert": messages.AlertKind(kind),
        "subject": subject,
        "detail": detail,
    }
    queue = subject if kind == messages.AlertKind.QUEUE_WITHOUT_WORKER else ""
    return messages.OccurredEvent(
        types=(type_,),
        tenant_id=DEFAULT_TENANT_ID,
        queue=queue,
        shown_as=f"{kind} {subject}".strip(),
        data=data,
    )


def conditions(now: datetime) -> Iterator[tuple[Condition, str]]:
    """Yield the conditions that hold now, each with a sentence about it, at most 100 of a kind."""
    for kind, check in _CHECKS.items():
        for number, (subject, detail) in enumerate(check(now)):
            if number >= _TOGETHER:
                break
            yield (kind.value, subject[:_SUBJECT_MAX]), detail[:_DETAIL_MAX]


def _dead_letters(now: datetime) -> Iterator[tuple[str, str]]:
    number, most = operator_actions.open_letters(), conf.settings().DEAD_LETTERS_MAX
    if number > most:
        letters = counted(number, "dead letter is", "dead letters are")
        yield "", f"{letters} open (DEAD_LETTERS_MAX: {most:,})"


def _overdue_schedules(now: datetime) -> Iterator[tuple[str, str]]:
    """Schedules whose fire time and grace have passed, and which have not fired."""
    rows = recurring().filter(status=RecurringStatus.ACTIVE, next_run_at__lte=now)
    columns = ("pk", "name", "next_run_at", "misfire_grace")
    for pk, name, fire_time, grace in rows.order_by("next_run_at").values_list(*columns)[
        : 10 * _TOGETHER
    ]:
        if fire_time + timedelta(seconds=grace) < now:
            at = fire_time.isoformat(timespec="seconds").replace("+00:00", "Z")
            yield str(pk), f"Schedule {name} has not fired since {at}"


def _queues_without_worker(now: datetime) -> Iterator[tuple[str, str]]:
    oldest = now - timedelta(seconds=status.STALLED_AFTER)
    for depth in queues.depths(now):
        waits = depth.oldest_due_at is not None and depth.oldest_due_at < oldest
        if waits and not depth.workers and depth.paused_at is None:
            yield depth.queue, f"Queue {depth.queue} has due tasks and no worker"


def _skewed_clocks(now: datetime) -> Iterator[tuple[str, str]]:
    most = conf.SKEW_MAX
    alive = Node.objects.using(tables.database()).alive()
    hosts = dict[str, float]()
    for host, skew in alive.filter(skew__isnull=False).order_by("host").values_list("host", "skew"):
        if skew is not None and abs(skew) > max(most, abs(hosts.get(host, 0.0))):
            hosts[host] = skew
    noticed = status.recent_clock_step(alive.filter(clock_step_at__isnull=False), now)
    if noticed is not None:
        step = noticed.clock_step or 0.0
        where = "forward" if step > 0 else "back"
        yield "database", f"The clock of the database was set {where} by {abs(step):,.1f} s"
    for host, skew in hosts.items():
        where = "ahead of" if skew > 0 else "behind"
        yield host, f"The clock of {host} is {abs(skew):.1f} s {where} that of the database"


_CHECKS = {
    messages.AlertKind.DEAD_LETTERS: _dead_letters,
    messages.AlertKind.SCHEDULE_OVERDUE: _overdue_schedules,
    messages.AlertKind.QUEUE_WITHOUT_WORKER: _queues_without_worker,
    messages.AlertKind.CLOCK_SKEW: _skewed_clocks,
}
