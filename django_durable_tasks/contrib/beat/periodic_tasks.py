"""The periodic tasks of Celery beat: reads the tables of django-celery-beat and the entries of
``beat_schedule``, converts them to keyword arguments of ``upsert``, and imports them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pprint import pformat
from typing import Any, ClassVar

from celery import current_app
from celery.schedules import maybe_schedule
from django.apps.registry import Apps
from django.db import IntegrityError, connections, models
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import registry
from django_durable_tasks.audit import recorded
from django_durable_tasks.choices import Overlap, RecurringStatus
from django_durable_tasks.exceptions import DurableTasksError, InvalidSchedule, TransitionRefused
from django_durable_tasks.models import DEFAULT_TENANT_ID, RecurringTask
from django_durable_tasks.models.schedules import RecurringTaskQuerySet
from django_durable_tasks.operations import OF_ALL_TENANTS, Target, operation
from django_durable_tasks.option_values import checked_name, seconds
from django_durable_tasks.schedules import lifecycle, schedule_cache
from django_durable_tasks.schedules import options as schedule_options
from django_durable_tasks.schedules.options import BEAT, columns
from django_durable_tasks.store.clock import database_now

# Converts a row of django-celery-beat to keyword arguments of ``upsert``, with the differences and
# their reasons.
#
# Source of beat's rules: celery/schedules.py, contrib/beat/compare.py, and
# django_celery_beat/schedulers.py of 2.9.


DISABLED, IN_SHADOW, NOT_ALLOWED = "DISABLED_IN_BEAT", "IN_SHADOW", "NOT_IN_PLAIN_CELERY_TASKS"
HOLDS = (DISABLED, IN_SHADOW, NOT_ALLOWED)
"""Why an imported row starts paused; a later import resumes it when the reason no longer exists."""

_UNITS = {"days": 86_400.0, "hours": 3_600.0, "minutes": 60.0, "seconds": 1.0, "microseconds": 1e-6}
_MICROSECOND = timedelta(microseconds=1)
_HIGHEST = 9


class BeatRowOver(InvalidSchedule):
    """Beat would not run this row again: it has expired, or it was to run once and did."""


@dataclass(frozen=True, slots=True)
class Crontab:
    """The five fields of a crontab as they are written, and its zone."""

    minute: str
    hour: str
    day_of_month: str
    month_of_year: str
    day_of_week: str
    timezone: str

    @property
    def texts(self) -> tuple[str, ...]:
        """The fields in the order of crontab(5)."""
        return self.minute, self.hour, self.day_of_month, self.month_of_year, self.day_of_week


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatRow:
    """One periodic task of beat's tables or settings; it has one of interval, crontab, solar and
    clocked.
    """

    name: str
    task: str
    args: str = "[]"
    kwargs: str = "{}"
    queue: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    headers: str | None = None
    priority: int | None = None
    expires: datetime | None = None
    expire_seconds: int | None = None
    one_off: bool = False
    enabled: bool = True
    start_time: datetime | None = None
    last_run_at: datetime | None = None
    total_run_count: int = 0
    date_changed: datetime | None = None
    description: str = ""
    interval: tuple[int, str] | None = None
    crontab: Crontab | None = None
    solar: tuple[str, float, float] | None = None
    clocked: datetime | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    """Options of an entry of ``beat_schedule`` that have no counterpart here."""


def imported(
    row: BeatRow,
    now: datetime,
    fields: schedule_options.Fields | None,
    *,
    durable: bool,
    on_redis: bool,
) -> tuple[dict[str, Any], list[str]]:
    """Return the keyword arguments of ``upsert`` for the row, and remarks on the differences.

    Raises BeatRowOver for a row that will not run again, InvalidSchedule for an invalid one.

    ``fields``: Celery's numbers of the crontab. ``durable``: the row's task is a durable task.
    ``on_redis``: beat sends to Redis, which orders priorities the other way.
    """
    if row.expires is not None and row.expires <= now:
        raise BeatRowOver(f"It expired at {utc_text(row.expires)}; beat would switch it off.")
    if row.one_off and row.total_run_count > 0:
        raise BeatRowOver("It is a one-off task and has run; beat would switch it off.")
    if row.clocked is not None and row.clocked <= now:
        effect = "would run it at its next start" if row.enabled else "has switched it off"
        raise BeatRowOver(f"Its time, {utc_text(row.clocked)}, has passed; beat {effect}.")
    remarks: list[str] = []
    options: dict[str, Any] = {"overlap": Overlap.ALLOW.value, "description": row.description[:500]}
    later = row.start_time if row.start_time is not None and row.start_time > now else None
    start = {"start_time": later} if later else {}
    if row.interval is not None:
        number, unit = row.interval
        if unit not in _UNITS:
            raise InvalidSchedule(f"Its period is {unit!r}; beat supports {', '.join(_UNITS)}.")
        anchor = later or row.last_run_at or row.date_changed or now
        period = number * _UNITS[unit]
        remarks.append(
            f"INTERVAL: beat counts {period:g} s from its last send, so that it drifts; here from"
            f" {utc_text(anchor)} on, without drift"
        )
        options |= {"interval": period, "start_time": anchor}
    elif row.crontab is not None:
        if fields is None:
            raise InvalidSchedule(
                f"Celery cannot read its crontab, {' '.join(row.crontab.texts)!r}."
            )
        keywords = schedule_options.cron_keywords(row.crontab.texts, fields)
        if "rrule" in keywords:
            remarks.append(
                "DAYS: beat requires day of month and day of week both, crontab(5) either; kept as"
                " a recurrence rule, which requires both"
            )
        options |= keywords | {"timezone": row.crontab.timezone} | start
    elif row.solar is not None:
        event, latitude, longitude = row.solar
        options |= {"solar": event, "latitude": latitude, "longitude": longitude} | start
    elif row.clocked is not None:
        options["at"] = [row.clocked]
    else:
        raise InvalidSchedule(
            "It has no interval, crontab, solar or clocked schedule; beat does not run it either."
        )
    if row.one_off or row.clocked is not None:
        options["max_runs"] = 1
    if row.expires is not None:
        options["end_time"] = row.expires - _MICROSECOND
        remarks.append(
            "EXPIRES: beat puts it on each message too; here it ends the schedule, and its last"
            " runs go on"
        )
    if row.expire_seconds is not None:
        options["expires_in"] = float(row.expire_seconds)
    args, kwargs = _json(row, "args", list), _json(row, "kwargs", dict)
    if not durable:
        # The options with which beat would send the message.
        message = {
            "queue": row.queue,
            "exchange": row.exchange,
            "routing_key": row.routing_key,
            "priority": row.priority,
            "expires": row.expire_seconds,
            "headers": {**_json(row, "headers", dict), "periodic_task_name": row.name},
        }
        given = {name: value for name, value in message.items() if value not in (None, "")}
        sent = {"task": row.task, "args": args, "kwargs": kwargs, "options": given}
        return options | {"args": [], "kwargs": sent}, remarks
    options |= {"args": args, "kwargs": kwargs} | ({"queue": row.queue} if row.queue else {})
    if row.priority is not None:
        priority = row.priority
        ours = max(0, _HIGHEST - priority) if on_redis else min(priority, _HIGHEST)
        if ours != priority:
            order = "its lowest number first" if on_redis else "its highest number first"
            remarks.append(
                f"PRIORITY: {priority} becomes {ours}; the broker serves {order}, here 9 is first"
            )
        options["priority"] = ours
    headers = _json(row, "headers", dict)
    call = {**row.limits, **({"headers": headers} if headers else {})}
    if call:
        options["options"] = call
    routing = {"exchange": row.exchange, "routing key": row.routing_key}
    dropped = [*(name for name, value in routing.items() if value), *row.dropped]
    if dropped:
        remarks.append(
            f"MESSAGE: not kept, because a durable task has a queue and no message of its own:"
            f" {', '.join(dropped)}"
        )
    return options, remarks


# Task and options ---------------------------------------------------------------------------------


def _json(row: BeatRow, column: str, kind: type[list[Any] | dict[str, Any]]) -> Any:
    text = getattr(row, column) or json.dumps(kind())
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidSchedule(
            f"Its {column} are no JSON ({error}); beat does not run it either."
        ) from None
    if not isinstance(value, kind):
        raise InvalidSchedule(
            f"Its {column} are {text[:60]!r}; give JSON that is a {kind.__name__}."
        )
    return value


def utc_text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


# Reads the tables of django-celery-beat by their columns, so that the package need not be
# installed and any version works.
#
# Older versions have fewer columns; a missing column has its default.


# ruff: noqa: DJ008 - these models are not displayed


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


class _Changed(_Foreign):
    """When beat must read its tables again."""

    id = None  # type: ignore[assignment]
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
        kind: {row["id"]: row for row in _read(model, database)}
        for kind, model in _KINDS.items()
        if model._meta.db_table in tables
    }
    selected = set(names)
    tasks = [
        row for row in _read(_PeriodicTask, database) if not selected or row["name"] in selected
    ]
    return sorted((_row(row, schedules) for row in tasks), key=lambda row: row.name)


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
    kinds = {kind: schedules.get(kind, {}).get(row.pop(f"{kind}_id")) for kind in _KINDS}
    del row["id"]
    interval, crontab, solar, clocked = kinds.values()
    return BeatRow(
        **row,
        interval=None if interval is None else (interval["every"], interval["period"]),
        crontab=(
            None
            if crontab is None
            else Crontab(**{name: value for name, value in crontab.items() if name != "id"})
        ),
        solar=(
            None
            if solar is None
            else (solar["event"], float(solar["latitude"]), float(solar["longitude"]))
        ),
        clocked=None if clocked is None else clocked["clocked_time"],
    )


# Reads the entries of ``beat_schedule``: those of CELERY_BEAT_SCHEDULE and of
# ``add_periodic_task``.


_LIMITS = {"time_limit": "timeout", "soft_time_limit": "soft_timeout"}
_READ = frozenset({*_LIMITS, "queue", "exchange", "routing_key", "priority", "expires", "headers"})


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An entry that cannot be imported, and the reason."""

    name: str
    task: str
    reason: str


