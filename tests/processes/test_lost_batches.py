"""A batch message that is lost, and a worker that dies during a batch."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from django.conf import settings

from django_durable_tasks.models import BatchMessage, Task, TaskExecutionLog
from tests.processes.cluster import Cluster
from tests.processes.rows import all_ended, lines, purge
from tests.project import batched
from tests.waiting import until


def test_a_lost_message_is_published_again(cluster: Cluster) -> None:
    cluster.scheduler().ready()
    batched.add.schedule(1, 2)
    until(lambda: BatchMessage.objects.filter(due_at__isnull=False).exists(), within=40)
    until(lambda: purge(settings.CELERY_TASK_DEFAULT_QUEUE) > 0, within=20)
    cluster.worker().ready()
    all_ended(1)
    assert Task.objects.get().result == 3


def test_a_killed_worker_loses_no_task_of_its_batch(cluster: Cluster, tmp_path: Path) -> None:
    worker = cluster.worker()
    cluster.scheduler()
    cluster.ready()
    notebook = tmp_path / "notes"
    batched.note.schedule_many([(str(notebook), number) for number in range(2_000)])
    until(lambda: len(lines(notebook)) > 100, within=60)
    os.killpg(worker.process.pid, signal.SIGKILL)
    cluster.worker().ready()
    all_ended(2_000, within=90)
    assert Counter(Task.objects.values_list("status", flat=True)) == {"SUCCESS": 2_000}
    accepted = Counter(TaskExecutionLog.objects.filter(status="SUCCESS").values_list("task_id"))
    assert set(accepted.values()) == {1}
    assert set(map(int, lines(notebook))) == set(range(2_000))
