"""A timetable given as a list of instants. Each one is a fire time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.rules.recurring.timetables.types import Count, Fire, TimetableContext

MOST_INSTANTS = 10_000


@dataclass(frozen=True, slots=True)
class Instants:
    """Fires at each of the moments (aware, UTC, ascending, distinct)."""

    moments: tuple[datetime, ...]

    def next(self, after: datetime) -> Fire | None:
        """Return the first moment strictly after; None after the last."""
        place = bisect_right(self.moments, after)
        return Fire(self.moments[place]) if place < len(self.moments) else None

    def previous(self, before: datetime) -> Fire | None:
        """Return the last moment strictly before; None before the first."""
        place = bisect_left(self.moments, before)
        return Fire(self.moments[place - 1]) if place else None

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of moments in (after, until]."""
        return Count(max(bisect_right(self.moments, until) - bisect_right(self.moments, after), 0))


def checked(part: Mapping[str, Any], setting: TimetableContext) -> dict[str, Any]:
    """Return the canonical part: ascending, distinct, in UTC as ISO 8601; raises
    InvalidSchedule.
    """
    given = part["at"]
    if not isinstance(given, list | tuple) or not given:
        raise InvalidSchedule(f"at={given!r}: give a list of at least one instant.")
    if len(given) > MOST_INSTANTS:
        raise InvalidSchedule(f"at: {len(given)} instants; a schedule can hold {MOST_INSTANTS}.")
    moments = sorted({_moment(value) for value in given})
    return {"at": [moment.isoformat().replace("+00:00", "Z") for moment in moments]}


def build(part: Mapping[str, Any], setting: TimetableContext) -> Instants:
    """Return the timetable of a checked part."""
    return Instants(tuple(datetime.fromisoformat(text) for text in part["at"]))


def _moment(value: object) -> datetime:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        if not isinstance(moment, datetime):
            raise InvalidSchedule(
                f"at: {value!r} is no instant; write it as '2026-03-08T07:00:00Z'."
            )
        if moment.utcoffset() is None:
            raise InvalidSchedule(
                f"at: {value!r} is naive; add its offset, for example '2026-03-08T07:00:00Z'."
            )
        return moment.astimezone(UTC)
    except InvalidSchedule:
        raise
    except (ValueError, OverflowError) as error:
        raise InvalidSchedule(
            f"at: {value!r} is no instant ({error}); write it as '2026-03-08T07:00:00Z'."
        ) from error
