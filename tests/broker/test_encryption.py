"""Encrypted arguments through a real worker and a real broker."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from django_durable_tasks.models import Task
from tests.processes.cluster import SHORT, Cluster, cluster_in
from tests.processes.rows import ended
from tests.project.tasks import echo

KEY = "worker:" + base64.b64encode(b"w" * 32).decode()
GIVEN: dict[str, Any] = {**SHORT, "ENCRYPTION_KEYS": [KEY]}
SECRET = "4111-1111-1111-1111"


@pytest.fixture(scope="module")
def shared(shared_database: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One worker and one scheduler with the key."""
    with cluster_in(tmp_path_factory.mktemp("encryption"), GIVEN) as cluster:
        cluster.worker(slots=2)
        cluster.scheduler()
        yield cluster.ready()


@pytest.mark.smoke
def test_an_encrypted_task_runs_and_its_row_shows_no_plain_value(
    shared: Cluster, rows: None, settings: Any
) -> None:
    settings.DURABLE_TASKS = GIVEN
    task = echo.schedule(SECRET, card=SECRET)
    ended(task)
    with connection.cursor() as cursor:
        cursor.execute("SELECT args, kwargs, result FROM durable_tasks_task")
        stored = repr(cursor.fetchall())
    assert SECRET not in stored
    assert stored.count("$encrypted") == 3
    row = Task.objects.get(pk=task.pk)
    assert (row.status, row.args) == ("SUCCESS", [SECRET])
    assert SECRET in repr(row.result)
