"""What a page finds: a database of its own run, and every task run where it is rung,
after COMMIT.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import current_app

from django_durable_tasks import registry
from django_durable_tasks.celery.publishing import broker_connection
from django_durable_tasks.engine.db import connections
from tests.factories import first_rows
from tests.process_state import new_process_state


@pytest.fixture
def eager(transactional_db: None) -> Iterator[None]:
    """Give the first rows, run bodies in this process, and forget the schedules that a page
    declared.
    """
    declared = dict(registry._declarations)
    new_process_state()
    first_rows()
    before = current_app.conf.task_always_eager
    current_app.conf.task_always_eager = True
    yield
    current_app.conf.task_always_eager = before
    registry._declarations.clear()
    registry._declarations.update(declared)
    connections.close_all()
    broker_connection.close_idle()
