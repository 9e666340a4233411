"""Measures for how long nothing fires when the leader dies or stops, and for how long the runs of a
dead worker wait, with default settings.
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

from tests.processes.cluster import Cluster, Program
from tests.processes.fires import declared, dispatched, expected, ran, silenced
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
    """Durations in seconds. ``fires``, ``missing`` and ``doubled`` are counts of expected, missing
    and duplicate fires.

    The first two are the longest time without a start; ``late_after`` is the delay of the latest
    fire of each kill.
    """

    leader_killed: list[float]
    leader_left: list[float]
    worker_killed: list[float]
    late_after: list[float]
    fires: int
    missing: int
    doubled: int


def run(cluster: Cluster, kills: int, leaves: int, worker_kills: int) -> Failover:
    """Kill the leader, stop it, and kill busy workers this number of times. Raises AssertionError
    without progress.
    """
    notebook = cluster.folder / "notes"
    cluster.worker(slots=4).ready()
    for _ in range(3):
        cluster.scheduler()
    cluster.ready()
    schedule = declared("quick", notebook, **_QUICK)
    begun = schedule.watermark_at
    killed = [_without_leader(cluster, notebook, Program.kill) for _ in range(kills)]
    left = [_without_leader(cluster, notebook, _leave) for _ in range(leaves)]
    waits = [_run_again(cluster, number) for number in range(worker_kills)]
    [ended] = silenced([schedule])
    wanted, recorded, found = (
        expected(ended, begun, ended.watermark_at),
        dispatched(ended),
        ran([ended], notebook),
    )
    return Failover(
        leader_killed=[_longest(notebook, at) for at in killed],
        leader_left=[_longest(notebook, at) for at in left],
        worker_killed=waits,
        late_after=[_latest(found, at) for at in killed],
        fires=len(wanted),
        missing=len(set(wanted) - set(recorded)) + len(found.missing),
        doubled=len(recorded) - len(set(recorded)) + len(found.surplus),
    )


def _leave(program: Program) -> None:
    program.process.send_signal(signal.SIGTERM)


def _without_leader(cluster: Cluster, notebook: Path, end: Callable[[Program], None]) -> datetime:
    """End the leader, wait until another one fires, replace it, and return when it was ended."""
    leader = until(cluster.leading, within=60, message="a scheduler leads")
    assert leader is not None
    at = datetime.now(UTC)
    end(leader)
    until(
        lambda: cluster.leading() not in (None, leader),
        within=60,
        message="another scheduler leads",
    )
    number = len(noted(notebook))
    until(lambda: len(noted(notebook)) > number + 8, within=60, message="fires go on")
    cluster.scheduler().ready()
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
    """Return the delay of the latest started fire among those due around this instant."""
    lags = [
        seen.at - window.opens
        for window, seen in found.pairs
        if at - _AROUND / 8 < window.opens < at + _AROUND / 4
    ]
    return round(max(lags).total_seconds(), 3)


def _run_again(cluster: Cluster, number: int) -> float:
    """Kill a worker during a body, and return how long the task waited for its next start."""
    folder = cluster.folder / f"held-{number}"
    worker = cluster.worker(slots=1, queues=[f"held-{number}"]).ready()
    task = bodies.hold.using(queue=f"held-{number}").schedule(str(folder))
    until(lambda: any(folder.glob("started-*")), within=60, message="the body runs")
    other = cluster.worker(slots=1, queues=[f"held-{number}"]).ready()
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
