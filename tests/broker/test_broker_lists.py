"""With a list of brokers, publishing uses the available one, as Celery's workers do, and fails over
and back.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from django.conf import settings as django_settings
from kombu import Queue

from django_durable_tasks.celery import inspect, publisher
from django_durable_tasks.exceptions import BrokerUnavailable
from django_durable_tasks.models import Task
from tests.backends import address, broker_settings, variable_of
from tests.broker.routes import application, messages, waiting
from tests.processes.cluster import SHORT, cluster_in
from tests.processes.proxy import Proxy, proxy_to
from tests.processes.rows import ended
from tests.project import bodies
from tests.starting import start_redis, start_sentinel
from tests.waiting import until


@pytest.fixture
def brokers(broker: str) -> Iterator[list[Proxy]]:
    """Return three addresses of one server."""
    if broker == "filesystem":
        pytest.skip("a folder has no other folder to fail over to")
    with (
        proxy_to(address(broker)) as one,
        proxy_to(address(broker)) as two,
        proxy_to(address(broker)) as three,
    ):
        yield [one, two, three]


def _url(proxy: Proxy, broker: str) -> str:
    if broker == "redis":
        return f"{proxy.url.rstrip('/')}/{broker_settings(broker, Path())[0].rpartition('/')[2]}"
    return proxy.url


@pytest.fixture
def queue() -> str:
    """Return the name of a queue for this test only."""
    return f"durable-{uuid.uuid4().hex[:8]}"


def test_publishing_fails_over_and_back(brokers: list[Proxy], broker: str, queue: str) -> None:
    one, two, three = brokers
    with application(
        ";".join(_url(proxy, broker) for proxy in brokers), task_queues=[Queue(queue)]
    ) as app:
        assert publisher.publish(messages(queue)) == []
        # A single message is not confirmed by RabbitMQ, so the proxy may not have forwarded it yet.
        until(lambda: waiting(app)[queue] == 1, within=30)
        one.cut()
        assert (
            publisher.publish(messages(queue, 2)) == []
        )  # its connection is lost: the second attempt uses the other address
        assert publisher.breaker.closed()
        two.cut()
        assert publisher.publish(messages(queue, 2)) == []
        one.restore()
        three.cut()
        assert publisher.publish(messages(queue, 2)) == []
        assert publisher.breaker.closed()
        assert inspect.broker_problem() is None
        until(lambda: waiting(app)[queue] == 7, within=30)


def test_a_first_broker_that_is_unavailable_from_the_start_is_skipped_once(
    brokers: list[Proxy], broker: str, queue: str
) -> None:
    one, two, _ = brokers
    one.cut()
    addresses = [_url(proxy, broker) for proxy in (one, two)]
    with application(";".join(addresses), task_queues=[Queue(queue)]):
        assert publisher.publish(messages(queue)) == []
        one.restore()
        one.freeze()  # a process that still tried it would wait
        publisher.close_idle()
        assert publisher._LastBroker.address == addresses[1]
        assert publisher.publish(messages(queue)) == []
        assert publisher.breaker.closed()


def test_brokers_that_are_all_unavailable_open_the_breaker_and_are_used_again(
    brokers: list[Proxy], broker: str, queue: str
) -> None:
    for proxy in brokers:
        proxy.cut()
    with application(
        ";".join(_url(proxy, broker) for proxy in brokers), task_queues=[Queue(queue)]
    ):
        with pytest.raises(BrokerUnavailable):
            publisher.publish(messages(queue))
        assert not publisher.breaker.closed()
        brokers[1].restore()
        until(publisher.breaker.may_probe, within=20)
        assert publisher.publish(messages(queue)) == []
        assert publisher.breaker.closed()


def test_an_unavailable_sentinel_is_skipped(tmp_path: Path, broker: str, queue: str) -> None:
    if broker != "redis":
        pytest.skip("Sentinels are Redis's")
    with ExitStack() as stack:
        primary = start_redis(tmp_path, stack)
        port = start_sentinel(tmp_path, primary, stack)
        with application(
            f"sentinel://127.0.0.1:1;sentinel://127.0.0.1:{port}",
            task_queues=[Queue(queue)],
            broker_transport_options={"master_name": "durable"},
        ):
            assert publisher.publish(messages(queue, 2)) == []
            assert publisher.publish(messages(queue)) == []
            publisher.close_idle()
            assert publisher.publish(messages(queue)) == []
            with redis.Redis.from_url(primary) as client:
                assert client.llen(f"{queue}\x06\x169") == 4


def test_workers_and_schedulers_continue_with_the_second_broker(
    rows: None, tmp_path: Path, brokers: list[Proxy], broker: str
) -> None:
    one, two, _ = brokers
    both = f"{_url(one, broker)};{_url(two, broker)}"
    environment = {
        variable_of(broker): _url(one, broker),
        "CELERY_BROKER_WRITE_URL": both,
        "CELERY_BROKER_READ_URL": both,
    }
    one.cut()
    with cluster_in(tmp_path, SHORT, **environment) as cluster:
        cluster.worker(slots=1)
        cluster.scheduler()
        cluster.ready()
        task = bodies.add.using(run_at=None).schedule(1, 2)
        assert ended(task).result == 3
        one.restore()
        two.cut()
        later = [bodies.add.schedule(number, 1) for number in range(3)]
        assert [ended(task, within=60).result for task in later] == [1, 2, 3]
    assert Task.objects.filter(queue=django_settings.CELERY_TASK_DEFAULT_QUEUE).count() == 4
