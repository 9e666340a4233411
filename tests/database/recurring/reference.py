"""A reference of an interval schedule, computed fire by fire: slow, simple, and independent of the
engine.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta

TICK = timedelta(microseconds=1)


@dataclass
class Plan:
    """One schedule and the ledger of its fires. Times are in seconds."""

    pk: uuid.UUID
    interval: float
    anchor: datetime
    watermark: datetime
    mode: str
    grace: float
    window: float | None
    most: int
    newest_first: bool
    expires_in: float | None
    max_runs: int | None
    status: str = "ACTIVE"
    until: datetime | None = None
    runs: int = 0
    singles: dict[datetime, str] = field(default_factory=dict)
    stretches: list[tuple[str, list[datetime]]] = field(default_factory=list)

    def fires(self, after: datetime, until: datetime) -> list[datetime]:
        """Return the fires in (after, until], counted up from the anchor."""
        found, number = [], 0
        step = timedelta(seconds=self.interval)
        while (moment := self.anchor + number * step) <= until:
            found += [moment] if moment > after else []
            number += 1
        return found

    def next_look(self) -> datetime | None:
        """Return when the next tick is needed."""
        if self.status == "CANCELLED":
            return None
        if self.status == "PAUSED":
            return self.until
        return self.fires(self.watermark, self.watermark + timedelta(seconds=self.interval))[0]

    def tick(self, now: datetime) -> int:
        """Tick, and return how many tasks were created."""
        look = self.next_look()
        if look is None or look > now:
            return 0
        if self.status == "PAUSED":
            self._pass_over(look)
            self.status, self.until = "ACTIVE", None
        ran = self._run(self._decided(now), now)
        self.watermark = max(self.watermark, now)
        return ran

    def _pass_over(self, until: datetime) -> None:
        self._record("PAUSED", self.fires(self.watermark, until))
        self.watermark = max(self.watermark, until)

    def _record(self, outcome: str, fires: list[datetime]) -> None:
        if fires:
            self.stretches.append((outcome, fires))

    def _decided(self, now: datetime) -> list[datetime]:
        """Record missed fires, and return the fires that run, in the order of the decisions."""
        due = self.fires(self.watermark, now)
        late = [fire for fire in due if fire < now - timedelta(seconds=self.grace)]
        fresh = due[len(late) :]
        caught = [
            fire
            for fire in late
            if self.window is None or fire > now - timedelta(seconds=self.window)
        ]
        caught = {
            "RUN_ALL_MISSED": caught[-self.most :],
            "RUN_ONE_NOW": [] if fresh else caught[-1:],
            "SKIP_MISSED": [],
        }[self.mode]
        self._record("MISSED", [fire for fire in late if fire not in caught])
        return [*(reversed(caught) if self.newest_first else caught), *fresh]

    def _run(self, fires: list[datetime], now: datetime) -> int:
        ran = 0
        for fire in fires:
            if self.max_runs is not None and self.runs >= self.max_runs:
                break
            late = self.expires_in is not None and fire + timedelta(seconds=self.expires_in) <= now
            self.singles[fire] = "EXPIRED" if late else "DISPATCHED"
            self.runs += not late
            ran += not late
        if self.max_runs is not None and self.runs >= self.max_runs:
            self.status = "CANCELLED"
        return ran

    # Operations -----------------------------------------------------------------------------------

    def pause(self, until: datetime | None) -> None:
        """Pause, indefinitely or until an instant."""
        self.status, self.until = "PAUSED", until

    def resume(self, now: datetime, run_missed: bool) -> None:
        """Resume. Passed fire times are recorded as paused, or are still to be caught up."""
        if self.status == "PAUSED" and not run_missed:
            self._pass_over(now)
        self.status, self.until = "ACTIVE", None

    def edit(self, now: datetime, interval: float) -> None:
        """Use another interval from now on. Recorded fires stay unchanged."""
        if interval != self.interval:
            self.interval, self.watermark = interval, now
