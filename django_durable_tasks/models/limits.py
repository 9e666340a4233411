"""Limits of operators, and the tokens of rate limits."""

from __future__ import annotations

from typing import ClassVar

from django.core.exceptions import ValidationError
from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.limits.scopes import SCOPE_FORMS, Allowance, allowance_of
from django_durable_tasks.models.fields import ExactCharField, InstantField, StatementTime

# Limit: an operator's limits of one scope. A row overrides code and settings.


class Limit(models.Model):
    """The concurrency limit and the rate limit of one scope."""

    scope = ExactCharField(
        _("scope"), primary_key=True, max_length=240, help_text=f"{SCOPE_FORMS}."
    )
    max_concurrency = models.IntegerField(
        _("max concurrency"),
        null=True,
        blank=True,
        help_text=_("How many may be published or run at once."),
    )
    rate = ExactCharField(
        _("rate"),
        max_length=20,
        blank=True,
        default="",
        help_text=_("Starts in a time: 10/m, 5/s, 100/h, 1000/d."),
    )
    burst = models.FloatField(
        _("burst"),
        null=True,
        blank=True,
        help_text=_("How many may start at once after a pause; else one second's."),
    )
    comment = ExactCharField(_("comment"), max_length=500, blank=True, default="")
    set_by = ExactCharField(_("set by"), max_length=200, blank=True, default="")
    set_at = InstantField(_("set at"), db_default=StatementTime(), editable=False)

    class Meta:
        db_table = "durable_tasks_limit"
        verbose_name = _("limit")
        verbose_name_plural = _("limits")
        ordering: ClassVar = ["scope"]

    def __str__(self) -> str:
        return self.scope

    @property
    def allowance(self) -> Allowance:
        """The limits as an allowance; raises InvalidOption."""
        options = {
            "max_concurrency": self.max_concurrency,
            "rate": self.rate or None,
            "burst": self.burst,
        }
        return allowance_of(self.scope, options)

    def clean(self) -> None:
        """Raise a ValidationError for an invalid limit."""
        if self.max_concurrency is None and not self.rate:
            raise ValidationError(_("Give a max concurrency, a rate, or both."))
        try:
            _allowance = self.allowance
        except InvalidOption as refused:
            raise ValidationError(str(refused)) from None


# LimitBucket: the tokens of what has a rate. The row with the scope "" is the lock of all limits.


LOCK = ""
"""The row that a claim locks while it checks limits, so that the limited claims of all nodes are
serialized.
"""


class LimitBucket(models.Model):
    """The tokens of a scope at ``refilled_at``, by the database's clock: at the last claim.

    The HTTP API counts the requests of a tenant in the scope ``requests:<id>``. Its bucket is full
    at ``refilled_at``, which may be in the future.
    """

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
