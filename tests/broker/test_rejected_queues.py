"""A queue that the broker rejects is postponed alone: others continue, in the same batch too, and
the breaker stays closed.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.signals import before_task_publish
from kombu import Queue

from django_durable_tasks.celery import publisher
from django_durable_tasks.celery.prepared_messages import celery_id_of
from django_durable_tasks.exceptions import BrokerUnavailable
from tests.backends import address, broker_settings
from tests.broker.rejecting import WAYS, Way, another_kind
from tests.broker.routes import application, forget, messages, waiting
from tests.processes.proxy import proxy_to
from tests.waiting import until

REJECTS, ACCEPTS = "The broker rejects messages for queue", "The broker accepts messages for queue"


@pytest.fixture
def names() -> tuple[str, str]:
    """Return the names of a valid queue and of another one."""
    run = uuid.uuid4().hex[:8]
    return f"durable-{run}-good", f"durable-{run}-bad"


@pytest.fixture(params=WAYS[os.environ["TEST_BROKER"]], ids=lambda way: way.__name__)
def app(request: pytest.FixtureRequest, names: tuple[str, str]) -> Iterator[Celery]:
    """Return an application with both."""
    good, bad = names
    way: Way = request.param
    queue, spoil = way(bad)
    with application(task_queues=[Queue(good), queue]) as made:
        spoil(made)
        yield made


def _in(app: Celery, name: str) -> int:
    queue = app.amqp.queues[name]
    with app.connection_for_write() as connection:
        return int(queue(connection.channel()).queue_declare(passive=False).message_count)


def test_a_batch_of_several_queues_returns_only_the_rejected_messages(
    app: Celery, names: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = names
    batch = [message for _ in range(3) for queue in names for message in messages(queue)]
    refused = publisher.publish(batch)
    assert {one.message for one in refused} == {
        message for message in batch if message.queue == bad
    }
    assert all(one.delay > 0 for one in refused)
    assert publisher.breaker.closed()
    assert list(publisher.backoff.reasons()) == [bad]
    until(lambda: _in(app, good) == 3, within=30)
    for _ in range(3):
        assert len(publisher.publish(messages(bad, 2))) == 2
        assert publisher.publish(messages(good, 2)) == []
    assert caplog.text.count(REJECTS) == 1
    assert bad in caplog.text


def test_a_rejected_queue_is_tried_again_after_its_delay_and_logged_once(
    app: Celery, names: tuple[str, str], caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    settings.DURABLE_TASKS = {"BROKER_BACKOFF": 0.001}
    _, bad = names
    for _ in range(3):
        until(lambda: not publisher.backoff.remaining(bad), within=30)
        assert len(publisher.publish(messages(bad, number=2))) == 2
    assert caplog.text.count(REJECTS) == 1
    assert publisher.backoff.is_rejected(bad)


def test_a_rejection_of_a_single_message_is_noticed_although_earlier_ones_were_accepted(
    app: Celery, names: tuple[str, str]
) -> None:
    _, bad = names
    (again,) = messages(bad)
    again = type(again)(again.task_id, 1, 2, again.name, bad, 0)
    assert [one.message for one in publisher.publish([again])] == [again]
    assert publisher.breaker.closed()


def test_a_queue_unknown_to_celery_is_rejected_alone(names: tuple[str, str]) -> None:
    good, bad = names
    with application(task_queues=[Queue(good)], task_create_missing_queues=False) as app:
        refused = publisher.publish([*messages(good, 2), *messages(bad), *messages(good)])
        assert [one.message.queue for one in refused] == [bad]
        until(lambda: waiting(app) == {good: 3}, within=30)
        assert publisher.breaker.closed()


def test_a_repaired_queue_is_accepted_again_and_logged_once(
    names: tuple[str, str], broker: str, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    if broker != "rabbitmq":
        pytest.skip("the same code for each broker; RabbitMQ's queue is the easiest to repair")
    settings.DURABLE_TASKS = {"BROKER_BACKOFF": 0.01}
    _, bad = names
    queue, exists = another_kind(bad)
    with application(task_queues=[queue]) as app:
        exists(app)
        assert publisher.publish(messages(bad))
        with app.connection_for_write() as connection:
            queue(connection.channel()).delete()
        until(lambda: not publisher.publish(messages(bad)), within=30)
        assert (caplog.text.count(REJECTS), caplog.text.count(ACCEPTS)) == (1, 1)
        assert waiting(app) == {bad: 1}


@pytest.mark.parametrize("part", [b"queue.declare", b"publish"])
def test_a_queue_that_does_not_answer_is_rejected_alone(
    names: tuple[str, str], broker: str, part: bytes
) -> None:
    """A quorum queue without a majority answers neither a declaration nor a message; the connection
    does.
    """
    if broker != "rabbitmq":
        pytest.skip("only RabbitMQ answers for each queue by itself")
    good, bad = names
    with (
        proxy_to(address("rabbitmq")) as proxy,
        application(proxy.url, task_queues=[Queue(good), Queue(bad)]),
    ):
        if part == b"publish":
            assert publisher.publish(messages(bad, 2)) == []
        proxy.swallow(lambda data: bad.encode() in data)
        refused = publisher.publish([*messages(bad, 2)])
        assert {one.message.queue for one in refused} == {bad}
        assert publisher.breaker.closed()
        assert publisher.publish(messages(good, 3)) == []
        forget()


def test_a_message_that_cannot_be_encoded_does_not_block_others(names: tuple[str, str]) -> None:
    batch = messages(names[0], 3)

    def spoil(headers: dict[str, Any], **_: Any) -> None:
        if headers["id"] == celery_id_of(batch[1]):
            headers["spoilt"] = object()

    with application(task_queues=[Queue(names[0])]) as app:
        before_task_publish.connect(spoil)
        try:
            refused = publisher.publish_or_refuse(batch)
        finally:
            before_task_publish.disconnect(spoil)
        assert [one.message for one in refused] == [batch[1]]
        until(lambda: waiting(app)[names[0]] >= 2, within=30)
        assert publisher.breaker.closed()
        assert publisher.backoff.reasons() == {}


def test_a_lost_broker_opens_the_breaker_and_rejects_no_queue(
    names: tuple[str, str], broker: str
) -> None:
    if broker == "filesystem":
        pytest.skip("a folder has no connection; test_broker_away cuts it")
    good, _ = names
    with proxy_to(address(broker)) as proxy:
        url = (
            proxy.url
            if broker == "rabbitmq"
            else proxy.url.rstrip("/") + broker_settings(broker, Path())[0][-3:]
        )
        with application(url, task_queues=[Queue(good)]):
            assert publisher.publish(messages(good, 2)) == []
            proxy.cut()
            with pytest.raises(BrokerUnavailable):
                publisher.publish(messages(good, 2))
            assert not publisher.breaker.closed()
            assert publisher.backoff.reasons() == {}
