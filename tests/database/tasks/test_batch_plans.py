"""A batch reads the due tasks, and none of those that are due later."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from django_durable_tasks.states import batches
from tests.database.pages import nodes_of
from tests.factories import NOOP, QUEUE, many_tasks

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db]
LATER = 3_000


@pytest.fixture(autouse=True)
def _waiting() -> None:
    many_tasks(LATER, due=3_600, in_batch=True)
    many_tasks(5, in_batch=True)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_tasks_task")


def _removed_by_filters(act: Callable[[], object]) -> int:
    """Return how many rows the statements of this call read and left out."""
    plans = list[dict[str, Any]]()

    def explained(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        with connection.connection.cursor() as cursor:
            cursor.execute("SAVEPOINT explained")  # EXPLAIN ANALYZE executes the statement
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params)
            plans.append(cursor.fetchone()[0][0]["Plan"])
            cursor.execute("ROLLBACK TO SAVEPOINT explained")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explained):
        act()
    assert plans
    return sum(
        int(node.get("Rows Removed by Filter", 0) * node["Actual Loops"])
        for plan in plans
        for node in nodes_of(plan)
    )


def test_the_start_of_a_batch_reads_the_due_tasks_only() -> None:
    run_ids = [uuid.UUID(bytes=os.urandom(16), version=4) for _ in range(100)]
    started = list[object]()
    removed = _removed_by_filters(
        lambda: started.extend(batches.take_due(QUEUE, NOOP, run_ids, uuid.uuid4(), 60.0))
    )
    assert (len(started), removed < LATER / 10) == (5, True), removed


def test_the_due_tasks_of_a_batch_within_limits_are_read_only() -> None:
    found = list[object]()
    removed = _removed_by_filters(lambda: found.extend(batches.due_in_batch(QUEUE, NOOP, 100)))
    assert (len(found), removed < LATER / 10) == (5, True), removed
