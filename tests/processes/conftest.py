"""Fixtures of this folder. Tests that do not involve the broker run on one broker per database."""

import os

import pytest

from tests.mutants import VARIABLE
from tests.processes.fixtures import cluster, db, rows, shared_database

__all__ = ["cluster", "db", "rows", "shared_database"]

HOME = {"postgresql": "rabbitmq", "mariadb": "rabbitmq", "sqlite": "filesystem"}
ONCE_A_DATABASE = {
    "test_celery_commands",
    "test_coroutines",
    "test_customers",
    "test_draining",
    "test_eager",
    "test_fences",
    "test_health_file",
    "test_limits",
    "test_long_tasks",
    "test_opentelemetry",
    "test_outages",
    "test_pools",
    "test_pytest_plugin",
    "test_recurring",
    "test_returned_functions",
    "test_rolling",
    "test_sentry",
    "test_steps",
    "test_two_databases",
    "test_unmigrated",
}
"""Files whose tests do not involve the broker."""
SMOKE_ON_EACH_BROKER = {
    "test_batches",
    "test_clock_steps",
    "test_dev",
    "test_endings",
    "test_fairness",
    "test_metrics",
    "test_removed_names",
    "test_scheduler_with_worker",
    "test_shadow",
    "test_shared_crashes",
    "test_workflows",
}
"""Files in which only the tests with the mark ``smoke`` involve the broker. All others of this
folder lose or duplicate messages, or kill what holds them, and run with each broker.
"""
NOT_ON_MARIADB = {
    "test_celery_commands",
    "test_dev",
    "test_opentelemetry",
    "test_pytest_plugin",
    "test_sentry",
}
"""Files with new projects, whose migrations take longer on MariaDB than their tests, which involve
no database. Their tests with the mark ``smoke`` run there.
"""
ELSEWHERE = {("postgresql", "test_recurring"): "redis", ("postgresql", "test_rolling"): "redis"}
"""Files that run on another broker than the others, so that no pair of database and broker has all
the long ones.
"""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that run with another broker on this database. A run of a mutant has selected
    its tests itself.
    """
    if os.environ["TEST_BROKER"] == "memory" or VARIABLE in os.environ:
        return
    elsewhere = [item for item in items if _once_a_database(item) and not _at_home(item)]
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if item not in elsewhere]


def _once_a_database(item: pytest.Item) -> bool:
    name = item.path.stem
    alone = name in SMOKE_ON_EACH_BROKER and item.get_closest_marker("smoke") is None
    return (alone or name in ONCE_A_DATABASE) and item.path.parent.name == "processes"


def _at_home(item: pytest.Item) -> bool:
    database = os.environ["TEST_DATABASE"]
    if database == "mariadb" and item.path.stem in NOT_ON_MARIADB:
        return False
    return os.environ["TEST_BROKER"] == ELSEWHERE.get((database, item.path.stem), HOME[database])
