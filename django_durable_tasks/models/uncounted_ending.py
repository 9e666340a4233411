"""UncountedEnding: tasks that ended without an attempt and are not counted for the metrics yet."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from django_durable_tasks.models.clock import StatementTime
from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.models.instants import InstantField


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
