"""``queue_message`` publishes to the queues and exchanges that the settings allow, on each broker."""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from celery import current_app
from celery.app.routes import prepare as prepare_routes
from celery.worker.consumer import Consumer
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kombu import Exchange, Queue
from kombu.serialization import prepare_accept_content
from kombu.serialization import registry as serializers

from django_durable_tasks import queue_message
from django_durable_tasks.checks import check_celery
from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.callbacks import tasks
from django_durable_tasks.exceptions import InvalidTarget, MessageRejected
from django_durable_tasks.models import Task, Tenant
from django_durable_tasks.models.cluster import NodeKind
from tests.delivery import deliver
from tests.factories import a_node, a_task
from tests.processes.cluster import SHORT, Cluster, cluster_in
from tests.processes.rows import ended

NAME = "django_durable_tasks.queue_message"
RUN = uuid.uuid4().hex[:8]
INVOICES, EVENTS = f"invoices-{RUN}", f"events-{RUN}"
GIVEN = {**SHORT, "QUEUE_ALLOW": [INVOICES, f"exchange:{EVENTS}", "exchange:missing"]}


@pytest.fixture(autouse=True)
def allowed(rows: None, settings: Any) -> None:
    """Allow the queues of the tests in this process."""
    settings.DURABLE_TASKS = GIVEN


@pytest.fixture
def channel() -> Iterator[Any]:
    """A channel on which the queues are declared, and deleted afterwards."""
    with current_app.connection_for_write() as connection, connection.channel() as channel:
        exchange = Exchange(EVENTS, type="topic", durable=True)
        bound = Queue(f"bound-{RUN}", exchange, routing_key="order.*", durable=True)
        plain = Queue(INVOICES, Exchange("", type="direct"), routing_key=INVOICES, durable=True)
        for queue in (bound, plain):
            queue(channel).declare()
        yield channel
        for queue in (bound, plain):
            queue(channel).delete()


def _received(channel: Any, queue: str) -> Any:
    message = channel.basic_get(queue, no_ack=True)
    assert message is not None, f"{queue} is empty"
    return message


def _text(message: Any) -> str:
    body = message.body
    return body if isinstance(body, str) else bytes(body).decode()


def _queued(**kwargs: Any) -> Task:
    return a_task(Status.QUEUED, name=NAME, kwargs=kwargs)


@pytest.mark.smoke
def test_a_message_reaches_the_queue_with_body_headers_and_id(channel: Any) -> None:
    task = _queued(queue=INVOICES, body='{"b":1,"a":2}', headers={"shop": 7})
    deliver(task)
    message = _received(channel, INVOICES)
    assert _text(message) == '{"b":1,"a":2}'
    assert message.properties["message_id"] == str(task.pk)
    assert (message.headers["shop"], message.headers["durable-task-id"]) == (7, str(task.pk))
    task.refresh_from_db()
    driver = current_app.connection_for_write().transport.driver_type
    assert task.result == {
        "exchange": "",
        "routing_key": INVOICES,
        "confirmed": driver == "amqp",
    }


def test_a_message_reaches_the_queues_that_are_bound_to_an_exchange(channel: Any) -> None:
    deliver(_queued(exchange=EVENTS, routing_key="order.paid", body={"order": 7}))
    message = _received(channel, f"bound-{RUN}")
    assert (_text(message), message.content_type) == (
        '{"order":7}',
        "application/json; charset=utf-8",
    )


