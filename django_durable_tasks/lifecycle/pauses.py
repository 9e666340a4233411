"""What passed while a schedule was paused: one line of the ledger, however many fires it tells."""

from __future__ import annotations

from datetime import datetime, timedelta

from django_durable_tasks.lifecycle.ledger import REASON_MAX, Entry
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.rules.agenda import Agenda
from django_durable_tasks.rules.recurring import Fate

_INSTANT = timedelta(microseconds=1)


def paused_line(row: RecurringTask, agenda: Agenda, until: datetime, term: int | None = None) -> Entry | None:
    """Return the range of fires between the watermark and ``until``; None where there was none."""
    first, last = agenda.next(row.watermark_at), agenda.previous(until + _INSTANT)
    if first is None or last is None or first.at > until:
        return None
    begin, end = sorted((first.nominal, last.nominal))  # a roll can turn the order of two fires
    counted = agenda.count(row.watermark_at, until)
    by = f" by {row.status_by}" if row.status_by else ""
    return Entry(
        recurring_task_id=row.pk, tenant_id=row.tenant_id, fire_time=begin, last_fire_time=end,
        count=counted.number, count_is_exact=counted.exact, outcome=Fate.PAUSED, term=term,
        reason=f"{row.status_reason or 'paused'}{by}"[:REASON_MAX],
    )  # fmt: skip
