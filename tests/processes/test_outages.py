"""Outages of the database, and a database that accepts no ending: no run is lost because of them,
and none stays forever.

An unavailable result backend loses no ending either.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from django_durable_tasks.models import Task
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.connections import LEADER, dedicated_connection
from tests.backends import address, variable_of
from tests.factories import a_task
from tests.processes.cluster import SHORT, Cluster, cluster_in
from tests.processes.proxy import proxy_to
from tests.processes.rows import ended, in_status, logged, logs, release, row, statuses
from tests.project import bodies
from tests.waiting import until

RUNS = 20
LEASE_READ = 3
"""Seconds of a lease that ends after three reads, one per NODE_HEARTBEAT."""
NOWHERE = "redis://127.0.0.1:1/0"
FUNCTION = (
    "CREATE FUNCTION refuse_success() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not"
    " today'; END $$"
)
REFUSALS = {
    "postgresql": (
        """
        CREATE CONSTRAINT TRIGGER refuse_success AFTER INSERT ON durable_tasks_execution_log
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.status = 'SUCCESS') EXECUTE FUNCTION refuse_success()"""
    ),
    "mysql": (
        """
        CREATE TRIGGER refuse_success BEFORE INSERT ON durable_tasks_execution_log FOR EACH ROW
        IF NEW.status = 'SUCCESS' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not today'; END IF"""
    ),
    "sqlite": (
        """
        CREATE TRIGGER refuse_success BEFORE INSERT ON durable_tasks_execution_log WHEN NEW.status = 'SUCCESS'
        BEGIN SELECT RAISE(ABORT, 'not today'); END"""
    ),
}


@contextmanager
def _no_success_is_taken() -> Iterator[None]:
    """Make every success fail, on PostgreSQL as late as its COMMIT."""
    on_postgresql = connection.vendor == "postgresql"
    with connection.cursor() as cursor:
        if on_postgresql:
            cursor.execute(FUNCTION)
        cursor.execute(REFUSALS[connection.vendor])
        try:
            yield
        finally:
            cursor.execute(
                "DROP TRIGGER refuse_success" + " ON durable_tasks_execution_log" * on_postgresql
            )
            if on_postgresql:
                cursor.execute("DROP FUNCTION refuse_success()")


def _leases_judged() -> Task:
    """Wait until the leader has read all leases three times and marked a run LOST by that: a run
    that no process has, whose lease is as short as three reads. Return its task, which has failed.
    """
    lost = a_task("RUNNING", name=bodies.add.name, max_crashes=1, options={"lease": LEASE_READ})
    return in_status(lost, "FAILED", within=30)


def _leases_over() -> bool:
    return not Task.objects.running().filter(lease_until__gte=database_now()).exists()


def _leases_kept() -> bool:
    kept: int = Task.objects.running().filter(lease_until__gt=database_now()).count()
    return kept == RUNS


@pytest.mark.smoke
@pytest.mark.postgresql
@pytest.mark.mariadb
def test_an_outage_of_the_database_longer_than_the_lease_loses_no_run(
    rows: None, tmp_path: Path, vendor: str
) -> None:
    """The scheduler returns first and finds every lease expired and every worker silent."""
    short, place = {**SHORT, "LEASE": 8, "NODE_TIMEOUT": 8}, variable_of(vendor)
    held = tmp_path / "held"
    with (
        proxy_to(address(vendor)) as far,
        proxy_to(address(vendor)) as near,
        cluster_in(tmp_path, short) as cluster,
    ):
        cluster.worker(pool="threads", slots=RUNS, **{place: far.url})
        scheduler = cluster.scheduler(**{place: near.url})
        cluster.ready()
        tasks = [bodies.hold.schedule(str(held)) for _ in range(RUNS)]
        until(lambda: statuses()["RUNNING"] == RUNS, within=30)
        _leases_judged()
        far.cut()
        near.cut()
        until(_leases_over, within=30, message="every lease is over")
        near.restore()
        until(
            lambda: cluster.leading() is scheduler, within=30, message="the scheduler leads again"
        )
        # The dispatch thread logs the outage; the thread that releases tasks does not repeat it.
        assert "Dispatching is interrupted" in scheduler.output()
        assert "Releasing tasks that wait for a limit failed" not in scheduler.output()
        _leases_judged()
        far.restore()
        until(lambda: _leases_kept() or logs()["LOST"] > 2, within=30, message="the worker is back")
        release(held)
        for task in tasks:
            ended(task)
        assert scheduler.alive()
    # The two runs without a process are LOST.
    assert (statuses(), logs()) == (
        {"SUCCESS": RUNS, "FAILED": 2},
        {"SUCCESS": RUNS, "LOST": 2},
    )


@pytest.mark.smoke
def test_a_run_whose_ending_is_never_accepted_leaves_the_heartbeat_and_its_lease_ends_it(
    rows: None, tmp_path: Path
) -> None:
    with (
        _no_success_is_taken(),
        cluster_in(tmp_path, {**SHORT, "RESULT_WRITE_TIMEOUT": 0.5}) as cluster,
    ):
        worker = cluster.worker(slots=1)
        cluster.scheduler()
        cluster.ready()
        task = bodies.add.using(max_crashes=1).schedule(1, 2)
        until(lambda: "Could not record the result of a run" in worker.output(), within=20)
        assert row(task).status == "RUNNING"
        found = ended(task)
        assert (found.status, found.reason, logged(task)) == ("FAILED", "CRASHED", ["LOST"])
        assert worker.alive()


@pytest.mark.postgresql
def test_an_ending_that_fails_for_a_while_is_written_afterwards(cluster: Cluster) -> None:
    worker, _ = cluster.worker(), cluster.scheduler()
    cluster.ready()
    with _no_success_is_taken():
        task = bodies.add.schedule(1, 2)
        in_status(task, "RUNNING")
        until(lambda: row(task).lease_until != row(task).started_at, within=20)
    found = ended(task)
    assert (found.status, found.attempts, logged(task)) == ("SUCCESS", 1, ["SUCCESS"])
    assert worker.alive()


@pytest.mark.parametrize("kind", ["solo", "prefork"])
def test_an_unavailable_result_backend_loses_no_ending(
    rows: None, tmp_path: Path, kind: str
) -> None:
    with cluster_in(tmp_path, TEST_RESULT_BACKEND=NOWHERE) as cluster:
        worker = cluster.worker(pool=kind, slots=1)
        cluster.scheduler()
        cluster.ready()
        good, bad = bodies.add.schedule(1, 2), bodies.fail.schedule("no luck")
        assert (ended(good).result, logged(good)) == (3, ["SUCCESS"])
        found = ended(bad, within=60)
        assert (found.reason, logged(bad)) == ("EXHAUSTED", ["RETRY", "FAILED"])
        assert worker.alive()


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_a_process_that_is_frozen_inside_a_transaction_loses_its_locks(rows: None) -> None:
    """A worker that is frozen while it writes an ending must not block maintenance of its task."""
    task = bodies.add.using(run_at=timezone.now() + timedelta(hours=1)).schedule(1, 2)
    this = Task.objects.filter(pk=task.pk)

    def sleep() -> None:
        with dedicated_connection(LEADER), transaction.atomic():
            this.select_for_update().get()
            until(_free, within=30, message="the lock is given back")
            this.exists()

    def _free() -> bool:
        with dedicated_connection(), transaction.atomic():
            return bool(this.select_for_update(skip_locked=True).exists())

    with pytest.raises(DatabaseError):
        sleep()
