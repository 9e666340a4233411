"""Functions of ``django.tasks`` run in a normal worker, also those of a module that it did not
import.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from django.conf import settings

from django_durable_tasks.limits import config
from django_durable_tasks.models import Task
from tests.processes.cluster import Cluster
from tests.processes.rows import ended
from tests.project import late
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)


def _finished(result: Any) -> Any:
    assert ended(result.id).status in ("SUCCESS", "FAILED")
    result.refresh()
    return result


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_imports_the_function_of_a_stored_task_that_it_does_not_know(
    cluster: Cluster, pool: str
) -> None:
    cluster.scheduler().ready()
    result = late.add.enqueue(1, 2)  # published before a worker has announced its names
    worker = cluster.worker(pool=pool).ready()
    assert _finished(result).return_value == 3
    assert result.status == "SUCCESSFUL"
    assert [name.partition("@")[0] for name in result.worker_ids] == [worker.name.partition("@")[0]]
    # The module is imported now; a process of the pool imports it at its first task.
    result = _finished(late.attempt_in_process.enqueue())
    assert result.errors == []
    attempt, process = result.return_value
    assert attempt == 1
    assert process != os.getpid()


def test_a_worker_imports_the_function_of_a_task_that_waits_for_a_worker(cluster: Cluster) -> None:
    worker = cluster.worker().ready()
    cluster.scheduler().ready()  # later, so that its first claim knows the names of the worker
    name, queue = late.add.module_path, settings.CELERY_TASK_DEFAULT_QUEUE
    until(
        lambda: config.limits_in_force().lacks_worker(name, queue),
        within=60,
        message="this process has read the names of the worker",
    )
    results = [late.add.enqueue(number, 2) for number in range(5)]
    assert Task.objects.queued().count() == 0
    assert [_finished(result).return_value for result in results] == [2, 3, 4, 5, 6]
    assert "Imported the task function tests.project.late.add" in worker.output()
