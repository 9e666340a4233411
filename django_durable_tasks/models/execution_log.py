"""TaskExecutionLog: one row per attempt, written once, at its end. An attempt in progress is read
from its Task.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet
from django_durable_tasks.models.instants import InstantField
from django_durable_tasks.models.tenant import DEFAULT_TENANT_ID
from django_durable_tasks.rules.states import LogStatus


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
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant",
        models.PROTECT,
        db_default=DEFAULT_TENANT_ID,
        db_index=False,
        db_constraint=False,
        related_name="+",
    )
    attempt_number = models.IntegerField(_("attempt"))
    status = ExactCharField(
        _("status"), max_length=9, choices=[(s.value, s.value) for s in LogStatus]
    )
    # Since when the task was due, when it was claimed, and when it started: the waits for the
    # scheduler and for the broker. ready_at is NULL if the task was published without a claim.
    ready_at = InstantField(_("ready at"), null=True)
    queued_at = InstantField(_("queued at"), null=True)
    started_at = InstantField(_("started at"), null=True)
    completed_at = InstantField(_("completed at"))
    error_message = models.TextField(_("error"), db_default="", blank=True)
    traceback = models.TextField(_("traceback"), db_default="", blank=True)
    # The class and the arguments of the exception, as celery/stored_exceptions.py writes them.
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
