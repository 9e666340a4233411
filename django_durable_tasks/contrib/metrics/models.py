"""The counts of the metrics, in one table."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.contrib.metrics.series import MetricKind, Span
from django_durable_tasks.models.fields import ExactCharField, InstantField, choices_of
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet


class MetricMinuteQuerySet(GuardedQuerySet["MetricMinute"]):
    """The queryset, which mypy's plugin resolves by its name only."""


class MetricMinute(GuardedModel):
    """The number of one series in the period of ``span`` minutes that begins at ``minute``.

    The minute is that of the end of an attempt or of a task, of the creation of a task, or of the
    entry in the ledger. ``durations`` contains, for each duration of an attempt, the sum in seconds
    and the numbers of the buckets. ``span`` also marks rows that are not periods, see ``Span``.
    """

    instead: ClassVar[str] = "A scheduler counts them: counts.raise_minute(minute, by_series)."

    id = models.BigAutoField(primary_key=True)
    span = models.SmallIntegerField(_("minutes"), choices=[(one.value, one.name) for one in Span])
    minute = InstantField(_("minute"))
    kind = ExactCharField(max_length=10, choices=choices_of(MetricKind))
    tenant_id = models.BigIntegerField(_("tenant"), default=0)
    queue = ExactCharField(_("queue"), max_length=200, blank=True)
    name = ExactCharField(_("name"), max_length=200, blank=True)
    status = ExactCharField(_("status"), max_length=16, blank=True)
    number = models.BigIntegerField(_("number"), default=0)
    durations = models.JSONField(_("durations"), default=dict)

    objects = MetricMinuteQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_metric_minute"
        verbose_name = _("count per minute")
        verbose_name_plural = _("counts per minute")
        ordering: ClassVar = ["-minute"]
        # The charts are shown to users who may view tasks.
        default_permissions: ClassVar = ()
        # Unique keys are not needed: each change locks the row Span.POSITION first.
        indexes: ClassVar = [models.Index(fields=["span", "minute"], name="durable_metric_minute")]

    def __str__(self) -> str:
        return f"{self.minute:%Y-%m-%d %H:%M} {self.kind} {self.status}: {self.number}"
