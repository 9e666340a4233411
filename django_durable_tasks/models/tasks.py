"""Tasks: their attempts, dead letters, requests to running tasks, and operations on many of
them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.choices import (
    DEFAULT_TENANT_ID,
    OPEN,
    REPLAYABLE,
    WITH_DUE_AT,
    LogStatus,
    OnOrphan,
    OnUpstreamFailure,
    Resolution,
    Status,
    TargetType,
)
from django_durable_tasks.models.fields import (
    TASK_TABLE,
    UNCONSTRAINED,
    DatabaseNow,
    EncryptedJSONField,
    ExactCharField,
    InstantField,
    PartialIndex,
    PresentUnique,
    StatementTime,
    UnindexedIn,
    choice_field,
    choices_of,
)
from django_durable_tasks.models.guarded import (
    GuardedModel,
    GuardedQuerySet,
    TenantQuerySet,
    alters_data,
)
from django_durable_tasks.models.tenants import tenant_key
from django_durable_tasks.task_values import new_task_id as new_task_id  # migrations name it here

if TYPE_CHECKING:
    from django_durable_tasks.models.guarded import ManagerOf

# Querysets of tasks, for schedulers, workers and operators.


NEVER = datetime(9000, 1, 1, tzinfo=UTC)
"""``due_at`` of a PENDING task that waits for its overlap key or for a limit.

