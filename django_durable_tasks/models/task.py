"""Task: one intended execution. Its querysets only read.

Every open task has one deadline: PENDING and QUEUED an indexed ``due_at``, RUNNING an unindexed
``lease_until`` (so that heartbeats stay HOT on PostgreSQL). Only ``engine.transitions`` writes
``status``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.clock import StatementTime
from django_durable_tasks.models.encrypted_json import EncryptedJSONField
from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel
from django_durable_tasks.models.indexes import PartialIndex, PresentUnique
from django_durable_tasks.models.instants import InstantField
from django_durable_tasks.models.standing import UnindexedIn
from django_durable_tasks.models.task_queries import (
    NEVER,
    STATUSES_WITH_DUE_AT,
    TaskManager,
    new_task_id,
)
from django_durable_tasks.models.tenant import DEFAULT_TENANT_ID
from django_durable_tasks.rules.dependencies import OnUpstreamFailure
from django_durable_tasks.rules.states import OPEN, REPLAYABLE, OnOrphan, Status
from django_durable_tasks.rules.target_types import TargetType, target_config

_RARE = sorted(status.value for status in REPLAYABLE)
_PENDING, _QUEUED, _RUNNING = Status.PENDING.value, Status.QUEUED.value, Status.RUNNING.value


class Task(GuardedModel):
    """One intended execution of a durable task, with its arguments."""

    instead: ClassVar[str] = (
        "Create tasks with schedule() or delay() of the task function; change them with "
        "Task.objects.filter(...).replay(), retry(), cancel(), force_complete() or reschedule()."
    )

    id = models.UUIDField(primary_key=True, default=new_task_id, editable=False)
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant",
        models.PROTECT,
        db_default=DEFAULT_TENANT_ID,
        db_index=False,
        db_constraint=False,
        related_name="+",
    )
    name = ExactCharField(_("name"), max_length=200)
    queue = ExactCharField(_("queue"), max_length=200)
    priority = models.SmallIntegerField(
        _("priority"), db_default=0, help_text=_("0 to 9, 9 first.")
    )
    args = EncryptedJSONField(_("arguments"), default=list)
    kwargs = EncryptedJSONField(_("keyword arguments"), default=dict)
    options = models.JSONField(_("overridden options"), null=True, blank=True)

    status = ExactCharField(_("status"), max_length=9, choices=[(s.value, s.value) for s in Status])
    status.register_lookup(UnindexedIn)
    run_at = InstantField(_("run at"), help_text=_("Earliest start, as it was asked for."))
    due_at = InstantField(_("due at"), null=True, blank=True)
    # The due_at before the last claim, and the time of the claim. NULL until a task is claimed; a
    # task of the fast path is published without a claim.
    ready_at = InstantField(_("ready at"), null=True, editable=False)
    queued_at = InstantField(_("queued at"), null=True, editable=False)
    lease_until = InstantField(_("lease until"), null=True, blank=True)
    expires_at = InstantField(_("expires at"), null=True, blank=True)
    epoch = models.BigIntegerField(_("epoch"), db_default=0)
    run_id = models.UUIDField(_("run id"), null=True, blank=True)
    node = models.UUIDField(_("node"), null=True, blank=True)

    attempts = models.IntegerField(_("attempts"), db_default=0)
    failures = models.IntegerField(_("failures"), db_default=0)
    crashes = models.IntegerField(_("crashes"), db_default=0)
    publish_count = models.IntegerField(_("publish count"), db_default=0)
    max_attempts = models.IntegerField(_("max attempts"), db_default=5)
    max_crashes = models.IntegerField(_("max crashes"), db_default=3)
    on_orphan = ExactCharField(
        _("on orphan"),
        max_length=11,
        choices=[(o.value, o.value) for o in OnOrphan],
        db_default=OnOrphan.RETRY.value,
    )
    expected_duration = models.DurationField(_("expected duration"), null=True, blank=True)

    idempotency_key = ExactCharField(_("idempotency key"), max_length=200, null=True, blank=True)
    key = ExactCharField(_("key"), max_length=200, null=True, blank=True)
    unique_key = ExactCharField(_("unique key"), max_length=200, null=True, blank=True)
    open_key = ExactCharField(max_length=200, null=True, editable=False)
    open_unique_key = ExactCharField(max_length=200, null=True, editable=False)

    result = EncryptedJSONField(_("result"), null=True, blank=True)
    progress = models.JSONField(_("progress"), null=True, blank=True)
    last_error = models.TextField(_("last error"), db_default="", blank=True)
    reason = ExactCharField(_("reason"), max_length=200, db_default="", blank=True)
    cancel_requested_at = InstantField(_("cancel requested at"), null=True, blank=True)
    created_at = InstantField(_("created at"), db_default=StatementTime())
    updated_at = InstantField(_("updated at"), db_default=StatementTime())
    started_at = InstantField(_("started at"), null=True, blank=True)
    completed_at = InstantField(_("completed at"), null=True, blank=True)

    target_type = ExactCharField(
        _("target type"),
        max_length=13,
        choices=[(kind.value, kind.value) for kind in TargetType],
        db_default=TargetType.CELERY_TASK.value,
    )
    time_zone = ExactCharField(_("time zone"), max_length=64, db_default="", blank=True)
    recurring_task = models.ForeignKey(
        "django_durable_tasks.RecurringTask",
        models.DO_NOTHING,
        null=True,
        blank=True,
        db_index=False,
        db_constraint=False,
        related_name="tasks",
    )
    fire_time = InstantField(_("fire time"), null=True, blank=True)
    # A key of 200 characters after the id of the tenant.
    overlap_key = ExactCharField(_("overlap key"), max_length=220, null=True, blank=True)
    workflow = models.ForeignKey(
        "django_durable_tasks.WorkflowRun",
        models.DO_NOTHING,
        null=True,
        blank=True,
        db_index=False,
        db_constraint=False,
        related_name="tasks",
    )
    step = ExactCharField(_("step"), max_length=200, null=True, blank=True)
    join_count = models.IntegerField(
        _("join"), null=True, blank=True, help_text=_("How many of its edges it needs; empty: all.")
    )
    on_upstream_failure = ExactCharField(
        _("on upstream failure"),
        max_length=4,
        choices=[(policy.value, policy.value) for policy in OnUpstreamFailure],
        db_default=OnUpstreamFailure.SKIP.value,
    )
    cause = models.UUIDField(
        _("cause"), null=True, blank=True, help_text=_("The task because of which it ended.")
    )
    has_dependents = models.BooleanField(_("has dependents"), db_default=False)
    unresolved_dependencies_count = models.IntegerField(_("unresolved dependencies"), db_default=0)
    shard_key = models.SmallIntegerField(_("shard"), db_default=0)
    weight = models.SmallIntegerField(
        _("weight"), db_default=1, help_text=_("How many places and tokens of each limit it takes.")
    )
    limit_key = ExactCharField(_("limit key"), max_length=200, null=True, blank=True)
    # Long enough for the scope worker:<name>@<queue>.
    waiting_for_limit = ExactCharField(
        _("waiting for limit"), max_length=410, null=True, editable=False
    )
    priority_boost = models.SmallIntegerField(_("priority boost"), db_default=0, editable=False)
    encryption_key = ExactCharField(
        _("encryption key"), max_length=40, null=True, blank=True, editable=False
    )
    # Set at the insert and part of the conditions of two indexes: claims read the tasks without it,
    # batches those with it.
    in_batch = models.BooleanField(_("runs in batches"), db_default=False, editable=False)

    objects = TaskManager()

    class Meta:
        db_table = "durable_tasks_task"
        verbose_name = _("task")
        verbose_name_plural = _("tasks")
        ordering: ClassVar = ["-id"]
        permissions: ClassVar = [
            ("cancel_task", "Can cancel tasks"),
            ("retry_task", "Can retry a waiting or finished task"),
            ("force_complete_task", "Can call tasks done without running them"),
            ("view_task_arguments", "Can read unmasked arguments and results"),
        ]
        constraints: ClassVar = [
            PresentUnique(fields=("tenant", "idempotency_key"), name="durable_task_idempotent"),
            PresentUnique(fields=("tenant", "open_key"), name="durable_task_one_open_key"),
            PresentUnique(
                fields=("tenant", "open_unique_key"), name="durable_task_one_open_unique"
            ),
            models.CheckConstraint(
                condition=Q(status__in=STATUSES_WITH_DUE_AT, due_at__isnull=False)
                | (~Q(status__in=STATUSES_WITH_DUE_AT) & Q(due_at__isnull=True)),
                name="durable_task_due_at",
            ),
            models.CheckConstraint(
                condition=Q(status=_RUNNING, lease_until__isnull=False, run_id__isnull=False)
                | (~Q(status=_RUNNING) & Q(lease_until__isnull=True)),
                name="durable_task_lease",
            ),
        ]
        indexes: ClassVar = [
            PartialIndex(
                fields=["queue", "priority", "due_at"],
                where=Q(status=_PENDING, in_batch=False),
                elsewhere=("status", "in_batch", "queue", "priority", "due_at"),
                name="durable_task_pending",
            ),
            # For the turns of tenants. A project with one tenant does not pay for this index.
            PartialIndex(
                fields=["queue", "tenant", "priority", "due_at"],
                where=Q(status=_PENDING, in_batch=False, tenant__gt=DEFAULT_TENANT_ID),
                elsewhere=("status", "in_batch", "queue", "tenant", "priority", "due_at"),
                name="durable_task_turns",
            ),
            PartialIndex(
                fields=["queue", "name", "priority", "due_at"],
                where=Q(status=_PENDING, in_batch=True),
                elsewhere=("status", "in_batch", "queue", "name", "priority", "due_at"),
                name="durable_task_batch",
            ),
            PartialIndex(
                fields=["due_at"],
                where=Q(status=_QUEUED),
                elsewhere=("status", "due_at"),
                name="durable_task_queued",
            ),
            PartialIndex(
                fields=["node"],
                where=Q(status=_RUNNING),
                elsewhere=("status", "node"),
                name="durable_task_running",
            ),
            PartialIndex(
                fields=["unique_key"],
                where=Q(unique_key__isnull=False),
                elsewhere=("unique_key",),
                name="durable_task_unique_key",
            ),
            PartialIndex(
                fields=["key"],
                where=Q(key__isnull=False),
                elsewhere=("key",),
                name="durable_task_key",
            ),
            PartialIndex(
                fields=["recurring_task", "fire_time"],
                where=Q(recurring_task__isnull=False),
                elsewhere=("recurring_task", "fire_time"),
                name="durable_task_recurring",
            ),
            PartialIndex(
                fields=["overlap_key"],
                where=Q(overlap_key__isnull=False, completed_at__isnull=True),
                elsewhere=("overlap_key", "completed_at"),
                name="durable_task_overlap",
            ),
            PartialIndex(
                fields=["status", "completed_at"],
                where=Q(completed_at__isnull=False, workflow__isnull=True),
                elsewhere=("status", "completed_at"),
                name="durable_task_ended",
            ),
            PartialIndex(
                fields=["workflow"],
                where=Q(workflow__isnull=False),
                elsewhere=("workflow",),
                name="durable_task_workflow",
            ),
            PartialIndex(
                fields=["waiting_for_limit", "-priority", "ready_at", "id"],
                where=Q(waiting_for_limit__isnull=False),
                elsewhere=("waiting_for_limit", "-priority", "ready_at", "id"),
                name="durable_task_waiting",
            ),
            # For the lists of one tenant. The rows of the default tenant are read by the primary
            # key, so that a project with one tenant does not pay for this index.
            PartialIndex(
                fields=["tenant", "id"],
                where=Q(tenant__gt=DEFAULT_TENANT_ID),
                elsewhere=("tenant", "id"),
                name="durable_task_tenant",
            ),
            PartialIndex(
                fields=["encryption_key", "id"],
                where=Q(encryption_key__isnull=False),
                elsewhere=("encryption_key", "id"),
                name="durable_task_encryption",
            ),
            # For lists of rare statuses, and for lists and quotas of the open tasks of a tenant
            # other than the default one. A task of the default tenant that succeeds never enters
            # this index.
            PartialIndex(
                fields=["tenant", "status", "id"],
                where=Q(status__in=_RARE)
                | Q(tenant__gt=DEFAULT_TENANT_ID, completed_at__isnull=True),
                elsewhere=("tenant", "status", "id"),
                name="durable_task_rare",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.id}"

    @property
    def target_config(self) -> dict[str, Any]:
        """What the task does, from its name and arguments. It contains secrets of the arguments."""
        return target_config(self.target_type, self.name, self.args, self.kwargs)

    @property
    def dedupe_key(self) -> str:
        """The effective idempotency key: the given one, otherwise the id. It is stable over
        attempts and replays.
        """
        return self.idempotency_key or str(self.id)

    @property
    def next_attempt_at(self) -> datetime | None:
        """When a PENDING task will be published (UTC), from ``due_at``; None while it waits for a
        limit or an overlap key.
        """
        return self.due_at if self.status == Status.PENDING and not self.is_waiting else None

    @property
    def is_waiting(self) -> bool:
        """Whether the task waits for its overlap key or for a limit, and therefore has no
        due time.
        """
        return self.status == Status.PENDING and self.due_at is not None and self.due_at >= NEVER

    @property
    def is_open(self) -> bool:
        """Whether the task has not ended."""
        return self.status in OPEN
