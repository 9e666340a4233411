"""Records events for notification settings, in the transaction in which they occur."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Any

from django.db import Error, connections
from django.db.models import Count, Max, Sum
from django.dispatch import receiver

from django_durable_tasks import conf, ports, process_state
from django_durable_tasks.choices import EventType, Status
from django_durable_tasks.contrib.notifications import messages
from django_durable_tasks.contrib.notifications.models import NotificationEvent, NotificationSetting
from django_durable_tasks.limits.scopes import Allowance
from django_durable_tasks.masking import masked_excerpt, shortened, text_for_tenants
from django_durable_tasks.process_state import Refresher
from django_durable_tasks.registry import NOTIFICATION_TASK, OWN_TASKS
from django_durable_tasks.schedules.ledger import LedgerEntry
from django_durable_tasks.schedules.trigger import KnownSchedule
from django_durable_tasks.signals import endpoint_changed, fires_recorded, quota_refused
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.store.connections import (
    dedicated_connection,
    has_one_connection,
    in_transaction,
)
from django_durable_tasks.store.dialects import POSTGRESQL, recordset, sql, verb
from django_durable_tasks.task_values import Run
from django_durable_tasks.texts import counted

# The enabled notification settings as this process knows them.
#
# A background thread reads them while they are used. Events that occur within a few seconds after
# a setting was changed may still follow the old one.


_REFRESH_EVERY, _USABLE, _PATIENCE = 2.0, 10.0, 1.0
"""Seconds between two reads, the age up to which a caller does not read itself, and how long it
waits for another reader.
"""


class Subscriptions:
    """The enabled settings at one moment. ``stored`` counts the disabled ones too."""

    def __init__(self, settings: Iterable[NotificationSetting] = (), stored: int = 0) -> None:
        self.stored = stored
        self._by_tenant: dict[int, list[NotificationSetting]] = {}
        self.types: frozenset[EventType] = frozenset()
        for setting in settings:
            self._by_tenant.setdefault(setting.tenant_id, []).append(setting)
            self.types |= setting.types

    @property
    def tenants(self) -> frozenset[int]:
        """The tenants that have a setting."""
        return frozenset(self._by_tenant)

    def may_select(self, event: messages.OccurredEvent) -> bool:
        """Return whether a setting selects this event, whatever its schedule."""
        settings = self._by_tenant.get(event.tenant_id, ())
        return any(setting.selected(event, any_schedule=True) for setting in settings)

    def selecting(
        self, event: messages.OccurredEvent
    ) -> list[tuple[NotificationSetting, EventType]]:
        """Return the settings that select an event, each with the type of its message."""
        settings = self._by_tenant.get(event.tenant_id, ())
        return [(setting, kind) for setting in settings if (kind := setting.selected(event))]


class RecentSubscriptions:
    """The subscriptions that this process read last."""

    in_background = True
    """Whether a thread may read. Without it the caller always reads."""

    def __init__(self) -> None:
        self._read_at = float("-inf")
        self._version: Any = None
        self._enabled = Subscriptions()
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
            return self._enabled
        if age > _USABLE:
            self._read()
        self._refresher.ask()
        return self._enabled

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
                # Each change raises a revision, each creation the greatest id, each deletion
                # changes the number, so that one statement shows whether a setting has changed.
                rows = tables.unguarded(NotificationSetting)
                version = rows.aggregate(Count("pk"), Sum("revision"), Max("pk"))
                if version != self._version:
                    enabled = rows.filter(enabled=True).order_by("pk")
                    self._enabled = Subscriptions(enabled, stored=version["pk__count"])
                    self._version = version
            self._read_at = time.monotonic()
        finally:
            self._lock.release()


def subscriptions() -> Subscriptions:
    """Return the subscriptions of this process."""
    return process_state.of(RecentSubscriptions).get()


_MESSAGES_AT_ONCE = 2
"""Messages of one notification setting that are sent at the same time, so that a slow receiver does
not occupy the workers.
"""


def limits_per_key() -> dict[str, Allowance]:
    """Return the limit of messages per setting; none without a setting, so that claims have no
    limit to check. A disabled setting counts, because it may have messages that were not sent yet.
    """
    try:
        stored = subscriptions().stored
    except Exception as error:  # noqa: BLE001 - logged, or raised again if it aborted the claim
        _failed(error)
        return {}
    return {NOTIFICATION_TASK: Allowance(_MESSAGES_AT_ONCE)} if stored else {}


# An error here never fails the transition: it is rolled back to a savepoint and logged when it
# occurs first. Nothing is written unless a setting selects events of this type.


logger = logging.getLogger("django_durable_tasks.contrib.notifications")
_TOGETHER = 500
_ERROR_MAX = 300


class CaptureHealth:
    """Whether the last events of this process could be recorded."""

    def __init__(self) -> None:
        self._failures = 0

    def failed(self, error: Exception) -> None:
        """Log the error if it is the first one since events were recorded."""
        self._failures += 1
        if self._failures == 1:
            logger.error(
                "Events could not be recorded, so their notifications are not sent. Tasks are not"
                " affected.",
                exc_info=error,
            )

    def worked(self) -> None:
        """Log that events are recorded again."""
        if self._failures:
            logger.warning(
                "Events are recorded again after %s.", counted(self._failures, "failure")
            )
            self._failures = 0


def _selecting(types: Sequence[EventType]) -> Subscriptions | None:
    """Return the subscriptions if one of them selects one of these types, otherwise None."""
    if not types:
        return None
    try:
        # It reads in a savepoint of its own, and rarely, so that a savepoint here would be the
        # larger part of the cost.
        enabled = subscriptions()
    except Exception as error:  # noqa: BLE001 - logged, or raised again if it aborted the ending
        _failed(error)
        return None
    return None if enabled.types.isdisjoint(types) else enabled


@contextmanager
def _guarded() -> Iterator[None]:
    """Open a savepoint, if there is a transaction. Errors in the block are logged."""
    try:
        with tables.atomic() if in_transaction() else nullcontext():
            yield
    except Exception as error:  # noqa: BLE001 - logged, or raised again if it aborted the ending
        _failed(error)


def _failed(error: Exception) -> None:
    connection = connections[tables.database()]
    # If the rollback to the savepoint failed too, for example after a deadlock on MariaDB, the
    # transition has been rolled back. The caller must not continue as if it had not.
    if connection.in_atomic_block and connection.needs_rollback:
        raise error
    process_state.of(CaptureHealth).failed(error)


def record_events(enabled: Subscriptions, occurred: Iterable[messages.OccurredEvent]) -> None:
    """Insert the events that the subscriptions select. Raises the errors of the database."""
    now = estimated_now()
    rows: list[dict[str, Any]] = [
        {
            "setting_id": setting.pk,
            "type": str(kind),
            "subject": shortened(event.shown_as, 200),
            "data": dict(event.data),
            "created_at": now,
            "due_at": setting.due_at(now),
        }
        for event in occurred
        for setting, kind in enabled.selecting(event)
    ]
    if not rows:
        return
    _insert(rows)
    process_state.of(CaptureHealth).worked()


@verb
def _insert(rows: list[dict[str, Any]]) -> None:
    new = [NotificationEvent(**row) for row in rows]
    tables.unguarded(NotificationEvent).bulk_create(new, batch_size=_TOGETHER)


@_insert.on(POSTGRESQL)
def _insert_in_one_statement(rows: list[dict[str, Any]]) -> None:
    tables.count(sql("insert_events"), {"rows": recordset(rows)})


# Transitions of tasks.

_OF_SUCCESS = messages.OF_TRANSITION["succeed", Status.SUCCESS]
_COLUMNS = (
    *("pk", "tenant_id", "name", "queue", "recurring_task__name", "attempts", "max_attempts"),
    *("last_error", "due_at"),
)


class TransitionRecorder:
    """Records the events of tasks that notification settings select."""

    def needs_transaction(self, runs: Sequence[Run]) -> bool:
        """Return whether a setting may select a success of these runs, so that the successes and
        their events are committed together.
        """
        enabled = _selecting(_OF_SUCCESS)
        return enabled is not None and bool(_selectable(enabled, runs))

    def record(
        self, transition: str, status: Status, task_ids: Sequence[uuid.UUID], runs: Sequence[Run]
    ) -> None:
        """Record the events of tasks that have changed to this status. Of ``runs``, which have
        succeeded, tasks are read only for the names of their schedules.
        """
        types = messages.OF_TRANSITION.get((transition, status), ())
        enabled = _selecting(types)
        if enabled is None:
            return
        selectable = _selectable(enabled, runs)
        if runs and not selectable:
            return
        with _guarded():
            if not runs:
                record_events(enabled, _of_tasks(enabled, types, status, task_ids))
                return
            scheduled = [run.task_id for run in selectable if run.recurring_task_id is not None]
            events = [] if not scheduled else list(_of_tasks(enabled, types, status, scheduled))
            for run in selectable:
                if run.recurring_task_id is None:
                    row = {
                        "pk": run.task_id,
                        "tenant_id": run.tenant_id,
                        "name": run.name,
                        "queue": run.queue,
                        "recurring_task__name": None,
                        "attempts": run.attempt,
                        "max_attempts": run.max_attempts,
                    }
                    events.append(_of_task(types, status, row))
            record_events(enabled, events)


def _selectable(enabled: Subscriptions, runs: Sequence[Run]) -> list[Run]:
    """Return the runs whose success a setting may select."""
    return [
        run
        for run in runs
        if run.name not in OWN_TASKS
        and enabled.may_select(
            messages.OccurredEvent(
                types=_OF_SUCCESS, tenant_id=run.tenant_id, task_name=run.name, queue=run.queue
            )
        )
    ]


def _of_tasks(
    enabled: Subscriptions,
    types: Sequence[EventType],
    status: Status,
    task_ids: Sequence[uuid.UUID],
) -> Iterator[messages.OccurredEvent]:
    changed = tables.tasks().filter(status=status, tenant_id__in=sorted(enabled.tenants))
    for first in range(0, len(task_ids), _TOGETHER):
        page = changed.filter(pk__in=list(task_ids[first : first + _TOGETHER]))
        for row in page.order_by("pk").values(*_COLUMNS):
            if row["name"] not in OWN_TASKS:
                yield _of_task(types, status, row)


def _of_task(
    types: Sequence[EventType], status: Status, row: Mapping[str, Any]
) -> messages.OccurredEvent:
    schedule = row["recurring_task__name"] or ""
    data: messages.RetryingTaskData = {
        "task_id": str(row["pk"]),
        "task_name": row["name"],
        "queue": row["queue"],
        "attempt": row["attempts"],
        "max_attempts": row["max_attempts"],
    }
    if schedule:
        data["schedule"] = schedule
    if status != Status.SUCCESS and row["last_error"]:
        error = masked_excerpt(row["last_error"], conf.settings().SECRET_NAMES, 4 * _ERROR_MAX)
        data["error"] = shortened(text_for_tenants(error), _ERROR_MAX)
    if status == Status.PENDING and row["due_at"] is not None:
        data["next_attempt_at"] = _instant(row["due_at"])
    return messages.OccurredEvent(
        types=types,
        tenant_id=row["tenant_id"],
        task_name=row["name"],
        queue=row["queue"],
        schedule=schedule,
        shown_as=row["name"],
        data=data,
    )


# Missed and late fire times of schedules.


@receiver(fires_recorded)
def record_fires(
    *,
    schedules: Mapping[uuid.UUID, KnownSchedule],
    missed: Sequence[LedgerEntry],
    late: Sequence[LedgerEntry],
    **_: Any,
) -> None:
    """Record the missed and late fire times of a tick, in its transaction."""
    enabled = _selecting((EventType.MISSED, EventType.LATE))
    if enabled is None:
        return
    with _guarded():
        events = []
        for kind, entries in ((EventType.MISSED, missed), (EventType.LATE, late)):
            for entry in entries:
                row = schedules.get(entry.recurring_task_id)
                if row is None or row.task in OWN_TASKS:
                    continue
                data: messages.FireEventData = {
                    "schedule_id": str(row.pk),
                    "schedule": row.name,
                    "task_name": row.task,
                    "fire_time": _instant(entry.fire_time),
                    "count": entry.count,
                    "reason": entry.reason,
                }
                if entry.last_fire_time is not None:
                    data["last_fire_time"] = _instant(entry.last_fire_time)
                if entry.task_id is not None:
                    data["task_id"] = str(entry.task_id)
                events.append(
                    messages.OccurredEvent(
                        types=(kind,),
                        tenant_id=row.tenant_id,
                        task_name=row.task,
                        queue=row.queue,
                        schedule=row.name,
                        shown_as=row.name,
                        data=data,
                    )
                )
        record_events(enabled, events)


def _instant(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


# Receivers of HTTP callbacks.

_OF_CHANGE = {"opened": EventType.ENDPOINT_OPENED, "gone": EventType.ENDPOINT_GONE}


@receiver(endpoint_changed)
def record_endpoint(*, change: str, endpoint: str, reason: str, run: Run, **_: Any) -> None:
    """Record that a receiver fails, or that it has ended deliveries."""
    kind = _OF_CHANGE[change]
    enabled = _selecting((kind,))
    if enabled is None:
        return
    shown = endpoint.removeprefix(f"{run.tenant_id}:")
    data: messages.EndpointEventData = {"endpoint": shown, "task_name": run.name, "error": reason}
    event = messages.OccurredEvent(
        types=(kind,),
        tenant_id=run.tenant_id,
        task_name=run.name,
        queue=run.queue,
        shown_as=shown,
        data=data,
    )
    with _guarded():
        record_events(enabled, [event])


# Requests that a quota refused.
#
# Each tenant has at most one event per quota and hour. The time of the last one is in the row of
# the tenant's quotas. Later refusals of the same process are known without reading it, so that a
# flood of requests does not cause a flood of statements.

_PERIOD = timedelta(hours=1)
_KNOWN = 10_000


class RecentQuotaEvents:
    """When tenants had their last event of a quota, as this process read it."""

    def __init__(self) -> None:
        self.last: dict[tuple[int, str], datetime] = {}


@receiver(quota_refused)
def record_quota(*, sender: Any, tenant_id: int, quota: str, detail: str, **_: Any) -> None:
    """Record a refused request. ``sender`` is the model of the quotas, which belongs to the HTTP
    API. Errors are logged and not raised.
    """
    now, known = estimated_now(), process_state.of(RecentQuotaEvents).last
    last = known.get((tenant_id, quota))
    if last is not None and abs(now - last) < _PERIOD:
        return
    types = (EventType.QUOTA_REACHED,)
    data: messages.QuotaEventData = {"quota": quota, "detail": detail}
    event = messages.OccurredEvent(types=types, tenant_id=tenant_id, shown_as=quota, data=data)
    enabled = _selecting(types)
    if enabled is None or not enabled.selecting(event):
        return
    with _guarded(), tables.atomic():
        quota_rows = sender.objects.using(tables.database()).unguarded()
        rows = quota_rows.filter(pk=tenant_id)
        if not rows.exists():
            quota_rows.bulk_create([sender(tenant_id=tenant_id)], ignore_conflicts=True)
        row = tables.locked_for_change(rows, skip_locked=True).first()
        if row is None:
            return  # a request has locked it: the next refusal finds it free
        notified = row.notified_at.get(quota)
        last = None if notified is None else datetime.fromisoformat(notified)
        if last is not None and abs(now - last) < _PERIOD:
            if len(known) >= _KNOWN:
                known.clear()
            known[tenant_id, quota] = last
            return
        rows.update(notified_at={**row.notified_at, quota: now.isoformat()})
        record_events(enabled, [event])
