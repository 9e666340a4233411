"""BulkOperation: a change of all tasks of a tenant that match a filter, with its progress."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Self

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.clock import StatementTime
from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.models.instants import InstantField
from django_durable_tasks.models.task_queries import new_task_id


class BulkKind(StrEnum):
    """What is done with the tasks."""

    CANCEL = "CANCEL"
    REPLAY = "REPLAY"


class BulkOperationQuerySet(GuardedQuerySet["BulkOperation"]):
    """The queryset of bulk operations."""

    def for_tenant(self, tenant: Any) -> Self:
        """Operations of this tenant (a Tenant or its id)."""
        return self.filter(tenant_id=getattr(tenant, "pk", tenant))


class BulkOperation(GuardedModel):
    """One operation on many tasks, which ``task`` performs in steps.

    Each step reads the tasks after ``last_id`` in the order of their ids, changes those that match,
    and moves ``last_id`` in the same transaction. Tasks with ids above ``until_id`` were created
    after the operation.
    """

    instead: ClassVar[str] = (
        "The HTTP API creates these rows with bulk_operations.start(...), and a durable task"
        " changes them."
    )

    id = models.UUIDField(primary_key=True, default=new_task_id, editable=False)
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant", models.PROTECT, db_index=False, related_name="+"
    )
    kind = ExactCharField(
        _("kind"), max_length=6, choices=[(kind.value, kind.value) for kind in BulkKind]
    )
    filters = models.JSONField(_("filters"), default=dict)
    task = models.ForeignKey(
        "django_durable_tasks.Task",
        models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="+",
    )
    last_id = models.UUIDField(null=True)
    until_id = models.UUIDField()
    matched = models.IntegerField(_("matched"), db_default=0)
    changed = models.IntegerField(_("changed"), db_default=0)
    failed = models.IntegerField(_("failed"), db_default=0)
    errors = models.JSONField(_("errors"), default=list)
    created_by = ExactCharField(_("created by"), max_length=200, blank=True, db_default="")
    reason = ExactCharField(_("reason"), max_length=500, blank=True, db_default="")
    created_at = InstantField(_("created at"), db_default=StatementTime())
    completed_at = InstantField(_("completed at"), null=True, blank=True)

    objects = BulkOperationQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_bulk_operation"
        verbose_name = _("bulk operation")
        verbose_name_plural = _("bulk operations")
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            models.Index(fields=["tenant", "id"], name="durable_bulk_tenant"),
            models.Index(fields=["created_at"], name="durable_bulk_created"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"
