"""EndingEvent: an ended task whose dependents or workflow run have not been updated yet."""

from __future__ import annotations

from typing import ClassVar, Self

from django.db import models

from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.indexes import PartialIndex


class EndingEventQuerySet(models.QuerySet["EndingEvent"]):
    """The queryset of ending events."""

    def unresolved(self) -> Self:
        """Events whose dependents are not resolved yet, the oldest first."""
        return self.filter(resolved=False).order_by("id")

    def uncounted(self) -> Self:
        """Events that their workflow has not counted yet, the oldest first."""
        return self.filter(resolved=True).order_by("id")


class EndingEvent(models.Model):
    """Written in the transaction of the ending, deleted in the one that has resolved and counted
    it.

    ``epoch`` is the epoch of the task after the ending. A task that was replayed since has another
    one, and the event is ignored. ``delta`` is added to the count of the workflow run: +1, or -1 if
    an ended task is replayed.
    """

    id = models.BigAutoField(primary_key=True)
    task_id = models.UUIDField()
    epoch = models.BigIntegerField()
    workflow_id = models.UUIDField(null=True)
    status = ExactCharField(max_length=9)
    delta = models.SmallIntegerField(db_default=1)
    resolved = models.BooleanField(db_default=False)

    objects = EndingEventQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_ending_event"
        indexes: ClassVar = [
            models.Index(fields=["task_id"], name="durable_ending_task"),
            PartialIndex(
                fields=["id"],
                where=models.Q(resolved=False),
                elsewhere=("resolved", "id"),
                name="durable_ending_unresolved",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task_id} {self.status}"
