"""Messages at a worker: valid, duplicate and stale ones, and remote control commands."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import current_app
from django.conf import settings as django_settings

from django_durable_tasks import durable_task
from django_durable_tasks.celery import publisher
from django_durable_tasks.models import QueueControl, Task
from django_durable_tasks.ports import TaskMessage
from tests.processes.cluster import Cluster, Program, cluster_in
from tests.processes.rows import ended, in_status, logged, release, row
from tests.project import bodies
from tests.waiting import until

QUEUE: str = django_settings.CELERY_TASK_DEFAULT_QUEUE


@durable_task(name="tests.broker.only_here")
def only_here() -> None:
    """A task that the calling process has and the worker has not."""


@pytest.fixture(scope="module")
def shared(shared_database: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One worker with one child, and one scheduler."""
    with cluster_in(tmp_path_factory.mktemp("messages")) as cluster:
        cluster.worker(slots=1)
        cluster.scheduler()
        yield cluster.ready()


@pytest.fixture
def worker(shared: Cluster, rows: None) -> Program:
    """Return the shared worker."""
    return shared.programs[0]


def _message(task: Task, epoch: int | None = None, number: int = 1) -> TaskMessage:
    return TaskMessage(task.pk, task.epoch if epoch is None else epoch, number, task.name, QUEUE, 0)


def _celery_id(task: Task) -> str:
    found = row(task)
    return f"{found.pk}.{found.epoch - (found.status == 'RUNNING')}.{found.publish_count}"


def _drops(worker: Program, task_id: object, why: str) -> bool:
    return any(
        str(task_id) in line and line.endswith(f": {why}") for line in worker.output().splitlines()
    )


def test_a_message_of_a_deleted_task_is_dropped(worker: Program) -> None:
    gone = TaskMessage(uuid.uuid4(), 1, 1, "tests.project.bodies.add", QUEUE, 0)
    publisher.publish([gone])
    until(lambda: _drops(worker, gone.task_id, "MISSING"), within=20)
    assert ended(bodies.add.schedule(1, 2)).result == 3


@pytest.mark.smoke
def test_duplicate_and_stale_messages_start_nothing(worker: Program, tmp_path: Path) -> None:
    task = bodies.hold.schedule(str(tmp_path))
    in_status(task, "RUNNING")
    publisher.publish([_message(task, epoch=1, number=number) for number in (1, 2, 3)])
    publisher.publish([_message(task, epoch=99)])
    release(tmp_path)
    ended(task)
    publisher.publish([_message(row(task))])
    until(
        lambda: worker.output().count(f"Ignored message {task.pk}") >= 5,
        within=20,
        message="five are ignored",
    )
    assert (row(task).attempts, logged(task)) == (1, ["SUCCESS"])


def test_a_task_without_code_waits_and_uses_no_retry(worker: Program) -> None:
    """Whether it was returned by the worker, or not published to it."""
    task = only_here.schedule()
    assert ended(bodies.add.schedule(1, 2)).status == "SUCCESS"
    found = in_status(task, "PENDING")
    assert (found.attempts, found.failures, found.crashes, logged(task)) == (0, 0, 0, [])


def test_a_message_revoked_before_its_start_cancels_the_task(
    worker: Program, tmp_path: Path
) -> None:
    first = bodies.hold.schedule(str(tmp_path))
    in_status(first, "RUNNING")
    second = bodies.add.schedule(1, 2)
    celery_id = _celery_id(second)
    current_app.control.revoke(celery_id)
    until(lambda: f"Tasks flagged as revoked: {celery_id}" in worker.output(), within=20)
    release(tmp_path)
    found = ended(second)
    assert (found.status, found.reason, found.attempts, logged(second)) == (
        "CANCELLED",
        "REVOKED",
        0,
        [],
    )
    assert ended(first).status == "SUCCESS"


@pytest.mark.smoke
def test_a_run_that_is_revoked_and_terminated_is_cancelled_by_its_parent(
    worker: Program, tmp_path: Path
) -> None:
    task = bodies.hold.schedule(str(tmp_path))
    in_status(task, "RUNNING")
    until(lambda: list(tmp_path.glob("started-*")), within=20)
    current_app.control.revoke(_celery_id(task), terminate=True, signal="SIGKILL")
    found = ended(task)
    assert (found.status, found.reason, logged(task)) == ("CANCELLED", "REVOKED", ["CANCELLED"])
    assert ended(bodies.add.schedule(1, 2)).result == 3


def test_inspect_shows_the_worker_and_its_tasks(worker: Program, tmp_path: Path) -> None:
    task = bodies.hold.schedule(str(tmp_path))
    in_status(task, "RUNNING")
    inspect = current_app.control.inspect(destination=[worker.name], timeout=5)
    assert inspect.ping() == {worker.name: {"ok": "pong"}}
    active = inspect.active()[worker.name]
    assert [(run["name"], run["id"]) for run in active] == [
        ("tests.project.bodies.hold", _celery_id(task))
    ]
    assert bodies.hold.name in inspect.registered()[worker.name]
    release(tmp_path)
    ended(task)


@pytest.mark.smoke
def test_a_message_in_another_queue_starts_nothing_and_is_counted(
    worker: Program,
) -> None:
    aside = row(bodies.sideways.schedule())
    publisher.publish([_message(aside, number=number) for number in (1, 2)])
    counted = QueueControl.objects.filter(
        name=aside.queue, misrouted=2, misrouted_from=QUEUE, paused_at__isnull=True
    )
    until(counted.exists, within=20, message="both are refused and counted")
    assert _drops(worker, aside.pk, "MISROUTED")
    assert row(aside).attempts == 0
    counted.delete()


def test_a_worker_serves_only_its_configured_queues(shared: Cluster, worker: Program) -> None:
    aside = bodies.sideways.schedule()
    assert row(aside).queue == "durable-side"
    ended(bodies.add.schedule(1, 2))
    assert row(aside).attempts == 0
    other = shared.worker(queues=["durable-side"], slots=1).ready()
    assert ended(aside).executions.get().worker == other.name
    other.kill()
