"""An unavailable or frozen broker blocks no caller, loses nothing, is logged once, and is used
again automatically.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest
from django.conf import settings as django_settings
from django.db import connections

from django_durable_tasks.celery import publisher
from django_durable_tasks.celery.publisher import BrokerBreaker
from django_durable_tasks.exceptions import BrokerUnavailable
from django_durable_tasks.models import Node, Task
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.store.clock import database_now
from tests.backends import address, broker_settings, variable_of
from tests.processes.cluster import SHORT, cluster_in
from tests.processes.proxy import Proxy, proxy_to
from tests.processes.rows import ended, in_status, logged, release, row, statuses
from tests.project import bodies
from tests.waiting import until

AWAY, BACK = "The broker does not respond", "The connection to the broker is restored"
QUEUE: str = django_settings.CELERY_TASK_DEFAULT_QUEUE


class Switch(Protocol):
    """Cuts and restores the connection to a broker."""

    def cut(self) -> None: ...
    def restore(self) -> None: ...


class Folder:
    """The folder of the filesystem transport, which is replaced by a file while it is cut."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.aside = folder, folder.with_name("messages-aside")

    def cut(self) -> None:
        """Move it away."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.rename(self.aside)
        self.folder.touch()

    def restore(self) -> None:
        """Move it back."""
        if self.aside.exists():
            self.folder.unlink()
            self.aside.rename(self.folder)


@contextmanager
def _between(broker: str) -> Iterator[tuple[Switch, dict[str, str]]]:
    """Return the switch of the broker, and the environment of a process that connects through it."""
    if broker == "filesystem":
        folder = Folder(Path(broker_settings(broker, django_settings.FOLDER)[1]["data_folder"]))
        try:
            yield folder, {}
        finally:
            folder.restore()
    else:
        with proxy_to(address(broker)) as proxy:
            yield proxy, {variable_of(broker): proxy.url}


@contextmanager
def _this_process_behind(
    environment: dict[str, str], broker: str, patch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Make this process publish through the proxy, with a separate breaker."""
    with patch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
            patched.setenv("CELERY_BROKER_WRITE_URL", broker_settings(broker, Path())[0])
        patched.setattr(publisher, "breaker", BrokerBreaker())
        publisher.close_idle()
        yield
        publisher.close_idle()


def _bounded(act: Any) -> Any:
    """Call in a thread and wait for its return. Raises AssertionError if it does not return."""
    results: list[Any] = []

    def run_in_thread() -> None:
        try:
            results.append(act())
        except BrokerUnavailable as error:
            results.append(error)
        finally:
            connections.close_all()

    threading.Thread(target=run_in_thread, daemon=True).start()
    return until(lambda: results, within=25, message="the call returns")[0]


def _message() -> TaskMessage:
    task: Task = bodies.add.using(run_at=None).schedule(1, 2)
    return TaskMessage(task.pk, task.epoch, 9, task.name, QUEUE, 0)


@pytest.mark.smoke
def test_a_scheduler_logs_a_lost_broker_once_and_recovers_automatically(
    rows: None, tmp_path: Path, broker: str, settings: Any
) -> None:
    settings.DURABLE_TASKS = {**SHORT, "FAST_PATH": False}
    with (
        _between(broker) as (switch, environment),
        cluster_in(tmp_path, SHORT, **environment) as cluster,
    ):
        worker, scheduler = cluster.worker(slots=1), cluster.scheduler()
        cluster.ready()
        ended(bodies.add.schedule(1, 2))
        switch.cut()
        tasks = [bodies.add.schedule(number, 1) for number in range(5)]
        until(lambda: AWAY in scheduler.output(), within=20)
        until(lambda: statuses()["PENDING"] + statuses()["QUEUED"] == 5, within=20)
        assert not Task.objects.filter(
            status="SUCCESS", pk__in=[task.pk for task in tasks]
        ).exists()
        switch.restore()
        assert [ended(task, within=60).result for task in tasks] == [1, 2, 3, 4, 5]
        until(lambda: BACK in scheduler.output(), within=20)
        assert scheduler.output().count(AWAY) == scheduler.output().count(BACK) == 1
        assert all(logged(task) == ["SUCCESS"] for task in tasks)
        assert worker.alive()


