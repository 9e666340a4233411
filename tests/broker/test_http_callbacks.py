"""Callbacks through a real worker and a real broker to a real server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from django_durable_tasks import http_callback
from django_durable_tasks.contrib.callbacks.models import DeliveryAttempt, Endpoint
from django_durable_tasks.models import DeadLetter
from tests.http_servers import WAIT, Listener, answer, listening
from tests.processes.cluster import SHORT, Cluster, cluster_in
from tests.processes.rows import ended, row
from tests.waiting import until

BUSY = answer("503 Service Unavailable")
ANSWERS = {
    "/ok": [answer(body=b"received")],
    "/gone": [answer("410 Gone")],
    "/busy-once": [BUSY, answer()],
}


def _by_path(conn: socket.socket, request: bytes) -> None:
    answers = ANSWERS[request.split(b" ")[1].decode()]
    conn.sendall(answers.pop(0) if len(answers) > 1 else answers[0])


@pytest.fixture(scope="module")
def receiver() -> Iterator[Listener]:
    """A server that answers by path."""
    with listening(_by_path) as server:
        yield server


@pytest.fixture(scope="module")
def given(receiver: Listener) -> dict[str, Any]:
    """The settings of this process and of the worker."""
    return {
        **SHORT,
        "HTTP_ALLOW": [f"127.0.0.1:{receiver.port}"],
        "HTTP_SIGNING_KEYS": ["k" * 40],
        "HTTP_BREAKER_FAILURES": 2,
    }


@pytest.fixture(scope="module")
def shared(
    given: dict[str, Any], shared_database: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One worker and one scheduler."""
    with cluster_in(tmp_path_factory.mktemp("callbacks"), given) as cluster:
        cluster.worker(slots=2)
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


@pytest.mark.smoke
def test_a_worker_sends_a_signed_request_and_records_it(server: Listener) -> None:
    task = http_callback.schedule(url=server.url("/ok"), body={"order": 7})
    assert ended(task).status == "SUCCESS"
    assert (server.body(), len(server.requests)) == (b'{"order":7}', 1)
    assert server.headers()["webhook-signature"].startswith("v1,")
    assert row(task).result == {"status": 200, "body": "received", "truncated": False}
    recorded = DeliveryAttempt.objects.get(task=task)
    assert (recorded.outcome, recorded.status, recorded.attempt_number) == ("DONE", 200, 1)


def test_a_receiver_that_is_gone_gets_one_request_and_the_task_a_dead_letter(
    server: Listener,
) -> None:
    task = http_callback.schedule(url=server.url("/gone"))
    assert ended(task).status == "FAILED"
    assert len(server.requests) == 1
    assert "410 Gone" in DeadLetter.objects.get(task=task).error_message


def test_a_failed_request_is_sent_again_with_the_same_id(server: Listener) -> None:
    task = http_callback.schedule(url=server.url("/busy-once"))
    assert ended(task).status == "SUCCESS"
    ids = {server.headers(number)["webhook-id"] for number in range(2)}
    assert ids == {str(task.pk)}
    assert [one.status for one in DeliveryAttempt.objects.order_by("id")] == [503, 200]


def test_callbacks_to_an_endpoint_that_does_not_respond_wait_without_an_attempt(
    server: Listener,
) -> None:
    url = "http://localhost/"
    for number in (1, 2):
        http_callback.schedule(url=url)
        until(
            lambda number=number: DeliveryAttempt.objects.count() >= number,  # type: ignore[misc]
            within=WAIT,
        )
    until(Endpoint.objects.filter(open_until__isnull=False).exists, within=WAIT)
    task = http_callback.schedule(url=url)
    until(lambda: row(task).epoch > 1, within=WAIT, message="the task was returned")
    found = row(task)
    assert (found.status, found.attempts, found.failures) == ("PENDING", 0, 0)
    other = http_callback.schedule(url=server.url("/ok"))
    assert ended(other).status == "SUCCESS", "other endpoints are not affected"
    assert row(task).attempts == 0
