"""RecurringTask: a schedule, and its queryset, which only reads.

``next_run_at`` is when the trigger must process the row next. All fire times up to ``watermark_at``
have a ledger entry. Missed fire times are therefore computed from the watermark and the current
time, without any state in memory.
"""

from __future__ import annotations

import os
import time
import uuid
from datetime import datetime
from typing import Any, ClassVar, Self

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import ports
from django_durable_tasks.models.clock import StatementTime
from django_durable_tasks.models.encrypted_json import EncryptedJSONField
from django_durable_tasks.models.exact_text import ExactCharField
from django_durable_tasks.models.guarded import GuardedModel, GuardedQuerySet, alters_data
from django_durable_tasks.models.indexes import PartialIndex, PresentUnique
from django_durable_tasks.models.instants import InstantField
from django_durable_tasks.models.tenant import DEFAULT_TENANT_ID
from django_durable_tasks.rules.recurring.policies import (
    CatchUp,
    CatchUpOrder,
    Overlap,
    RecurringStatus,
)
from django_durable_tasks.rules.target_types import TargetType, target_config
from django_durable_tasks.rules.tasks.identifiers import uuid7


def new_recurring_task_id() -> uuid.UUID:
    """Return a new UUIDv7."""
    return uuid7(time.time_ns() // 1_000_000, os.urandom(10))


def _choices(words: Any) -> list[tuple[str, str]]:
    return [(word.value, word.value) for word in words]


class RecurringTaskQuerySet(GuardedQuerySet["RecurringTask"]):
    """The queryset of schedules; it can be filtered further and passed to operations."""

    def for_tenant(self, tenant: Any) -> Self:
        """Schedules of this tenant (a Tenant or its id)."""
        return self.filter(tenant_id=getattr(tenant, "pk", tenant))

    def active(self) -> Self:
        """Schedules that fire."""
        return self.filter(status=RecurringStatus.ACTIVE)

    def paused(self) -> Self:
        """Schedules that do not fire because an operator paused them or because of an error."""
        return self.filter(status=RecurringStatus.PAUSED)

    def due(self, now: datetime) -> Self:
        """Schedules to process: a fire time has come, or a pause has ended."""
        return self.filter(next_run_at__lte=now).order_by("next_run_at")


class RecurringTaskManager(models.Manager.from_queryset(RecurringTaskQuerySet)):  # type: ignore[misc]
    """RecurringTask.objects: the queryset, and ``upsert``, which declares a schedule."""

    def upsert(self, *, name: str, task: Any, **options: Any) -> RecurringTask:
        """Create or change the schedule with this name; raises InvalidSchedule, InvalidArguments.

        A change never fires a time in the past. The keywords are listed in
        docs/reference/recurring_tasks.md.
        """
        found: RecurringTask = ports.schedules.upsert(name=name, task=task, **options)
        return found


class RecurringTask(GuardedModel):
    """A schedule: its task, its timetable, and its policies for missed and overlapping fire
    times.
    """

    instead: ClassVar[str] = (
        "Write schedules with RecurringTask.objects.upsert(...), and change them with pause(),"
        " resume() or cancel()."
    )

    id = models.UUIDField(primary_key=True, default=new_recurring_task_id, editable=False)
    tenant = models.ForeignKey(
        "django_durable_tasks.Tenant",
        models.PROTECT,
        db_default=DEFAULT_TENANT_ID,
        db_index=False,
        db_constraint=False,
        related_name="+",
    )
    name = ExactCharField(_("name"), max_length=200)
    description = ExactCharField(_("description"), max_length=500, blank=True, default="")
    status = ExactCharField(
        _("status"),
        max_length=9,
        choices=_choices(RecurringStatus),
        default=RecurringStatus.ACTIVE.value,
    )
    status_reason = ExactCharField(_("status reason"), max_length=200, blank=True, default="")
    status_by = ExactCharField(_("status set by"), max_length=200, blank=True, default="")
    paused_at = InstantField(_("paused at"), null=True, blank=True)
    paused_until = InstantField(_("paused until"), null=True, blank=True)
    error = models.TextField(_("error"), blank=True, default="")

    task = ExactCharField(
        _("task"), max_length=200, help_text=_("The registered name of a durable task.")
    )
    args = EncryptedJSONField(_("arguments"), default=list, blank=True)
    kwargs = EncryptedJSONField(_("keyword arguments"), default=dict, blank=True)
    queue = ExactCharField(
        _("queue"), max_length=200, blank=True, default="", help_text=_("Empty: the task's own.")
    )
    priority = models.SmallIntegerField(
        _("priority"), null=True, blank=True, help_text=_("0 to 9; empty: the task's.")
    )
    options = models.JSONField(
        _("options"), default=dict, blank=True, help_text=_("As for .using() of the task.")
    )
    target_type = ExactCharField(
        _("target type"),
        max_length=13,
        choices=_choices(TargetType),
        default=TargetType.CELERY_TASK.value,
    )

    timetable = models.JSONField(_("timetable"), help_text=_("One or more parts, combined by OR."))
    interval_seconds = models.FloatField(
        _("interval"), null=True, blank=True, help_text=_("Seconds, of a plain one.")
    )
    time_zone = ExactCharField(_("time zone"), max_length=64, default="UTC")
    dst_gap = ExactCharField(_("DST gap"), max_length=9, default="RUN_AFTER")
    dst_overlap = ExactCharField(_("DST overlap"), max_length=5, default="FIRST")
    calendars = models.JSONField(
        _("calendars"), default=list, blank=True, help_text=_("Names; closed where any is.")
    )
    roll = ExactCharField(_("roll"), max_length=18, default="SKIP")
    jitter = models.FloatField(_("jitter"), default=0.0, help_text=_("Seconds."))
    jitter_percent = models.FloatField(
        _("jitter percent"), default=0.0, help_text=_("Of the way to the next fire.")
    )

    start_time = InstantField(_("start time"))
    end_time = InstantField(_("end time"), null=True, blank=True)
    max_runs = models.BigIntegerField(_("max runs"), null=True, blank=True)
    runs_count = models.BigIntegerField(_("runs"), default=0)
    expires_in = models.FloatField(
        _("expires in"),
        null=True,
        blank=True,
        help_text=_("Seconds after its fire time at which a run is too late."),
    )

    catch_up_mode = ExactCharField(
        _("catch-up mode"),
        max_length=14,
        choices=_choices(CatchUp),
        default=CatchUp.RUN_ONE_NOW.value,
    )
    misfire_grace = models.FloatField(_("misfire grace"), default=60.0, help_text=_("Seconds."))
    catchup_window = models.FloatField(
        _("catch-up window"), null=True, blank=True, help_text=_("Seconds.")
    )
    max_catchup_runs = models.IntegerField(_("most runs caught up"), default=100)
    catchup_order = ExactCharField(
        _("catch-up order"),
        max_length=6,
        choices=_choices(CatchUpOrder),
        default=CatchUpOrder.OLDEST.value,
    )
    catchup_pace = models.FloatField(
        _("catch-up pace"), default=0.0, help_text=_("Seconds between two such runs.")
    )
    overlap = ExactCharField(
        _("overlap"), max_length=15, choices=_choices(Overlap), default=Overlap.SKIP.value
    )
    overlap_key = ExactCharField(
        _("overlap key"),
        max_length=200,
        blank=True,
        default="",
        help_text=_("A template over the arguments; runs with the same key do not overlap."),
    )

    next_run_at = InstantField(_("next run at"), null=True, blank=True)
    watermark_at = InstantField(_("watermark"))
    last_run_at = InstantField(_("last run at"), null=True, blank=True)
    ledger_from = InstantField(_("ledger kept from"), null=True, blank=True)
    tzdata_version = ExactCharField(_("tzdata version"), max_length=20, blank=True, default="")
    revision = models.BigIntegerField(_("revision"), default=0)

    idempotency_key = ExactCharField(_("idempotency key"), max_length=200, null=True, blank=True)
    source = ExactCharField(
        _("source"),
        max_length=20,
        blank=True,
        default="",
        help_text=_("Where it is declared: code, settings, beat, api, or empty for an operator."),
    )
    declaration = EncryptedJSONField(
        _("declaration"),
        null=True,
        blank=True,
        help_text=_("The columns as code or settings last declared them."),
    )
    undeclared_at = InstantField(_("no longer declared since"), null=True, blank=True)
    encryption_key = ExactCharField(
        _("encryption key"), max_length=40, null=True, blank=True, editable=False
    )
    created_at = InstantField(_("created at"), db_default=StatementTime())
    updated_at = InstantField(_("updated at"), db_default=StatementTime())

    objects = RecurringTaskManager()

    class Meta:
        db_table = "durable_tasks_recurring_task"
        verbose_name = _("recurring task")
        verbose_name_plural = _("recurring tasks")
        ordering: ClassVar = ["name"]
        permissions: ClassVar = [
            ("pause_recurringtask", "Can pause and resume recurring tasks"),
            ("trigger_recurringtask", "Can trigger and backfill recurring tasks"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=("tenant", "name"), name="durable_recurring_name"),
            PresentUnique(
                fields=("tenant", "idempotency_key"), name="durable_recurring_idempotent"
            ),
        ]
        indexes: ClassVar = [
            PartialIndex(
                fields=["next_run_at"],
                where=Q(next_run_at__isnull=False),
                elsewhere=("next_run_at",),
                name="durable_recurring_next",
            ),
            PartialIndex(
                fields=["encryption_key", "id"],
                where=Q(encryption_key__isnull=False),
                elsewhere=("encryption_key", "id"),
                name="durable_recurring_encryption",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def target_config(self) -> dict[str, Any]:
        """What its tasks do, from name and arguments. It contains the secrets of the arguments."""
        return target_config(self.target_type, self.task, self.args, self.kwargs)

    @alters_data
    def pause(self, reason: str = "", *, until: datetime | None = None, by: str = "") -> None:
        """Stop firing until it is resumed or until ``until`` (aware); fire times meanwhile are
        recorded as PAUSED.
        """
        ports.schedules.pause(self, reason=reason, until=until, by=by)

    @alters_data
    def resume(
        self, *, by: str = "", reason: str = "", run_missed: bool = False, pace: float | None = None
    ) -> None:
        """Fire again from now on; ``run_missed`` catches up the fire times of the pause, ``pace``
        seconds apart.
        """
        ports.schedules.resume(self, by=by, reason=reason, run_missed=run_missed, pace=pace)

    def snooze(self, until: datetime, *, by: str = "", reason: str = "") -> None:
        """Skip the fire times up to ``until`` (aware), then continue; refused for a paused
        schedule.
        """
        ports.schedules.snooze(self, until=until, by=by, reason=reason)

    @alters_data
    def cancel(self, reason: str = "", *, by: str = "") -> None:
        """End the schedule permanently; its open tasks continue."""
        ports.schedules.cancel(self, reason=reason, by=by)

    @alters_data
    def trigger_now(self, *, request_id: str | None = None, by: str = "", reason: str = "") -> Any:
        """Run once now, in addition to the timetable; the same ``request_id`` runs once. Returns
        the Task.
        """
        return ports.schedules.trigger_now(self, request_id=request_id, by=by, reason=reason)

    def backfill(self, start: datetime, end: datetime, **options: Any) -> Any:
        """Run the fire times of [start, end] that have no run; ``dry_run=True`` changes nothing.
        Returns a report.
        """
        return ports.schedules.backfill(self, start, end, **options)

    def override(self, fire_time: datetime, action: str, **options: Any) -> Any:
        """Override one fire time: SKIP it, MOVE it (``move_to=``), or ADD one."""
        return ports.schedules.override(self, fire_time, action, **options)

    def withdraw(self, fire_time: datetime, *, by: str = "", reason: str = "") -> bool:
        """Remove an override; return False if this fire time has none."""
        return ports.schedules.withdraw(self, fire_time, by=by, reason=reason)

    def next_fire_times(self, number: int = 5, *, after: datetime | None = None) -> list[Any]:
        """Return the next fires: nominal, effective (UTC) and remarks."""
        found: list[Any] = ports.schedules.next_fire_times(self, number, after=after)
        return found

    def explain(self, at: datetime) -> str:
        """Return sentences that explain what happened or will happen at this fire time (aware), and
        why.
        """
        explanation: str = ports.schedules.explain(self, at)
        return explanation
