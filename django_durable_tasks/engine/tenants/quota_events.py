"""Records that a request exceeded a quota, as an event for notification settings.

Each tenant has at most one event per quota and hour. The time of the last one is in the row of the
tenant's quotas. Later refusals of the same process are known without reading it, so that a flood of
requests does not cause a flood of statements.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django_durable_tasks import process_state
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.clock_estimate import estimated_now
from django_durable_tasks.engine.notification_events.capture import OccurredEvent, capture_once
from django_durable_tasks.engine.tenants.quotas import quota_rows
from django_durable_tasks.models import TenantQuota
from django_durable_tasks.rules.notifications.events import EventType
from django_durable_tasks.rules.notifications.message_types import QuotaEventData
from django_durable_tasks.rules.notifications.subscriptions import EventSubject

_PERIOD = timedelta(hours=1)
_KNOWN = 10_000


class RecentQuotaEvents:
    """When tenants had their last event of a quota, as this process read it."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, str], datetime] = {}

    def has(self, tenant_id: int, quota: str, now: datetime) -> bool:
        """Return whether an event of the last hour is known."""
        last = self._last.get((tenant_id, quota))
        return last is not None and abs(now - last) < _PERIOD

    def remember(self, tenant_id: int, quota: str, last: datetime) -> None:
        """Keep the time of an event that was committed."""
        if len(self._last) >= _KNOWN:
            self._last.clear()
        self._last[tenant_id, quota] = last


def refused(tenant_id: int, quota: str, detail: str) -> None:
    """Record a refused request, outside of the transaction that was rolled back. Errors are logged
    and not raised.
    """
    now = estimated_now()
    if process_state.of(RecentQuotaEvents).has(tenant_id, quota, now):
        return
    data: QuotaEventData = {"quota": quota, "detail": detail}
    event = OccurredEvent(
        types=(EventType.QUOTA_REACHED,),
        subject=EventSubject(tenant_id=tenant_id, task_name="", queue=""),
        shown_as=quota,
        data=data,
    )
    capture_once(event, lambda: _is_first(tenant_id, quota, now))


def _is_first(tenant_id: int, quota: str, now: datetime) -> bool:
    """Return whether no event of the last hour exists; the caller then writes one.

    A row that a request has locked is left out: the next refusal finds it free.
    """
    row = _locked(tenant_id)
    if row is None:
        return False
    given = row.notified_at.get(quota)
    last = None if given is None else datetime.fromisoformat(given)
    if last is not None and abs(now - last) < _PERIOD:
        process_state.of(RecentQuotaEvents).remember(tenant_id, quota, last)
        return False
    notified_at = {**row.notified_at, quota: now.isoformat()}
    quota_rows().filter(pk=tenant_id).update(notified_at=notified_at)
    return True


def _locked(tenant_id: int) -> TenantQuota | None:
    rows = quota_rows().filter(pk=tenant_id)
    if not rows.exists():
        quota_rows().bulk_create([TenantQuota(tenant_id=tenant_id)], ignore_conflicts=True)
    return tables.locked_for_change(rows, skip_locked=True).first()
