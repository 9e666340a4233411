"""SIGTERM: nodes finish running tasks and leave nothing behind. A worker that starts nothing fails
its probe.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from django_durable_tasks.cluster import status as cluster_status
from django_durable_tasks.cluster.status import vitals
from django_durable_tasks.models import Node, SchedulerLease, Task
from django_durable_tasks.store.clock import database_now
from tests.processes.cluster import SHORT, STOPPING, Cluster, Program
from tests.processes.rows import ended, logged, release, row
from tests.project import bodies
from tests.waiting import until


def _row(program: Program) -> Node:
    found: Node = Node.objects.get(name=program.name)
    return found


def test_a_stopping_worker_finishes_its_run_and_leaves_the_others_to_the_next(
    cluster: Cluster, tmp_path: Path
) -> None:
    worker, scheduler = cluster.worker(slots=1), cluster.scheduler()
    cluster.ready()
    held = bodies.hold.schedule(str(tmp_path / "held"))
    until(lambda: any((tmp_path / "held").glob("started-*")), within=20, message="the body runs")
    waiting = [bodies.add.schedule(number, 1) for number in range(5)]
    until(
        lambda: (_row(worker).active or {}).get("ids") == [str(held.pk)],
        within=20,
        message="the node reports its run",
    )
    node = _row(worker)
    active = node.active or {}
    assert (active["number"], active["ids"], node.draining) == (1, [str(held.pk)], False)
    assert node.started_at < (node.last_start_at or node.started_at) <= database_now()
    until(
        lambda: _row(scheduler).last_scan_at is not None,
        within=20,
        message="the scheduler reports its last scan",
    )

    worker.process.send_signal(signal.SIGTERM)
    until(lambda: _row(worker).draining, within=20, message="the node drains")
    assert list(Node.objects.alive().workers()) == []
    assert not Task.objects.filter(pk__in=[task.pk for task in waiting]).exclude(
        status__in=["QUEUED", "PENDING"]
    )
    release(tmp_path / "held")
    assert worker.process.wait(STOPPING) == 0
    assert (ended(held).status, logged(held)) == ("SUCCESS", ["SUCCESS"])
    assert (_row(worker).declared_dead, _row(worker).stopped_at is None) == (False, False)

    cluster.worker(slots=1).ready()
    assert [(ended(task).result, logged(task)) for task in waiting] == [
        (n + 1, ["SUCCESS"]) for n in range(5)
    ]
    assert scheduler.terminate() == 0
    assert _row(scheduler).stopped_at is not None
    assert SchedulerLease.objects.get().expires_at < database_now()


def test_a_worker_whose_child_is_stuck_sends_heartbeats_and_fails_its_probe_until_it_starts_again(
    cluster: Cluster, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent sends heartbeats while its child reads nothing from the pipe. Only the reported
    values show it.
    """
    settings.DURABLE_TASKS = SHORT
    monkeypatch.setattr(cluster_status, "STALLED_AFTER", 2.0)
    worker = cluster.worker(slots=1)
    cluster.scheduler()
    cluster.ready()
    (tmp_path / "held").mkdir()
    release(tmp_path / "held")
    assert ended(bodies.hold.schedule(str(tmp_path / "held"))).status == "SUCCESS"
    child = int(next((tmp_path / "held").glob("started-*")).name.split("-")[1])

    def state() -> str:
        [found] = vitals(Node.objects.filter(name=worker.name))
        return found.state

    def is_free() -> bool:
        node = Node.objects.get(name=worker.name)
        return node.last_start_at is not None and (node.active or {}).get("number") == 0

    # The child commits the success before it sends the result to its parent. If it is suspended
    # between the two, the parent reports it as busy.
    until(is_free, within=20, message="the parent knows that the function returned")
    os.kill(child, signal.SIGSTOP)
    try:
        task = bodies.add.schedule(1, 2)
        until(lambda: state() == "stalled", within=20, message="the stuck worker is found")
        assert row(task).status == "QUEUED"
    finally:
        os.kill(child, signal.SIGCONT)
    assert ended(task).result == 3
    until(lambda: state() == "alive", within=20, message="it works again")
