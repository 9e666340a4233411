"""Fixtures: a shared database, and fleets that are always reaped; and what of this folder runs with
Redis only.
"""

import os

import pytest

from tests.processes.fixtures import db, fleet, rows, shared_database

__all__ = ["db", "fleet", "rows", "shared_database"]

WITH_REDIS = (
    "test_canvas",
    "test_celery_habits",
    "test_due_index",
    "test_redis_away",
    "test_redis_filling",
    "test_redis_garbage",
    "test_redis_verify",
    "test_wakeup_payloads",
    "test_wakeups",
    "test_woken_schedulers",
)
"""Files that need Redis: chords of Celery as their result backend, the due index and wake-ups for
themselves.
"""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what runs with Redis when the broker is another one."""
    elsewhere = [
        item for item in items if item.path.stem in WITH_REDIS and item.path.parent.name == "broker"
    ]
    if elsewhere and os.environ["TEST_BROKER"] != "redis":
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if item not in elsewhere]
