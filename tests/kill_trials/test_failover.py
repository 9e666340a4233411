"""Failover with default settings, and the rolling restart of the example's fifty jobs: ten times
each of six nodes.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from tests.kill_trials.failover import run
from tests.kill_trials.ledger import LEDGER, enter
from tests.processes.billing import rolling_restart
from tests.processes.cluster import cluster_in

FAILOVER, ROLLING = LEDGER.with_name("failover.json"), LEDGER.with_name("rolling.json")
LEADER, LEFT, WORKER = 5.0, 1.0, 30.0
ON_SQLITE = 25.0
COUNTS = os.environ.get("FAILOVER_COUNTS", "20,20,5")
"""How many leaders are killed, leaders are stopped, and workers are killed, for a shorter trial."""


@pytest.mark.timeout(3600)
def test_fires_continue_when_the_leader_dies_or_stops_and_runs_when_their_worker_dies(
    rows: None, settings: Any, tmp_path: Path, vendor: str, broker: str
) -> None:
    settings.DURABLE_TASKS = {}
    kills, leaves, worker_kills = map(int, COUNTS.split(","))
    with cluster_in(tmp_path, {}) as cluster:
        figures = run(cluster, kills=kills, leaves=leaves, worker_kills=worker_kills)
    load = {"load_average": round(os.getloadavg()[2], 1)}
    enter(dataclasses.asdict(figures) | load, vendor, broker, FAILOVER)
    assert (figures.missing, figures.doubled) == (0, 0), figures
    if vendor == "sqlite":
        assert max(figures.leader_killed) <= ON_SQLITE, figures
    else:
        assert max(figures.leader_killed) <= LEADER, figures
        assert max(figures.worker_killed) <= WORKER, figures
    assert max(figures.leader_left) <= LEFT, figures


@pytest.mark.timeout(3600)
def test_sixty_restarts_under_load_miss_and_duplicate_nothing(
    db: None, tmp_path: Path, vendor: str, broker: str
) -> None:
    found = rolling_restart(
        tmp_path, vendor, broker, ("--rounds", "10", "--defaults"), within=3_000
    )
    enter(found, vendor, broker, ROLLING)
    assert found["good"], found
    assert (found["terminated"], found["killed"]) == (30, 30)
