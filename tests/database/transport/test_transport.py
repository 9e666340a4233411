"""The broker in the database: transactions, leases, names, refusals and messages that cannot be read."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import kombu
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import transaction
from kombu.exceptions import ChannelError

from django_durable_tasks.celery import inspect
from django_durable_tasks.cluster.nodes import HeartbeatMonitor, register
from django_durable_tasks.contrib.database_transport import due_tasks, routing
from django_durable_tasks.contrib.database_transport.models import Consumer, Message
from django_durable_tasks.contrib.database_transport.transport import MessageTooLarge
from django_durable_tasks.models import Node, NodeKind
from django_durable_tasks.store.clock import database_now
from tests.broker.routes import application

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def broker() -> Iterator[kombu.Connection]:
    """Return a connection to the broker. Its consumers do not listen, so that no connection stays."""
    with kombu.Connection(
        "durable-database://default", transport_options={"notify": False}
    ) as opened:
        yield opened


def _put(broker: kombu.Connection, queue: str, body: object, **options: object) -> None:
    kombu.Producer(broker.default_channel).publish(body, routing_key=queue, **options)


def test_a_message_commits_with_the_transaction_of_the_caller(broker: kombu.Connection) -> None:
    with transaction.atomic():
        _put(broker, "orders", 1)
        transaction.set_rollback(True)
    assert not Message.objects.exists()
    with transaction.atomic():
        _put(broker, "orders", 2)
    assert broker.default_channel.basic_get("orders").payload == 2


def test_queues_whose_names_differ_in_case_or_punctuation_are_different(
    broker: kombu.Connection,
) -> None:
    names = ["a-b", "a.b", "A-B", "a_b", "a-b "]
    for name in names:
        _put(broker, name, name)
    for name in names:
        assert broker.default_channel.basic_get(name).payload == name
        assert broker.default_channel.basic_get(name) is None


def test_a_name_of_300_characters_is_refused(broker: kombu.Connection) -> None:
    broker.default_channel.queue_declare("q" * 255)
    with pytest.raises(ValueError, match="at most 255"):
        broker.default_channel.queue_declare("q" * 300)


def test_a_passive_declaration_of_a_missing_queue_is_404(broker: kombu.Connection) -> None:
    with pytest.raises(ChannelError) as refused:
        broker.default_channel.queue_declare("missing", passive=True)
    assert refused.value.code == 404


def test_a_message_over_the_limit_is_refused(broker: kombu.Connection) -> None:
    with pytest.raises(MessageTooLarge, match="max_message_bytes"):
        _put(broker, "orders", "x" * 9_000_000)


def test_an_unknown_alias_is_named() -> None:
    with pytest.raises(ImproperlyConfigured, match="'missing'"):
        kombu.Connection("durable-database://missing").connect()


def test_a_message_that_cannot_be_read_stays_and_others_are_delivered(
    broker: kombu.Connection,
) -> None:
    _put(broker, "orders", 1)
    Message.objects.update(body="no JSON")
    _put(broker, "orders", 2)
    assert broker.default_channel.basic_get("orders").payload == 2
    assert Message.objects.get(body="no JSON").consumer == 0


def test_messages_of_an_expired_lease_are_delivered_again(broker: kombu.Connection) -> None:
    _put(broker, "orders", 1)
    Message.objects.update(consumer=77)
    Consumer.objects.create(
        pk=77, expires_at=datetime(2000, 1, 1, tzinfo=UTC), hostname="dead", process_id=1
    )
    session = broker.default_channel.session
    with session.connected():
        session._reap()
    assert broker.default_channel.basic_get("orders").payload == 1
    assert not Consumer.objects.filter(pk=77).exists()


def test_a_closed_connection_returns_what_it_held(broker: kombu.Connection) -> None:
    _put(broker, "orders", 1)
    with kombu.Connection(
        "durable-database://default", transport_options={"notify": False}
    ) as other:
        held = other.default_channel.basic_get("orders")
        assert broker.default_channel.basic_get("orders") is None
    again = broker.default_channel.basic_get("orders")
    assert (again.payload, again.delivery_info["redelivered"]) == (held.payload, True)


@pytest.mark.parametrize(
    ("pattern", "key", "wanted"),
    [
        ("a.#", "a", True),
        ("a.*", "a", False),
        ("#.c", "a.b.c", True),
        ("a.*.c", "a.b.c", True),
        ("*", "a.b", False),
    ],
)
def test_topics_match_as_amqp_defines_it(pattern: str, key: str, wanted: bool) -> None:
    assert routing.matches("topic", pattern, {}, key, {}) is wanted


def test_a_headers_exchange_matches_all_or_any() -> None:
    both = {"x-match": "all", "a": 1, "b": 2}
    assert not routing.matches("headers", "", both, "", {"a": 1})
    assert routing.matches("headers", "", {**both, "x-match": "any"}, "", {"a": 1})


@pytest.fixture
def without_tables(broker: kombu.Connection) -> Iterator[None]:
    """Remove the tables of the broker, as in a database that was not migrated."""
    call_command("migrate", "durable_tasks_transport", "zero", verbosity=0)
    try:
        yield
    finally:
        call_command("migrate", "durable_tasks_transport", verbosity=0)


def test_a_database_that_was_not_migrated_names_the_command(without_tables: None) -> None:
    with (
        kombu.Connection("durable-database://default") as opened,
        pytest.raises(ImproperlyConfigured, match="migrate durable_tasks_transport --database"),
    ):
        opened.connect()


def test_a_plain_call_into_a_database_that_was_not_migrated_names_the_command(
    without_tables: None,
) -> None:
    with (
        application("durable-database://default") as app,
        pytest.raises(ImproperlyConfigured, match="migrate durable_tasks_transport --database"),
    ):
        app.send_task("plain")


def test_the_status_of_a_broker_that_was_not_migrated_names_the_command(
    without_tables: None,
) -> None:
    with application("durable-database://default"):
        assert "migrate durable_tasks_transport" in str(inspect.broker_problem())


def test_the_status_of_an_unknown_alias_names_it() -> None:
    with application("durable-database://missing"):
        assert "no alias 'missing'" in str(inspect.broker_problem())


def test_a_refused_message_leaves_the_other_queues_and_messages(
    broker: kombu.Connection,
) -> None:
    _put(broker, "orders", 1)
    with pytest.raises(MessageTooLarge, match="'orders'"):
        _put(broker, "orders", "x" * 9_000_000)
    with pytest.raises(ValueError, match="at most 255"):
        _put(broker, "q" * 300, 2)
    _put(broker, "invoices", 3)
    assert broker.default_channel.basic_get("orders").payload == 1
    assert broker.default_channel.basic_get("invoices").payload == 3


def test_a_message_that_cannot_be_read_is_delivered_after_its_repair(
    broker: kombu.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    _put(broker, "orders", 1)
    good = Message.objects.get().body
    Message.objects.update(body="no JSON")
    assert broker.default_channel.basic_get("orders") is None
    assert "repair it and set consumer to NULL, or delete it" in caplog.text
    Message.objects.update(body=good, consumer=None)
    assert broker.default_channel.basic_get("orders").payload == 1


def test_what_a_dead_worker_holds_returns_when_its_node_is_declared_dead(
    broker: kombu.Connection, settings: Any
) -> None:
    settings.CELERY_BROKER_URL = "durable-database://default"
    nodes = {name: uuid.uuid4() for name in ("dead", "alive")}
    for name, node in nodes.items():
        register(node, f"worker@{name}", NodeKind.WORKER, concurrency=1, queues=("orders",))
    for number, (name, node) in enumerate(nodes.items(), start=1):
        _put(broker, "orders", name)
        Consumer.objects.create(
            pk=number,
            node=node,
            expires_at=datetime(2100, 1, 1, tzinfo=UTC),
            hostname=name,
            process_id=1,
        )
        Message.objects.filter(consumer=None).update(consumer=number)
    assert due_tasks.return_messages(database_now(), HeartbeatMonitor()) == 0
    Node.objects.filter(pk=nodes["dead"]).update(declared_dead=True)
    assert due_tasks.return_messages(database_now(), HeartbeatMonitor()) == 1
    with kombu.Connection(
        "durable-database://default", transport_options={"notify": False}
    ) as other:
        assert other.default_channel.basic_get("orders").payload == "dead"
        assert other.default_channel.basic_get("orders") is None


def test_properties_that_amqp_does_not_have_are_left_out(broker: kombu.Connection) -> None:
    """Kombu passes on each keyword argument that it does not know, whatever it is."""
    _put(broker, "orders", 1, correlation_id="c", priority=3, signal=object())
    message = broker.default_channel.basic_get("orders")
    assert message.payload == 1
    assert message.properties["correlation_id"] == "c"
    assert message.properties["priority"] == 3
    assert "signal" not in message.properties
