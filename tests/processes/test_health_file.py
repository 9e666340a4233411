"""The probe that reads the file of a scheduler or worker, beside real processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes.cluster import Cluster, cluster_in
from tests.processes.rows import forget_processes
from tests.runs import ROOT
from tests.waiting import until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of the health files."""
    return tmp_path / "health"


@pytest.fixture
def cluster(rows: None, tmp_path: Path, folder: Path) -> Iterator[Cluster]:
    """Provide a cluster that writes its health files there."""
    forget_processes()
    with cluster_in(tmp_path, DURABLE_TASKS_HEALTH_DIR=str(folder)) as cluster:
        yield cluster
    forget_processes()


def _probe(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "django_durable_tasks.health", *arguments],
        cwd=ROOT,
        env={**os.environ, "DURABLE_TASKS_HEALTH_DIR": str(folder), "DJANGO_SETTINGS_MODULE": "no"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def _answers(folder: Path, code: int, *arguments: str) -> Callable[[], bool]:
    return lambda: _probe(folder, *arguments)[0] == code


def test_living_processes_are_healthy_and_frozen_or_dead_ones_are_not(
    cluster: Cluster, folder: Path
) -> None:
    assert _probe(folder) == (1, f"No scheduler or worker has written a heartbeat to {folder}.\n")
    worker, scheduler = cluster.worker(), cluster.scheduler()
    cluster.ready()
    until(_answers(folder, 0, "worker"), within=20)
    until(_answers(folder, 0, "scheduler"), within=20)
    assert re.fullmatch(
        rf"scheduler {scheduler.name}: running, last heartbeat \d\.\d s ago,? ?"
        rf"worker {worker.name}: running, last heartbeat \d\.\d s ago\.\n",
        _probe(folder)[1],
    )
    worker.freeze()
    until(_answers(folder, 1, "worker", "--max-age", "3"), within=20)
    assert (
        f"The worker {worker.name} has written no heartbeat for"
        in _probe(folder, "--max-age", "3")[1]
    )
    assert _probe(folder, "scheduler", "--max-age", "3")[0] == 0
    worker.thaw()
    until(_answers(folder, 0, "worker", "--max-age", "3"), within=20)
    scheduler.kill()
    assert _probe(folder, "scheduler")[0] == 1
    assert _probe(folder)[0] == 0  # the worker
    worker.terminate()
    assert _probe(folder)[0] == 1
    # The scheduler was killed; the worker has removed its file.
    assert [file.name for file in folder.glob("*.json")] == [
        f"scheduler-{scheduler.process.pid}.json"
    ]


def test_a_node_without_its_database_is_not_restarted(cluster: Cluster, folder: Path) -> None:
    scheduler = cluster.scheduler(TEST_RUN="no_such_database_of_this_run", TEST_FOLDER="/nowhere")
    until(_answers(folder, 0, "scheduler"), within=60)
    assert "without database" in _probe(folder)[1]
    assert scheduler.alive()


def test_wrong_usage_and_unreadable_files_exit_with_2(folder: Path) -> None:
    assert _probe(folder, "leader")[0] == 2
    assert _probe(folder, "--max-age", "0")[0] == 2
    folder.mkdir()
    (folder / "worker-1.json").write_text("{")
    code, sentence = _probe(folder)
    assert (code, sentence.count("\n")) == (2, 1)
    assert "The health files cannot be read" in sentence


def test_the_probe_imports_neither_django_nor_celery(folder: Path) -> None:
    code = (
        "import sys; from django_durable_tasks import health; health.check();"
        " print([name for name in ('django', 'celery', 'kombu') if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "DURABLE_TASKS_HEALTH_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == "[]\n"
