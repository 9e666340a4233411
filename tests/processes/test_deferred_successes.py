"""A child process of a worker is killed between the end of a function and the COMMIT of its
success. The leases of these tests last for minutes, so only the parent process can notice it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import current_app

from django_durable_tasks.models import Task
from tests.processes.cluster import SHORT, Cluster, Program, cluster_in
from tests.processes.rows import accepted_twice, ended, in_status, lines, logged, release, row
from tests.project import bodies
from tests.waiting import until

pytestmark = pytest.mark.postgresql
LONG_LEASES = {**SHORT, "LEASE": 600}


@pytest.fixture
def patient(rows: None, tmp_path: Path) -> Iterator[Cluster]:
    """Provide a cluster in which no lease expires during a test."""
    with cluster_in(tmp_path / "cluster", LONG_LEASES) as cluster:
        yield cluster


def _worker(cluster: Cluster, place: str, armed: Path) -> Program:
    armed.touch()
    worker = cluster.worker(slots=1, TEST_FAILPOINT=f"{place}:{armed}")
    cluster.scheduler()
    cluster.ready()
    return worker


def _is_idle(worker: Program) -> bool:
    """Return whether the parent process regards all its messages as finished."""
    found = current_app.control.inspect([worker.name], timeout=2).active() or {}
    return found.get(worker.name) == []


def _with_a_deferred_success(cluster: Cluster, folder: Path) -> tuple[Program, Task, int]:
    """Return a worker, a task whose function has ended and that is RUNNING, and the process."""
    release(folder)
    worker = _worker(cluster, "held", folder / "armed")
    upstream = bodies.add.schedule(1, 2)
    downstream = bodies.add.using(depends_on=[upstream]).schedule(3, 4)
    until(lambda: row(downstream).attempts == 1, within=40, message="the dependent starts")
    assert ended(upstream).result == 3  # on this success something depends: it is not deferred
    task = bodies.hold.schedule(str(folder))
    (ended_file,) = until(lambda: list(folder.glob("ended-*")), within=40)
    until(lambda: _is_idle(worker), within=40, message="the parent has finished the message")
    assert (row(task).status, ended(downstream).result) == ("RUNNING", 7)
    return worker, task, int(ended_file.name.split("-")[1])


def test_the_parent_ends_the_run_of_a_child_that_died_before_the_success_was_recorded(
    patient: Cluster, tmp_path: Path
) -> None:
    worker, task, child = _with_a_deferred_success(patient, tmp_path / "held")
    patient.worker(slots=1, queues=["durable-side"]).ready()
    living = bodies.hold.using(queue="durable-side").schedule(str(tmp_path / "other"))
    in_status(living, "RUNNING")
    os.kill(child, signal.SIGKILL)
    until(lambda: row(task).attempts == 2, within=40, message="it starts again")
    bodies.add.schedule(1, 2)  # its start records the second success, which is held too
    found = ended(task)
    assert (found.status, found.result, found.attempts) == ("SUCCESS", 2, 2)
    assert (found.crashes, found.failures, logged(task)) == (1, 0, ["LOST", "SUCCESS"])
    assert (len(list((tmp_path / "held").glob("ended-*"))), worker.alive()) == (2, True)
    release(tmp_path / "other")  # the run of a living child of another worker goes on
    assert (ended(living).result, logged(living), accepted_twice()) == (1, ["SUCCESS"], [])


@pytest.mark.parametrize(
    ("place", "first", "second"),
    [
        ("deferred", ["LOST", "SUCCESS"], ["SUCCESS"]),
        ("next-start", ["LOST", "SUCCESS"], ["SUCCESS"]),
        ("next-started", ["SUCCESS"], ["LOST", "SUCCESS"]),
    ],
)
def test_each_kill_around_the_common_transaction_costs_one_attempt(
    patient: Cluster, tmp_path: Path, place: str, first: list[str], second: list[str]
) -> None:
    _worker(patient, place, tmp_path / "armed")
    notebook = tmp_path / "notes"
    tasks = [bodies.note.schedule(f"{number}", str(notebook)) for number in range(2)]
    until(lambda: {"0", "1"} <= set(lines(notebook)), within=40)
    until(lambda: not (tmp_path / "armed").exists(), within=40, message="the child was killed")
    until(lambda: sum(row(task).attempts for task in tasks) == 3, within=40)
    bodies.add.schedule(1, 2)  # its start records the last success, which is held too
    for task, log in zip(tasks, (first, second), strict=True):
        found = ended(task)
        assert (found.status, logged(task)) == ("SUCCESS", log)
        assert (found.attempts, found.crashes) == (len(log), len(log) - 1)
    assert accepted_twice() == []
