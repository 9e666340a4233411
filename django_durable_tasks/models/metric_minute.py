"""MetricMinute: what was counted for one series in one minute, kept for METRICS_RETENTION."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.models.instants import InstantField


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
