"""The kill trial of `make kill-test` in a short form: few tasks, few kills, shortened leases."""

import pytest

from tests.kill_trials.figures import BATCHES, MESSAGES, Plan
from tests.kill_trials.trial import run
from tests.processes.cluster import Cluster

pytestmark = pytest.mark.long


@pytest.mark.parametrize("lane", [MESSAGES, BATCHES])
def test_all_tasks_complete_although_the_only_worker_is_killed(cluster: Cluster, lane: str) -> None:
    figures = run(cluster, Plan(tasks=160, kills=3, freezes=1, patience=40, lane=lane))
    assert (figures.succeeded, figures.lost, figures.left_running, figures.accepted_twice) == (
        160,
        0,
        0,
        0,
    ), figures
    assert figures.fenced_endings > 0
    assert figures.attempts_lost > 0
    assert (figures.in_batches > 0) == (lane == BATCHES)
