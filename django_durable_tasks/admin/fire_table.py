"""Rows of the table of fires: local time, UTC, remarks and tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django.utils.translation import gettext as _

from django_durable_tasks.admin import display
from django_durable_tasks.models import OccurrenceRecord, RecurringTask
from django_durable_tasks.rules.recurring.explain import FireTime
from django_durable_tasks.rules.recurring.timetables.zones import zone

_MARKS = {
    "DST": "DST",
    "rolled": "calendar",
    "also": "calendar",
    "moved": "by hand",
    "added": "by hand",
}
"""The beginning of a remark, and its badge."""


def shown(fires: Sequence[FireTime], row: RecurringTask, now: datetime) -> list[dict[str, Any]]:
    """Return one row of the table for each fire."""
    clock = zone(row.time_zone)
    offsets = [fire.nominal.astimezone(clock).utcoffset() for fire in fires]
    return [
        {
            "local": local_of(fire.nominal, row.time_zone),
            "utc": utc_of(fire.nominal),
            "starts": ""
            if fire.effective == fire.nominal
            else local_of(fire.effective, row.time_zone),
            "relative": display.since(fire.effective, now),
            "marks": display.badges(
                _badges(fire, shifted=number > 0 and offsets[number] != offsets[number - 1])
            ),
            "remarks": fire.remarks,
            "fire_time": fire.nominal.astimezone(clock).isoformat(),
        }
        for number, fire in enumerate(fires)
    ]


def local_of(moment: datetime, zone_name: str) -> str:
    """Return an instant as wall time of a zone, with weekday and offset."""
    local = moment.astimezone(zone(zone_name))
    fraction = f".{local.microsecond:06}".rstrip("0") if local.microsecond else ""
    return f"{local:%a %Y-%m-%d %H:%M:%S}{fraction} {local:%Z}".strip()


def utc_of(moment: datetime) -> str:
    """Return an instant in UTC, in the format of the ledger and the command line."""
    return moment.astimezone(UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def _badges(fire: FireTime, *, shifted: bool) -> list[tuple[str, str]]:
    words = [
        word
        for remark in fire.remarks
        for start, word in _MARKS.items()
        if remark.startswith(start)
    ]
    words += ["clocks changed"] if shifted and "DST" not in words else []
    return [(f"remark-{word.replace(' ', '-')}", word) for word in dict.fromkeys(words)]


def task_link(line: OccurrenceRecord, status: str | None) -> Any:
    """Link the task of a ledger entry by its status, or the task that blocked it."""
    if line.task_id is not None:
        name = display.badge(status, status) if status else display.short(line.task_id)
        return (
            display.link(display.page_of("task", line.task_id), name)
            if status
            else _("no longer kept")
        )
    if line.blocked_by is not None:
        return display.link(display.page_of("task", line.blocked_by), _("the run that blocked it"))
    return display.NOTHING
