"""Faults of the broker and of messages."""

from __future__ import annotations

import signal
import uuid
from typing import Any

import redis
from celery import current_app
from django.conf import settings

from django_durable_tasks.celery.prepared_messages import HEADER
from django_durable_tasks.models import Task
from tests.broker import rejecting
from tests.chaos import bodies
from tests.chaos.faults.registry import ANY_DATABASE, BESIDE_FILES, fault
from tests.chaos.plan import further_queues
from tests.chaos.servers import RabbitMQ, Server
from tests.chaos.stage import Stage
from tests.processes.rows import purge
from tests.waiting import until


@fault(16, "broker-flushed", BESIDE_FILES, databases=ANY_DATABASE, campaign=True)
def flush(stage: Stage) -> None:
    """Everything in the broker is deleted: FLUSHALL on Redis, a purge of the default queue and of ten
    others on others; once a second.
    """
    default = settings.CELERY_TASK_DEFAULT_QUEUE

    def empty() -> None:
        if stage.plan.broker == "redis":
            with redis.Redis.from_url(_url(stage)) as client:
                client.flushall()
        else:
            for name in (
                default,
                *stage.random.sample(further_queues(default, stage.plan.broker), 10),
            ):
                purge(name)

    stage.repeatedly(5, 1.0, empty)


@fault(17, "broker-killed", ("redis",), private=True, databases=ANY_DATABASE, campaign=True)
def kill_the_broker(stage: Stage) -> None:
    """The broker is killed and restarted empty some time later."""
    assert isinstance(stage.broker, Server)
    stage.broker.stop(signal.SIGKILL)
    stage.linger(10)
    stage.broker.start()


@fault(18, "broker-frozen", databases=ANY_DATABASE, campaign=True)
def freeze_the_broker(stage: Stage) -> None:
    """The broker accepts connections and does not answer: SIGSTOP on a private Redis, else by a
    proxy.
    """
    if isinstance(stage.broker, Server):
        stage.broker.send(signal.SIGSTOP)
        try:
            stage.linger(8)
        finally:
            stage.broker.send(signal.SIGCONT)
        return
    for proxy in stage.brokers():
        proxy.freeze()
    try:
        stage.linger(8)
    finally:
        for proxy in stage.brokers():
            proxy.restore()


@fault(19, "broker-out-of-memory", ("redis",), private=True)
def starve_the_broker(stage: Stage) -> None:
    """Redis has no memory left and refuses every write."""
    with redis.Redis.from_url(_url(stage)) as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1mb")
        try:
            stage.linger(8)
        finally:
            client.config_set("maxmemory", "0")


@fault(20, "broker-alarm", ("rabbitmq",), private=True)
def raise_the_alarm(stage: Stage) -> None:
    """RabbitMQ's memory alarm is raised, which blocks all publishers."""
    assert isinstance(stage.broker, RabbitMQ)
    stage.broker.run_tool("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        stage.linger(8)
    finally:
        stage.broker.run_tool("set_vm_memory_high_watermark", "0.4")


@fault(28, "broker-cut", databases=ANY_DATABASE, campaign=True)
def cut_the_broker(stage: Stage) -> None:
    """Every connection to the broker breaks, and new ones are refused."""
    for proxy in stage.brokers():
        proxy.cut()
    try:
        stage.linger(6)
    finally:
        for proxy in stage.brokers():
            proxy.restore()


@fault(30, "first-broker-cut")
def cut_the_first_broker(stage: Stage) -> None:
    """The first broker of the list is away, and tasks run by way of the second."""
    for proxy in stage.first_brokers():
        proxy.cut()
    try:
        tasks = [stage.enqueue("plain", bodies.work, 0.0) for _ in range(20)]
        waiting = Task.objects.filter(pk__in=tasks).exclude(status="SUCCESS")
        until(
            lambda: not waiting.exists(),
            within=60,
            message="the tasks ran although the first broker is away",
        )
        stage.linger(6)
    finally:
        for proxy in stage.first_brokers():
            proxy.restore()


@fault(29, "queue-rejected")
def reject_a_queue(stage: Stage) -> None:
    """The broker rejects one queue of two for a while, and a worker of that queue comes when it is
    repaired.
    """
    name = f"{settings.CELERY_TASK_DEFAULT_QUEUE}-second"
    way = rejecting.another_type if stage.plan.broker == "redis" else rejecting.another_kind
    _, spoil = way(name)
    spoil(current_app)
    tasks = [stage.enqueue("plain", bodies.work, 0.0, queue=name) for _ in range(20)]
    stage.linger(8)
    rejecting.repair(name, stage.plan.broker, current_app)
    worker = stage.cluster.worker(pool="solo", slots=1, queues=[name], **stage.wired("worker"))
    waiting = Task.objects.filter(pk__in=tasks).exclude(status="SUCCESS")
    until(
        lambda: not waiting.exists(), within=120, message="the tasks of the repaired queue have run"
    )
    worker.terminate()
    rejecting.repair(name, stage.plan.broker, current_app)  # leaves no queue behind


@fault(21, "everything-doubled", databases=ANY_DATABASE, campaign=True)
def double_everything(stage: Stage) -> None:
    """Every message is sent three times."""
    with stage.with_orders('{"copies": 3, "delay": 0}'):
        stage.linger(8)


@fault(22, "reordered", databases=ANY_DATABASE, campaign=True)
def reorder(stage: Stage) -> None:
    """Every message is delayed by up to five seconds: they arrive in any order, some after they were
    republished.
    """
    with stage.with_orders('{"copies": 1, "delay": 5}'):
        stage.linger(8)


@fault(23, "garbage", BESIDE_FILES, databases=ANY_DATABASE, campaign=True)
def send_garbage(stage: Stage) -> None:
    """Messages that cannot be parsed, of unknown tasks, with wrong epochs, for tasks that do not
    exist.
    """
    real = stage.enqueue("plain", bodies.work, 0.0)
    with current_app.connection_for_write() as broker:
        producer = current_app.amqp.Producer(broker)

        def send(
            body: Any, name: str, message: str, content_type: str = "application/json"
        ) -> None:
            headers = {
                "lang": "py",
                "task": name,
                "id": message,
                "root_id": message,
                HEADER: message,
                "retries": 0,
            }
            producer.publish(
                body,
                routing_key=settings.CELERY_TASK_DEFAULT_QUEUE,
                headers=headers,
                content_type=content_type,
                content_encoding="utf-8",
                correlation_id=message,
            )

        body = '[[], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
        for number in range(10):
            send(body, bodies.work.name, f"{real}.{number}.1")
            send(body, bodies.work.name, f"{uuid.uuid4()}.1.1")
            send(body, "no.such.task", f"{uuid.uuid4()}.1.1")
            send(body, bodies.work.name, "a forged id")
            send("{nonsense", bodies.work.name, f"{real}.1.1")
            send("\0\1", bodies.work.name, f"{real}.1.1", "application/x-unknown")
    stage.linger(4)


def _url(stage: Stage) -> str:
    assert isinstance(stage.broker, Server)
    return stage.broker.url
