"""Chaos in short: a few faults of each kind on the servers of this run. What must hold holds; `make
chaos` is long.
"""

import os

import pytest

from tests.chaos.__main__ import failures, play_lane
from tests.chaos.plan import Plan

FAULTS = (
    "child-killed",
    "worker-frozen",
    "leader-killed",
    "sessions-ended",
    "commits-cut",
    "broker-flushed",
    "first-broker-cut",
    "queue-rejected",
    "everything-doubled",
    "garbage",
)


@pytest.mark.postgresql
@pytest.mark.timeout(400)
def test_nothing_is_lost_doubled_or_left_over_whatever_is_killed_cut_doubled_and_flushed() -> None:
    """The seed is fixed, and so are the faults; when exactly they strike is not, and must not
    matter.
    """
    plan = Plan(
        broker=os.environ["TEST_BROKER"],
        seed="short",
        faults=FAULTS,
        rate=25,
        calm=1,
        pace=0.3,
        private=False,
    )
    found = play_lane(plan)
    assert failures([found]) == []
    assert found["faults"] == len(FAULTS)
    assert found["commits_cut"] > 0
    assert found["fires"] > 0
