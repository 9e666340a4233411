"""Checks the values of a notification setting, except its destination."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import time
from typing import Any

from django_durable_tasks.did_you_mean import did_you_mean
from django_durable_tasks.exceptions import InvalidOption, InvalidSchedule
from django_durable_tasks.rules.notifications.events import FLAGS
from django_durable_tasks.rules.recurring.timetables.zones import zone_name
from django_durable_tasks.rules.tasks.options import checked_key

SHORTEST_DIGEST, LONGEST_DIGEST = 60.0, 86_400.0
_PATTERN_MAX = 200


def _flag(option: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(f"{option}={value!r}: give True or False.")
    return value


def _pattern(option: str, value: object) -> str:
    if value in ("", None):
        return ""
    return checked_key(option, value)


def _label(option: str, value: object) -> str:
    return _pattern(option, value)


def _digest(option: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidOption(f"{option}={value!r}: give seconds, or None for one message per event.")
    if not SHORTEST_DIGEST <= value <= LONGEST_DIGEST:
        raise InvalidOption(
            f"{option}={value:g}: give {SHORTEST_DIGEST:g} to {LONGEST_DIGEST:g} seconds, or None"
            " for one message per event."
        )
    return float(value)


def _time(option: str, value: object) -> time | None:
    if value is None:
        return None
    if not isinstance(value, time) or value.tzinfo is not None:
        raise InvalidOption(f"{option}={value!r}: give a time of day without a zone.")
    return value


def _zone(option: str, value: object) -> str:
    try:
        return zone_name(value)
    except InvalidSchedule as refused:
        raise InvalidOption(f"{option} is not valid: {refused}") from None


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "name": checked_key,
    "user_id": _label,
    "enabled": _flag,
    **dict.fromkeys(FLAGS, _flag),
    "task_name": _pattern,
    "queue": _pattern,
    "schedule": _pattern,
    "digest": _digest,
    "quiet_from": _time,
    "quiet_until": _time,
    "time_zone": _zone,
}


def checked_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked values of the given fields; raises InvalidOption."""
    for name in values:
        if name not in _CHECKS:
            hint = did_you_mean(name, _CHECKS)
            raise InvalidOption(f"{name}: a notification setting has no such field. {hint}".strip())
    return {name: _CHECKS[name](name, value) for name, value in values.items()}


def check_together(values: Mapping[str, Any]) -> None:
    """Check all values of a setting; raises InvalidOption."""
    begin, end = values["quiet_from"], values["quiet_until"]
    if (begin is None) != (end is None):
        missing = "quiet_from" if begin is None else "quiet_until"
        raise InvalidOption(f"{missing}=None: give both ends of the quiet hours, or none.")
    if begin is not None and begin == end:
        raise InvalidOption("quiet_until is equal to quiet_from: nothing would ever be sent.")
