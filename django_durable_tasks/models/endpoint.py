"""Endpoint: the health of a receiver of HTTP callbacks. A row exists after its first failure."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.clock import StatementTime
from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.models.indexes import PartialIndex
from django_durable_tasks.models.instants import InstantField
from django_durable_tasks.models.tenant import DEFAULT_TENANT_ID


class EndpointQuerySet(GuardedQuerySet["Endpoint"]):
    """The queryset of endpoints."""


class Endpoint(GuardedModel):
    """A receiver of one tenant, and the state of its circuit breaker."""

    instead: ClassVar[str] = "The results of http_callback(...) write it."

    id = models.BigAutoField(primary_key=True)
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant",
        models.PROTECT,
        db_default=DEFAULT_TENANT_ID,
        db_index=False,
        db_constraint=False,
        related_name="+",
    )
    key = ExactCharField(
        _("key"),
        max_length=200,
        unique=True,
        help_text=_("The limit key of its tasks: the origin of the URL, or `endpoint=`."),
    )
    failures = models.IntegerField(_("failures in a row"), db_default=0)
    openings = models.IntegerField(_("openings since the last success"), db_default=0)
    open_until = InstantField(_("open until"), null=True, blank=True)
    probe_until = InstantField(_("probe until"), null=True, blank=True)
    gone_at = InstantField(
        _("gone at"),
        null=True,
        blank=True,
        help_text=_("When it ended deliveries, for example with 410."),
    )
    last_failure = ExactCharField(_("last failure"), max_length=200, db_default="", blank=True)
    updated_at = InstantField(_("updated at"), db_default=StatementTime())

    objects = EndpointQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_endpoint"
        verbose_name = _("endpoint")
        verbose_name_plural = _("endpoints")
        ordering: ClassVar = ["key"]
        indexes: ClassVar = [
            # Read once a second by each process that claims tasks.
            PartialIndex(
                elsewhere=("open_until",),
                fields=["open_until"],
                name="durable_endpoint_open",
                where=models.Q(open_until__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return self.key
