"""The broker in the database: transactions, leases, names, refusals and messages that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import kombu
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from kombu.exceptions import ChannelError

from django_durable_tasks.contrib.database_transport import routing
from django_durable_tasks.contrib.database_transport.models import Consumer, Message
from django_durable_tasks.contrib.database_transport.transport import MessageTooLarge

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
