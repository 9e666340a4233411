"""Fixtures of every floor, and the vendor marks: a test that needs one database is left out on the others."""

import os
import shutil
from pathlib import Path

import pytest
from django.db import connection

from tests.emptying import use_instead_of_flush

VENDOR_MARKS = ("postgresql", "mariadb", "sqlite")


def pytest_configure() -> None:
    """Make the folder of this run, for SQLite's file and the filesystem broker, and spare it what flushes cost."""
    Path(os.environ["TEST_FOLDER"]).mkdir(parents=True, exist_ok=True)
    use_instead_of_flush()


def pytest_unconfigure() -> None:
    """Remove the folder of this run."""
    shutil.rmtree(os.environ["TEST_FOLDER"], ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is meant for another database, without counting it as skipped: it runs in that run."""
    here = os.environ["TEST_DATABASE"]
    kept = [item for item in items if _belongs(item, here)]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if not _belongs(item, here)])
        items[:] = kept


def _belongs(item: pytest.Item, vendor: str) -> bool:
    marks = [mark for mark in VENDOR_MARKS if item.get_closest_marker(mark)]
    return not marks or vendor in marks


@pytest.fixture(scope="session")
def vendor() -> str:
    """Give the database of this run: postgresql, mariadb or sqlite."""
    return os.environ["TEST_DATABASE"]


@pytest.fixture(scope="session")
def broker() -> str:
    """Give the broker of this run: rabbitmq, redis, filesystem or memory."""
    return os.environ["TEST_BROKER"]


@pytest.fixture
def database_name(db: None) -> str:
    """Give the name of this run's test database, for tools that connect beside Django."""
    return str(connection.settings_dict["NAME"])
