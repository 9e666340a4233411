"""How long nothing fires when the leader dies or leaves, and how long a dead worker's runs wait;
default settings.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.processes.fires import born, declared, expected, ran, silenced
from tests.processes.fleet import Fleet, Program
from tests.processes.rows import release, row
from tests.processes.windows import Matched, noted
from tests.project import bodies
from tests.waiting import until

_QUICK: dict[str, Any] = {
    "interval": 0.25,
    "catch_up_mode": "RUN_ALL_MISSED",
    "max_catchup_runs": 1_000,
    "overlap": "ALLOW",
}
_AROUND = timedelta(seconds=40)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """Seconds, but for ``fires``, ``missing`` and ``doubled``: what the schedule owed, and what
    went wrong with it.

    The first two are the longest time without a start, ``late_after`` how late the latest fire of
    each kill started.
    """

    leader_killed: list[float]
    leader_left: list[float]
    worker_killed: list[float]
    late_after: list[float]
    fires: int
    missing: int
    doubled: int


def run(fleet: Fleet, kills: int, leaves: int, worker_kills: int) -> Failover:
    """Kill the leader, let it leave, and kill workers at work so many times; raises AssertionError
    on standstill.
    """
    notebook = fleet.folder / "notes"
    fleet.worker(slots=4).ready()
    for _ in range(3):
        fleet.scheduler()
    fleet.ready()
    schedule = declared("quick", notebook, **_QUICK)
    begun = schedule.watermark_at
    killed = [_without_leader(fleet, notebook, Program.kill) for _ in range(kills)]
    left = [_without_leader(fleet, notebook, _leave) for _ in range(leaves)]
    waits = [_run_again(fleet, number) for number in range(worker_kills)]
    [ended] = silenced([schedule])
    wanted, told, found = (
        expected(ended, begun, ended.watermark_at),
        born(ended),
        ran([ended], notebook),
    )
    return Failover(
        leader_killed=[_longest(notebook, at) for at in killed],
        leader_left=[_longest(notebook, at) for at in left],
        worker_killed=waits,
        late_after=[_latest(found, at) for at in killed],
        fires=len(wanted),
        missing=len(set(wanted) - set(told)) + len(found.missing),
        doubled=len(told) - len(set(told)) + len(found.surplus),
    )


def _leave(program: Program) -> None:
    program.process.send_signal(signal.SIGTERM)


def _without_leader(fleet: Fleet, notebook: Path, end: Callable[[Program], None]) -> datetime:
    """End the leader, wait until fires go on under another, replace it, and return when it was
    ended.
    """
    leader = until(fleet.leading, within=60, message="a scheduler leads")
    assert leader is not None
    at = datetime.now(UTC)
    end(leader)
    until(
        lambda: fleet.leading() not in (None, leader), within=60, message="another scheduler leads"
    )
    number = len(noted(notebook))
    until(lambda: len(noted(notebook)) > number + 8, within=60, message="fires go on")
    fleet.scheduler().ready()
    leader.kill()
    return at


def _longest(notebook: Path, at: datetime) -> float:
    """Return the longest time without a start around this instant."""
    starts = sorted(seen.at for seen in noted(notebook))
    around = [
        (after - before).total_seconds()
        for before, after in pairwise(starts)
        if before < at + _AROUND / 4 and after > at
    ]
    return round(max(around), 3)


def _latest(found: Matched, at: datetime) -> float:
    """Return how late the latest of the fires started that were due around this instant."""
    lags = [
        seen.at - window.opens
        for window, seen in found.pairs
        if at - _AROUND / 8 < window.opens < at + _AROUND / 4
    ]
    return round(max(lags).total_seconds(), 3)


def _run_again(fleet: Fleet, number: int) -> float:
    """Kill a worker in the middle of a body, and return how long the task waited for its next
    start.
    """
    folder = fleet.folder / f"held-{number}"
    worker = fleet.worker(slots=1, queues=[f"held-{number}"]).ready()
    task = bodies.hold.using(queue=f"held-{number}").schedule(str(folder))
    until(lambda: any(folder.glob("started-*")), within=60, message="the body runs")
    other = fleet.worker(slots=1, queues=[f"held-{number}"]).ready()
    began = time.monotonic()
    worker.kill()
    until(
        lambda: row(task).attempts > 1 and row(task).status == "RUNNING",
        within=120,
        message="it starts again",
    )
    waited = round(time.monotonic() - began, 3)
    release(folder)
    until(lambda: row(task).status == "SUCCESS", within=60, message="it succeeds")
    other.kill()
    return waited
