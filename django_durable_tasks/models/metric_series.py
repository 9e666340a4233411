"""MetricSeries: the running total of one combination of queue, task and status. It never falls."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.rules.metrics.counts import MetricKind, SeriesKey

METRIC_WRITERS = "A scheduler counts them from the attempt log (METRICS)."


class MetricSeriesQuerySet(GuardedQuerySet["MetricSeries"]):
    """The queryset of totals."""


class MetricSeries(GuardedModel):
    """A total since METRICS was set. ``id`` is ``SeriesKey.digest()``.

    ``tenant_id`` is 0 unless METRICS_TENANTS is set. ``durations`` contains, for each duration
    of an attempt, the sum in seconds and the numbers of the buckets.
    """

    instead: ClassVar[str] = METRIC_WRITERS

    id = models.UUIDField(primary_key=True, editable=False)
    kind = ExactCharField(max_length=10, choices=[(one.value, one.value) for one in MetricKind])
    tenant_id = models.BigIntegerField(_("tenant"), default=0)
    queue = ExactCharField(_("queue"), max_length=200, blank=True)
    name = ExactCharField(_("name"), max_length=200, blank=True)
    status = ExactCharField(_("status"), max_length=16, blank=True)
    number = models.BigIntegerField(_("number"), default=0)
    durations = models.JSONField(_("durations"), default=dict)

    objects = MetricSeriesQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_metric_series"
        verbose_name = _("total")
        verbose_name_plural = _("totals")
        ordering: ClassVar = ["kind", "queue", "name", "status"]

    def __str__(self) -> str:
        return f"{self.kind} {self.queue} {self.name} {self.status}: {self.number}"

    @property
    def key(self) -> SeriesKey:
        """The identity of the series."""
        return SeriesKey(MetricKind(self.kind), self.tenant_id, self.queue, self.name, self.status)
