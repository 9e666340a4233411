"""Operations of operators: release a waiting retry, retry, republish, count what a prune would
delete.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.choices import Status
from django_durable_tasks.models import Task
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.states import claims
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import claim, operator_actions, retention
from tests.factories import a_task, many_tasks

pytestmark = pytest.mark.django_db


def _statements(act: Callable[[], Any]) -> int:
    with CaptureQueriesContext(connection) as captured:
        act()
    return len(captured)


def _of(*rows: Task) -> Any:
    return tables.tasks().filter(pk__in=[row.pk for row in rows])


def test_only_waiting_retries_are_released() -> None:
    waiting, first, running = (
        a_task(due=60, failures=1),
        a_task(due=60),
        a_task(Status.RUNNING, failures=1),
    )
    assert operator_actions.retry(_of(waiting, first, running)) == 1
    assert set(tables.tasks().due(database_now())) == {waiting}


def _republished(batch: int) -> list[list[TaskMessage]]:
    return list(claim.republish_all(tables.tasks(), batch))


def test_every_queued_task_is_republished_once_whatever_the_batch_size() -> None:
    rows = many_tasks(5, Status.QUEUED)
    a_task()
    batches = _republished(2)
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert sorted(message.task_id for batch in batches for message in batch) == [
        row.pk for row in rows
    ]
    assert {message.number for batch in batches for message in batch} == {2}
    assert _republished(2)[0][0].number == 3


def test_a_task_created_during_the_republish_is_left_to_its_own_message() -> None:
    many_tasks(2, Status.QUEUED)
    rounds = claim.republish_all(tables.tasks(), 1)
    next(rounds)
    later = a_task(Status.QUEUED, id=uuid.UUID(int=(1 << 127) - 1))
    assert later.pk not in {message.task_id for batch in rounds for message in batch}


def test_a_republished_batch_needs_as_many_statements_as_one_task() -> None:
    a_task(Status.QUEUED)
    one = _statements(lambda: _republished(100))
    many_tasks(50, Status.QUEUED)
    assert _statements(lambda: _republished(100)) == one


def test_a_dry_run_of_prune_counts_by_status() -> None:
    a_task(Status.SUCCESS)
    assert set(retention.prunable(database_now()).values()) == {0}


@pytest.mark.postgresql
def test_rows_selected_by_key_are_locked_by_one_list_of_keys() -> None:
    """Two lists of keys in one statement make PostgreSQL read the whole table."""
    rows = many_tasks(3, Status.QUEUED)
    with CaptureQueriesContext(connection) as captured:
        claims.return_to_pending(_of(*rows), 0)
    locks = [
        query["sql"] for query in captured.captured_queries if "FOR NO KEY UPDATE" in query["sql"]
    ]
    assert [sql.count('"id" IN (') for sql in locks] == [1]
