"""The environment of a page: a database of this run, and tasks that run where they are published,
after COMMIT.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_durable_tasks import registry
from django_durable_tasks.celery import publisher
from django_durable_tasks.store import connections
from tests.celery_settings import celery_configured
from tests.factories import first_rows
from tests.process_state import new_process_state


@pytest.fixture
def eager(transactional_db: None) -> Iterator[None]:
    """Write the seed rows, run bodies in this process, and discard the schedules that a page
    declared.
    """
    declared = dict(registry._declarations)
    new_process_state()
    first_rows()
    with celery_configured(task_always_eager=True):
        yield
    registry._declarations.clear()
    registry._declarations.update(declared)
    connections.close_all()
    publisher.close_idle()
