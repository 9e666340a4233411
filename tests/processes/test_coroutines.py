"""Async functions in real workers: many at once on threads, one by one on prefork; limits, cancels,
shutdowns and deaths.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from celery import current_app

from django_durable_tasks.models import Task
from tests.processes.cluster import STOPPING, Cluster, Program
from tests.processes.rows import ended, logged, release, row
from tests.project import coroutines
from tests.waiting import until

both_pools = pytest.mark.parametrize("pool", ["threads", "prefork"])


def _started(folder: Path) -> list[int]:
    return sorted(int(file.name.split("-")[1]) for file in folder.glob("started-*"))


def _hold(folder: Path, task: object) -> int:
    """Wait until a function runs in this folder; return its process."""
    until(lambda: _started(folder), within=40, message="the function runs")
    until(lambda: row(task).status == "RUNNING", within=20)
    return _started(folder)[0]


def _is_cancelled(folder: Path) -> bool:
    return any(folder.glob("cancelled-*"))


@pytest.mark.parametrize("pool", ["threads", "prefork", "solo"])
def test_values_errors_and_limits(cluster: Cluster, pool: str) -> None:
    cluster.worker(pool=pool)
    cluster.scheduler()
    cluster.ready()
    tasks = [
        coroutines.add.schedule(1, 2),
        coroutines.fail.schedule("no"),
        coroutines.celery_retry.schedule(2),
        coroutines.create_group.schedule(pool),
        coroutines.over_soft_limit.schedule(),
        coroutines.keep_what_is_done.schedule(),
        coroutines.over_hard_limit.schedule(),
    ]
    found = [ended(task) for task in tasks]
    assert [logged(task) for task in tasks] == [
        ["SUCCESS"],
        ["RETRY", "FAILED"],
        ["RETRY", "RETRY", "SUCCESS"],
        ["SUCCESS"],
        ["FAILED"],
        ["SUCCESS"],
        ["FAILED"],
    ]
    assert [one.result for one in found] == [3, None, 3, 1, None, "half", None]
    assert found[4].last_error.startswith("SoftTimeLimitExceeded")
    hard = "TimeLimitExceeded" if pool == "prefork" else "RunOutOfTime"
    assert found[6].last_error.startswith(hard)
    # On prefork sys.exit() ends a process of the pool. On solo it ends the worker.
    left = ended(coroutines.leave.using(max_crashes=2).schedule())
    crashed = ("CRASHED", ["LOST", "LOST"])
    assert (left.reason, logged(left)) == (
        crashed if pool == "prefork" else ("EXHAUSTED", ["FAILED"])
    )


def test_a_pool_of_greenlets_refuses_coroutines(cluster: Cluster) -> None:
    cluster.worker(pool="gevent")
    cluster.scheduler()
    cluster.ready()
    found = ended(coroutines.add.schedule(1, 2))
    assert (found.status, logged(found)) == ("FAILED", ["FAILED"])
    assert "run it on a worker with --pool threads or prefork" in found.last_error


def test_many_run_at_once_in_one_process(cluster: Cluster, tmp_path: Path) -> None:
    number = 100
    cluster.worker(pool="threads", slots=number)
    cluster.scheduler()
    cluster.ready()
    coroutines.hold_until_released.schedule_many([(str(tmp_path),)] * number)
    until(lambda: Task.objects.running().count() == number, within=60)
    release(tmp_path)
    until(lambda: Task.objects.filter(status="SUCCESS").count() == number, within=60)
    assert len(set(Task.objects.values_list("result", flat=True))) == 1


@both_pools
def test_sigterm_lets_a_coroutine_finish(cluster: Cluster, tmp_path: Path, pool: str) -> None:
    worker = cluster.worker(pool=pool, slots=1)
    cluster.scheduler()
    cluster.ready()
    task = coroutines.hold_until_released.schedule(str(tmp_path))
    _hold(tmp_path, task)
    worker.process.send_signal(signal.SIGTERM)
    until(lambda: _is_draining(worker), within=20, message="the node drains")
    release(tmp_path)
    assert worker.process.wait(STOPPING) == 0
    assert (ended(task).status, logged(task)) == ("SUCCESS", ["SUCCESS"])


def _is_draining(worker: Program) -> bool:
    node = worker.node()
    return node is None or node.draining


@both_pools
def test_sigquit_cancels_a_coroutine_whose_task_runs_again(
    cluster: Cluster, tmp_path: Path, pool: str
) -> None:
    worker = cluster.worker(pool=pool, slots=1)
    cluster.scheduler()
    cluster.ready()
    task = coroutines.hold.schedule(str(tmp_path))
    first = _hold(tmp_path, task)
    worker.process.send_signal(signal.SIGQUIT)
    until(lambda: _is_cancelled(tmp_path), within=20, message="the coroutine is cancelled")
    worker.process.wait(STOPPING)
    cluster.worker(pool=pool, slots=1).ready()
    until(lambda: _started(tmp_path) != [first], within=60, message="the task runs again")
    assert logged(task) == (["RETRY"] if pool == "threads" else ["LOST"])
    assert row(task).failures == 0


@both_pools
def test_a_killed_process_loses_its_coroutine_which_runs_again(
    cluster: Cluster, tmp_path: Path, pool: str
) -> None:
    worker = cluster.worker(pool=pool, slots=1)
    cluster.scheduler()
    cluster.ready()
    task = coroutines.hold_until_released.schedule(str(tmp_path))
    process = _hold(tmp_path, task)
    os.kill(process, signal.SIGKILL)
    if pool == "threads":
        worker.process.wait(STOPPING)
        cluster.worker(pool=pool, slots=1).ready()
    until(lambda: len(_started(tmp_path)) == 2, within=60, message="the task runs again")
    release(tmp_path)
    assert (ended(task).status, logged(task)) == ("SUCCESS", ["LOST", "SUCCESS"])


@both_pools
def test_a_cancelled_task_cancels_its_coroutine(
    cluster: Cluster, tmp_path: Path, pool: str
) -> None:
    cluster.worker(pool=pool, slots=1)
    cluster.scheduler()
    cluster.ready()
    task = coroutines.hold.schedule(str(tmp_path / "cancelled"))
    _hold(tmp_path / "cancelled", task)
    Task.objects.filter(pk=task.pk).cancel(by="anna")
    assert (ended(task).status, logged(task)) == ("CANCELLED", ["CANCELLED"])
    assert _is_cancelled(tmp_path / "cancelled")

    if pool == "prefork":
        task = coroutines.hold.schedule(str(tmp_path / "revoked"))
        _hold(tmp_path / "revoked", task)
        current_app.control.revoke(str(task.pk), terminate=True)
        assert (ended(task).status, logged(task)) == ("CANCELLED", ["CANCELLED"])
        until(lambda: _is_cancelled(tmp_path / "revoked"), within=20)


def _wait_for_heartbeat(tasks: list[Task]) -> None:
    before = [row(task).lease_until for task in tasks]
    until(
        lambda: all(row(task).lease_until != old for task, old in zip(tasks, before, strict=True)),
        within=20,
        message="all leases are renewed",
    )


def test_a_function_that_blocks_the_event_loop_keeps_its_lease(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.worker(pool="threads", slots=2)
    cluster.scheduler()
    cluster.ready()
    waiting = coroutines.hold_until_released.schedule(str(tmp_path / "waiting"))
    _hold(tmp_path / "waiting", waiting)  # first: nothing begins on a blocked event loop
    blocking = coroutines.block.schedule(str(tmp_path / "blocked"))
    _hold(tmp_path / "blocked", blocking)
    tasks = [waiting, blocking]
    for _ in range(5):  # longer than the lease of this cluster
        _wait_for_heartbeat(tasks)
    for folder in ("waiting", "blocked"):
        release(tmp_path / folder)
    assert [(ended(task).status, logged(task)) for task in tasks] == [("SUCCESS", ["SUCCESS"])] * 2
