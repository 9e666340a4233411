"""Tasks start and fail between two statements of a caller's transaction that concerns them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from django_durable_tasks.choices import Status
from django_durable_tasks.models import Task, TaskDependency
from django_durable_tasks.tasks import attempts
from django_durable_tasks.workflows import operations
from tests.concurrency.racing import on_another_connection
from tests.database.dependencies.worker_and_leader import begin, statuses
from tests.database.transitions.transition_calls import FAILURE
from tests.factories import QUEUE, a_run, a_task, many_tasks
from tests.project.tasks import noop

# SQLite has one writer at a time: there every transaction that has written blocks all others (docs:
# limits).
pytestmark = [pytest.mark.postgresql, pytest.mark.mariadb]


def _before_statements(choose: Callable[[str, Any], Callable[[], Any] | None]) -> Any:
    """Before each statement of this connection, run on another connection what `choose` returns for
    it.
    """

    def wrapped(execute: Any, sql: str, params: Any, *rest: Any) -> Any:
        act = choose(sql, params)
        if act is not None:
            on_another_connection(act)
        return execute(sql, params, *rest)

    return connection.execute_wrapper(wrapped)


def test_cancelling_a_branch_includes_a_task_whose_run_fails_during_the_search() -> None:
    run = a_run(a_task(Status.RUNNING))
    row = Task.objects.get(pk=run.task_id)
    fails = [lambda: attempts.fail(run, FAILURE, "w")]

    def fail_once(sql: str, _: Any) -> Callable[[], Any] | None:
        return fails.pop() if fails and "cancel_requested_at" in sql and " IS NULL" in sql else None

    with transaction.atomic(), _before_statements(fail_once):
        assert operations.cancel_branch(row, by="ann").stop_requested == (row.pk,)
    assert (fails, statuses(row)) == ([], ["CANCELLED"])


def test_many_tasks_can_be_depended_on_although_some_start_while_they_are_locked() -> None:
    rows = {row.pk.hex: row for row in many_tasks(300, Status.QUEUED)}
    # InnoDB keeps the locks of a savepoint that is rolled back: after the first attempt no other task
    # can start.
    most = len(rows) if connection.vendor == "postgresql" else 1
    started: list[str] = []

    def start_one(sql: str, params: Any) -> Callable[[], Any] | None:
        named = [key for key in (str(one).replace("-", "") for one in params or ()) if key in rows]
        if " FOR " not in sql or len(named) < 2 or len(started) == most:
            return None
        started.append(named[-1])
        return lambda: begin(rows[named[-1]])

    with transaction.atomic(), _before_statements(start_one):
        below = noop.using(queue=QUEUE, depends_on=list(rows.values())).schedule()
    assert TaskDependency.objects.filter(task=below.pk).count() == len(rows)
    assert Task.objects.filter(status=Status.RUNNING).count() == len(started) > 0
