"""``celery call``, and messages of processes without durable tasks, such as code before a migration
to them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from celery import chain, current_app
from django.conf import settings

from django_durable_tasks.celery.result import DurableResult
from tests.processes.cluster import SHORT, Cluster, cluster_in
from tests.processes.rows import logged
from tests.project import bodies
from tests.project.tasks import add, echo
from tests.runs import ROOT
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("rows")
without_django = pytest.mark.skipif(
    os.environ["TEST_BROKER"] in ("filesystem", "database"),
    reason="a process without Django has neither durable-filesystem:// nor durable-database://",
)
SENDER = """
import sys
from celery import Celery
broker, queue, name = sys.argv[1:]
app = Celery(broker=broker)
app.conf.update(task_default_queue=queue, task_queue_max_priority=10)
print(app.send_task(name, (1, 2), ignore_result=True).id)
"""


def _run(*arguments: str) -> str:
    """Run a Python program and return the last word that it prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def _plain_message() -> str:
    """Call a task from a process that knows only its name; return the id."""
    queue = settings.CELERY_TASK_DEFAULT_QUEUE
    return _run("-c", SENDER, settings.CELERY_BROKER_URL, queue, bodies.add.name)


def test_a_call_by_celerys_command_creates_a_task_that_runs(cluster: Cluster) -> None:
    cluster.worker(slots=1)
    cluster.scheduler()
    cluster.ready()
    call = ("-m", "celery", "-A", "tests.project", "call", bodies.add.name)
    task_id = _run(*call, "--args", json.dumps([1, 2]))
    assert DurableResult(task_id).get(timeout=40) == 3
    assert logged(DurableResult(task_id).task) == ["SUCCESS"]


@without_django
def test_a_plain_message_creates_a_task_that_runs(tmp_path: Path) -> None:
    with cluster_in(tmp_path, {**SHORT, "ACCEPT_PLAIN_MESSAGES": True}) as cluster:
        cluster.worker(slots=1)
        cluster.scheduler()
        cluster.ready()
        task_id = _plain_message()
        assert DurableResult(task_id).get(timeout=40) == 3
        assert logged(DurableResult(task_id).task) == ["SUCCESS"]


@without_django
def test_without_the_setting_the_worker_logs_instructions(cluster: Cluster) -> None:
    worker = cluster.worker(slots=1)
    cluster.ready()
    task_id = _plain_message()
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
