"""Calls by processes without durable tasks: ``celery call``, or code before a migration to durable
tasks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from celery import chain, current_app

from django_durable_tasks.celery.result import DurableResult
from tests.processes.cluster import SHORT, Cluster, cluster_in
from tests.processes.rows import logged
from tests.project import bodies
from tests.project.tasks import add, echo
from tests.runs import ROOT
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("rows")
knows_the_broker = pytest.mark.skipif(
    os.environ["TEST_BROKER"] == "filesystem",
    reason="`celery call` does not load Django, and so does not know durable-filesystem://",
)


def _celery_call(*arguments: str) -> str:
    """Call a task by Celery's command and return the id that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "tests.project", "call", *arguments],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


@knows_the_broker
def test_a_call_by_celerys_command_creates_a_task_that_runs(tmp_path: Path) -> None:
    with cluster_in(tmp_path, {**SHORT, "ACCEPT_PLAIN_MESSAGES": True}) as cluster:
        cluster.worker(slots=1)
        cluster.scheduler()
        cluster.ready()
        task_id = _celery_call("tests.project.bodies.add", "--args", "[1, 2]")
        assert DurableResult(task_id).get(timeout=40) == 3
        assert logged(DurableResult(task_id).task) == ["SUCCESS"]


@knows_the_broker
def test_without_the_setting_the_worker_logs_instructions(cluster: Cluster) -> None:
    worker = cluster.worker(slots=1)
    cluster.ready()
    task_id = _celery_call("tests.project.bodies.add", "--args", "[1, 2]")
    until(lambda: f"Refused message {task_id}" in worker.output(), within=40)
    assert "DURABLE_TASKS['ACCEPT_PLAIN_MESSAGES']" in worker.output()


def test_a_chain_of_plain_tasks_passes_its_result_to_a_durable_last_step(cluster: Cluster) -> None:
    cluster.worker(slots=1)
    cluster.scheduler()
    cluster.ready()
    result = chain(bodies.plain.s(), echo.s("last")).delay()
    assert result.get(timeout=40)["values"] == ["plain", "last"]
    named = current_app.send_task(add.name, (1, 2))
    assert named.get(timeout=40) == 3
