"""Messages are counted if workers read from the broker to which they are published, by any user."""

from __future__ import annotations

import pytest

from django_durable_tasks.celery.broker_connection import is_same_broker

ONE = "amqp://writer:one@broker:5672/shop"


@pytest.mark.parametrize(
    ("read", "is_same"),
    [
        ("amqp://reader:two@broker/shop", True),
        ("amqp://broker:5672/shop?heartbeat=10", True),
        (ONE, True),
        ("amqp://writer:one@broker:5673/shop", False),
        ("amqp://writer:one@broker:5672/other", False),
        ("amqp://writer:one@other:5672/shop", False),
        ("redis://broker:5672/shop", False),
        (f"{ONE};amqp://second/shop", False),
    ],
)
def test_only_the_address_of_the_broker_counts(read: str, is_same: bool) -> None:
    assert is_same_broker(read, ONE) is is_same


def test_lists_of_brokers_are_compared_in_any_order() -> None:
    brokers = ["redis://a:6379/1", "redis://:secret@b/1"]
    assert is_same_broker("redis://b:6379/1;redis://:secret@a/1", brokers)
    assert not is_same_broker(brokers[:1], brokers)
