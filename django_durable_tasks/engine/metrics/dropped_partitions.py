"""Counts the partitions of the ledger that were dropped."""

from __future__ import annotations

from django.db.models import F

from django_durable_tasks import conf
from django_durable_tasks.engine.metrics.totals import series
from django_durable_tasks.models import MetricSeries
from django_durable_tasks.rules.metrics.counts import ALL_TENANTS, MetricKind, SeriesKey


def count_dropped_partition() -> None:
    """Add one to the total, in the transaction of the drop. Does nothing unless METRICS is set.

    Counted at once and not afterwards, because no row remains that could be counted.
    """
    if not conf.settings().METRICS:
        return
    key = SeriesKey(MetricKind.PARTITION, ALL_TENANTS, "", "", "DROPPED")
    series().bulk_create([MetricSeries(id=key.digest(), **key._asdict())], ignore_conflicts=True)
    series().filter(pk=key.digest()).update(number=F("number") + 1)
