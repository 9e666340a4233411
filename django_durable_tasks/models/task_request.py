"""TaskRequest: a transaction's request to a RUNNING task, until it is applied after the commit."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from enum import StrEnum
from typing import ClassVar, Self

from django.db import models

from django_durable_tasks.models.clock import StatementTime
from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.indexes import PresentUnique
from django_durable_tasks.models.instants import InstantField


class RequestKind(StrEnum):
    """The kind of request."""

    CANCEL = "CANCEL"
    DEPENDENTS = "DEPENDENTS"
    KEY = "KEY"
    UNIQUE_KEY = "UNIQUE_KEY"

    @property
    def marker(self) -> str:
        """The column of Task with the keys of this kind."""
        return f"open_{self.lower()}"


class TaskRequestQuerySet(models.QuerySet["TaskRequest"]):
    """The queryset of requests."""

    def of(self, tasks: Iterable[uuid.UUID]) -> Self:
        """Requests that name these tasks."""
        return self.filter(task_id__in=list(tasks))

    def for_key(self, kind: RequestKind, tenant_id: int, key: str) -> Self:
        """The request for this key; there is at most one."""
        return self.filter(kind=kind, tenant_id=tenant_id, key=key)


class TaskRequest(models.Model):
    """Written in the caller's transaction instead of locking the RUNNING task, deleted when it is
    applied.

    CANCEL: ``task_id`` is to stop, for this ``reason``. DEPENDENTS: ``task_id`` has new dependents,
    so its ending must write an ending event. KEY and UNIQUE_KEY: ``task_id`` is the new owner of
    ``key``, which a RUNNING task still owns.
    """

    id = models.BigAutoField(primary_key=True)
    kind = ExactCharField(max_length=10, choices=[(kind.value, kind.value) for kind in RequestKind])
    task_id = models.UUIDField(db_index=True)
    tenant_id = models.BigIntegerField(null=True)
    key = ExactCharField(max_length=200, null=True)
    reason = ExactCharField(max_length=200, db_default="")
    created_at = InstantField(db_default=StatementTime())

    objects = TaskRequestQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_request"
        constraints: ClassVar = [
            PresentUnique(fields=("kind", "tenant_id", "key"), name="durable_request_one_key")
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.task_id}"
