"""OccurrenceOverride: an operator's change of one fire time of a recurring task."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.clock import StatementTime
from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.models.instants import InstantField
from django_durable_tasks.rules.recurring.effective import Action


class OccurrenceOverrideQuerySet(GuardedQuerySet["OccurrenceOverride"]):
    """The queryset of overrides."""


class OccurrenceOverride(GuardedModel):
    """SKIP a fire time, MOVE it to another instant, or ADD one that the timetable does not have."""

    instead: ClassVar[str] = "Use override(...) and withdraw(...) of the recurring task."

    id = models.BigAutoField(primary_key=True)
    recurring_task = models.ForeignKey(
        "django_durable_tasks.RecurringTask",
        models.CASCADE,
        db_constraint=False,
        related_name="overrides",
    )
    fire_time = InstantField(_("fire time"))
    action = ExactCharField(_("action"), max_length=4, choices=[(a.value, a.value) for a in Action])
    move_to = InstantField(_("move to"), null=True, blank=True)
    reason = ExactCharField(_("reason"), max_length=200, blank=True, default="")
    by = ExactCharField(_("by"), max_length=200, blank=True, default="")
    created_at = InstantField(_("created at"), db_default=StatementTime())

    objects = OccurrenceOverrideQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_occurrence_override"
        verbose_name = _("override")
        verbose_name_plural = _("overrides")
        ordering: ClassVar = ["fire_time"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=("recurring_task", "fire_time"), name="durable_one_override"
            )
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.fire_time.isoformat()}"
