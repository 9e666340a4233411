"""Reads the entries of ``beat_schedule``: those of CELERY_BEAT_SCHEDULE and of
``add_periodic_task``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pprint import pformat
from typing import Any

from celery import current_app
from celery.schedules import maybe_schedule

from django_durable_tasks import registry
from django_durable_tasks.contrib.beat.tables import BeatRow, Crontab
from django_durable_tasks.exceptions import DurableTasksError, InvalidSchedule
from django_durable_tasks.option_values import seconds
from django_durable_tasks.schedules.options import interval_of, kind_of, texts_of

_LIMITS = {"time_limit": "timeout", "soft_time_limit": "soft_timeout"}
_READ = frozenset({*_LIMITS, "queue", "exchange", "routing_key", "priority", "expires", "headers"})
_MICROSECOND = timedelta(microseconds=1)


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
    rows = [
        _read(str(name), entry) for name, entry in schedule.items() if not names or name in names
    ]
    return sorted(rows, key=lambda entry: entry.name)


def _read(name: str, entry: Any) -> BeatRow | Unreadable:
    task = str(entry.get("task", "")) if isinstance(entry, Mapping) else ""
    try:
        if not isinstance(entry, Mapping) or not task:
            raise InvalidSchedule(f"An entry is a dict with task and schedule, not {entry!r:.80}.")
        return BeatRow(name=name, task=task, **_timing(entry), **_call(entry))
    except DurableTasksError as refused:
        return Unreadable(name, task, str(refused))


def _timing(entry: Mapping[str, Any]) -> dict[str, Any]:
    value = entry.get("schedule")
    schedule: Any = value
    if isinstance(value, float | int | timedelta):
        schedule = maybe_schedule(value, app=current_app)
    kind = kind_of(schedule)
    if kind == "crontab":
        minute, hour, day, month, weekday = texts_of(schedule)
        zone = str(current_app.timezone)
        return {"crontab": Crontab(minute, hour, day, month, weekday, zone)}
    if kind == "solar":
        return {"solar": (schedule.event, float(schedule.lat), float(schedule.lon))}
    if kind is None:
        raise InvalidSchedule(f"Its schedule is {value!r:.80}, which is none of Celery.")
    every = interval_of(schedule)
    if every % timedelta(seconds=1):
        return {"interval": (every // _MICROSECOND, "microseconds")}
    return {"interval": (every // timedelta(seconds=1), "seconds")}


def _call(entry: Mapping[str, Any]) -> dict[str, Any]:
    options = {
        option: value
        for option, value in (entry.get("options") or {}).items()
        if value is not None and value != ""
    }
    expires = options.get("expires")
    at = expires if isinstance(expires, datetime) else None
    if at is not None and at.tzinfo is None:
        at = at.replace(tzinfo=current_app.timezone)
    task = registry.find(str(entry["task"]))
    args, kwargs = tuple(entry.get("args") or ()), dict(entry.get("kwargs") or {})
    if task is not None and task.types is not None:
        args, kwargs = task.types.to_json(task.options.name, args, kwargs)
    return {
        "args": _json("args", list(args)),
        "kwargs": _json("kwargs", kwargs),
        "headers": _json("headers", dict(options.get("headers") or {})),
        "queue": getattr(options.get("queue"), "name", options.get("queue")),
        "exchange": getattr(options.get("exchange"), "name", options.get("exchange")),
        "routing_key": options.get("routing_key"),
        "priority": options.get("priority"),
        "expires": None if at is None else at.astimezone(UTC),
        "expire_seconds": (
            None if expires is None or at is not None else round(seconds("expires", expires))
        ),
        "limits": {ours: options[name] for name, ours in _LIMITS.items() if name in options},
        "dropped": tuple(sorted(options.keys() - _READ)),
    }


def _json(what: str, value: Any) -> str:
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
