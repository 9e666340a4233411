"""Whatever process dies or freezes, its tasks complete, accepted once, and another scheduler
becomes leader.
"""

import os
import signal
from pathlib import Path

import pytest
from django.contrib.auth.models import Group

from django_durable_tasks.models import SchedulerLease, Task
from tests.processes.cluster import SHORT, Cluster, Program, cluster_in
from tests.processes.rows import accepted_twice, ended, in_status, logged, release, row
from tests.project import bodies
from tests.waiting import until


def _held(folder: Path, number: int = 1) -> list[Task]:
    """Schedule bodies that run until the file `released` exists, and wait until all run."""
    tasks = [bodies.hold.schedule(str(folder)) for _ in range(number)]
    for task in tasks:
        in_status(task, "RUNNING")
    until(lambda: len(list(folder.glob("started-*"))) >= number, within=20)
    return tasks


def _term() -> int:
    term: int = SchedulerLease.objects.values_list("term", flat=True).get()
    return term


def _another_leads(cluster: Cluster, old: Program) -> Program:
    def other() -> Program | None:
        leading = cluster.leading()
        return leading if leading is not old else None

    found = until(other, within=30, message="another scheduler leads")
    assert found is not None
    return found


@pytest.mark.smoke
def test_the_runs_of_a_killed_worker_are_lost_and_run_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    worker, _ = cluster.worker(), cluster.scheduler()
    cluster.ready()
    tasks = _held(tmp_path / "held", 2)
    worker.kill()
    cluster.worker().ready()
    release(tmp_path / "held")
    for task in tasks:
        found = ended(task, within=60)
        # They died together for the first time, which is not charged to either.
        assert (found.status, found.attempts, found.crashes) == ("SUCCESS", 2, 0)
        assert logged(task) == ["LOST", "SUCCESS"]


@pytest.mark.smoke
def test_a_killed_leader_is_replaced_and_work_continues(cluster: Cluster) -> None:
    cluster.worker()
    cluster.scheduler()
    cluster.scheduler()
    old, term = cluster.ready().leading(), _term()
    assert old is not None
    old.kill()
    task = bodies.add.schedule(1, 2)
    _another_leads(cluster, old)
    assert _term() > term
    assert ended(task).result == 3


def test_a_leader_that_stops_releases_its_lease(rows: None, tmp_path: Path) -> None:
    with cluster_in(tmp_path, {**SHORT, "LEADER_LEASE": 300}) as cluster:
        SchedulerLease.objects.update(expires_at="2000-01-01T00:00:00Z")
        cluster.scheduler()
        cluster.scheduler()
        old = cluster.ready().leading()
        assert old is not None
        assert old.terminate() == 0
        successor = _another_leads(cluster, old)
        assert old.node() is None
        assert successor.terminate() == 0


def test_a_leader_that_was_frozen_is_no_longer_leader(cluster: Cluster) -> None:
    cluster.scheduler()
    cluster.scheduler()
    old = cluster.ready().leading()
    assert old is not None
    old.freeze()
    new = _another_leads(cluster, old)
    term = _term()
    old.thaw()
    until(lambda: "lost leadership" in old.output(), within=20, message="the old leader steps down")
    assert (cluster.leading(), _term()) == (new, term)
    assert old.alive()


def test_a_worker_frozen_longer_than_its_lease_is_fenced(cluster: Cluster, tmp_path: Path) -> None:
    sleeper, _ = cluster.worker(slots=1), cluster.scheduler()
    cluster.ready()
    (task,) = _held(tmp_path / "held")
    sleeper.freeze()
    cluster.worker(slots=1).ready()
    until(lambda: row(task).attempts == 2 and row(task).status == "RUNNING", within=40)
    release(tmp_path / "held")
    assert ended(task).result == 2
    sleeper.thaw()
    until(lambda: "FENCED" in logged(task), within=30, message="the sleeper's ending is refused")
    assert logged(task) == ["LOST", "SUCCESS", "FENCED"]
    assert (row(task).status, row(task).result, accepted_twice()) == ("SUCCESS", 2, [])
    until(lambda: sleeper.node() is not None, within=20, message="the sleeper registers again")


