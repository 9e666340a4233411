"""Fixtures for tests that share their database with other processes. The conftest of a folder
imports what it needs.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import current_app
from django.core.management import call_command
from django.db import connections
from kombu import pools
from pytest_django.plugin import DjangoDbBlocker

from django_durable_tasks.store.connections import close_all
from tests.processes.cluster import SHORT, Cluster, cluster_in
from tests.processes.rows import clear_rows, forget_processes
from tests.table_cleanup import empty_tables

__all__ = ["cluster", "db", "rows", "shared_database"]


@pytest.fixture(scope="module")
def shared_database(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Provide the database without a transaction around the tests, because other processes read the
    rows. At the end nothing is left, also no tenant: with a second one, each has half of a window.
    """
    with django_db_blocker.unblock():
        clear_rows()
        forget_processes()
        yield
        clear_rows()
        forget_processes()
        if not empty_tables("default"):
            call_command("flush", interactive=False, verbosity=0)
        close_all()
        if os.environ["TEST_BROKER"] == "database":  # that is about to be deleted
            pools.reset()
            # Closed; the next use makes others.
            app = current_app._get_current_object()
            app._pool = app.amqp._producer_pool = None
        connections.close_all()


@pytest.fixture
def db(shared_database: None) -> None:
    """Replace pytest-django's fixture of this name, which creates the database."""


@pytest.fixture
def rows(db: None, settings: Any) -> Iterator[None]:
    """Delete all rows before and after a test, and shorten the settings in this process too."""
    settings.DURABLE_TASKS = dict(SHORT)
    clear_rows()
    yield
    clear_rows()


@pytest.fixture
def cluster(rows: None, tmp_path: Path) -> Iterator[Cluster]:
    """Provide a cluster of workers and schedulers for one test, with shortened settings."""
    forget_processes()
    with cluster_in(tmp_path) as cluster:
        yield cluster
    forget_processes()
