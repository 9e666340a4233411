"""Converts schedules from user input to the JSON parts of a row, and from these to timetables.

A schedule is a list of one or more parts, combined by OR: ``[{"cron": "30 2 * * *"}, {"interval":
3600.0}]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.rules.recurring.timetables import (
    calendar_intervals,
    cron,
    instants,
    intervals,
    rrule,
    solar,
)
from django_durable_tasks.rules.recurring.timetables.types import (
    SOME_START,
    WEEKDAYS,
    DstGap,
    DstOverlap,
    OpenDays,
    Timetable,
    TimetableContext,
)
from django_durable_tasks.rules.recurring.timetables.union import Union
from django_durable_tasks.rules.recurring.timetables.zones import zone_name

MOST_PARTS = 50
Part = Mapping[str, Any]


class _Kind(NamedTuple):
    keys: frozenset[str]
    checked: Callable[[Part, TimetableContext], dict[str, Any]]
    build: Callable[[Part, TimetableContext], Timetable]
    never: Callable[[Part, TimetableContext], str]
    read: Callable[[Part, TimetableContext], TimetableContext] = lambda part, setting: setting
    """Returns the setting without what the timetable of the part does not depend on, so that
    schedules with equal parts share one timetable.
    """


def _always_fires(part: Part, setting: TimetableContext) -> str:
    return ""


_KINDS = {
    "interval": _Kind(frozenset(), intervals.checked, intervals.build, _always_fires),
    "cron": _Kind(frozenset({"seconds"}), cron.checked, cron.build, cron.never, cron.read),
    "rrule": _Kind(frozenset(), rrule.checked, rrule.build, rrule.never),
    "solar": _Kind(
        frozenset({"latitude", "longitude", "offset"}), solar.checked, solar.build, solar.never
    ),
    "every": _Kind(
        frozenset({"count", "day", "month", "time"}),
        calendar_intervals.checked,
        calendar_intervals.build,
        calendar_intervals.never,
    ),
    "at": _Kind(frozenset(), instants.checked, instants.build, _always_fires),
}


def checked(
    parts: Sequence[Part],
    *,
    zone: object = "UTC",
    anchor: datetime = SOME_START,
    seed: str = "",
    allow_never: bool = False,
) -> list[dict[str, Any]]:
    """Return the canonical parts as JSON values; raises InvalidSchedule with the part and the
    remedy.

    A part that can never fire is refused, because ``0 0 31 2 *`` is a common way to disable a job.
    ``allow_never`` accepts it, for a row that is paused.
    """
    if not isinstance(parts, list | tuple) or not parts:
        raise InvalidSchedule(
            f"A schedule is a list of at least one part, and not {str(parts)[:60]!r}."
        )
    if len(parts) > MOST_PARTS:
        raise InvalidSchedule(
            f"{len(parts)} parts; a schedule can have {MOST_PARTS}. Give several schedules."
        )
    setting = TimetableContext(zone_name(zone), _utc(anchor), seed=seed)
    found = [_kind(part).checked(part, setting) for part in parts]
    if not allow_never and (why := never_fires(found, zone=setting.zone, anchor=anchor, seed=seed)):
        raise InvalidSchedule(why)
    return found


def never_fires(
    parts: Sequence[Part], *, zone: str = "UTC", anchor: datetime = SOME_START, seed: str = ""
) -> str:
    """Return why one of the checked parts can never fire and the remedy; an empty text if each of
    them can.
    """
    setting = TimetableContext(zone, _utc(anchor), seed=seed)
    for part in parts:
        if why := _kind(part).never(part, setting):
            return f"{why} To switch a schedule off, pause it instead: pause(reason)."
    return ""


def timetable(
    parts: Sequence[Part],
    *,
    zone: str,
    anchor: datetime,
    dst_gap: DstGap | str = DstGap.RUN_AFTER,
    dst_overlap: DstOverlap | str = DstOverlap.FIRST,
    seed: str = "",
    days: OpenDays | None = None,
) -> Timetable:
    """Return the timetable of checked parts, from a cache; ``anchor`` is the start of the schedule,
    aware.

    Raises InvalidSchedule for an unknown zone or policy. ``days`` must be hashable and must not
    change.
    """
    setting = TimetableContext(
        zone_name(zone),
        _utc(anchor),
        _policy("dst_gap", DstGap, dst_gap),
        _policy("dst_overlap", DstOverlap, dst_overlap),
        seed,
        WEEKDAYS if days is None else days,
    )
    built = [_built(part, setting) for part in parts]
    return built[0] if len(built) == 1 else Union(tuple(built))


def _built(part: Part, setting: TimetableContext) -> Timetable:
    kind = _kind(part)
    if "interval" in part:  # no two starts are equal, and it is built faster than found
        return kind.build(part, setting)
    return _shared(_frozen(part), kind.read(part, setting))


@lru_cache(maxsize=16_384)
def _shared(part: tuple[tuple[str, Any], ...], setting: TimetableContext) -> Timetable:
    return _kind(dict(part)).build(dict(part), setting)


def _frozen(part: Part) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (key, tuple(value) if isinstance(value, list) else value) for key, value in part.items()
    )


def _kind(part: object) -> _Kind:
    names = [name for name in _KINDS if name in part] if isinstance(part, Mapping) else []
    if not isinstance(part, Mapping) or len(names) != 1:
        raise InvalidSchedule(
            f"{str(part)[:80]!r}: a part has one of the keys {', '.join(_KINDS)}."
        )
    kind = _KINDS[names[0]]
    if unknown := [str(key) for key in part if key != names[0] and key not in kind.keys]:
        known = f"only {', '.join(sorted(kind.keys))} can" if kind.keys else "nothing can"
        raise InvalidSchedule(f"{', '.join(unknown)[:80]} beside {names[0]}: {known} stand there.")
    return kind


def _utc(anchor: datetime) -> datetime:
    if anchor.tzinfo is None:
        raise InvalidSchedule(
            f"anchor={anchor!r} is naive: give the start of a schedule a time zone."
        )
    return anchor.astimezone(UTC)


_Policy = TypeVar("_Policy", bound=StrEnum)


def _policy(name: str, kind: type[_Policy], value: str) -> _Policy:
    try:
        return kind(value)
    except ValueError as error:
        raise InvalidSchedule(f"{name}={value!r}: give {' or '.join(kind)}.") from error