A sentinel and not NULL: a CHECK constraint requires a ``due_at`` of every PENDING task, and a range
of the index on ``due_at`` leaves out the tasks that wait.
"""


STATUSES_WITH_DUE_AT = sorted(status.value for status in WITH_DUE_AT)


class TaskQuerySet(TenantQuerySet["Task"]):
    """The queryset of tasks; it can be filtered further and passed to operations.

    The operations change those of the tasks whose status allows it; ``by`` (who) and ``reason``
    (why) are stored in the tasks.
    """

    @alters_data
    def replay(
        self,
        *,
        by: str = "",
        reason: str = "",
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[uuid.UUID]:
        """Run the FAILED, CANCELLED, SKIPPED and EXPIRED tasks again; return their ids.

        Failures and crashes are counted from zero again, and open dead letters are closed. ``args``
        and ``kwargs`` replace the arguments of exactly one task. Raises TransitionRefused if a
        newer open task has the same key.
        """
        from django_durable_tasks.tasks import operator_actions

        return operator_actions.replay_edited(
            self._plain(), args=args, kwargs=kwargs, by=by, reason=reason
        )

    @alters_data
    def retry(self, *, by: str = "", reason: str = "") -> int:
        """Make the tasks that wait for their next attempt due now; return how many."""
        from django_durable_tasks.tasks import operator_actions

        return operator_actions.retry(self._plain(), by=by, reason=reason)

    @alters_data
    def cancel(self, *, by: str = "", reason: str = "") -> int:
        """Cancel the tasks that have not started and request RUNNING ones to stop; return their
        total number.
        """
        from django_durable_tasks.tasks import operator_actions

        return operator_actions.cancel(self._plain(), by=by, reason=reason).total

    @alters_data
    def force_complete(self, *, by: str = "", reason: str = "") -> list[uuid.UUID]:
        """Set the tasks to SUCCESS without running them, and resolve their dependents; return their
        ids.
        """
        from django_durable_tasks.tasks import operator_actions

        return operator_actions.force_complete(self._plain(), by=by, reason=reason)

    @alters_data
    def reschedule(self, run_at: datetime, *, by: str = "", reason: str = "") -> int:
        """Move the tasks that have not started to another time (aware); return how many."""
        from django_durable_tasks.tasks import operator_actions

        return operator_actions.move(self._plain(), run_at, by=by, reason=reason)

    def _plain(self) -> TaskQuerySet:
        """Return the same tasks as a plain queryset of the database of tasks.

        A caller's joins, annotations, DISTINCT or order would reach the locks and updates.
        """
        rows: TaskQuerySet = Task.objects.using(conf.settings().DATABASE)
        return rows.filter(pk__in=self.using(rows.db).order_by().values("pk"))

    def open(self) -> Self:
        """Tasks that have not ended."""
        return self.filter(status__in=OPEN)

    def blocked(self) -> Self:
        """Tasks that wait for other tasks, or for a person."""
        return self.filter(status=Status.BLOCKED)

    def of_workflow(self, run: Any) -> Self:
        """Tasks of this workflow run (a WorkflowRun or its id)."""
        return self.filter(workflow_id=getattr(run, "pk", run))

    def pending(self) -> Self:
        """Tasks that wait for their due time."""
        return self.filter(status=Status.PENDING)

    def queued(self) -> Self:
        """Tasks that were published and have not started."""
        return self.filter(status=Status.QUEUED)

    def running(self) -> Self:
        """Tasks that are running."""
        return self.filter(status=Status.RUNNING)

    def published_alone(self) -> Self:
        """PENDING tasks that have messages of their own."""
        return self.pending().filter(in_batch=False)

    def waiting_for_batch(self) -> Self:
        """PENDING tasks that workers start in batches."""
        return self.pending().filter(in_batch=True)

    def due(self, now: datetime) -> Self:
        """PENDING tasks that are due, the most urgent first.

        Both values of ``in_batch`` are listed so that the partial indexes are usable.
        """
        either = Q(in_batch=False) | Q(in_batch=True)
        return self.pending().filter(either, due_at__lte=now).order_by("-priority", "due_at", "id")

    def due_alone(self, now: datetime) -> Self:
        """PENDING tasks with messages of their own that are due."""
        return self.published_alone().filter(due_at__lte=now)

    def coming(
        self,
        now: datetime,
        until: datetime,
        priorities: Iterable[int] = range(10),
    ) -> Self:
        """PENDING tasks with messages of their own that are due after ``now`` and up to ``until``,
        the earliest first.

        Priorities are listed so that an index is usable.
        """
        return (
            self.published_alone()
            .filter(priority__in=list(priorities), due_at__gt=now, due_at__lte=until)
            .order_by("due_at", "id")
        )

    def with_overlap_keys(self, keys: Iterable[str]) -> Self:
        """Open tasks with these overlap keys, in the order in which they will run."""
        return self.filter(overlap_key__in=list(keys), completed_at__isnull=True).order_by(
            "run_at", "fire_time", "id"
        )

    def waiting_for_overlap(self) -> Self:
        """PENDING tasks that wait until no other task with their overlap key is open."""
        waiting = self.pending().filter(
            overlap_key__isnull=False, completed_at__isnull=True, due_at__gte=NEVER
        )
        return waiting.filter(waiting_for_limit__isnull=True)

    def waiting_for_limit(self) -> Self:
        """PENDING tasks that wait for capacity of a limit."""
        return self.pending().filter(waiting_for_limit__isnull=False, due_at__gte=NEVER)

    def waiting_for_scope(self, scope: str) -> Self:
        """Tasks that are waiting for this scope, the most urgent first, then the one that has been
        due for longest.
        """
        return (
            self.pending()
            .filter(waiting_for_limit=scope, due_at__gte=NEVER)
            .order_by("-priority", "ready_at", "id")
        )

    def reserved_for_scope(self, scope: str) -> Self:
        """Tasks that are waiting for this scope, or were released by it and not claimed yet, the
        most urgent first.
        """
        waiting = Q(due_at__lte=DatabaseNow()) | Q(due_at__gte=NEVER)
        return (
            self.pending()
            .filter(waiting, waiting_for_limit=scope)
            .order_by("-priority", "ready_at", "id")
        )

    def republish_due(self, now: datetime) -> Self:
        """QUEUED tasks that were not started in time."""
        return self.queued().filter(due_at__lte=now).order_by("due_at")

    def lease_over(self, now: datetime) -> Self:
        """RUNNING tasks whose lease has expired."""
        return self.running().filter(lease_until__lt=now)

    def retrying(self) -> Self:
        """PENDING tasks with a failed attempt."""
        return self.pending().filter(failures__gt=0)

    def overdue(self, now: datetime) -> Self:
        """RUNNING tasks that exceed their expected duration (seconds)."""
        return self.running().with_over().filter(expected_duration__isnull=False, over__lt=now)

    def with_over(self) -> Self:
        """The same tasks; queries may name as ``over`` when their expected duration has passed."""
        over = models.ExpressionWrapper(
            models.F("started_at") + models.F("expected_duration"), output_field=InstantField()
        )
        return self.alias(over=over)

    def ended_before(
        self, status: str, cutoff: datetime, past: tuple[datetime, uuid.UUID] | None = None
    ) -> Self:
        """Tasks outside of workflows that ended with this status before ``cutoff``, the oldest end
        first, by an index.

        With ``past``, the end and id of the last task of a page, only those after it.
        """
        queryset = self.filter(
            status=status,
            completed_at__lt=cutoff,
            completed_at__isnull=False,
            workflow__isnull=True,
        )
        if past is not None:
            queryset = queryset.filter(
                Q(completed_at__gt=past[0]) | Q(id__gt=past[1]), completed_at__gte=past[0]
            )
        return queryset.order_by("completed_at", "id")


if TYPE_CHECKING:
    _TaskManager = ManagerOf["Task", TaskQuerySet]
else:
    _TaskManager = models.Manager.from_queryset(TaskQuerySet)


class TaskManager(_TaskManager):
    """Task.objects: the queryset, but ``cancel`` and ``reschedule`` take the key of one task."""

    def cancel(self, key: str, *, by: str = "", reason: str = "", tenant: Any = None) -> int:
        """Cancel the open task with this key, or request it to stop if it is RUNNING; return the
        number of tasks.
        """
        from django_durable_tasks.tasks import operator_actions

        task = operator_actions.open_task_of(key, tenant)
        return operator_actions.cancel(task, by=by, reason=reason).total

    def reschedule(
        self, key: str, run_at: datetime, *, by: str = "", reason: str = "", tenant: Any = None
    ) -> int:
        """Move the open task with this key to another time (aware); return the number of tasks."""
        from django_durable_tasks.tasks import operator_actions

        task = operator_actions.open_task_of(key, tenant)
        return operator_actions.move(task, run_at, by=by, reason=reason)


# Task: one intended execution. Its querysets only read.
#
# Every open task has one deadline: PENDING and QUEUED an indexed ``due_at``, RUNNING an unindexed
# ``lease_until`` (so that heartbeats stay HOT on PostgreSQL). Only ``states`` writes ``status``.


_RARE = sorted(status.value for status in REPLAYABLE)
_PENDING, _QUEUED, _RUNNING = Status.PENDING.value, Status.QUEUED.value, Status.RUNNING.value


class Task(GuardedModel):
    """One intended execution of a durable task, with its arguments."""

    instead: ClassVar[str] = (
        "Create tasks with schedule() or delay() of the task function; change them with "
        "Task.objects.filter(...).replay(), retry(), cancel(), force_complete() or reschedule()."
    )

    id = models.UUIDField(primary_key=True, default=new_task_id, editable=False)
    tenant = tenant_key()
    name = ExactCharField(_("name"), max_length=200)
    queue = ExactCharField(_("queue"), max_length=200)
    priority = models.SmallIntegerField(
        _("priority"), db_default=0, help_text=_("0 to 9, 9 first.")
    )
    args = EncryptedJSONField(_("arguments"), default=list)
    kwargs = EncryptedJSONField(_("keyword arguments"), default=dict)
    options = models.JSONField(_("overridden options"), null=True, blank=True)

    status = choice_field(_("status"), Status, 9)
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
    on_orphan = choice_field(_("on orphan"), OnOrphan, 11, db_default=OnOrphan.RETRY.value)
    expected_duration = models.DurationField(_("expected duration"), null=True, blank=True)

    idempotency_key = ExactCharField(_("idempotency key"), max_length=200, null=True, blank=True)
    key = ExactCharField(_("key"), max_length=200, null=True, blank=True)
    unique_key = ExactCharField(_("unique key"), max_length=200, null=True, blank=True)
    open_key = ExactCharField(max_length=200, null=True, editable=False)
    open_unique_key = ExactCharField(max_length=200, null=True, editable=False)

    result = EncryptedJSONField(_("result"), null=True, blank=True)
    progress = models.JSONField(_("progress"), null=True, blank=True)
    # What the next attempt skips. Written by runs with steps, and read by their next one.
    position = EncryptedJSONField(_("position"), null=True, editable=False)
    last_error = models.TextField(_("last error"), db_default="", blank=True)
    reason = ExactCharField(_("reason"), max_length=200, db_default="", blank=True)
    cancel_requested_at = InstantField(_("cancel requested at"), null=True, blank=True)
    created_at = InstantField(_("created at"), db_default=StatementTime())
    updated_at = InstantField(_("updated at"), db_default=StatementTime())
    started_at = InstantField(_("started at"), null=True, blank=True)
    completed_at = InstantField(_("completed at"), null=True, blank=True)

    target_type = choice_field(
        _("target type"), TargetType, 13, db_default=TargetType.CELERY_TASK.value
    )
    time_zone = ExactCharField(_("time zone"), max_length=64, db_default="", blank=True)
    recurring_task = models.ForeignKey(
        "django_durable_tasks.RecurringTask",
        models.DO_NOTHING,
        null=True,
        blank=True,
        related_name="tasks",
        **UNCONSTRAINED,
    )
    fire_time = InstantField(_("fire time"), null=True, blank=True)
    # A key of 200 characters after the id of the tenant.
    overlap_key = ExactCharField(_("overlap key"), max_length=220, null=True, blank=True)
    workflow = models.ForeignKey(
        "django_durable_tasks.WorkflowRun",
        models.DO_NOTHING,
        null=True,
        blank=True,
        related_name="tasks",
        **UNCONSTRAINED,
    )
    step = ExactCharField(_("step"), max_length=200, null=True, blank=True)
    join_count = models.IntegerField(
        _("join"), null=True, blank=True, help_text=_("How many of its edges it needs; empty: all.")
    )
    on_upstream_failure = choice_field(
        _("on upstream failure"), OnUpstreamFailure, 4, db_default=OnUpstreamFailure.SKIP.value
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

    objects: ClassVar[TaskManager] = TaskManager()

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
                name="durable_task_unique_key",
            ),
            PartialIndex(fields=["key"], where=Q(key__isnull=False), name="durable_task_key"),
            PartialIndex(
                fields=["recurring_task", "fire_time"],
                where=Q(recurring_task__isnull=False),
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
                name="durable_task_ended",
            ),
            PartialIndex(
                fields=["workflow"], where=Q(workflow__isnull=False), name="durable_task_workflow"
            ),
            PartialIndex(
                fields=["waiting_for_limit", "-priority", "ready_at", "id"],
                where=Q(waiting_for_limit__isnull=False),
                name="durable_task_waiting",
            ),
            # For the lists of one tenant. The rows of the default tenant are read by the primary
            # key, so that a project with one tenant does not pay for this index.
            PartialIndex(
                fields=["tenant", "id"],
                where=Q(tenant__gt=DEFAULT_TENANT_ID),
                name="durable_task_tenant",
            ),
            PartialIndex(
                fields=["encryption_key", "id"],
                where=Q(encryption_key__isnull=False),
                name="durable_task_encryption",
            ),
            # For lists of rare statuses, and for lists and quotas of the open tasks of a tenant
            # other than the default one. A task of the default tenant that succeeds never enters
            # this index.
            PartialIndex(
                fields=["tenant", "status", "id"],
                where=Q(status__in=_RARE)
                | Q(tenant__gt=DEFAULT_TENANT_ID, completed_at__isnull=True),
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


# TaskExecutionLog: one row per attempt, written once, at its end. An attempt in progress is read
# from its Task.


class TaskExecutionLogQuerySet(GuardedQuerySet["TaskExecutionLog"]):
    """The queryset of attempts."""


class TaskExecutionLog(GuardedModel):
    """The result of one attempt, its node, and its error."""

    instead: ClassVar[str] = "To run a task again, use Task.objects.filter(...).replay()."

    id = models.BigAutoField(primary_key=True)
    # Without a constraint in the database: its check would cost every ending a row lock; retention
    # deletes both.
    task = models.ForeignKey(
        "django_durable_tasks.Task", models.CASCADE, related_name="executions", db_constraint=False
    )
    tenant = tenant_key()
    attempt_number = models.IntegerField(_("attempt"))
    status = choice_field(_("status"), LogStatus, 9)
    # Since when the task was due, when it was claimed, and when it started: the waits for the
    # scheduler and for the broker. ready_at is NULL if the task was published without a claim.
    ready_at = InstantField(_("ready at"), null=True)
    queued_at = InstantField(_("queued at"), null=True)
    started_at = InstantField(_("started at"), null=True)
    completed_at = InstantField(_("completed at"))
    error_message = models.TextField(_("error"), db_default="", blank=True)
    traceback = models.TextField(_("traceback"), db_default="", blank=True)
    # The class and the arguments of the exception, as celery/result.py writes them.
    exception = models.JSONField(_("exception"), null=True)
    worker = ExactCharField(_("worker"), max_length=255, db_default="", blank=True)
    node = models.UUIDField(_("node"), null=True)
    run_id = models.UUIDField(_("run id"), null=True)
    celery_id = ExactCharField(_("Celery id"), max_length=100, db_default="", blank=True)

    objects = TaskExecutionLogQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_execution_log"
        verbose_name = _("execution")
        verbose_name_plural = _("execution log")
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return f"{self.task_id} attempt {self.attempt_number}: {self.status}"

    @property
    def duration(self) -> float | None:
        """Seconds from start to end; None if the start is unknown."""
        return (self.completed_at - self.started_at).total_seconds() if self.started_at else None


# DeadLetter: the record of a task that failed finally. Every FAILED task has exactly one open dead
# letter.


class DeadLetterQuerySet(TenantQuerySet["DeadLetter"]):
    """The queryset, with the operations on its open dead letters."""

    def open(self) -> Self:
        """Open dead letters."""
        return self.filter(open_task__isnull=False)

    @alters_data
    def replay(
        self,
        *,
        by: str = "",
        reason: str = "",
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[uuid.UUID]:
        """Run the tasks of the open dead letters again, as ``Task.objects.replay`` does; return
        their ids.
        """
        from django_durable_tasks.tasks import operator_actions

        return operator_actions.replay_letters(self, args=args, kwargs=kwargs, by=by, reason=reason)

    @alters_data
    def discard(self, *, by: str = "", reason: str = "") -> int:
        """Close the open dead letters; their tasks stay FAILED. Return how many were closed."""
        from django_durable_tasks.tasks import operator_actions

        return operator_actions.discard_letters(self, by=by, reason=reason)


class DeadLetter(GuardedModel):
    """Why a task failed finally, how the dead letter was closed, and by whom."""

    instead: ClassVar[str] = (
        "Close dead letters with DeadLetter.objects.filter(...).replay() or discard()."
    )

    id = models.BigAutoField(primary_key=True)
    task = models.ForeignKey(
        "django_durable_tasks.Task", models.CASCADE, related_name="dead_letters"
    )
    open_task = models.UUIDField(null=True, editable=False)
    tenant = tenant_key()
    reason = ExactCharField(_("reason"), max_length=20)
    fingerprint = ExactCharField(_("fingerprint"), max_length=16, db_index=True)
    error_message = models.TextField(_("error"), blank=True)
    attempts = models.IntegerField(_("attempts"))
    args = EncryptedJSONField(_("arguments"), default=list)
    kwargs = EncryptedJSONField(_("keyword arguments"), default=dict)
    encryption_key = ExactCharField(
        _("encryption key"), max_length=40, null=True, blank=True, editable=False
    )
    created_at = InstantField(_("created at"))
    resolved_at = InstantField(_("resolved at"), null=True, blank=True)
    resolution = choice_field(_("resolution"), Resolution, 9, blank=True, default="")
    resolved_by = ExactCharField(_("resolved by"), max_length=200, blank=True, default="")
    comment = ExactCharField(_("comment"), max_length=500, blank=True, default="")

    if TYPE_CHECKING:
        objects: ClassVar[ManagerOf[DeadLetter, DeadLetterQuerySet]]
    else:
        objects = DeadLetterQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_dead_letter"
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
        ordering: ClassVar = ["-id"]
        permissions: ClassVar = [
            ("replay_deadletter", "Can replay"),
            ("discard_deadletter", "Can discard"),
        ]
        constraints: ClassVar = [
            PresentUnique(fields=("open_task",), name="durable_one_open_dead_letter")
        ]
        indexes: ClassVar = [
            models.Index(fields=["tenant", "id"], name="durable_dead_letter_tenant"),
            PartialIndex(
                fields=["tenant", "id"],
                where=models.Q(open_task__isnull=False),
                elsewhere=("tenant", "open_task"),
                name="durable_dead_letter_open",
            ),
            PartialIndex(
                fields=["encryption_key", "id"],
                where=models.Q(encryption_key__isnull=False),
                name="durable_letter_encryption",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task_id}: {self.reason}"

    @property
    def encryption_place(self) -> tuple[str, Any]:
        """Its arguments are those of the task, which are copied without decryption."""
        return TASK_TABLE, self.task_id


# TaskRequest: a transaction's request to a RUNNING task, until it is applied after the commit.


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
    kind = ExactCharField(max_length=10, choices=choices_of(RequestKind))
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


# ``target_config``: the form in which interfaces read and write name and arguments of a task.


BUILT_IN_MEMBERS = frozenset(
    {"url", "method", "headers", "body", "timeout", "retry_on", "no_retry_on", "endpoint", "queue"}
    | {"exchange", "routing_key", "content_type"}
)
"""The members of ``target_config`` of the types other than CELERY_TASK."""
CELERY_MEMBERS = frozenset({"task", "args", "kwargs"})


def target_config(
    target_type: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the configuration of a target, which is stored as name and arguments of the task."""
    if target_type == TargetType.CELERY_TASK:
        return {"task": name, "args": list(args), "kwargs": dict(kwargs)}
    return dict(kwargs)
