"""``Subscription``: what one setting asks for, and when its messages are due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from fnmatch import fnmatchcase

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.rules.notifications.events import EventType
from django_durable_tasks.rules.recurring.timetables.zones import zone

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSubject:
    """What an event is about. ``schedule`` is the name of the recurring task, or empty."""

    tenant_id: int
    task_name: str
    queue: str
    schedule: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietHours:
    """The time of day in which nothing is sent, by the wall clock of a zone. ``begin`` may be
    later than ``end``: the hours then include midnight.
    """

    begin: time
    end: time
    time_zone: str

    def end_after(self, now: datetime) -> datetime | None:
        """Return when the quiet hours that contain ``now`` end; None if it is outside of them."""
        local = now.astimezone(_zone(self.time_zone))
        clock = local.time()
        if self.begin <= self.end:
            if not self.begin <= clock < self.end:
                return None
            days = 0
        elif clock >= self.begin:
            days = 1
        elif clock < self.end:
            days = 0
        else:
            return None
        end = datetime.combine(local.date() + timedelta(days=days), self.end, tzinfo=local.tzinfo)
        # When clocks are set back, the end may be repeated. Its second pass is after `now`.
        ends = (end.astimezone(UTC), end.replace(fold=1).astimezone(UTC))
        return next((one for one in ends if one > now), None)


def _zone(name: str) -> tzinfo:
    """Return the zone; UTC if the installed tzdata does not have it any more, so that one setting
    does not stop the others.
    """
    try:
        return zone(name)
    except InvalidSchedule:
        return UTC


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """An enabled setting. The filters are patterns with ``*`` and ``?``; empty ones match all.
    ``digest``: seconds of the periods whose events are sent as one message.
    """

    setting_id: int
    tenant_id: int
    types: frozenset[EventType]
    task_name: str = ""
    queue: str = ""
    schedule: str = ""
    digest: float | None = None
    quiet_hours: QuietHours | None = None

    def selected(self, types: Sequence[EventType], subject: EventSubject) -> EventType | None:
        """Return the first of these types that is selected for this subject, or None."""
        if subject.tenant_id != self.tenant_id:
            return None
        chosen = next((one for one in types if one in self.types), None)
        filters = (
            (self.task_name, subject.task_name),
            (self.queue, subject.queue),
            (self.schedule, subject.schedule),
        )
        if all(not pattern or fnmatchcase(value, pattern) for pattern, value in filters):
            return chosen
        return None

    def due_at(self, now: datetime) -> datetime:
        """Return when an event that occurs now is sent: at the end of its period and of the quiet
        hours.
        """
        due = now if self.digest is None else period_end(now, self.digest)
        quiet_until = None if self.quiet_hours is None else self.quiet_hours.end_after(due)
        return quiet_until or due


def period_end(now: datetime, seconds: float) -> datetime:
    """Return the end of the period of this length that contains ``now``. Periods are counted from
    the epoch, so that every process computes the same ones.
    """
    length = timedelta(seconds=seconds)
    # Timedeltas are whole microseconds, so no rounding can return an end that is not after now.
    return _EPOCH + ((now - _EPOCH) // length + 1) * length
