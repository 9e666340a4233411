"""OccurrenceRecord: the ledger, with the outcome of each fire time and its reason. Entries are kept
longer than the tasks.

Its unique key guarantees that a fire time of a recurring task gets one task only, also with two
leaders or wrong clocks. A range of fire times that did not run is one entry: first, last, number
and reason.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Self

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.clock import StatementTime
from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.models.indexes import PartialIndex, PresentUnique
from django_durable_tasks.models.instants import InstantField
from django_durable_tasks.models.tenant import DEFAULT_TENANT_ID
from django_durable_tasks.rules.recurring.policies import FireOutcome


class OccurrenceQuerySet(GuardedQuerySet["OccurrenceRecord"]):
    """The queryset of ledger entries."""

    def for_tenant(self, tenant: Any) -> Self:
        """Entries of this tenant (a Tenant or its id)."""
        return self.filter(tenant_id=getattr(tenant, "pk", tenant))

    def single(self) -> Self:
        """Entries of single fire times."""
        return self.filter(unique_fire_time__isnull=False)

    def ranges(self) -> Self:
        """Entries of ranges of fire times."""
        return self.filter(last_fire_time__isnull=False)

    def covering(self, fire_time: datetime) -> Self:
        """Entries that cover this fire time: its own first, then the ranges."""
        own = Q(unique_fire_time=fire_time)
        # Ranges have no unique_fire_time anyway. The explicit condition makes their partial index
        # usable.
        around = Q(
            unique_fire_time__isnull=True, fire_time__lte=fire_time, last_fire_time__gte=fire_time
        )
        return self.filter(own | around).order_by(
            models.F("unique_fire_time").desc(nulls_last=True), "-id"
        )


class OccurrenceRecord(GuardedModel):
    """The outcome of one fire time of a recurring task, or of a range of fire times."""

    instead: ClassVar[str] = (
        "The ledger records what became of each fire time; run one with trigger_now() or backfill()"
        " of the schedule."
    )

    id = models.BigAutoField(primary_key=True)
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant",
        models.PROTECT,
        db_default=DEFAULT_TENANT_ID,
        db_index=False,
        db_constraint=False,
        related_name="+",
    )
    recurring_task = models.ForeignKey(
        "django_durable_tasks.RecurringTask",
        models.CASCADE,
        db_index=False,
        db_constraint=False,
        related_name="occurrences",
    )
    fire_time = InstantField(_("fire time"))
    last_fire_time = InstantField(_("last fire time"), null=True, blank=True)
    count = models.BigIntegerField(_("count"), default=1)
    count_is_exact = models.BooleanField(_("count is exact"), default=True)
    unique_fire_time = InstantField(null=True, editable=False)
    effective_at = InstantField(_("effective at"), null=True, blank=True)
    outcome = ExactCharField(
        _("outcome"), max_length=16, choices=[(one.value, one.value) for one in FireOutcome]
    )
    reason = ExactCharField(_("reason"), max_length=500, blank=True, default="")
    task = models.ForeignKey(
        "django_durable_tasks.Task",
        models.DO_NOTHING,
        null=True,
        blank=True,
        db_index=False,
        db_constraint=False,
        related_name="+",
    )
    blocked_by = models.UUIDField(_("blocked by"), null=True, blank=True)
    request_id = ExactCharField(_("request id"), max_length=200, null=True, blank=True)
    term = models.BigIntegerField(_("term"), null=True, blank=True)
    created_at = InstantField(_("created at"), db_default=StatementTime())

    objects = OccurrenceQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_occurrence"
        verbose_name = _("occurrence")
        verbose_name_plural = _("ledger of occurrences")
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            PresentUnique(
                fields=("recurring_task", "unique_fire_time"), name="durable_one_occurrence"
            ),
            PresentUnique(fields=("recurring_task", "request_id"), name="durable_one_request"),
        ]
        indexes: ClassVar = [
            PartialIndex(
                fields=["recurring_task", "fire_time"],
                where=Q(unique_fire_time__isnull=True),
                elsewhere=("recurring_task", "fire_time"),
                name="durable_occurrence_ranges",
            )
        ]

    def __str__(self) -> str:
        return f"{self.fire_time.isoformat()} {self.outcome}"
