"""What is counted for the metrics: series, their minutes, and how far the tables are counted."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.choices import MetricKind
from django_durable_tasks.models.fields import ExactCharField, InstantField, StatementTime
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet

# MetricSeries: the running total of one combination of queue, task and status. It never falls.


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


# MetricMinute: what was counted for one series in one minute, kept for METRICS_RETENTION.


class MetricMinuteQuerySet(GuardedQuerySet["MetricMinute"]):
    """The queryset of counts per minute."""


class MetricMinute(GuardedModel):
    """The number of a series in the minute that begins at ``minute``.

    The minute is that of the end of an attempt or of a task, or of the creation of a task.
    ``first_id`` and ``last_id`` are the smallest and the largest id of the counted log entries.
    """

    instead: ClassVar[str] = "A scheduler counts them from the attempt log (METRICS)."

    id = models.BigAutoField(primary_key=True)
    minute = InstantField(_("minute"))
    series = models.ForeignKey(
        "django_durable_tasks.MetricSeries",
        models.CASCADE,
        db_index=False,
        db_constraint=False,
        related_name="minutes",
    )
    number = models.BigIntegerField(_("number"), default=0)
    durations = models.JSONField(_("durations"), default=dict)
    first_id = models.BigIntegerField(default=0)
    last_id = models.BigIntegerField(default=0)

    objects = MetricMinuteQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_metric_minute"
        verbose_name = _("count per minute")
        verbose_name_plural = _("counts per minute")
        ordering: ClassVar = ["-minute"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["minute", "series"], name="durable_metric_minute_once")
        ]
        # A chart of a queue or a task reads few series over a long period.
        indexes: ClassVar = [
            models.Index(fields=["series", "minute"], name="durable_metric_series_minute")
        ]

    def __str__(self) -> str:
        return f"{self.minute:%Y-%m-%d %H:%M}: {self.number}"


# MetricPosition: how far the rows of a source are counted for the metrics.


class MetricPositionQuerySet(GuardedQuerySet["MetricPosition"]):
    """The queryset of positions."""


class MetricPosition(GuardedModel):
    """One row for each kind of series.

    Each write of totals raises ``revision`` in its transaction, if it is still the one that was
    read. So one of two schedulers that count the same rows writes nothing. ``last_id`` is the last
    counted id. ``details`` are the gaps before it, or the next minutes.
    """

    instead: ClassVar[str] = "A scheduler counts them from the attempt log (METRICS)."

    kind = ExactCharField(primary_key=True, max_length=10)
    revision = models.BigIntegerField(default=0)
    last_id = models.BigIntegerField(default=0)
    details = models.JSONField(default=list)

    objects = MetricPositionQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_metric_position"
        verbose_name = _("position of the metrics")
        verbose_name_plural = _("positions of the metrics")

    def __str__(self) -> str:
        return f"{self.kind}: {self.last_id}"


# UncountedEnding: tasks that ended without an attempt and are not counted for the metrics yet.


class UncountedEndingQuerySet(GuardedQuerySet["UncountedEnding"]):
    """The queryset of uncounted endings."""


class UncountedEnding(GuardedModel):
    """Written in the transaction that ended ``number`` tasks, deleted when they are counted."""

    instead: ClassVar[str] = "The engine writes these rows, and a scheduler counts them (METRICS)."

    id = models.BigAutoField(primary_key=True)
    tenant_id = models.BigIntegerField()
    queue = ExactCharField(max_length=200)
    name = ExactCharField(max_length=200)
    status = ExactCharField(max_length=9)
    number = models.IntegerField()
    ended_at = InstantField(db_default=StatementTime())

    objects = UncountedEndingQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_uncounted_ending"

    def __str__(self) -> str:
        return f"{self.number} {self.name} {self.status}"
