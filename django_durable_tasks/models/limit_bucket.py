"""LimitBucket: the remaining tokens of a scope with a rate limit. The row with the scope "" is the
lock of all limits.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.instants import InstantField

LOCK = ""
"""The row that a claim locks while it checks limits, so that the limited claims of all nodes are
serialized.
"""


class LimitBucket(models.Model):
    """The number of tokens of a scope at the last claim, by the database's clock."""

    scope = ExactCharField(_("scope"), primary_key=True, max_length=240)
    tokens = models.FloatField(_("tokens"), default=0.0)
    refilled_at = InstantField(_("refilled at"), null=True)

    class Meta:
        db_table = "durable_tasks_limit_bucket"
        verbose_name = _("token bucket")
        verbose_name_plural = _("token buckets")
        ordering: ClassVar = ["scope"]

    def __str__(self) -> str:
        return self.scope
