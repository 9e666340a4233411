"""The published test of a comparable product, with default settings: the only worker is killed and
replaced 20 times.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.kill_trials import steps
from tests.kill_trials.figures import BATCHES, MESSAGES, Plan
from tests.kill_trials.ledger import enter
from tests.kill_trials.trial import run
from tests.processes.cluster import cluster_in

TRIALS = 5


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("trial", range(1, TRIALS + 1))
@pytest.mark.parametrize("lane", [MESSAGES, BATCHES])
def test_two_thousand_tasks_survive_twenty_kills_of_their_only_worker(
    rows: None, settings: Any, tmp_path: Path, vendor: str, broker: str, lane: str, trial: int
) -> None:
    settings.DURABLE_TASKS = {}
    with cluster_in(tmp_path, {}) as cluster:
        figures = run(cluster, Plan(tasks=2_000, kills=20, freezes=2, lane=lane))
    enter(dataclasses.asdict(figures), vendor, broker)
    assert (figures.succeeded, figures.lost, figures.left_running, figures.accepted_twice) == (
        2_000,
        0,
        0,
        0,
    ), figures
    assert (figures.in_batches > 1_000) == (lane == BATCHES), figures


@pytest.mark.timeout(3600)
def test_loops_survive_kills_and_deploys_of_their_only_worker(
    rows: None, settings: Any, tmp_path: Path
) -> None:
    settings.DURABLE_TASKS = {}
    with cluster_in(tmp_path, {}) as cluster:
        figures = steps.run(cluster, tasks=20, items=250, kills=10, stops=10)
    assert (figures.succeeded, figures.accepted_twice) == (20, 0), figures
    assert (figures.items, figures.items_repeated) == (20 * 250, 0), figures
    assert (figures.steps, figures.steps_repeated) == (40, 0), figures
