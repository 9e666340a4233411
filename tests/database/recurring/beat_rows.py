"""The tables of django-celery-beat 2.9, created without installing it, and rows in them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from django.apps.registry import Apps
from django.db import connection, models

_apps = Apps()
NOOP = "tests.project.tasks.noop"


class _Table(models.Model):
    id = models.AutoField(primary_key=True)

    class Meta:
        abstract = True
        apps: ClassVar = _apps
        app_label = "django_celery_beat"


class IntervalSchedule(_Table):  # noqa: DJ008 - it is never shown
    """An interval of several periods."""

    every = models.IntegerField()
    period = models.CharField(max_length=24)


class CrontabSchedule(_Table):  # noqa: DJ008
    """Five fields and a zone."""

    minute = models.CharField(max_length=240, default="*")
    hour = models.CharField(max_length=96, default="*")
    day_of_month = models.CharField(max_length=124, default="*")
    month_of_year = models.CharField(max_length=64, default="*")
    day_of_week = models.CharField(max_length=64, default="*")
    timezone = models.CharField(max_length=63, default="UTC")


class SolarSchedule(_Table):  # noqa: DJ008
    """A solar event at a location."""

    event = models.CharField(max_length=24)
    latitude = models.DecimalField(max_digits=9, decimal_places=6)
    longitude = models.DecimalField(max_digits=9, decimal_places=6)


class ClockedSchedule(_Table):  # noqa: DJ008
    """One instant."""

    clocked_time = models.DateTimeField()


class PeriodicTasks(models.Model):  # noqa: DJ008
    """The time of the last change, after which beat reads its tables again."""

    ident = models.SmallIntegerField(default=1, primary_key=True)
    last_update = models.DateTimeField()

    class Meta(_Table.Meta):
        pass


class PeriodicTask(_Table):  # noqa: DJ008
    """The task that beat runs, and its schedule."""

    name = models.CharField(max_length=200, unique=True)
    task = models.CharField(max_length=200)
    interval = models.ForeignKey(IntervalSchedule, models.CASCADE, null=True)
    crontab = models.ForeignKey(CrontabSchedule, models.CASCADE, null=True)
    solar = models.ForeignKey(SolarSchedule, models.CASCADE, null=True)
    clocked = models.ForeignKey(ClockedSchedule, models.CASCADE, null=True)
    args = models.TextField(default="[]")
    kwargs = models.TextField(default="{}")
    queue = models.CharField(max_length=200, null=True)
    exchange = models.CharField(max_length=200, null=True)
    routing_key = models.CharField(max_length=200, null=True)
    headers = models.TextField(default="{}")
    priority = models.PositiveIntegerField(null=True)
    expires = models.DateTimeField(null=True)
    expire_seconds = models.PositiveIntegerField(null=True)
    one_off = models.BooleanField(default=False)
    start_time = models.DateTimeField(null=True)
    enabled = models.BooleanField(default=True)
    last_run_at = models.DateTimeField(null=True)
    total_run_count = models.PositiveIntegerField(default=0)
    date_changed = models.DateTimeField(auto_now=True)
    description = models.TextField(default="")


TABLES = (
    IntervalSchedule,
    CrontabSchedule,
    SolarSchedule,
    ClockedSchedule,
    PeriodicTasks,
    PeriodicTask,
)


def make_tables() -> None:
    """Create beat's tables."""
    with connection.schema_editor() as editor:
        for table in TABLES:
            editor.create_model(table)


def drop_tables() -> None:
    """Drop beat's tables."""
    with connection.schema_editor() as editor:
        for table in reversed(TABLES):
            editor.delete_model(table)


def of_beat(
    name: str = "nightly", *, task: str = NOOP, cron: str = "", zone: str = "UTC", **given: Any
) -> Any:
    """Insert a periodic task, by default with a nightly crontab."""
    schedules: dict[str, Any] = {}
    if "every" in given:
        number, period = given.pop("every")
        schedules["interval"] = IntervalSchedule.objects.create(every=number, period=period)  # type: ignore[attr-defined]
    elif "sun" in given:
        event, latitude, longitude = given.pop("sun")
        schedules["solar"] = SolarSchedule.objects.create(  # type: ignore[attr-defined]
            event=event, latitude=latitude, longitude=longitude
        )
    elif "clocked" in given:
        schedules["clocked"] = ClockedSchedule.objects.create(clocked_time=given.pop("clocked"))  # type: ignore[attr-defined]
    else:
        minute, hour, day, month, weekday = (cron or "30 2 * * *").split()
        schedules["crontab"] = CrontabSchedule.objects.create(  # type: ignore[attr-defined]
            minute=minute,
            hour=hour,
            day_of_month=day,
            month_of_year=month,
            day_of_week=weekday,
            timezone=zone,
        )
    recently = {"last_run_at": datetime.now(UTC)}  # earlier, a fire time may lie between
    return PeriodicTask.objects.create(name=name, task=task, **{**recently, **schedules, **given})  # type: ignore[attr-defined]
