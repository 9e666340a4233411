"""A deploy or the death of a worker costs a long task at most one batch."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from celery import current_app
from django.contrib.auth.models import Group, User

from django_durable_tasks.models import TaskExecutionLog
from tests.kill_trials.steps import run
from tests.processes.cluster import STOPPING, Cluster
from tests.processes.rows import ended, logged, row
from tests.project import stepping
from tests.waiting import until

# At PAUSE seconds each, more than a worker has to stop.
pytestmark = pytest.mark.long
ITEMS = 1_500


@pytest.fixture
def items(cluster: Cluster) -> None:
    Group.objects.all().delete()
    User.objects.all().delete()
    User.objects.bulk_create([User(username=f"item {place}") for place in range(ITEMS)])


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("atomic", [False, True])
def test_a_deploy_interrupts_a_long_loop_and_the_next_worker_continues(
    cluster: Cluster, items: None, tmp_path: Path, atomic: bool, pool: str
) -> None:
    worker = cluster.worker(slots=1, pool=pool)
    cluster.scheduler()
    cluster.ready()
    task = stepping.import_items.schedule("one", 10, atomic, str(tmp_path))
    until(lambda: Group.objects.count() > 20, within=60, message="the second batch")

    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(STOPPING) == 0
    found = row(task)
    assert found.status in ("PENDING", "QUEUED")  # due at once
    assert (found.failures, found.crashes) == (0, 0)
    assert logged(task) == ["RETRY"]
    done = found.position["items"]["done"]
    assert 10 <= done < ITEMS // 2
    assert Group.objects.count() == 1 + done  # nothing was lost or begun
    assert found.progress == {"done": done, "total": ITEMS, "note": "items"}

    (tmp_path / "hurry").touch()
    cluster.worker(slots=1, pool=pool)
    found = ended(task, within=120)
    assert (found.status, found.attempts, found.failures, found.result) == (
        "SUCCESS",
        2,
        0,
        "after",
    )
    assert logged(task) == ["RETRY", "SUCCESS"]
    assert Group.objects.count() == 2 + ITEMS  # each item once


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("atomic", [False, True])
def test_a_deploy_interrupts_an_async_loop_and_the_next_worker_continues(
    cluster: Cluster, items: None, tmp_path: Path, atomic: bool, pool: str
) -> None:
    worker = cluster.worker(slots=1, pool=pool)
    cluster.scheduler()
    cluster.ready()
    task = stepping.import_items_in_a_coroutine.schedule(atomic, str(tmp_path))
    until(lambda: Group.objects.count() > 20, within=60, message="the second batch")

    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(STOPPING) == 0
    found = row(task)
    done = found.position["items"]["done"]
    assert (found.failures, found.crashes, logged(task)) == (0, 0, ["RETRY"])
    assert (10 <= done < ITEMS // 2, Group.objects.count()) == (True, done)

    (tmp_path / "hurry").touch()
    cluster.worker(slots=1, pool=pool)
    found = ended(task, within=120)
    assert (found.status, found.attempts, found.result) == ("SUCCESS", 2, "after")
    assert Group.objects.count() == ITEMS  # each item once


def test_a_shutdown_by_remote_control_interrupts_a_loop_too(
    cluster: Cluster, items: None, tmp_path: Path
) -> None:
    worker = cluster.worker(slots=1)
    cluster.scheduler()
    cluster.ready()
    task = stepping.import_items.schedule("one", 10, True, str(tmp_path))
    until(lambda: Group.objects.count() > 10, within=60, message="the first items")
    current_app.control.shutdown(destination=[worker.name])
    assert worker.process.wait(STOPPING) == 0
    assert (logged(task), row(task).failures) == (["RETRY"], 0)


def test_a_killed_worker_costs_at_most_a_batch(
    cluster: Cluster, items: None, tmp_path: Path
) -> None:
    worker = cluster.worker(slots=1)
    cluster.scheduler()
    cluster.ready()
    task = stepping.import_items.schedule("one", 10, False, str(tmp_path))
    until(lambda: Group.objects.count() > 40, within=60, message="the fourth batch")
    worker.kill()
    created = Group.objects.count() - 1
    lost = created - row(task).position["items"]["done"]
    assert 0 <= lost <= 10

    (tmp_path / "hurry").touch()
    cluster.worker(slots=1)
    assert ended(task, within=120).status == "SUCCESS"
    assert logged(task) == ["LOST", "SUCCESS"]
    assert Group.objects.count() == 2 + ITEMS + lost  # only what was not recorded is repeated


def test_no_atomic_item_or_step_is_lost_or_repeated_by_kills_and_deploys(
    cluster: Cluster, vendor: str
) -> None:
    figures = run(cluster, tasks=6, items=120, kills=3, stops=2)
    assert (figures.succeeded, figures.accepted_twice) == (6, 0), figures
    assert (figures.items, figures.items_repeated) == (6 * 120, 0), figures
    assert (figures.steps, figures.steps_repeated) == (12, 0), figures
    assert figures.attempts_lost > 0, figures
    assert figures.attempts_interrupted > 0, figures
    texts = TaskExecutionLog.objects.filter(status="RETRY").values_list("error_message", flat=True)
    # On SQLite an atomic batch is the only writer, so that other tasks may find it locked.
    expected = ("RunInterrupted", "OperationalError" if vendor == "sqlite" else "RunInterrupted")
    assert all(text.startswith(expected) for text in texts), set(texts)
