"""A short chaos run: a few faults of each kind on the servers of this test run. `make chaos` is the
long form.
"""

import os

import pytest

from tests.chaos.__main__ import failures, run_in_process
from tests.chaos.configuration import drawn
from tests.chaos.faults.catalogue import for_broker
from tests.chaos.plan import Plan
from tests.starting import find_pgbouncer

FAULTS = (
    "child-killed",
    "worker-frozen",
    "leader-killed",
    "sessions-ended",
    "commits-cut",
    "broker-flushed",
    "first-broker-cut",
    "queue-rejected",
    "index-unreadable",
    "everything-doubled",
    "garbage",
    "receiver-frozen",
)
CAMPAIGN = (
    "pool=prefork,workers=1,slots=2,backlog=150,removed=50,global_limit=4,failing_batches=True"
)
THROUGH_PGBOUNCER = ("child-killed", "sessions-ended", "commits-cut")


@pytest.mark.postgresql
@pytest.mark.timeout(400)
def test_nothing_is_lost_duplicated_or_left_over_under_faults() -> None:
    """The seed and the faults are fixed. Exactly when they occur is not, and must not matter."""
    broker = os.environ["TEST_BROKER"]
    possible = {fault.name for fault in for_broker(broker, private=False)}
    faults = tuple(name for name in FAULTS if name in possible)
    plan = Plan(
        broker=broker,
        seed="short",
        faults=faults,
        rate=25,
        calm=1,
        pace=0.3,
        private=False,
    )
    found = run_in_process(plan)
    assert failures([found]) == []
    assert found["faults"] == len(faults) >= 7
    assert "faults broken off" not in found["notes"]
    assert found["queues"] > 20
    assert found["garbage_removed"] > 0 or "index-unreadable" not in faults
    assert found["commits_cut"] > 0
    assert found["fires"] > 0
    assert found["callbacks"] > 10
    assert found["notifications"] > 10
    assert found["requests_refused"] > 0
    assert found["batched"] > 100


@pytest.mark.postgresql
@pytest.mark.timeout(300)
@pytest.mark.skipif(find_pgbouncer() is None, reason="PgBouncer is not installed")
def test_nothing_is_lost_or_duplicated_through_pgbouncer() -> None:
    plan = Plan(
        broker=os.environ["TEST_BROKER"],
        seed="pooled",
        faults=THROUGH_PGBOUNCER,
        rate=25,
        calm=1,
        pace=0.3,
        private=False,
        pooled=True,
    )
    found = run_in_process(plan)
    assert failures([found], tried=False) == []
    assert found["faults"] == len(THROUGH_PGBOUNCER)
    assert found["commits_cut"] > 0
    assert found["pooled_transactions"] > found["tasks"]


@pytest.mark.timeout(600)
def test_a_drawn_campaign_loses_nothing_and_leaves_no_worker_idle() -> None:
    """A minute of the campaigns of `make chaos`, with shortened leases, on this run's servers."""
    broker, database = os.environ["TEST_BROKER"], os.environ["TEST_DATABASE"]
    places = f"database={database},broker={broker},driver=psycopg,language="
    plan = Plan(
        broker=broker,
        seed="short",
        faults=(),
        rate=6,
        pace=0.3,
        seconds=60,
        private=False,
        configuration=drawn("short", 60, private=False).but(f"{places},{CAMPAIGN}"),
    )
    found = run_in_process(plan)
    assert failures([found], tried=False) == []
    assert found["faults"] >= 2
    assert "quiet not reached" not in found["notes"]