@pytest.mark.parametrize(("exchange", "key"), [(EVENTS, "user.paid"), ("missing", "order.paid")])
def test_a_message_that_no_queue_receives_is_a_failure(
    channel: Any, exchange: str, key: str
) -> None:
    task = a_task(
        Status.QUEUED,
        name=NAME,
        kwargs={"exchange": exchange, "routing_key": key},
        max_attempts=1,
    )
    with pytest.raises(MessageRejected, match=exchange):
        deliver(task)
    task.refresh_from_db()
    assert (task.status, task.failures) == ("FAILED", 1)
    # The connection is still usable.
    deliver(_queued(queue=INVOICES, body="next"))
    assert _text(_received(channel, INVOICES)) == "next"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"queue": "other"}, "queue 'other' is not allowed"),
        ({"exchange": "other", "routing_key": "x"}, "exchange 'other' with routing key 'x'"),
        ({}, "Give either"),
        ({"queue": INVOICES, "exchange": EVENTS}, "Give either"),
        ({"queue": INVOICES, "routing_key": "x"}, "needs exchange="),
        ({"queue": INVOICES, "headers": {"x": float("nan")}}, "headers cannot be kept"),
        ({"queue": INVOICES, "headers": {"x" * 256: 1}}, "has 256 bytes"),
        ({"queue": INVOICES, "headers": {"": 1}}, "has 0 bytes"),
    ],
)
def test_a_bad_message_is_refused_when_it_is_scheduled(
    kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidTarget, match=message):
        queue_message.schedule(**kwargs)
    assert not Task.objects.exists()


class _Started(Exception):
    """Celery took a message for a task."""


class _EveryTask(dict):  # type: ignore[type-arg]
    def __missing__(self, name: str) -> Any:
        def strategy(*args: Any) -> None:
            raise _Started(name)

        return strategy


TASK = {"task": "tests.project.tasks.add", "id": str(uuid.uuid4()), "args": [], "kwargs": {}}
NAMES = st.sampled_from(
    ["task", "Task", "id", "lang", "root_id", "compression", "CC", "BCC", "durable_message", "shop"]
)
HEADERS = st.dictionaries(
    NAMES, st.sampled_from([TASK["task"], "application/x-gzip", "zlib", 7, [INVOICES, "celery"]])
)
BODIES = st.one_of(
    st.just(TASK),
    st.just(json.dumps(TASK)),
    st.just([[1], {}, {"callbacks": None}]),
    st.just(pickle.dumps(TASK, 0).decode("ascii")),
    st.just(f"{{task: {TASK['task']}, args: [], kwargs: {{}}}}"),
)
TYPES = st.sampled_from([None, *sorted(serializers.type_to_name), "application/json;charset=utf-8"])


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(headers=HEADERS, body=BODIES, kind=TYPES)
@example(headers=TASK, body=[[], {}, {}], kind="application/json")
@example(headers={}, body=TASK, kind="application/json")
@example(
    headers={}, body=pickle.dumps(TASK, 0).decode("ascii"), kind="application/x-python-serialize"
)
def test_no_message_is_a_task_for_a_worker_that_receives_it(
    channel: Any, headers: dict[str, Any], body: Any, kind: str | None
) -> None:
    arguments = {"queue": INVOICES, "headers": headers, "body": body, "content_type": kind}
    try:
        message = tasks.checked_message(arguments, [INVOICES])
        tasks.publish(message, uuid.uuid4())
    except InvalidTarget:
        assert channel.basic_get(INVOICES, no_ack=True) is None
        return
    raw = _received(channel, INVOICES)
    assert not {"cc", "bcc"} & {name.lower() for name in raw.headers}
    for accepted in ({"json"}, {"json", "pickle", "yaml", "msgpack"}, None):
        raw.accept = None if accepted is None else prepare_accept_content(accepted)
        raw._decoded_cache = None
        refused = Mock()
        consumer = SimpleNamespace(
            strategies=_EveryTask(),
            on_unknown_message=refused,
            on_unknown_task=refused,
            on_invalid_task=refused,
            on_decode_error=refused,
            on_task_message=(),
            call_soon=Mock(),
            _restore_prefetch_count_after_connection_restart=None,
        )
        Consumer.create_task_handler(consumer)(raw)
        refused.assert_called_once()


