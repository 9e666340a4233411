"""Fixtures: a shared database, and clusters that are always ended. Some files of this folder run
with Redis only.
"""

import os

import pytest

from tests.processes.fixtures import cluster, db, rows, shared_database

__all__ = ["cluster", "db", "rows", "shared_database"]

WITH_REDIS = (
    "test_canvases",
    "test_celery_usage",
    "test_due_index",
    "test_redis_away",
    "test_redis_garbage",
    "test_redis_messages",
    "test_notification_payloads",
    "test_notifications",
    "test_notified_schedulers",
)
"""Files that need Redis: Celery's chords as their result backend, the due index and notifications
themselves.
"""
WITH_RABBITMQ = ("test_quorum_queues",)


@pytest.fixture(autouse=True)
def database_of_the_broker(request: pytest.FixtureRequest) -> None:
    """Allow each test the database if the broker is in it, also tests that have no tasks."""
    if os.environ["TEST_BROKER"] == "database":
        request.getfixturevalue("rows")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that need another broker."""
    needed = dict.fromkeys(WITH_REDIS, "redis") | dict.fromkeys(WITH_RABBITMQ, "rabbitmq")
    here = os.environ["TEST_BROKER"]
    elsewhere = [
        item
        for item in items
        if item.path.parent.name == "broker" and needed.get(item.path.stem, here) != here
    ]
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if item not in elsewhere]
