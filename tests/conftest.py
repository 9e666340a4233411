"""Fixtures of every suite, and the marks of databases: a test that needs one database is deselected
on the others.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection
from pytest_django.plugin import DjangoDbBlocker

from tests import pooling
from tests.backends import address
from tests.portable import mark_of
from tests.runs import ROOT
from tests.stateful import use_own_examples
from tests.table_cleanup import use_instead_of_flush

VENDOR_MARKS = ("postgresql", "mariadb", "sqlite")


def pytest_configure() -> None:
    """Create the folder of this run, for SQLite's file and the filesystem broker, and replace
    flushes.
    """
    Path(os.environ["TEST_FOLDER"]).mkdir(parents=True, exist_ok=True)
    use_instead_of_flush()
    use_own_examples()


def pytest_unconfigure() -> None:
    """Remove the folder of this run."""
    shutil.rmtree(os.environ["TEST_FOLDER"], ignore_errors=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests of the store and those that do not depend on the database, so that a run on
    another database can select them.
    """
    marks = {mark.name for mark in item.iter_markers()}
    path = item.path.relative_to(ROOT).as_posix()
    if mark := mark_of(path, marks, getattr(item, "fixturenames", ())):
        item.add_marker(mark)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests for another database instead of skipping them, since they run in that run."""
    here = os.environ["TEST_DATABASE"]
    kept = [item for item in items if _belongs(item, here)]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def _belongs(item: pytest.Item, vendor: str) -> bool:
    marks = [mark for mark in VENDOR_MARKS if item.get_closest_marker(mark)]
    if item.get_closest_marker("pgbouncer") and not pooling.wanted():
        return False
    return not marks or vendor in marks


@pytest.fixture(scope="session")
def django_db_modify_db_settings_xdist_suffix() -> None:
    """Do not rename the database of a pytest-xdist worker: the settings already have, so that its
    processes have the same.
    """


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Use PgBouncer from here on if the run is configured so. The database itself is created and
    dropped without it.
    """
    if not pooling.wanted():
        yield
        return
    with django_db_blocker.unblock(), pooling.through_pgbouncer(address("postgresql")):
        yield


@pytest.fixture(scope="session")
def vendor() -> str:
    """Return the database of this run: postgresql, mariadb or sqlite."""
    return os.environ["TEST_DATABASE"]


@pytest.fixture(scope="session")
def broker() -> str:
    """Return the broker of this run: rabbitmq, redis, filesystem or memory."""
    return os.environ["TEST_BROKER"]


@pytest.fixture
def database_name(db: None) -> str:
    """Return the name of this run's test database, for tools that connect without Django."""
    return str(connection.settings_dict["NAME"])
