"""Reads the tables of django-celery-beat by their columns, so that the package need not be
installed and any version works.

Older versions have fewer columns; a missing column has its default.
"""

# ruff: noqa: DJ008 - these models are not displayed

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from django.apps.registry import Apps
from django.db import connections, models

from django_durable_tasks.contrib.beat.mapping import BeatRow, Crontab
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.exceptions import DurableTasksError

_PREFIX = "django_celery_beat_"
_foreign = Apps()
"""A separate app registry: migrations, the admin and the project do not see these models."""


class NoBeatTables(DurableTasksError, LookupError):
    """This database has no tables of django-celery-beat."""


class _Foreign(models.Model):
    id = models.AutoField(primary_key=True)

    class Meta:
        abstract = True
        apps: ClassVar = _foreign
        app_label = "beat"
        managed = False


class _Interval(_Foreign):
    every = models.IntegerField()
    period = models.CharField(max_length=24)

    class Meta(_Foreign.Meta):
        db_table = f"{_PREFIX}intervalschedule"


class _Crontab(_Foreign):
    minute = models.CharField(max_length=240, default="*")
    hour = models.CharField(max_length=96, default="*")
    day_of_month = models.CharField(max_length=124, default="*")
    month_of_year = models.CharField(max_length=64, default="*")
    day_of_week = models.CharField(max_length=64, default="*")
    timezone = models.CharField(max_length=63, default="UTC")

    class Meta(_Foreign.Meta):
        db_table = f"{_PREFIX}crontabschedule"


class _Solar(_Foreign):
    event = models.CharField(max_length=24)
    latitude = models.DecimalField(max_digits=9, decimal_places=6)
    longitude = models.DecimalField(max_digits=9, decimal_places=6)

    class Meta(_Foreign.Meta):
        db_table = f"{_PREFIX}solarschedule"


class _Clocked(_Foreign):
    clocked_time = models.DateTimeField()

    class Meta(_Foreign.Meta):
        db_table = f"{_PREFIX}clockedschedule"


class _PeriodicTask(_Foreign):
    name = models.CharField(max_length=200)
    task = models.CharField(max_length=200)
    interval_id = models.IntegerField(null=True)
    crontab_id = models.IntegerField(null=True)
    solar_id = models.IntegerField(null=True)
    clocked_id = models.IntegerField(null=True)
    args = models.TextField(default="[]")
    kwargs = models.TextField(default="{}")
    queue = models.CharField(max_length=200, null=True)
    exchange = models.CharField(max_length=200, null=True)
    routing_key = models.CharField(max_length=200, null=True)
    headers = models.TextField(default="{}")
    priority = models.IntegerField(null=True)
    expires = models.DateTimeField(null=True)
    expire_seconds = models.IntegerField(null=True)
    one_off = models.BooleanField(default=False)
    enabled = models.BooleanField(default=True)
    start_time = models.DateTimeField(null=True)
    last_run_at = models.DateTimeField(null=True)
    total_run_count = models.IntegerField(default=0)
    date_changed = models.DateTimeField(null=True)
    description = models.TextField(default="")

    class Meta(_Foreign.Meta):
        db_table = f"{_PREFIX}periodictask"


class _Changed(models.Model):
    """When beat must read its tables again."""

    ident = models.SmallIntegerField(primary_key=True)
    last_update = models.DateTimeField()

    class Meta(_Foreign.Meta):
        db_table = f"{_PREFIX}periodictasks"


_KINDS: dict[str, type[models.Model]] = {
    "interval": _Interval,
    "crontab": _Crontab,
    "solar": _Solar,
    "clocked": _Clocked,
}


def rows(database: str, names: Iterable[str] = ()) -> list[BeatRow]:
    """Return beat's periodic tasks of this database, ordered by name; raises NoBeatTables."""
    tables = set(connections[database].introspection.table_names())
    if _PeriodicTask._meta.db_table not in tables:
        raise NoBeatTables(
            f"The database {database!r} has no table {_PeriodicTask._meta.db_table}: name the one"
            " that beat uses."
        )
    schedules = {
        kind: (
            {row["id"]: row for row in _read(model, database)}
            if model._meta.db_table in tables
            else {}
        )
        for kind, model in _KINDS.items()
    }
    wanted = set(names)
    found = [row for row in _read(_PeriodicTask, database) if not wanted or row["name"] in wanted]
    return sorted((_row(row, schedules) for row in found), key=lambda row: row.name)


def _read(model: type[models.Model], database: str) -> list[dict[str, Any]]:
    connection = connections[database]
    with connection.cursor() as cursor:
        there = {
            column.name
            for column in connection.introspection.get_table_description(
                cursor, model._meta.db_table
            )
        }
    specs = model._meta.concrete_fields
    columns = [spec.attname for spec in specs if spec.column in there]
    missing = {spec.attname: spec.get_default() for spec in specs if spec.column not in there}
    return [{**missing, **row} for row in model._base_manager.using(database).values(*columns)]


def _row(row: dict[str, Any], schedules: dict[str, dict[int, dict[str, Any]]]) -> BeatRow:
    kinds = {kind: schedules[kind].get(row.pop(f"{kind}_id")) for kind in _KINDS}
    del row["id"]
    interval, crontab, solar, clocked = kinds.values()
    return BeatRow(
        **row,
        interval=None if interval is None else (interval["every"], interval["period"]),
        crontab=None if crontab is None else _crontab(crontab),
        solar=(
            None
            if solar is None
            else (solar["event"], float(solar["latitude"]), float(solar["longitude"]))
        ),
        clocked=None if clocked is None else clocked["clocked_time"],
    )


def _crontab(row: dict[str, Any]) -> Crontab:
    return Crontab(**{name: value for name, value in row.items() if name != "id"})


def disable(database: str, names: Iterable[str]) -> int:
    """Disable these periodic tasks, and make a running beat read its tables again; return their
    number.
    """
    question = _PeriodicTask._base_manager.using(database).filter(name__in=set(names), enabled=True)
    switched = question.update(enabled=False)
    if switched:
        _Changed._base_manager.using(database).update_or_create(
            ident=1, defaults={"last_update": database_now()}
        )
    return switched
