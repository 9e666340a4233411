"""Fixtures: a shared database, and clusters that are always ended. Some files of this folder run
with one broker only.
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
WITHOUT_BROKER = ("test_filesystem_processes", "test_filesystem_transport")
"""Files that use no broker of the run, but files: they run with Redis, whose run is not left out."""

IS_THE_DATABASE = "the broker is the database of the tasks: its outage is that of the database"
NO_MESSAGE = "workers take the task itself: it is never QUEUED and has no message to lose or count"
NOT_IN_DATABASE = {
    "test_backlogs": NO_MESSAGE,
    "test_broker_away": IS_THE_DATABASE,
    "test_broker_lists": IS_THE_DATABASE,
    "test_a_lost_broker_opens_the_breaker_and_rejects_no_queue": IS_THE_DATABASE,
    "test_a_message_lost_by_the_broker_is_republished": NO_MESSAGE,
    "test_a_call_is_published_to_the_queue_that_celery_uses_and_to_no_other": NO_MESSAGE,
    "test_a_message_in_another_queue_starts_nothing_and_is_counted": NO_MESSAGE,
    "test_a_message_revoked_before_its_start_cancels_the_task": NO_MESSAGE,
}
"""Files and tests that the broker in the database of the tasks skips, with the reasons."""


@pytest.fixture(autouse=True)
def database_of_the_broker(request: pytest.FixtureRequest) -> None:
    """Allow each test the database if the broker is in it, also tests that have no tasks."""
    if os.environ["TEST_BROKER"] == "database":
        request.getfixturevalue("rows")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that need another broker, and skip those that the database has no use for."""
    needed = dict.fromkeys([*WITH_REDIS, *WITHOUT_BROKER], "redis") | dict.fromkeys(
        WITH_RABBITMQ, "rabbitmq"
    )
    here = os.environ["TEST_BROKER"]
    elsewhere = [
        item
        for item in items
        if item.path.parent.name == "broker" and needed.get(item.path.stem, here) != here
    ]
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if item not in elsewhere]
    if here == "database":
        for item in items:
            function = getattr(item, "originalname", item.name)
            reason = NOT_IN_DATABASE.get(item.path.stem) or NOT_IN_DATABASE.get(function)
            if item.path.parent.name == "broker" and reason:
                item.add_marker(pytest.mark.skip(reason=reason))
