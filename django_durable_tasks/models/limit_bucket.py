"""LimitBucket: the tokens that a scope with a rate has left; the row of the scope "" is the lock of
all limits.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

LOCK = ""
"""The row that a claim holds while it judges limits, so that the limited claims of all nodes are
serial.
"""


class LimitBucket(models.Model):
    """How many tokens a scope had when a claim last looked, by the database's clock."""

    scope = models.CharField(_("scope"), primary_key=True, max_length=240)
    tokens = models.FloatField(_("tokens"), default=0.0)
    refilled_at = models.DateTimeField(_("refilled at"), null=True)

    class Meta:
        db_table = "durable_tasks_limit_bucket"
        verbose_name = _("token bucket")
        verbose_name_plural = _("token buckets")
        ordering: ClassVar = ["scope"]

    def __str__(self) -> str:
        return self.scope
