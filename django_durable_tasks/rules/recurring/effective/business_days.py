"""The agenda of a timetable on a calendar: fire times on closed days are skipped, or rolled to an
open day.

A roll keeps the wall time, so runs are not in the order of their fire times: Saturday 17:00 rolled
to Monday comes after Sunday 09:00 rolled to Monday. Fires that are rolled to the same instant run
once: the fire of that day, otherwise the one with the earliest fire time. The work of each call is
bounded, also if the calendar is closed for long.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django_durable_tasks.rules.recurring.calendars import Roll
from django_durable_tasks.rules.recurring.effective.bounded import fire_at
from django_durable_tasks.rules.recurring.effective.roll import ONE_DAY
from django_durable_tasks.rules.recurring.effective.segments import CalendarSegments, Segment
from django_durable_tasks.rules.recurring.effective.types import (
    SKIPPED_CALENDAR,
    TICK,
    PlannedRun,
    SkippedRange,
)
from django_durable_tasks.rules.recurring.timetables.types import Count, Fire, Timetable

_SEARCHED = 2_000  # segments examined per answer
_MOST_CLOSED = 400  # segments examined to count fires and to list closed ranges
_ONE_BY_ONE = 400  # rolled fires examined one by one per answer
_REMARKED = 6


@dataclass(frozen=True, slots=True)
class OnOpenDays:
    """The runs of a timetable on a calendar."""

    fires: Timetable
    cuts: CalendarSegments

    def next(self, after: datetime) -> PlannedRun | None:
        """Return the first run strictly after."""
        if self.cuts.roll is Roll.SKIP:
            return self._next_open(after)
        fire = self.fires.next(after)
        if fire is not None and self.cuts.calm(after, fire.nominal):
            return self.cuts.planned(fire, None)
        return self._search(after)

    def previous(self, before: datetime) -> PlannedRun | None:
        """Return the last run strictly before."""
        if self.cuts.roll is Roll.SKIP:
            return self._previous_open(before)
        fire = self.fires.previous(before)
        if fire is not None and self.cuts.calm(fire.nominal, before):
            return self.cuts.planned(fire, None)
        last = self._search_back(before)
        return None if last is None else self._search(last - TICK)

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of runs in (after, until]. For a long range with rolls this is at least
        the number of runs that are not rolled.
        """
        rolled = 0
        if self.cuts.roll is not Roll.SKIP:
            planned = self.next(after)
            while planned is not None and planned.at <= until:
                rolled += 1
                if rolled == _ONE_BY_ONE:
                    break
                planned = self.next(planned.at)
            else:
                return Count(rolled)
        pieces, complete = self._pieces(after, until)
        counts = [self._within(fire, piece, until) for fire, piece in pieces if piece.open]
        exact = not rolled and complete and all(one.exact for one in counts)
        return Count(max(rolled, sum(one.number for one in counts)), exact)

    def closed(self, after: datetime, until: datetime) -> list[SkippedRange]:
        """Return the fire times in (after, until] that do not run: skipped, or rolled onto a fire
        that runs.
        """
        pieces, complete = self._pieces(after, until)
        left = [(fire, piece) for fire, piece in pieces if not piece.open]
        if not left:
            return []
        if self.cuts.roll is Roll.SKIP:
            return [self._skipped(left, until, complete)]
        return self._not_rolled(left, until, complete)

    def at_nominal(self, nominal: datetime) -> PlannedRun | SkippedRange | None:
        """Return the run of this fire time, or why it does not run; None if it is not a
        fire time.
        """
        fire = fire_at(self.fires, nominal)
        if fire is None:
            return None
        if not (why := self.cuts.why_closed(nominal)):
            return self.cuts.planned(fire, None)
        kind, run = self._rolled(fire)
        return run or SkippedRange(
            nominal, nominal, 1, True, SKIPPED_CALENDAR, f"{self._closed_by()}: {why}{kind}"
        )

    def _next_open(self, after: datetime) -> PlannedRun | None:
        for _ in range(_SEARCHED):
            fire = self.fires.next(after)
            if fire is None:
                return None
            if not self.cuts.why_closed(fire.nominal):
                return self.cuts.planned(fire, None)
            after = self.cuts.piece(fire.nominal).end - TICK
        return None

    def _previous_open(self, before: datetime) -> PlannedRun | None:
        for _ in range(_SEARCHED):
            fire = self.fires.previous(before)
            if fire is None:
                return None
            if not self.cuts.why_closed(fire.nominal):
                return self.cuts.planned(fire, None)
            before = self.cuts.piece(fire.nominal).start
        return None

    def _search(self, after: datetime) -> PlannedRun | None:
        """Return the first run after the instant, from all segments whose fires can run then."""
        best: list[PlannedRun] = []
        cursor, end = self.cuts.sources_after(after + TICK), None
        for _ in range(_SEARCHED):
            fire = self.fires.next(cursor)
            if fire is None or (end is not None and fire.nominal >= end):
                break
            piece = self.cuts.piece(fire.nominal)
            if piece.open and fire.nominal <= after:
                cursor = min(after, piece.end - TICK)
                continue
            found = self._first_in(piece, fire, after)
            if found is not None and (not best or found.at <= best[0].at):
                best = [*best, found] if best and found.at == best[0].at else [found]
                end = self.cuts.sources_before(found.at)
            cursor = piece.end - TICK
        return _one_run(best) if best else None

    def _search_back(self, before: datetime) -> datetime | None:
        """Return the instant of the last run before the instant."""
        best: datetime | None = None
        cursor, start = self.cuts.sources_before(before - TICK), None
        for _ in range(_SEARCHED):
            fire = self.fires.previous(cursor)
            if fire is None or (start is not None and fire.nominal <= start):
                break
            piece = self.cuts.piece(fire.nominal)
            if piece.open and fire.nominal >= before:
                cursor = max(before, piece.start)
                continue
            found = self._last_in(piece, fire, before)
            if found is not None:
                best = found.at if best is None else max(best, found.at)
                start = self.cuts.sources_after(best)
            cursor = piece.start
        return best

    def _first_in(self, piece: Segment, fire: Fire, after: datetime) -> PlannedRun | None:
        if piece.open or piece.day is None:
            return self.cuts.planned(fire, None) if piece.open else None
        beyond = self.cuts.beyond(fire, piece.day, after)
        if beyond >= timedelta(0):
            later = self.fires.next(fire.nominal + beyond)
            if later is None or later.nominal >= piece.end:
                return None
            fire = later
        return self.cuts.planned(fire, piece.day)

    def _last_in(self, piece: Segment, fire: Fire, before: datetime) -> PlannedRun | None:
        if piece.open or piece.day is None:
            return self.cuts.planned(fire, None) if piece.open else None
        beyond = self.cuts.beyond(fire, piece.day, before - TICK)
        if beyond < timedelta(0):
            earlier = self.fires.previous(fire.nominal + beyond + TICK)
            if earlier is None or earlier.nominal < piece.start:
                return None
            fire = earlier
        return self.cuts.planned(fire, piece.day)

    def _rolled(self, fire: Fire) -> tuple[str, PlannedRun | None]:
        """Return the run of a fire on a closed day; otherwise why it does not run."""
        if self.cuts.roll is Roll.SKIP:
            return "", None
        day = self.cuts.landing(fire.nominal).day
        if day is None:
            return f"; {self.cuts.roll} finds no open day within ten years", None
        run = self._search(self.cuts.planned(fire, day).at - TICK)
        if run is None or run.nominal == fire.nominal:
            return "", run
        return f"; by {self.cuts.roll} it meets a fire that runs", None

    def _pieces(self, after: datetime, until: datetime) -> tuple[list[tuple[Fire, Segment]], bool]:
        """Return the segments that contain fires of (after, until], each with its first fire; False
        if there are more.
        """
        found: list[tuple[Fire, Segment]] = []
        while len(found) < _MOST_CLOSED:
            fire = self.fires.next(after)
            if fire is None or fire.nominal > until:
                return found, True
            piece = self.cuts.piece(fire.nominal)
            found.append((fire, piece))
            after = piece.end - TICK
        return found, False

    def _within(self, first: Fire, piece: Segment, until: datetime) -> Count:
        return self.fires.count(first.nominal - TICK, min(piece.end - TICK, until))

    def _skipped(
        self, left: list[tuple[Fire, Segment]], until: datetime, complete: bool
    ) -> SkippedRange:
        counts = [self._within(fire, piece, until) for fire, piece in left]
        last = self._last(left[-1][1], until) if complete else self._last(None, until)
        reasons = list(
            dict.fromkeys(why for fire, piece in left for why in self._reasons(fire, piece, until))
        )
        listed = ", ".join(reasons[:_REMARKED]) + (", …" if len(reasons) > _REMARKED else "")
        exact = complete and all(one.exact for one in counts)
        number = sum(one.number for one in counts)
        reason = f"{self._closed_by()}: {listed}"
        return SkippedRange(left[0][0].nominal, last, number, exact, SKIPPED_CALENDAR, reason)

    def _reasons(self, fire: Fire, piece: Segment, until: datetime) -> list[str]:
        end, days = min(piece.end, until + TICK), (piece.end - fire.nominal).days + 1
        moments = (fire.nominal + number * ONE_DAY for number in range(days))
        return [self.cuts.why_closed(moment) for moment in moments if moment < end]

    def _not_rolled(
        self, left: list[tuple[Fire, Segment]], until: datetime, complete: bool
    ) -> list[SkippedRange]:
        by_kind: dict[str, list[datetime]] = {}
        exact = complete
        for fire, piece in left:
            fires, whole = self._some(
                fire, min(piece.end - TICK, until), max(1, _ONE_BY_ONE // len(left))
            )
            exact = exact and whole
            for one in fires:
                kind, run = self._rolled(one)
                if run is None:
                    by_kind.setdefault(kind, []).append(one.nominal)
        return [
            SkippedRange(
                fires[0],
                fires[-1] if exact else self._last(None, until),
                len(fires),
                exact,
                SKIPPED_CALENDAR,
                f"{self._closed_by()}{kind}",
            )
            for kind, fires in by_kind.items()
        ]

    def _some(self, fire: Fire, until: datetime, most: int) -> tuple[list[Fire], bool]:
        """Return the fires from this one on up to ``until``, limited in number; False if there are
        more.
        """
        found, following = [fire], self.fires.next(fire.nominal)
        while following is not None and following.nominal <= until:
            if len(found) == most:
                return found, False
            found.append(following)
            following = self.fires.next(following.nominal)
        return found, True

    def _last(self, piece: Segment | None, until: datetime) -> datetime:
        fire = self.fires.previous(until + TICK if piece is None else min(piece.end, until + TICK))
        return until if fire is None else fire.nominal

    def _closed_by(self) -> str:
        return f"calendar {self.cuts.days.name!r} is closed"


def _one_run(meeting: list[PlannedRun]) -> PlannedRun:
    """Return the one run of all fires at the same instant, with a remark about the others."""
    run, *others = sorted(meeting, key=lambda one: (one.rolled, one.nominal))
    words = [
        f"also for {one.nominal:%Y-%m-%dT%H:%M:%SZ}, {one.remarks[-1]}"
        for one in others[:_REMARKED]
    ]
    return replace(run, remarks=(*run.remarks, *words)) if words else run
