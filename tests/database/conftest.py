"""Every database test starts with the seed rows, an empty test queue and empty caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from django.db import DEFAULT_DB_ALIAS, connection
from pytest_django.plugin import DjangoDbBlocker

from django_durable_tasks.celery import publisher
from django_durable_tasks.limits import backpressure
from django_durable_tasks.store import connections
from tests.factories import QUEUE, first_rows
from tests.messages import take_task_messages
from tests.process_state import new_process_state
from tests.project import tasks  # noqa: F401 - rows of its tasks are replayed by name
from tests.table_cleanup import empty_tables, truncate_tables


@pytest.fixture
def many_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no customer be bounded by its part of the processes, so that windows, limits and turns
    decide. Without a worker a customer has one place.
    """
    monkeypatch.setattr(backpressure, "workers_of", lambda _concurrency: 1_000_000)


@pytest.fixture(scope="module")
def committed_rows(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[Callable[[], object]]:
    """Let a fixture of a module commit rows which all its tests read.

    The tests are not transactional, so what they write is rolled back. Returns a function that
    deletes all rows; this also happens before the first and after the last test.
    """
    with django_db_blocker.unblock():
        on_postgresql = connection.vendor == "postgresql"
        empty = partial(truncate_tables if on_postgresql else empty_tables, DEFAULT_DB_ALIAS)
        empty()
        yield empty
        empty()


@pytest.fixture(scope="module")
def few_committed_rows(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Let a fixture of a module commit at most 500 rows of a table, as ``committed_rows`` does.

    They are deleted after the last test. Truncating all tables waits longer for the disk, but is
    what tests of query plans need.
    """
    with django_db_blocker.unblock():
        yield
        assert empty_tables(DEFAULT_DB_ALIAS)


@pytest.fixture(autouse=True)
def clean_engine(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start with empty caches of queues and broker, and leave no connection and no message behind."""
    new_process_state()
    publisher.breaker.succeeded()
    publisher.backoff.forget()
    mark = request.node.get_closest_marker("django_db")
    transactional = mark is not None and mark.kwargs.get("transaction", False)
    if mark is not None:
        request.getfixturevalue("transactional_db" if transactional else "db")
        first_rows()
    if transactional:
        take_task_messages(QUEUE)
    yield
    connections.close_all()
    publisher.close_idle()
