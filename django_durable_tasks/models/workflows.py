"""Workflow runs, dependencies between tasks, and endings that are to be propagated."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.choices import (
    OPEN_RUN,
    DependencyType,
    Gate,
    OnUpstreamFailure,
    Status,
    WorkflowStatus,
)
from django_durable_tasks.models.fields import (
    UNCONSTRAINED,
    ExactCharField,
    InstantField,
    PartialIndex,
    PresentUnique,
    StatementTime,
    choice_field,
    choices_of,
)
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet, TenantQuerySet
from django_durable_tasks.models.tenants import tenant_key
from django_durable_tasks.task_values import new_task_id

if TYPE_CHECKING:
    from django_durable_tasks.models.guarded import ManagerOf

# WorkflowRun: one start of a workflow. Its counters are updated from ending events, not by the
# endings themselves.


class WorkflowRunQuerySet(TenantQuerySet["WorkflowRun"]):
    """The queryset of workflow runs."""

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
        queryset = self.filter(
            parent__isnull=True, completed_at__lt=cutoff, completed_at__isnull=False
        )
        if past is not None:
            later = models.Q(completed_at__gt=past[0]) | models.Q(id__gt=past[1])
            queryset = queryset.filter(later, completed_at__gte=past[0])
        return queryset.order_by("completed_at", "id")


class WorkflowRun(GuardedModel):
    """One start of a workflow, with its progress."""

    instead: ClassVar[str] = "Start workflows with Workflow(...).start()."

    id = models.UUIDField(primary_key=True, default=new_task_id, editable=False)
    tenant = tenant_key()
    name = ExactCharField(_("name"), max_length=200, db_index=True)
    status = choice_field(_("status"), WorkflowStatus, 9)
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

    if TYPE_CHECKING:
        objects: ClassVar[ManagerOf[WorkflowRun, WorkflowRunQuerySet]]
    else:
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


# TaskDependency: one edge. A task waits for an upstream to end, or for a person to open a gate.


class TaskDependencyQuerySet(GuardedQuerySet["TaskDependency"]):
    """The queryset of edges and gates."""

    def unresolved(self) -> Self:
        """Edges and gates for which their task waits."""
        return self.filter(resolved_at__isnull=True)

    def without_outcome(self) -> Self:
        """Return the edges whose upstream has not ended, or whose ending is not resolved yet.

        An edge that waits for a replay of its upstream has an outcome and is unresolved.
        """
        return self.unresolved().filter(outcome__isnull=True)

    def gates(self) -> Self:
        """Gates, which wait for a person."""
        return self.filter(depends_on__isnull=True)

    def below(self, upstreams: Iterable[uuid.UUID]) -> Self:
        """Edges from these upstreams."""
        return self.filter(depends_on__in=list(upstreams))

    def above(self, tasks: Iterable[uuid.UUID]) -> Self:
        """Edges and gates of these tasks."""
        return self.filter(task__in=list(tasks))

    def for_tenant(self, tenant: Any) -> Self:
        """Edges of this tenant's tasks (a Tenant or its id)."""
        return self.filter(task__tenant_id=getattr(tenant, "pk", tenant))


class TaskDependency(GuardedModel):
    """One dependency of a task. It is resolved when its upstream has ended; a replay of the
    upstream makes it unresolved again.
    """

    instead: ClassVar[str] = (
        "Declare dependencies with using(depends_on=[...]) or in a Workflow; change them in the"
        " admin or with `manage.py durable depend`."
    )

    id = models.BigAutoField(primary_key=True)
    task = models.ForeignKey(
        "django_durable_tasks.Task",
        models.CASCADE,
        related_name="dependencies",
        verbose_name=_("task"),
        **UNCONSTRAINED,
    )
    depends_on = models.ForeignKey(
        "django_durable_tasks.Task",
        models.DO_NOTHING,
        null=True,
        blank=True,
        related_name="dependents",
        verbose_name=_("depends on"),
        **UNCONSTRAINED,
    )
    dependency_type = choice_field(
        _("dependency type"), DependencyType, 12, db_default=DependencyType.MUST_SUCCEED.value
    )
    gate = ExactCharField(_("gate"), max_length=8, null=True, blank=True, choices=choices_of(Gate))
    on_upstream_failure = ExactCharField(
        _("on upstream failure"),
        max_length=4,
        null=True,
        blank=True,
        choices=choices_of(OnUpstreamFailure),
        help_text=_("Empty: as the task says."),
    )
    resolved_at = InstantField(_("resolved at"), null=True, blank=True)
    outcome = ExactCharField(_("outcome"), max_length=9, null=True, blank=True)
    met = models.BooleanField(_("met"), null=True, blank=True)
    placed_by = ExactCharField(_("placed by"), max_length=200, blank=True, db_default="")
    resolved_by = ExactCharField(_("resolved by"), max_length=200, blank=True, db_default="")
    comment = ExactCharField(_("comment"), max_length=500, blank=True, db_default="")

    objects = TaskDependencyQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_dependency"
        verbose_name = _("dependency")
        verbose_name_plural = _("dependencies")
        ordering: ClassVar = ["id"]
        permissions: ClassVar = [("approve_taskdependency", "Can open approvals and holds")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["task", "depends_on"], name="durable_one_edge"),
            models.CheckConstraint(
                condition=models.Q(depends_on__isnull=False, gate__isnull=True)
                | models.Q(depends_on__isnull=True, gate__isnull=False),
                name="durable_edge_or_gate",
            ),
        ]
        indexes: ClassVar = [
            PartialIndex(
                fields=["depends_on", "task"],
                where=models.Q(depends_on__isnull=False),
                name="durable_dependency_below",
            ),
            PartialIndex(
                fields=["task"],
                where=models.Q(resolved_at__isnull=True),
                elsewhere=("task", "resolved_at"),
                name="durable_dependency_unresolved",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task_id} after {self.depends_on_id or self.gate}"

    @property
    def upstream_id(self) -> uuid.UUID:
        """The id of the upstream of an edge; raises LookupError for a gate."""
        if self.depends_on_id is None:
            raise LookupError(f"The gate {self.pk} has no upstream.")
        return self.depends_on_id


# EndingEvent: an ended task whose dependents or workflow run have not been updated yet.


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


COUNTS: Mapping[str, str] = {
    Status.SUCCESS: "succeeded",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
    Status.SKIPPED: "skipped",
    Status.EXPIRED: "expired",
}
"""The column of a run that counts the endings of each status."""
