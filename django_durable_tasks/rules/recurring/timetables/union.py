"""The union of several timetables: fires when one of them fires, once for each instant."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django_durable_tasks.rules.recurring.timetables.types import Count, Fire, Timetable

_MOST_ITERATED = 1_000


@dataclass(frozen=True, slots=True)
class Union:
    """Fires whenever one of its parts does."""

    parts: tuple[Timetable, ...]

    def next(self, after: datetime) -> Fire | None:
        """Return the first fire of any part strictly after; None if no part fires again."""
        fires = [fire for part in self.parts if (fire := part.next(after))]
        return _joined(fires, min(fire.nominal for fire in fires)) if fires else None

    def previous(self, before: datetime) -> Fire | None:
        """Return the last fire of any part strictly before; None if there is none."""
        fires = [fire for part in self.parts if (fire := part.previous(before))]
        return _joined(fires, max(fire.nominal for fire in fires)) if fires else None

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of distinct fires in (after, until]. If the parts have more than a
        thousand, it is the maximum over the parts, a lower bound.

        Fires at the same instant can only be found by iterating, and a calendar requests hundreds
        of ranges at once.
        """
        counts = [part.count(after, until) for part in self.parts]
        if sum(one.number for one in counts) > _MOST_ITERATED:
            return Count(max(one.number for one in counts), exact=False)
        number, fire = 0, self.next(after)
        while fire is not None and fire.nominal <= until:
            number, fire = number + 1, self.next(fire.nominal)
        return Count(number)


def _joined(fires: list[Fire], nominal: datetime) -> Fire:
    remarks = [remark for fire in fires if fire.nominal == nominal for remark in fire.remarks]
    return Fire(nominal, tuple(dict.fromkeys(remarks)))
