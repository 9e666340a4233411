"""Notifications through a real scheduler, a real worker and a real broker to real servers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from django_durable_tasks.contrib.notifications.models import NotificationEvent, NotificationSetting
from django_durable_tasks.models import Task
from django_durable_tasks.registry import NOTIFICATION_TASK
from tests.database.notifications.sending import a_webhook
from tests.http_servers import WAIT, Listener, answer, listening
from tests.processes.cluster import SHORT, Cluster, cluster_in
from tests.processes.rows import ended
from tests.project.tasks import failing_once, noop
from tests.waiting import until

MESSAGES = 6
TWO_PROBES = 90.0
"""Seconds. The first probe may be deleted with the rows of another test, the next follows after a
minute.
"""
stop_hanging, probed = threading.Event(), threading.Event()


def _by_path(conn: socket.socket, request: bytes) -> None:
    path = request.split(b" ")[1]
    if path == b"/watchdog":
        probed.set()
    if path == b"/hang":
        stop_hanging.wait(WAIT)
        return
    conn.sendall(answer())


@pytest.fixture(scope="module")
def receiver() -> Iterator[Listener]:
    """A server that answers, except for one path, where it hangs."""
    stop_hanging.clear()
    with listening(_by_path) as server:
        try:
            yield server
        finally:
            stop_hanging.set()


@pytest.fixture(scope="module")
def given(receiver: Listener) -> dict[str, Any]:
    """The settings of this process, the scheduler and the worker."""
    return {
        **SHORT,
        "HTTP_ALLOW": [f"127.0.0.1:{receiver.port}"],
        "HTTP_TIMEOUT": 20,
        "WATCHDOG_URL": receiver.url("/watchdog"),
    }


@pytest.fixture(scope="module")
def shared(
    given: dict[str, Any], shared_database: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One worker and one scheduler."""
    with cluster_in(tmp_path_factory.mktemp("notifications"), given) as cluster:
        cluster.worker(slots=3)
        cluster.scheduler()
        yield cluster.ready()


@pytest.fixture
def server(
    shared: Cluster, rows: None, settings: Any, given: dict[str, Any], receiver: Listener
) -> Listener:
    """The server, before its first request."""
    settings.DURABLE_TASKS = given
    receiver.requests.clear()
    return receiver


def _fail_until_recorded(row: NotificationSetting) -> None:
    """Let tasks fail until the worker has read the setting."""

    def recorded() -> bool:
        assert ended(failing_once.schedule()).status == "FAILED"
        return NotificationEvent.objects.filter(setting=row).exists()

    until(recorded, within=WAIT, message="an event of the new setting")


def _messages(server: Listener, path: str) -> list[dict[str, Any]]:
    wanted = f"POST {path} ".encode()
    bodies = [one.partition(b"\r\n\r\n")[2] for one in server.requests if one.startswith(wanted)]
    return [json.loads(body) for body in bodies]


def test_the_failure_of_a_task_reaches_a_webhook(server: Listener) -> None:
    _fail_until_recorded(a_webhook(server.url("/hook")))
    until(lambda: _messages(server, "/hook"), within=WAIT)
    body = _messages(server, "/hook")[0]
    failed = Task.objects.get(pk=body["data"]["task_id"])
    assert (body["type"], failed.status) == ("task.failed", "FAILED")
    assert body["data"]["error"] == failed.last_error


def test_a_receiver_that_hangs_delays_neither_other_receivers_nor_tasks(server: Listener) -> None:
    hanging = a_webhook(server.url("/hang"), "hanging")
    _fail_until_recorded(hanging)
    working = a_webhook(server.url("/hook"), "working")
    _fail_until_recorded(working)

    def received() -> bool:
        # Again and again: one process of the worker has read the setting, the others may not have.
        failing_once.schedule()
        return len(_messages(server, "/hook")) > MESSAGES

    until(received, within=WAIT, message="the messages to the receiver that answers")
    assert ended(noop.schedule()).status == "SUCCESS"
    running = Task.objects.filter(name=NOTIFICATION_TASK, status="RUNNING")
    assert running.filter(kwargs__setting=hanging.pk).count() <= 2
    waiting = Task.objects.filter(name=NOTIFICATION_TASK, kwargs__setting=hanging.pk)
    assert waiting.exclude(status__in=("SUCCESS", "FAILED")).count() >= MESSAGES


def test_the_watchdog_sends_a_request(server: Listener) -> None:
    assert probed.wait(TWO_PROBES), "no request of the watchdog"
