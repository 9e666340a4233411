"""WorkflowRun: one start of a workflow. Its counters are updated from ending events, not by the
endings themselves.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, ClassVar, Self

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.clock import StatementTime
from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.models.indexes import PartialIndex, PresentUnique
from django_durable_tasks.models.instants import InstantField
from django_durable_tasks.models.task_queries import new_task_id
from django_durable_tasks.models.tenant import DEFAULT_TENANT_ID
from django_durable_tasks.rules.workflows.plan import OPEN_RUN, WorkflowStatus


class WorkflowRunQuerySet(GuardedQuerySet["WorkflowRun"]):
    """The queryset of workflow runs."""

    def for_tenant(self, tenant: Any) -> Self:
        """Runs of this tenant (a Tenant or its id)."""
        return self.filter(tenant_id=getattr(tenant, "pk", tenant))

    def open(self) -> Self:
        """Runs that have not ended."""
        return self.filter(status__in=OPEN_RUN)

    def starting(self) -> Self:
        """Runs whose tasks are still being written."""
        return self.filter(status=WorkflowStatus.STARTING)

    def late(self, now: datetime) -> Self:
        """Open runs whose deadline has passed."""
        return self.filter(
            status=WorkflowStatus.RUNNING, deadline_at__lte=now, cancel_requested_at__isnull=True
        )

    def ended_before(
        self, cutoff: datetime, past: tuple[datetime, uuid.UUID] | None = None
    ) -> Self:
        """Outermost runs that ended before ``cutoff``, the oldest end first; with ``past``, those
        after this one.
        """
        found = self.filter(
            parent__isnull=True, completed_at__lt=cutoff, completed_at__isnull=False
        )
        if past is not None:
            later = models.Q(completed_at__gt=past[0]) | models.Q(id__gt=past[1])
            found = found.filter(later, completed_at__gte=past[0])
        return found.order_by("completed_at", "id")


class WorkflowRun(GuardedModel):
    """One start of a workflow, with its progress."""

    instead: ClassVar[str] = "Start workflows with Workflow(...).start()."

    id = models.UUIDField(primary_key=True, default=new_task_id, editable=False)
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant",
        models.PROTECT,
        db_default=DEFAULT_TENANT_ID,
        db_index=False,
        db_constraint=False,
        related_name="+",
    )
    name = ExactCharField(_("name"), max_length=200, db_index=True)
    status = ExactCharField(
        _("status"), max_length=9, choices=[(s.value, s.value) for s in WorkflowStatus]
    )
    key = ExactCharField(_("key"), max_length=200, null=True, blank=True)
    open_key = ExactCharField(max_length=200, null=True, editable=False)
    parent = models.UUIDField(_("parent run"), null=True, blank=True)
    root = models.UUIDField(
        _("outermost run"),
        db_index=True,
        help_text=_("The run itself, or the one it is a part of."),
    )
    released = models.BooleanField(db_default=True, editable=False)
    recurring_task = models.UUIDField(_("recurring task"), null=True, blank=True)
    fire_time = InstantField(_("fire time"), null=True, blank=True)
    deadline_at = InstantField(_("deadline"), null=True, blank=True)
    callbacks = models.JSONField(_("callbacks"), default=dict, blank=True)

    total = models.IntegerField(_("tasks"), db_default=0)
    succeeded = models.IntegerField(_("succeeded"), db_default=0)
    failed = models.IntegerField(_("failed"), db_default=0)
    cancelled = models.IntegerField(_("cancelled"), db_default=0)
    skipped = models.IntegerField(_("skipped"), db_default=0)
    expired = models.IntegerField(_("expired"), db_default=0)

    reason = ExactCharField(_("reason"), max_length=200, db_default="", blank=True)
    cancel_requested_at = InstantField(_("cancel requested at"), null=True, blank=True)
    created_at = InstantField(_("created at"), db_default=StatementTime())
    updated_at = InstantField(_("updated at"), db_default=StatementTime())
    sealed_at = InstantField(_("sealed at"), null=True, blank=True)
    completed_at = InstantField(_("completed at"), null=True, blank=True)

    objects = WorkflowRunQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_workflow_run"
        verbose_name = _("workflow run")
        verbose_name_plural = _("workflow runs")
        ordering: ClassVar = ["-id"]
        permissions: ClassVar = [
            ("cancel_workflowrun", "Can cancel workflows and branches"),
            ("retry_workflowrun", "Can retry workflows"),
            ("force_workflowrun", "Can force-run and force-complete tasks of workflows"),
        ]
        constraints: ClassVar = [
            PresentUnique(fields=("tenant", "open_key"), name="durable_one_open_workflow_key")
        ]
        indexes: ClassVar = [
            models.Index(fields=["tenant", "id"], name="durable_workflow_tenant"),
            PartialIndex(
                fields=["deadline_at"],
                where=models.Q(completed_at__isnull=True, deadline_at__isnull=False),
                elsewhere=("completed_at", "deadline_at"),
                name="durable_workflow_deadline",
            ),
            PartialIndex(
                fields=["status"],
                where=models.Q(completed_at__isnull=True),
                elsewhere=("completed_at", "status"),
                name="durable_workflow_open",
            ),
            PartialIndex(
                fields=["completed_at"],
                where=models.Q(parent__isnull=True, completed_at__isnull=False),
                elsewhere=("parent", "completed_at"),
                name="durable_workflow_ended",
            ),
            PartialIndex(
                fields=["recurring_task", "completed_at"],
                where=models.Q(recurring_task__isnull=False),
                elsewhere=("recurring_task", "completed_at"),
                name="durable_workflow_recurring",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.id}"

    @property
    def ended(self) -> int:
        """How many of its tasks have ended, as counted so far."""
        return self.succeeded + self.failed + self.cancelled + self.skipped + self.expired

    @property
    def progress(self) -> float:
        """The fraction of its tasks that have ended, 0 to 1."""
        return self.ended / self.total if self.total else 1.0

    @property
    def is_open(self) -> bool:
        """Whether the run has not ended."""
        return self.status in OPEN_RUN
