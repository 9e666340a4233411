"""Workers take due tasks from the database of the broker: nothing is published for them, no run is
lost or repeated by it, and no task waits behind a process that is stopped.
"""

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import current_app
from django.contrib.auth.models import Group
from django.db import connection

from django_durable_tasks.models import Limit, Node, Task
from django_durable_tasks.store.clock import database_now
from tests.processes.cluster import Cluster
from tests.processes.rows import ended, in_status, logged, release, row
from tests.project import bodies
from tests.waiting import until

pytestmark = pytest.mark.skipif(
    os.environ["TEST_BROKER"] != "database", reason="only this broker has no messages of tasks"
)


def _messages() -> int:
    """Return the number of stored messages, without those of the remote control."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM durable_tasks_transport_message WHERE body LIKE '%durable_message%'"
        )
        (number,) = cursor.fetchone()
    return int(number)


def _is_idle() -> bool:
    node = Node.objects.get()
    return node.last_start_at is not None and (node.active or {}).get("number") == 0


@pytest.mark.smoke
def test_a_task_has_no_message_and_needs_no_scheduler(cluster: Cluster, tmp_path: Path) -> None:
    cluster.worker(slots=1).ready()
    first = bodies.hold.schedule(str(tmp_path / "held"))
    in_status(first, "RUNNING")
    behind = [bodies.add.schedule(number, 1) for number in range(20)]
    in_a_second = database_now() + timedelta(seconds=1)
    later = bodies.add.using(run_at=in_a_second).schedule(1, 1)
    until(lambda: row(first).attempts == 1, within=20)
    assert {row(task).status for task in (*behind, later)} == {"PENDING"}
    assert _messages() == 0
    release(tmp_path / "held")
    assert [ended(task).result for task in behind] == list(range(1, 21))
    assert ended(later).result == 2
    found = [row(task) for task in (first, *behind, later)]
    assert {(task.attempts, task.publish_count) for task in found} <= {(1, 0), (1, 1)}
    assert _messages() == 0


def test_what_a_stopped_process_received_is_run_by_another_worker_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The parent process lives and has started the run; the child reads nothing from its pipe."""
    cluster.worker(slots=1).ready()
    (tmp_path / "held").mkdir()
    release(tmp_path / "held")
    ended(bodies.hold.schedule(str(tmp_path / "held")))
    child = int(next((tmp_path / "held").glob("started-*")).name.split("-")[1])
    # The child commits the success before it sends the result to its parent.
    until(_is_idle, within=20, message="the parent knows that the function returned")
    os.kill(child, signal.SIGSTOP)
    notebook = tmp_path / "notes"
    try:
        task = bodies.note.schedule("once", str(notebook))
        in_status(task, "RUNNING")
        cluster.worker(slots=1).ready()
        found = ended(task)
    finally:
        os.kill(child, signal.SIGCONT)
    assert (found.status, found.crashes, logged(task)) == ("SUCCESS", 0, ["SUCCESS"])
    # The stopped process receives the message now, and must not call the function.
    follower = bodies.note.schedule("after", str(notebook))
    ended(follower)
    current_app.control.broadcast("ping", reply=True, timeout=2)
    assert notebook.read_text().split() == ["once", "after"]


def test_short_tasks_behind_long_ones_are_given_to_a_free_worker(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A worker that took tasks ahead, because the last ones were short, returns them."""
    cluster.worker(slots=1).ready()
    for task in [bodies.add.schedule(number, 0) for number in range(60)]:
        ended(task)
    with_hold = [bodies.add.schedule(number, 0) for number in range(30)]
    long = bodies.hold.schedule(str(tmp_path / "held"))
    behind = [bodies.add.schedule(number, 1) for number in range(30)]
    in_status(long, "RUNNING")
    cluster.worker(slots=1).ready()
    for task in (*with_hold, *behind):
        found = ended(task)
        assert (found.status, found.crashes) == ("SUCCESS", 0)
    assert row(long).status == "RUNNING"
    release(tmp_path / "held")
    assert ended(long).status == "SUCCESS"


def test_limits_pauses_and_unknown_names_apply_to_taken_tasks(
    cluster: Cluster, tmp_path: Path
) -> None:
    Limit.objects.create(scope=f"task:{bodies.hold.name}", max_concurrency=1)
    cluster.scheduler()
    cluster.worker(slots=3).ready()
    held = [bodies.hold.schedule(str(tmp_path / "held")) for _ in range(3)]
    free = [bodies.add.schedule(number, 1) for number in range(5)]
    for task in free:
        assert ended(task).status == "SUCCESS"
    statuses = sorted(row(task).status for task in held)
    assert statuses == ["PENDING", "PENDING", "RUNNING"]
    assert Task.objects.running().count() == 1
    release(tmp_path / "held")
    for task in held:
        assert (ended(task).status, logged(task)) == ("SUCCESS", ["SUCCESS"])


def test_a_revoked_run_that_waits_for_a_rate_limit_of_celery_is_cancelled(
    cluster: Cluster, tmp_path: Path
) -> None:
    worker = cluster.worker(slots=2)
    worker.ready()
    answers: Any = current_app.control.rate_limit(
        bodies.note.name, "6/m", destination=[worker.name], reply=True, timeout=10
    )
    assert answers
    notebook = tmp_path / "notes"
    for number in range(3):
        bodies.note.schedule(f"line-{number}", str(notebook))
    until(notebook.exists, within=20)

    def taken() -> Task | None:
        """Return a task that was taken, while one has ended and no other function was called."""
        if not Task.objects.filter(status="SUCCESS").exists():
            return None
        return Task.objects.running().first()

    until(taken, within=30, message="one waits for the rate limit")
    cancelled = taken()
    assert cancelled is not None
    revoked = f"{cancelled.pk}.{cancelled.epoch - 1}.0"
    assert current_app.control.revoke(revoked, reply=True, timeout=10)
    assert ended(cancelled).status == "CANCELLED"
    assert cancelled.args[0] not in notebook.read_text().split()


def test_a_worker_that_ends_returns_what_no_process_has_begun(
    cluster: Cluster, tmp_path: Path
) -> None:
    worker = cluster.worker(slots=1)
    worker.ready()
    for task in [bodies.add.schedule(number, 0) for number in range(60)]:
        ended(task)
    tasks = [bodies.add.schedule(number, 1) for number in range(200)]
    worker.process.send_signal(signal.SIGTERM)
    until(lambda: worker.process.poll() is not None, within=60)
    assert Task.objects.running().count() == 0
    cluster.worker(slots=1).ready()
    for task in tasks:
        found = ended(task)
        assert (found.status, found.crashes) == ("SUCCESS", 0)
        assert logged(task) == ["SUCCESS"]
    assert not Group.objects.exists()
