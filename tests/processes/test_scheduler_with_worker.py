"""``run_scheduler --with-worker``: scheduler and worker are one process for a supervisor."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from django_durable_tasks.models import Node, NodeKind
from tests.processes.cluster import STARTING, STOPPING, Cluster, Program
from tests.processes.newcomer import group_is_gone
from tests.processes.rows import ended, in_status, logged, release
from tests.project import bodies, tasks
from tests.waiting import until

pytestmark = pytest.mark.long


def _started(cluster: Cluster) -> tuple[Program, Node]:
    scheduler = cluster.scheduler("--with-worker", "-c", "1").ready()
    workers = Node.objects.alive().filter(kind=NodeKind.WORKER)
    until(workers.exists, within=STARTING, message=scheduler.output())
    return scheduler, workers.get()


@pytest.mark.smoke
def test_tasks_run_and_sigterm_ends_both_after_the_running_task(
    cluster: Cluster, tmp_path: Path
) -> None:
    scheduler, worker = _started(cluster)
    assert worker.concurrency == 1
    assert ended(tasks.add.schedule(1, 2)).status == "SUCCESS"
    task = bodies.hold.schedule(str(tmp_path / "hold"))
    in_status(task, "RUNNING")
    scheduler.process.send_signal(signal.SIGTERM)
    until(lambda: Node.objects.filter(pk=worker.pk, draining=True).exists(), within=20)
    assert scheduler.alive()
    release(tmp_path / "hold")
    assert scheduler.process.wait(STOPPING) == 0
    assert ended(task).status == "SUCCESS"
    assert logged(task) == ["SUCCESS"]
    assert not Node.objects.alive().exists()
    until(lambda: group_is_gone(scheduler), within=10)


def test_ctrl_c_ends_both(cluster: Cluster) -> None:
    scheduler, _ = _started(cluster)
    scheduler.signal(signal.SIGINT)
    assert scheduler.process.wait(STOPPING) == 0
    assert not Node.objects.alive().exists()


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGQUIT], ids=lambda number: number.name
)
def test_if_the_worker_ends_the_scheduler_ends_with_1(
    cluster: Cluster, number: signal.Signals
) -> None:
    scheduler, worker = _started(cluster)
    os.kill(worker.pid, number)
    assert scheduler.process.wait(STOPPING) == 1
    assert "The worker ended with exit code" in scheduler.output()
    assert "Traceback" not in scheduler.output()
    assert not Node.objects.alive().filter(kind=NodeKind.SCHEDULER).exists()
    until(lambda: group_is_gone(scheduler), within=STOPPING)


def test_if_the_scheduler_is_killed_the_worker_finishes_its_task_and_ends(
    cluster: Cluster, tmp_path: Path
) -> None:
    scheduler, worker = _started(cluster)
    task = bodies.hold.schedule(str(tmp_path / "hold"))
    in_status(task, "RUNNING")
    os.kill(scheduler.process.pid, signal.SIGKILL)
    scheduler.process.wait(STOPPING)
    until(_is_draining(worker), within=20)
    release(tmp_path / "hold")
    assert ended(task).status == "SUCCESS"
    until(lambda: group_is_gone(scheduler), within=STOPPING)


def _is_draining(node: Node) -> Callable[[], bool]:
    return lambda: Node.objects.filter(pk=node.pk, draining=True).exists()


@pytest.mark.parametrize("options", [["-c", "2"], ["--with-worker", "--once"]])
def test_options_that_need_each_other_are_refused(cluster: Cluster, options: list[str]) -> None:
    scheduler = cluster.scheduler(*options)
    assert scheduler.process.wait(STARTING) == 1
    assert "--with-worker" in scheduler.output()
    assert "Traceback" not in scheduler.output()