def test_a_worker_declared_dead_by_mistake_starts_runs_under_the_id_of_a_live_node_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    sleeper, _ = cluster.worker(slots=1), cluster.scheduler()
    cluster.ready()
    sleeper.freeze()
    until(lambda: sleeper.node() is None, within=40, message="the sleeper is declared dead")
    sleeper.thaw()
    until(lambda: sleeper.node() is not None, within=20, message="the sleeper says that it lives")
    (task,) = _held(tmp_path / "held")
    node = sleeper.node()
    assert node is not None
    # Its children were started with its first id. If that stayed dead, every check would lose what
    # they run.
    assert row(task).node == node.pk
    release(tmp_path / "held")
    assert (ended(task).status, logged(task)) == ("SUCCESS", ["SUCCESS"])


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_the_writes_of_an_atomic_body_happen_once_although_it_runs_twice(
    cluster: Cluster, tmp_path: Path
) -> None:
    """On SQLite a body that sleeps in a transaction has the only lock; nothing else could run."""
    Group.objects.all().delete()
    sleeper, _ = cluster.worker(slots=1), cluster.scheduler()
    cluster.ready()
    task = bodies.hold_atomically.schedule(str(tmp_path / "held"))
    until(lambda: list((tmp_path / "held").glob("started-*")), within=20)
    sleeper.freeze()
    cluster.worker(slots=1).ready()
    until(lambda: row(task).attempts == 2 and row(task).status == "RUNNING", within=40)
    release(tmp_path / "held")
    assert ended(task).result == 2
    sleeper.thaw()
    until(lambda: "FENCED" in logged(task), within=30, message="the sleeper's ending is refused")
    assert list(Group.objects.values_list("name", flat=True)) == [f"{task.pk}-2"]
    Group.objects.all().delete()


@pytest.mark.parametrize("place", ["prerun", "prerun-worker"])
def test_a_message_received_by_a_process_that_dies_before_the_start_is_republished(
    cluster: Cluster, tmp_path: Path, place: str
) -> None:
    armed = tmp_path / "armed"
    armed.touch()
    worker, _ = cluster.worker(TEST_FAILPOINT=f"{place}:{armed}"), cluster.scheduler()
    cluster.ready()
    task = bodies.add.schedule(1, 2)
    until(lambda: not armed.exists(), within=20, message="the process dies")
    if place == "prerun-worker":
        until(lambda: worker.process.poll() == -signal.SIGKILL, within=20)
        cluster.worker().ready()
    found = ended(task, within=40)
    # The parent of a child that died counts an attempt if it knows that the child had the message.
    # Otherwise, and if the whole worker died, the message is published again. A worker that takes
    # tasks from the database starts the run before a child has it.
    lost, takes = found.crashes, os.environ["TEST_BROKER"] == "database"
    assert (found.status, found.attempts, logged(task)) == (
        "SUCCESS",
        1 + lost,
        ["LOST"] * lost + ["SUCCESS"],
    )
    assert lost <= (takes or place == "prerun")


def test_a_stopping_worker_finishes_its_runs_and_signs_off(
    cluster: Cluster, tmp_path: Path
) -> None:
    worker, _ = cluster.worker(), cluster.scheduler()
    cluster.ready()
    (task,) = _held(tmp_path / "held")
    worker.process.send_signal(signal.SIGTERM)
    until(lambda: "Warm shutdown" in worker.output(), within=20)
    release(tmp_path / "held")
    assert worker.process.wait(30) == 0
    assert (row(task).status, logged(task)) == ("SUCCESS", ["SUCCESS"])
    assert worker.node() is None