def _of_the_application(monkeypatch: pytest.MonkeyPatch, settings: Any, source: str) -> str:
    """Let one of the sources name a queue of tasks; return its name."""
    name, app = f"tasks-{RUN}", current_app
    if source == "default":
        return str(app.conf.task_default_queue)
    if source == "route":
        monkeypatch.setattr(app.amqp.router, "routes", prepare_routes({"a.*": {"queue": name}}))
    elif source == "task":
        monkeypatch.setattr(app.tasks[NAME], "queue", name, raising=False)
    elif source == "beat":
        entry = {"task": "a", "schedule": 60, "options": {"queue": name}}
        monkeypatch.setitem(app.conf, "beat_schedule", {"a": entry})
    elif source == "pidbox":
        return str(app.control.mailbox.get_queue("w1").name)
    elif source == "API_QUEUES":
        settings.DURABLE_TASKS = {"API_QUEUES": ["tasks-*"]}
    elif source == "HTTP_RETRY_QUEUE":
        settings.DURABLE_TASKS = {"HTTP_RETRY_QUEUE": name}
    elif source == "worker":
        a_node(kind=NodeKind.WORKER, queues=[name])
    return name


_CONFIGURED = ("default", "route", "task", "beat", "API_QUEUES", "HTTP_RETRY_QUEUE")
PLACES = [
    *(
        (source, place)
        for source in (*_CONFIGURED, "pidbox", "worker")
        for place in ("queue", "exchange")
    ),
    # Redis keeps the messages of a priority under a key that other programs can name.
    *((source, "priority") for source in _CONFIGURED),
]


@pytest.mark.parametrize(("source", "place"), PLACES)
def test_a_queue_of_celery_tasks_is_refused(
    settings: Any, monkeypatch: pytest.MonkeyPatch, source: str, place: str
) -> None:
    name = _of_the_application(monkeypatch, settings, source)
    if place == "priority":
        monkeypatch.setitem(current_app.conf.broker_transport_options, "sep", ":")
        name = f"{name}:9"
    entry = f"exchange:{name}" if place == "exchange" else name
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUEUE_ALLOW": [entry]}
    kwargs: dict[str, Any] = {"exchange" if place == "exchange" else "queue": name}
    with pytest.raises(InvalidTarget, match="create a durable task instead"):
        queue_message.schedule(**kwargs, body="x")
    task = _queued(**kwargs, body="x")
    with pytest.raises(InvalidTarget, match="create a durable task instead"):
        deliver(task)
    task.refresh_from_db()
    assert task.status == "FAILED"
    found = [message.id for message in check_celery() if message.id == "durable_tasks.W019"]
    assert found == ([] if source == "worker" else ["durable_tasks.W019"])


@pytest.fixture
def tenants(allowed: None) -> Iterator[tuple[Tenant, Tenant]]:
    """Two tenants, which are removed with their tasks."""
    both = [Tenant.objects.create(slug=slug) for slug in ("invoices", "orders")]
    yield both[0], both[1]
    Task.objects.unguarded().filter(tenant__in=both).delete()
    for tenant in both:
        tenant.delete()


def test_the_worker_refuses_the_queue_of_another_tenant(
    settings: Any, channel: Any, tenants: tuple[Tenant, Tenant]
) -> None:
    settings.DURABLE_TASKS = {"QUEUE_ALLOW": ["{tenant}" + INVOICES.removeprefix("invoices")]}
    owner, other = tenants
    kwargs = {"queue": INVOICES, "body": "x"}
    deliver(a_task(Status.QUEUED, name=NAME, kwargs=kwargs, tenant=owner))
    assert _text(_received(channel, INVOICES)) == "x"
    foreign = a_task(Status.QUEUED, name=NAME, kwargs=kwargs, tenant=other)
    with pytest.raises(InvalidTarget, match="QUEUE_ALLOW"):
        deliver(foreign)
    foreign.refresh_from_db()
    assert foreign.status == "FAILED"
    assert channel.basic_get(INVOICES, no_ack=True) is None


def test_a_worker_publishes_a_scheduled_message(
    shared_database: None, channel: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with cluster_in(tmp_path_factory.mktemp("messages"), GIVEN) as cluster:
        _start(cluster)
        task = queue_message.schedule(queue=INVOICES, body={"b": 1, "a": 2})
        assert task.target_type == "QUEUE_MESSAGE"
        assert ended(task).status == "SUCCESS"
    assert _text(_received(channel, INVOICES)) == '{"b":1,"a":2}'


def _start(cluster: Cluster) -> None:
    cluster.worker(slots=1)
    cluster.scheduler()
    cluster.ready()
