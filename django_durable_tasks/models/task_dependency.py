"""TaskDependency: one edge. A task waits for an upstream to end, or for a person to open a gate."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, ClassVar, Self

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.models.indexes import PartialIndex
from django_durable_tasks.models.instants import InstantField
from django_durable_tasks.rules.dependencies import DependencyType, Gate, OnUpstreamFailure


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
        db_index=False,
        db_constraint=False,
        verbose_name=_("task"),
    )
    depends_on = models.ForeignKey(
        "django_durable_tasks.Task",
        models.DO_NOTHING,
        null=True,
        blank=True,
        related_name="dependents",
        db_index=False,
        db_constraint=False,
        verbose_name=_("depends on"),
    )
    dependency_type = ExactCharField(
        _("dependency type"),
        max_length=12,
        choices=[(kind.value, kind.value) for kind in DependencyType],
        db_default=DependencyType.MUST_SUCCEED.value,
    )
    gate = ExactCharField(
        _("gate"),
        max_length=8,
        null=True,
        blank=True,
        choices=[(gate.value, gate.value) for gate in Gate],
    )
    on_upstream_failure = ExactCharField(
        _("on upstream failure"),
        max_length=4,
        null=True,
        blank=True,
        choices=[(policy.value, policy.value) for policy in OnUpstreamFailure],
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
                elsewhere=("depends_on", "task"),
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
