"""Concurrency tests use real commits, so every test here is transactional and starts with the seed
rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_durable_tasks.celery import publisher
from django_durable_tasks.store import connections
from tests.factories import first_rows
from tests.process_state import new_process_state


@pytest.fixture(autouse=True)
def clean_engine(transactional_db: None) -> Iterator[None]:
    """Start with the rows of the migrations and empty caches, and leave no connection behind."""
    new_process_state()
    publisher.breaker.succeeded()
    publisher.backoff.forget()
    first_rows()
    yield
    connections.close_all()
    publisher.close_idle()