def entries(names: Collection[str] = ()) -> list[BeatRow | Unreadable]:
    """Return the entries of ``beat_schedule`` of the current app, ordered by name.

    The app is finalized first, so that handlers of ``on_after_configure`` and ``on_after_finalize``
    have added theirs.
    """
    current_app.finalize()
    schedule: Mapping[Any, Any] = current_app.conf.beat_schedule or {}
    read: list[BeatRow | Unreadable] = []
    for name, entry in schedule.items():
        if names and name not in names:
            continue
        task = str(entry.get("task", "")) if isinstance(entry, Mapping) else ""
        try:
            if not isinstance(entry, Mapping) or not task:
                raise InvalidSchedule(
                    f"An entry is a dict with task and schedule, not {entry!r:.80}."
                )
            read.append(_row_of_entry(str(name), task, entry))
        except DurableTasksError as refused:
            read.append(Unreadable(str(name), task, str(refused)))
    return sorted(read, key=lambda entry: entry.name)


def _row_of_entry(name: str, task: str, entry: Mapping[str, Any]) -> BeatRow:
    value: Any = entry.get("schedule")
    schedule = value
    if isinstance(value, float | int | timedelta):
        schedule = maybe_schedule(value, app=current_app)
    kind = schedule_options.kind_of(schedule)
    timing: dict[str, Any]
    if kind == "crontab":
        minute, hour, day, month, weekday = schedule_options.texts_of(schedule)
        zone = str(current_app.timezone)
        timing = {"crontab": Crontab(minute, hour, day, month, weekday, zone)}
    elif kind == "solar":
        timing = {"solar": (schedule.event, float(schedule.lat), float(schedule.lon))}
    elif kind is None:
        raise InvalidSchedule(f"Its schedule is {value!r:.80}, which is none of Celery.")
    else:
        every, second = schedule_options.interval_of(schedule), timedelta(seconds=1)
        timing = {"interval": (every // second, "seconds")}
        if every % second:
            timing = {"interval": (every // _MICROSECOND, "microseconds")}
    options = {
        option: value
        for option, value in (entry.get("options") or {}).items()
        if value is not None and value != ""
    }
    expires = options.get("expires")
    at = expires if isinstance(expires, datetime) else None
    if at is not None and at.tzinfo is None:
        at = at.replace(tzinfo=current_app.timezone)
    registered = registry.find(task)
    args, kwargs = tuple(entry.get("args") or ()), dict(entry.get("kwargs") or {})
    if registered is not None and registered.types is not None:
        args, kwargs = registered.types.to_json(registered.options.name, args, kwargs)
    return BeatRow(
        name=name,
        task=task,
        **timing,
        args=_written("args", list(args)),
        kwargs=_written("kwargs", kwargs),
        headers=_written("headers", dict(options.get("headers") or {})),
        queue=getattr(options.get("queue"), "name", options.get("queue")),
        exchange=getattr(options.get("exchange"), "name", options.get("exchange")),
        routing_key=options.get("routing_key"),
        priority=options.get("priority"),
        expires=None if at is None else at.astimezone(UTC),
        expire_seconds=(
            None if expires is None or at is not None else round(seconds("expires", expires))
        ),
        limits={ours: options[name] for name, ours in _LIMITS.items() if name in options},
        dropped=tuple(sorted(options.keys() - _READ)),
    )


def _written(what: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidSchedule(f"Its {what} are not JSON: {error}.") from None


def as_settings(schedules: Iterable[tuple[str, str, Mapping[str, Any]]]) -> str:
    """Return the text of ``DURABLE_TASKS["SCHEDULES"]`` with these names, tasks and keywords.

    The start of an interval is left out: it is the time of the first sync.
    """
    declared = {
        name: {
            "task": task,
            **{
                keyword: value
                for keyword, value in keywords.items()
                if value not in ("", [], {}) and keyword != "start_time"
            },
        }
        for name, task, keywords in schedules
    }
    text = pformat({"SCHEDULES": declared}, width=100, sort_dicts=False)
    imports = "import datetime\n\n" if "datetime." in text else ""
    return f"{imports}DURABLE_TASKS = {text}"


# Imports the periodic tasks of another scheduler: one transaction per schedule. A repeated import
# applies the changes.
#
# A row starts paused if there is a reason to wait; a later import resumes it when the reason no
# longer exists. A row that an operator paused stays paused, and an import never pauses a row that
# is active already.


_TRIES = 3


def known(name: str) -> RecurringTask | None:
    """Return the recurring task with this name, of the default tenant."""
    row: RecurringTask | None = _rows(name).first()
    return row


def fires_without(names: Collection[str]) -> list[str]:
    """Return the names of the imported schedules that are active and have none of these names."""
    rows = schedule_cache.recurring().for_tenant(DEFAULT_TENANT_ID).filter(source=BEAT)
    active = rows.filter(status=RecurringStatus.ACTIVE).values_list("name", flat=True)
    return sorted(set(active) - set(names))


@operation(
    Target.INSTALLATION,
    name="import_beat",
    title=_("Import schedules of django-celery-beat"),
    help=_("Imports periodic tasks and shows which of them will fire differently, and why."),
    permission="",
    dry_run=True,
    confirm=False,
    not_in_api=OF_ALL_TENANTS,
    not_in_admin="it is used once per migration",
    counted="imported",
)
def take_over(
    name: str,
    task: str,
    options: Mapping[str, Any],
    *,
    hold: str = "",
    disable_in: str | None = None,
) -> RecurringTask:
    """Import one row of beat, paused with ``hold`` as its reason if one is given.

    ``disable_in`` is beat's database: a row that fires here from now on is disabled there, in the
    same transaction if both are one database. Raises TransitionRefused for a row with this name
    that was not imported, and all errors of ``upsert``; nothing is written then.
    """
    values = columns(name, options) | {"task": checked_name("task", task), "source": BEAT}
    for _try in range(_TRIES):
        try:
            with recorded("installation.import_beat"):
                row = _take(name, values, hold)
                if disable_in is not None and row.status == RecurringStatus.ACTIVE:
                    # A running beat reads its tables again when the row of _Changed changes.
                    in_beat = _PeriodicTask._base_manager.using(disable_in)
                    if in_beat.filter(name=name, enabled=True).update(enabled=False):
                        _Changed._base_manager.using(disable_in).update_or_create(
                            ident=1, defaults={"last_update": database_now()}
                        )
                return row
        except IntegrityError as taken:  # another import created it concurrently: change it
            lost = taken
    raise lost


def _take(name: str, values: Mapping[str, Any], hold: str) -> RecurringTask:
    before = _rows(name).select_for_update().first()
    refuse_foreign(before)
    if before is None:
        row = lifecycle.create(name, DEFAULT_TENANT_ID, values, paused=bool(hold))
        if hold:
            lifecycle.pause(row, reason=hold)
        return row
    row = lifecycle.change(before, values)
    if not hold and row.status == RecurringStatus.PAUSED and row.status_reason in HOLDS:
        lifecycle.resume(row)
    return row


def _rows(name: str) -> RecurringTaskQuerySet:
    return schedule_cache.recurring().for_tenant(DEFAULT_TENANT_ID).filter(name=name)


def refuse_foreign(row: RecurringTask | None) -> None:
    """Raise TransitionRefused for a row that was not imported from beat."""
    if row is not None and row.source != BEAT:
        whose = row.source or "an operator"
        raise TransitionRefused(
            f"A recurring task {row.name!r} is there already and belongs to {whose}; rename one."
        )
