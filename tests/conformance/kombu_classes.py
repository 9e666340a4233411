"""Kombu's integration classes, for the transport of this package and for others beside it.

The classes are those of ``t/integration/common.py`` in the source distribution of Kombu, unchanged.
``KOMBU_BROKER`` is the URL of the broker.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import kombu
import pytest
from django.db import connections
from t.integration import common  # type: ignore[import-not-found]
from t.integration.common import (  # type: ignore[import-not-found]
    BaseExchangeTypes,
    BaseFailover,
    BaseMessage,
    BasePriority,
    BaseTimeToLive,
    BasicFunctionality,
)

from tests.table_cleanup import empty_tables

URL = os.environ["KOMBU_BROKER"]
IS_OURS = URL.startswith("durable-database:")
UNREACHABLE = "durable-database://missing" if IS_OURS else "redis://127.0.0.1:1"
# The brokers of which a higher number is a lower priority.
ORDER = "desc" if URL.startswith("redis") else "asc"

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture(scope="session")
def unreachable_database(django_db_setup: None) -> None:
    """Add a database on a port on which nothing listens, after the test databases were created.

    A mirror is not emptied after a test.
    """
    connections.settings["unreachable"] = connections.settings["default"] | {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": "127.0.0.1",
        "PORT": 1,
        "OPTIONS": {"connect_timeout": 1},
        "TEST": {**connections.settings["default"]["TEST"], "MIRROR": "default"},
    }


@pytest.fixture(autouse=True)
def empty_broker(unreachable_database: None, transactional_db: None) -> Iterator[None]:
    """Begin and end without messages."""
    yield
    if IS_OURS:
        empty_tables(connections["default"].alias)


@pytest.fixture
def connection(empty_broker: None) -> Iterator[kombu.Connection]:
    """Return a connection to the broker."""
    opened = kombu.Connection(URL)
    yield opened
    opened.release()


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    """Return a connection that cannot be opened."""
    return kombu.Connection(UNREACHABLE)


@pytest.fixture
def failover_connection(empty_broker: None) -> Iterator[kombu.Connection]:
    """Return a connection whose first address cannot be reached."""
    # One class requires that the ports differ. A database has the port of its settings.
    urls = f"{UNREACHABLE};{URL}"
    if IS_OURS:
        urls = "durable-database://unreachable:1;durable-database://default:2"
    opened = kombu.Connection(urls, connect_timeout=10)
    yield opened
    opened.release()


class TestBasicFunctionality(BasicFunctionality):
    """Connecting, publishing, consuming, SimpleQueue."""


class TestExchangeTypes(BaseExchangeTypes):
    """Direct, fanout and topic exchanges."""


class TestTimeToLive(BaseTimeToLive):
    """Messages expire."""


class TestPriority(BasePriority):
    """Messages with a higher priority are delivered first."""

    PRIORITY_ORDER = ORDER


class TestMessage(BaseMessage):
    """Acknowledge, reject and requeue."""


class TestFailover(BaseFailover):
    """The second address is used if the first one is away."""


if hasattr(common, "BaseEventLoop"):  # since Kombu 5.7

    class TestEventLoop(common.BaseEventLoop):
        """Acknowledge from a callback of the event loop."""
