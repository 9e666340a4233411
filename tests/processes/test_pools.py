"""Pools that cannot interrupt a body."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.cluster import Cluster, cluster_in
from tests.processes.rows import ended, logged, release
from tests.project import bodies
from tests.waiting import until


@pytest.fixture(scope="module", params=["solo", "threads"])
def pool(
    shared_database: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    """One worker of this pool and one scheduler."""
    with cluster_in(tmp_path_factory.mktemp(request.param)) as cluster:
        cluster.worker(pool=request.param)
        cluster.scheduler()
        yield cluster.ready()


def test_a_success_and_a_failure_are_recorded(pool: Cluster, rows: None) -> None:
    assert ended(bodies.add.schedule(1, 2)).result == 3
    task = bodies.fail.schedule("no luck")
    found = ended(task)
    assert (found.status, found.reason, logged(task)) == (
        "FAILED",
        "EXHAUSTED",
        ["RETRY", "FAILED"],
    )


def test_a_body_over_its_limit_is_notified_when_it_checks(pool: Cluster, rows: None) -> None:
    task = bodies.heed_the_clock.schedule()
    found = ended(task)
    assert (found.status, found.reason, logged(task)) == ("FAILED", "EXHAUSTED", ["FAILED"])
    assert found.last_error.startswith("RunOutOfTime")


@pytest.mark.parametrize("pool", ["threads"], indirect=True)
def test_a_body_that_ignores_its_limit_loses_its_lease_and_its_ending_is_refused(
    pool: Cluster, rows: None, tmp_path: Path
) -> None:
    task = bodies.hold.using(timeout=1, max_crashes=1).schedule(str(tmp_path / "held"))
    found = ended(task, within=40)
    assert (found.status, found.reason, logged(task)) == ("FAILED", "CRASHED", ["LOST"])
    release(tmp_path / "held")
    until(lambda: logged(task) == ["LOST", "FENCED"], within=20)


@pytest.mark.parametrize("pool", ["solo", "threads", "gevent"], indirect=True)
def test_a_body_that_keeps_the_gil_is_lost_when_its_node_is_silent_and_not_before(
    pool: Cluster, rows: None
) -> None:
    assert logged(ended(bodies.hold_the_interpreter.schedule(1))) == ["SUCCESS"]
    task = bodies.hold_the_interpreter.using(max_crashes=1).schedule(15)
    found = ended(task)
    assert (found.status, found.reason, logged(task)[0]) == ("FAILED", "CRASHED", "LOST")
    until(lambda: logged(task) == ["LOST", "FENCED"], within=40)


@pytest.mark.parametrize("error", ["MemoryError", "RecursionError"])
def test_a_dangerous_exception_is_an_ordinary_failure(
    pool: Cluster, rows: None, error: str
) -> None:
    found = ended(bodies.raise_named.schedule(error))
    assert (found.status, found.reason, logged(found)) == ("FAILED", "EXHAUSTED", ["FAILED"])
    assert ended(bodies.add.schedule(1, 2)).result == 3


def test_the_exit_of_a_body_is_recorded_before_it_ends_a_worker_without_children(
    pool: Cluster, rows: None
) -> None:
    """Celery's solo pool ends on SystemExit: on most brokers the worker ends, and an operator
    starts another.
    """
    found = ended(bodies.leave.using(max_attempts=1).schedule("sys.exit", 3))
    assert (found.status, found.reason, logged(found)) == ("FAILED", "EXHAUSTED", ["FAILED"])
    if "solo" in pool.programs[0].arguments:
        pool.worker(pool="solo").ready()
    assert ended(bodies.add.schedule(1, 2)).result == 3
