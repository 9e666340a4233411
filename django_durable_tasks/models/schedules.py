"""Schedules: their ledger, overrides, calendars, and the recorded fires of Celery beat."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from datetime import time as wall_time
from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.choices import (
    DEFAULT_TENANT_ID,
    CatchUp,
    CatchUpOrder,
    DayKind,
    FireOutcome,
    Overlap,
    RecurringStatus,
    SpecialDay,
    TargetType,
)
from django_durable_tasks.models.fields import (
    UNCONSTRAINED,
    EncryptedJSONField,
    ExactCharField,
    InstantField,
    PartialIndex,
    PresentUnique,
    StatementTime,
    choice_field,
)
from django_durable_tasks.models.guarded import (
    GuardedModel,
    GuardedQuerySet,
    TenantQuerySet,
    alters_data,
)
from django_durable_tasks.models.tasks import target_config
from django_durable_tasks.models.tenants import tenant_key
from django_durable_tasks.task_values import uuid7

if TYPE_CHECKING:
    from django_durable_tasks.models.guarded import ManagerOf

# RecurringTask: a schedule, and its queryset, which only reads.
#
# ``next_run_at`` is when the trigger must process the row next. All fire times up to
# ``watermark_at`` have a ledger entry. Missed fire times are therefore computed from the watermark
# and the current time, without any state in memory.


def new_recurring_task_id() -> uuid.UUID:
    """Return a new UUIDv7."""
    return uuid7(time.time_ns() // 1_000_000, os.urandom(10))


class RecurringTaskQuerySet(TenantQuerySet["RecurringTask"]):
    """The queryset of schedules; it can be filtered further and passed to operations."""

    def active(self) -> Self:
        """Schedules that fire."""
        return self.filter(status=RecurringStatus.ACTIVE)

    def paused(self) -> Self:
        """Schedules that do not fire because an operator paused them or because of an error."""
        return self.filter(status=RecurringStatus.PAUSED)

    def due(self, now: datetime) -> Self:
        """Schedules to process: a fire time has come, or a pause has ended."""
        return self.filter(next_run_at__lte=now).order_by("next_run_at")


if TYPE_CHECKING:
    _RecurringTaskManager = ManagerOf["RecurringTask", RecurringTaskQuerySet]
else:
    _RecurringTaskManager = models.Manager.from_queryset(RecurringTaskQuerySet)


class RecurringTaskManager(_RecurringTaskManager):
    """RecurringTask.objects: the queryset, and ``upsert``, which declares a schedule."""

    def upsert(self, *, name: str, task: Any, **options: Any) -> RecurringTask:
        """Create or change the schedule with this name; raises InvalidSchedule, InvalidArguments.

        A change never fires a time in the past. The keywords are listed in
        docs/reference/recurring_tasks.md.
        """
        from django_durable_tasks.schedules import lifecycle

        return lifecycle.upsert(name=name, task=task, **options)


class RecurringTask(GuardedModel):
    """A schedule: its task, its timetable, and its policies for missed and overlapping fire
    times.
    """

    instead: ClassVar[str] = (
        "Write schedules with RecurringTask.objects.upsert(...), and change them with pause(),"
        " resume() or cancel()."
    )

    id = models.UUIDField(primary_key=True, default=new_recurring_task_id, editable=False)
    tenant = tenant_key()
    name = ExactCharField(_("name"), max_length=200)
    description = ExactCharField(_("description"), max_length=500, blank=True, default="")
    status = choice_field(_("status"), RecurringStatus, 9, default=RecurringStatus.ACTIVE.value)
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
    target_type = choice_field(
        _("target type"), TargetType, 13, default=TargetType.CELERY_TASK.value
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
    # Single fire times that an operator skips, moves or adds: schedule_cache.overrides_of() reads
    # them, because the tick does too.
    overrides = models.JSONField(_("overrides"), default=list, editable=False)

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

    catch_up_mode = choice_field(_("catch-up mode"), CatchUp, 14, default=CatchUp.RUN_ONE_NOW.value)
    misfire_grace = models.FloatField(_("misfire grace"), default=60.0, help_text=_("Seconds."))
    catchup_window = models.FloatField(
        _("catch-up window"), null=True, blank=True, help_text=_("Seconds.")
    )
    max_catchup_runs = models.IntegerField(_("most runs caught up"), default=100)
    catchup_order = choice_field(
        _("catch-up order"), CatchUpOrder, 6, default=CatchUpOrder.OLDEST.value
    )
    catchup_pace = models.FloatField(
        _("catch-up pace"), default=0.0, help_text=_("Seconds between two such runs.")
    )
    overlap = choice_field(_("overlap"), Overlap, 15, default=Overlap.SKIP.value)
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
                name="durable_recurring_next",
            ),
            PartialIndex(
                fields=["encryption_key", "id"],
                where=Q(encryption_key__isnull=False),
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
        from django_durable_tasks.schedules import lifecycle

        lifecycle.pause(self, until=until, by=by, reason=reason)

    @alters_data
    def resume(
        self, *, by: str = "", reason: str = "", run_missed: bool = False, pace: float | None = None
    ) -> None:
        """Fire again from now on; ``run_missed`` catches up the fire times of the pause, ``pace``
        seconds apart.
        """
        from django_durable_tasks.schedules import lifecycle

        lifecycle.resume(self, run_missed=run_missed, pace=pace, by=by, reason=reason)

    def snooze(self, until: datetime, *, by: str = "", reason: str = "") -> None:
        """Skip the fire times up to ``until`` (aware), then continue; refused for a paused
        schedule.
        """
        from django_durable_tasks.schedules import lifecycle

        lifecycle.snooze(self, until, by=by, reason=reason)

    @alters_data
    def cancel(self, reason: str = "", *, by: str = "") -> None:
        """End the schedule permanently; its open tasks continue."""
        from django_durable_tasks.schedules import lifecycle

        lifecycle.cancel(self, by=by, reason=reason)

    @alters_data
    def trigger_now(self, *, request_id: str | None = None, by: str = "", reason: str = "") -> Any:
        """Run once now, in addition to the timetable; the same ``request_id`` runs once. Returns
        the Task.
        """
        from django_durable_tasks.schedules import manual_runs

        return manual_runs.trigger_now(self, request_id=request_id, by=by, reason=reason)

    def backfill(self, start: datetime, end: datetime, **options: Any) -> Any:
        """Run the fire times of [start, end] that have no run; ``dry_run=True`` changes nothing.
        Returns a report.
        """
        from django_durable_tasks.schedules import manual_runs

        return manual_runs.backfill(self, start, end, **options)

    def override(self, fire_time: datetime, action: str, **options: Any) -> Any:
        """Override one fire time: SKIP it, MOVE it (``move_to=``), or ADD one."""
        from django_durable_tasks.schedules import lifecycle

        return lifecycle.override(self, fire_time, action, **options)

    def withdraw(self, fire_time: datetime, *, by: str = "", reason: str = "") -> bool:
        """Remove an override; return False if this fire time has none."""
        from django_durable_tasks.schedules import lifecycle

        return lifecycle.withdraw_override(self, fire_time, by=by, reason=reason)

    def next_fire_times(self, number: int = 5, *, after: datetime | None = None) -> list[Any]:
        """Return the next fires: nominal, effective (UTC) and remarks."""
        from django_durable_tasks.schedules import explain

        return explain.next_fire_times(self, number, after=after)

    def explain(self, at: datetime) -> str:
        """Return sentences that explain what happened or will happen at this fire time (aware), and
        why.
        """
        from django_durable_tasks.schedules import explain

        return explain.explain(self, at)


# OccurrenceRecord: the ledger, with the outcome of each fire time and its reason. Entries are kept
# longer than the tasks.
#
# Its unique key guarantees that a fire time of a recurring task gets one task only, also with two
# leaders or wrong clocks. A range of fire times that did not run is one entry: first, last, number
# and reason.


class OccurrenceQuerySet(TenantQuerySet["OccurrenceRecord"]):
    """The queryset of ledger entries."""

    def single(self) -> Self:
        """Entries of single fire times."""
        return self.filter(unique_fire_time__isnull=False)

    def covering(self, fire_time: datetime) -> Self:
        """Entries that cover this fire time: its own first, then the ranges."""
        exact = Q(unique_fire_time=fire_time)
        # Ranges have no unique_fire_time anyway. The explicit condition makes their partial index
        # usable.
        around = Q(
            unique_fire_time__isnull=True, fire_time__lte=fire_time, last_fire_time__gte=fire_time
        )
        return self.filter(exact | around).order_by(
            models.F("unique_fire_time").desc(nulls_last=True), "-id"
        )


class OccurrenceRecord(GuardedModel):
    """The outcome of one fire time of a recurring task, or of a range of fire times."""

    instead: ClassVar[str] = (
        "The ledger records what became of each fire time; run one with trigger_now() or backfill()"
        " of the schedule."
    )

    id = models.BigAutoField(primary_key=True)
    tenant = tenant_key()
    recurring_task = models.ForeignKey(
        "django_durable_tasks.RecurringTask",
        models.CASCADE,
        related_name="occurrences",
        **UNCONSTRAINED,
    )
    fire_time = InstantField(_("fire time"))
    last_fire_time = InstantField(_("last fire time"), null=True, blank=True)
    count = models.BigIntegerField(_("count"), default=1)
    count_is_exact = models.BooleanField(_("count is exact"), default=True)
    unique_fire_time = InstantField(null=True, editable=False)
    effective_at = InstantField(_("effective at"), null=True, blank=True)
    outcome = choice_field(_("outcome"), FireOutcome, 16)
    reason = ExactCharField(_("reason"), max_length=500, blank=True, default="")
    task = models.ForeignKey(
        "django_durable_tasks.Task",
        models.DO_NOTHING,
        null=True,
        blank=True,
        related_name="+",
        **UNCONSTRAINED,
    )
    blocked_by = models.UUIDField(_("blocked by"), null=True, blank=True)
    request_id = ExactCharField(_("request id"), max_length=200, null=True, blank=True)
    term = models.BigIntegerField(_("term"), null=True, blank=True)
    created_at = InstantField(_("created at"), db_default=StatementTime())

    objects = OccurrenceQuerySet.as_manager()

    class Meta:
        db_table = "durable_tasks_occurrence"
        verbose_name = _("occurrence")
        verbose_name_plural = _("ledger of occurrences")
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            PresentUnique(
                fields=("recurring_task", "unique_fire_time"), name="durable_one_occurrence"
            ),
            PresentUnique(fields=("recurring_task", "request_id"), name="durable_one_request"),
        ]
        indexes: ClassVar = [
            PartialIndex(
                fields=["recurring_task", "fire_time"],
                where=Q(unique_fire_time__isnull=True),
                name="durable_occurrence_ranges",
            )
        ]

    def __str__(self) -> str:
        return f"{self.fire_time.isoformat()} {self.outcome}"


# Calendar: working days and exceptions; schedules use one or several calendars.


def _monday_to_friday() -> list[int]:
    return [1, 2, 3, 4, 5]


class CalendarManager(models.Manager.from_queryset(GuardedQuerySet["Calendar"])):  # type: ignore[misc]
    """Calendar.objects: a calendar is written as a whole, and the schedules that use it are
    recomputed.
    """

    def upsert(
        self,
        name: str,
        *,
        working_days: Sequence[int] | None = None,
        days: Iterable[SpecialDay] | None = None,
        description: str | None = None,
        tenant: Any = None,
        by: str = "",
        reason: str = "",
    ) -> Calendar:
        """Create or change the calendar with this name; None leaves a value unchanged.

        ``working_days``: ISO weekdays, 1 is Monday. ``days`` replaces all special days. The next
        fire times of schedules that use the calendar are recomputed in the same transaction. Raises
        InvalidCalendar.
        """
        from django_durable_tasks.schedules import calendars

        return calendars.upsert(
            name,
            working_days=working_days,
            days=days,
            description=description,
            tenant=tenant,
            by=by,
            reason=reason,
        )

    def remove(self, name: str, *, tenant: Any = None, by: str = "", reason: str = "") -> bool:
        """Delete the calendar with this name; return whether it existed.

        Raises TransitionRefused while schedules that may fire use it.
        """
        from django_durable_tasks.schedules import calendars

        rows = self.using(conf.settings().DATABASE)
        calendar = rows.filter(name=name, tenant=tenant or DEFAULT_TENANT_ID).first()
        return calendar is not None and calendars.delete(calendar, by=by, reason=reason)


class Calendar(GuardedModel):
    """The weekly working days, and the dates that are exceptions.

    ``days`` has for each exception what ``SpecialDay`` has: CLOSED, OPEN on a day that is not a
    working day, or HALF, closed from ``until`` (wall time) on.
    """

    instead: ClassVar[str] = "Use Calendar.objects.upsert(...) and Calendar.objects.remove(name)."

    id = models.BigAutoField(primary_key=True)
    tenant = tenant_key()
    name = ExactCharField(_("name"), max_length=200)
    description = ExactCharField(_("description"), max_length=500, blank=True, default="")
    working_days = models.JSONField(
        _("working days"),
        default=_monday_to_friday,
        help_text=_("ISO weekdays, 1 Monday to 7 Sunday."),
    )
    days = models.JSONField(_("dates"), default=list)
    origin = ExactCharField(_("origin"), max_length=200, blank=True, default="")
    revision = models.BigIntegerField(_("revision"), default=0)
    updated_at = InstantField(_("updated at"), db_default=StatementTime())
    updated_by = ExactCharField(_("updated by"), max_length=200, blank=True, db_default="")
    reason = ExactCharField(_("reason"), max_length=500, blank=True, db_default="")

    objects = CalendarManager()

    class Meta:
        db_table = "durable_tasks_calendar"
        verbose_name = _("calendar")
        verbose_name_plural = _("calendars")
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=("tenant", "name"), name="durable_calendar_name")
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def special(self) -> tuple[SpecialDay, ...]:
        """The dates that differ from their weekday."""
        return tuple(
            SpecialDay(
                date.fromisoformat(day["date"]),
                DayKind(day["kind"]),
                day["name"],
                wall_time.fromisoformat(day["until"]) if day["until"] else None,
            )
            for day in self.days
        )

    @special.setter
    def special(self, days: Iterable[SpecialDay]) -> None:
        self.days = [
            {
                "date": day.day.isoformat(),
                "kind": day.kind.value,
                "name": day.name[:200],
                "until": day.until.isoformat() if day.until else None,
            }
            for day in days
        ]
