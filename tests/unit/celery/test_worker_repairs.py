"""A worker knows from which queue each message came, whatever exchange and routing key it had. With
threads it does not change its prefetch count after a lost connection.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.concurrency.prefork import TaskPool as Prefork
from celery.concurrency.thread import TaskPool as Threads
from celery.worker.consumer import Consumer
from celery.worker.request import Request
from kombu import Exchange, Producer, Queue

from django_durable_tasks.celery import worker_node, worker_repairs
from django_durable_tasks.celery.prepared_messages import BATCH_HEADER, HEADER
from django_durable_tasks.celery.worker_repairs import MixedQueues

QUEUES = (
    Queue("mail", Exchange("shop"), routing_key="mail.send"),
    Queue("reports", Exchange("shop"), routing_key="reports.make"),
)


class _Consumed:
    """A consumer of a worker, and the messages that it has received."""

    def __init__(self, app: Celery, channel: Any) -> None:
        self._app, self._channel = app, channel
        self.requests = list[Request]()
        worker_repairs.record_queues(app)
        consumer = app.amqp.Consumer(channel, QUEUES, on_message=self._received)
        consumer.consume()

    def _received(self, message: Any) -> None:
        message.ack()
        self.requests.append(Request(message, app=self._app))

    def receive(self, key: str, **headers: str) -> None:
        celery_id = headers.get(HEADER) or headers.get(BATCH_HEADER) or str(uuid.uuid4())
        given = {"task": "celery.backend_cleanup", "lang": "py", "id": celery_id, **headers}
        Producer(self._channel, Exchange("shop"), key).publish(
            ((), {}, {}), headers=given, serializer="json"
        )
        self._channel.connection.client.drain_events(timeout=5)


@pytest.fixture
def consumed(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Consumed]:
    monkeypatch.setattr(worker_repairs, "mixed", MixedQueues())
    with Celery(broker="memory://", set_as_current=False) as app:
        app.conf.task_queues = QUEUES
        with app.connection_for_read() as connection:
            yield _Consumed(app, connection.default_channel)


def test_messages_without_a_task_make_the_queue_mixed_from_which_they_come(
    consumed: _Consumed,
) -> None:
    consumed.receive("mail.send", **{HEADER: f"{uuid.uuid4()}.1.1"})
    consumed.receive("mail.send", **{BATCH_HEADER: "mail"})
    assert worker_repairs.mixed.recent() == []
    consumed.receive("reports.make")
    assert worker_repairs.mixed.recent() == ["reports"]


def test_messages_that_were_not_started_are_counted_by_their_queues(consumed: _Consumed) -> None:
    for key in ("mail.send", "mail.send", "reports.make"):
        consumed.receive(key, **{HEADER: f"{uuid.uuid4()}.1.1"})
    consumed.receive("mail.send")
    held = worker_node.held_by_queue(consumed.requests)
    assert held == {"mail": 2, "reports": 1, "": 1}


@pytest.mark.parametrize(("pool", "is_kept"), [(Threads, True), (Prefork, False)])
def test_the_count_is_kept_in_workers_with_threads(pool: type, is_kept: bool) -> None:
    app = Celery("test", set_as_current=False)
    app.steps["consumer"].add(worker_repairs.KeepPrefetchCount)
    consumer = SimpleNamespace(app=app, pool=pool(limit=1))
    for step in app.steps["consumer"]:
        if (one := step(consumer)).include_if(consumer):
            one.start(consumer)
    assert app.conf.worker_enable_prefetch_count_reduction is not is_kept


def test_celery_restores_nothing_while_it_is_disabled() -> None:
    """The thread that acknowledges would call ``qos.set`` otherwise."""
    found = list[int]()
    app = Celery("test", set_as_current=False)
    consumer = SimpleNamespace(
        app=app,
        qos=SimpleNamespace(_mutex=nullcontext(), value=1, set=found.append),
        _maximum_prefetch_restored=False,
        _new_prefetch_count=2,
        max_prefetch_count=8,
    )
    Consumer._restore_prefetch_count_after_connection_restart(consumer, None)
    assert found == [2]
    app.conf.worker_enable_prefetch_count_reduction = False
    Consumer._restore_prefetch_count_after_connection_restart(consumer, None)
    assert found == [2]
