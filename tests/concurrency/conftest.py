"""Races run on real commits, so every test here is transactional and begins with the first rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_durable_tasks.celery import doorbell, publisher
from django_durable_tasks.lifecycle import connections, limits
from tests.factories import first_rows


@pytest.fixture(autouse=True)
def clean_engine(transactional_db: None) -> Iterator[None]:
    """Begin with the rows of the migrations and a fresh view, and leave no connection behind."""
    limits.forget_picture()
    publisher.breaker.succeeded()
    publisher.backoff.forget()
    first_rows()
    yield
    connections.close_all()
    doorbell.hang_up()
