"""Finds the time zone of a new schedule without one, by the same rule in every process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from celery import current_app

from django_durable_tasks import conf
from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.rules.recurring.timetables.zones import zone_name

OURS, CELERYS, DJANGOS = "DURABLE_TASKS['TIMEZONE']", "CELERY_TIMEZONE", "TIME_ZONE"


@dataclass(frozen=True, slots=True)
class NamedZone:
    """A zone and the setting that names it."""

    name: str
    setting: str


def default_zone() -> NamedZone:
    """Return the first zone that is set: DURABLE_TASKS['TIMEZONE'], CELERY_TIMEZONE, TIME_ZONE.

    Beat uses the last two. Raises InvalidSchedule if a setting contains an unknown zone.
    """
    return next(_named())


def schedule_zone() -> str:
    """Return the name of the default zone."""
    return default_zone().name


def differing() -> tuple[NamedZone, NamedZone] | None:
    """Return the default zone and the first setting that names another one; None if they agree.

    What DURABLE_TASKS['TIMEZONE'] names was decided for schedules, and may differ.
    """
    first = default_zone()
    if first.setting == OURS:
        return None
    return next(
        ((first, other) for other in _named() if _canonical(other.name) != _canonical(first.name)),
        None,
    )


def _named() -> Iterator[NamedZone]:
    # The attribute conf.timezone is TIME_ZONE where CELERY_TIMEZONE is not set; the key is the
    # setting alone.
    celerys = current_app.conf.get("timezone") or conf.celery_time_zone()
    for setting, value in (
        (OURS, conf.settings().TIMEZONE),
        (CELERYS, celerys),
        (DJANGOS, conf.time_zone()),
    ):
        if value:
            try:
                yield NamedZone(zone_name(value), setting)
            except InvalidSchedule as refused:
                raise InvalidSchedule(f"{setting} names no time zone: {refused}") from None


def _canonical(name: str) -> str:
    return (
        "UTC"
        if name in {"Etc/UTC", "Etc/UCT", "Etc/Universal", "Etc/Zulu", "UCT", "Universal", "Zulu"}
        else name
    )