def test_a_lost_broker_does_not_block_a_caller_and_its_task_is_stored(
    rows: None, broker: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        _between(broker) as (switch, environment),
        _this_process_behind(environment, broker, monkeypatch),
    ):
        assert row(bodies.add.schedule(1, 2)).status == "QUEUED"
        switch.cut()
        made = _bounded(lambda: [bodies.add.delay(number, 1).id for number in range(5)])
        found = [row(task_id).status for task_id in made]
        assert set(found) <= {"QUEUED", "PENDING"}
        assert found[-1] == "PENDING", "while the breaker is open tasks are created PENDING"
        assert caplog.text.count(AWAY) == 1
        switch.restore()
        until(_published, within=20, message="publishing continues")
        assert caplog.text.count(BACK) == 1


def _published() -> bool:
    try:
        publisher.publish([_message()])
    except BrokerUnavailable:
        return False
    return True


@pytest.mark.parametrize("number", [1, 20])
def test_a_frozen_broker_is_given_up_in_time(
    rows: None, broker: str, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The server neither answers nor closes the connection; only the client's timeouts end the
    wait.
    """
    with (
        _between(broker) as (switch, environment),
        _this_process_behind(environment, broker, monkeypatch),
    ):
        if not isinstance(switch, Proxy):
            pytest.skip("a folder does not freeze: its disk would")
        if number > 1:
            publisher.publish([_message() for _ in range(number)])
        switch.freeze()
        results = _bounded(lambda: publisher.publish([_message() for _ in range(number)]))
        assert isinstance(results, BrokerUnavailable)
        assert not publisher.breaker.closed()


def test_lost_messages_are_republished_if_only_the_worker_noticed_the_outage(
    rows: None, tmp_path: Path, broker: str
) -> None:
    """The scheduler publishes nothing during the outage and the worker is busy. The new leader has
    compared the queue, which has a task that waits for the worker. Without the report of the
    worker, it would compare it again after ten minutes.
    """
    if broker == "filesystem":
        pytest.skip("a worker keeps no connection to a folder, and a folder keeps its messages")
    with (
        _between(broker) as (switch, environment),
        cluster_in(tmp_path, {**SHORT, "REPUBLISH_AFTER": 600}, **environment) as cluster,
    ):
        cluster.worker(slots=1)
        cluster.scheduler()
        cluster.ready()
        held = bodies.hold.schedule(str(tmp_path / "held"))
        in_status(held, "RUNNING")
        waits = bodies.add.schedule(1, 2)
        in_status(waits, "QUEUED")
        _both_kinds_of_nodes_report()
        lost = [_without_message() for _ in range(3)]
        assert {row(task).status for task in lost} == {"QUEUED"}
        switch.cut()
        switch.restore()
        # As many as messages are missing, the oldest first. The message of the task that waits for
        # the worker may be back in the broker while the worker still reports it: then it counts
        # twice, and is the oldest. The rest is compared again after REPUBLISH_AFTER.
        until(
            lambda: any(row(task).publish_count == 2 for task in lost),
            within=60,
            message="tasks without messages are republished",
        )
        replaced = [task for task in lost if row(task).publish_count == 2]
        release(tmp_path / "held")
        for task in (held, waits, *replaced):
            assert ended(task, within=60).status == "SUCCESS"


def _both_kinds_of_nodes_report() -> None:
    """Wait until a worker and a scheduler have reported five times. On a busy machine a node may
    have been declared dead and registered again.
    """
    alive = Node.objects.alive()
    before = dict(alive.values_list("name", "beats"))

    def steady() -> bool:
        return {
            kind
            for name, kind, beats in alive.all().values_list("name", "kind", "beats")
            if beats >= before.get(name, 0) + 5
        } == {"WORKER", "SCHEDULER"}

    until(steady, within=60, message="both kinds of nodes report")


def _without_message() -> Task:
    """Create a task that was published once, whose message does not exist."""
    task: Task = bodies.add.using(run_at=database_now() + timedelta(hours=1)).schedule(1, 2)
    Task.objects.unguarded().filter(pk=task.pk).update(
        status="QUEUED", publish_count=1, due_at=database_now() + timedelta(seconds=600)
    )
    return task


def test_a_worker_whose_broker_was_cut_serves_again(
    rows: None, tmp_path: Path, broker: str
) -> None:
    with (
        _between(broker) as (switch, environment),
        cluster_in(tmp_path, SHORT, **environment) as cluster,
    ):
        worker, _ = cluster.worker(slots=1), cluster.scheduler()
        cluster.ready()
        task = bodies.hold.schedule(str(tmp_path / "held"))
        in_status(task, "RUNNING")
        switch.cut()
        release(tmp_path / "held")
        assert ended(task).status == "SUCCESS"
        switch.restore()
        assert ended(bodies.add.schedule(1, 2), within=60).result == 3
        assert worker.alive()
