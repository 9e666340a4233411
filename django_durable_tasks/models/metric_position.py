"""MetricPosition: how far the rows of a source are counted for the metrics."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet


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
