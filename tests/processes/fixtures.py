"""Fixtures for tests that share their database with other processes; a folder's conftest imports
what it needs.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from pytest_django.plugin import DjangoDbBlocker

from django_durable_tasks.engine.db.connections import close_all
from tests.processes.fleet import SHORT, Fleet, fleet_in
from tests.processes.rows import clear_rows, forget_processes

__all__ = ["db", "fleet", "rows", "shared_database"]


@pytest.fixture(scope="module")
def shared_database(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Let a file of tests use the database without a transaction around them: other processes read
    the rows.
    """
    with django_db_blocker.unblock():
        clear_rows()
        forget_processes()
        yield
        clear_rows()
        forget_processes()
        close_all()
        connections.close_all()


@pytest.fixture
def db(shared_database: None) -> None:
    """Stand for pytest-django's fixture: under this name it knows that the database must
    be made.
    """


@pytest.fixture
def rows(db: None, settings: Any) -> Iterator[None]:
    """Begin and end a test without rows, and with shortened settings in this process too."""
    settings.DURABLE_TASKS = dict(SHORT)
    clear_rows()
    yield
    clear_rows()


@pytest.fixture
def fleet(rows: None, tmp_path: Path) -> Iterator[Fleet]:
    """Give a fleet of the test's own, with shortened settings."""
    forget_processes()
    with fleet_in(tmp_path) as fleet:
        yield fleet
    forget_processes()
