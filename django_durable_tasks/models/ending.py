"""Ending: the note that a row of a graph ended, until its dependents are told and its workflow has counted it."""

from __future__ import annotations

from typing import ClassVar, Self

from django.db import models

from django_durable_tasks.models.indexes import PartialIndex


class EndingQuerySet(models.QuerySet["Ending"]):
    """The questions."""

    def untold(self) -> Self:
        """Endings whose dependents do not know of them yet, the oldest first."""
        return self.filter(told=False).order_by("id")

    def uncounted(self) -> Self:
        """Endings that their workflow has not counted yet, the oldest first."""
        return self.filter(told=True).order_by("id")


class Ending(models.Model):
    """Written in the transaction of the ending, deleted in the one that deals with it: no ending is forgotten.

    ``epoch`` is the row's after the ending: a row that was replayed since has another, and this one says nothing more.
    ``change`` is +1, or -1 when an ended row of a workflow comes back.
    """

    id = models.BigAutoField(primary_key=True)
    task_id = models.UUIDField()
    epoch = models.BigIntegerField()
    workflow_id = models.UUIDField(null=True)
    status = models.CharField(max_length=9)
    change = models.SmallIntegerField(db_default=1)
    told = models.BooleanField(db_default=False)

    objects = EndingQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_ending"
        indexes: ClassVar = [
            models.Index(fields=["task_id"], name="durable_ending_task"),
            PartialIndex(
                fields=["id"], where=models.Q(told=False), elsewhere=("told", "id"), name="durable_ending_untold"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task_id} {self.status}"
