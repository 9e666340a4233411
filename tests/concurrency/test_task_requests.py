"""Requests to RUNNING tasks are applied in sets, within time limits, and none blocks those after
it.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_durable_tasks.choices import Status
from django_durable_tasks.models import RequestKind, Task, TaskRequest
from django_durable_tasks.states.endings import _ApplyHook
from django_durable_tasks.store.connections import close_all, dedicated_connection
from django_durable_tasks.tasks import operator_actions, requests
from tests.concurrency.racing import on_another_connection
from tests.database.transitions.transition_calls import question
from tests.factories import QUEUE, a_task, many_tasks
from tests.project.tasks import noop


def _request_cancel(*rows: Task) -> None:
    TaskRequest.objects.bulk_create(
        [TaskRequest(kind=RequestKind.CANCEL, task_id=row.pk) for row in rows]
    )


def _hooks() -> int:
    return sum(isinstance(hook, _ApplyHook) for _, hook, *_ in connection.run_on_commit)


def test_one_hook_applies_all_requests_of_a_transaction() -> None:
    rows = many_tasks(20, Status.RUNNING)
    with transaction.atomic():
        for row in rows:
            noop.using(queue=QUEUE, depends_on=[row]).schedule()
        with transaction.atomic():
            operator_actions.cancel(question(*rows))
        assert _hooks() == 1
    assert not TaskRequest.objects.exists()
    assert Task.objects.filter(has_dependents=True).exclude(cancel_requested_at=None).count() == 20


def test_requests_made_after_a_rolled_back_savepoint_are_applied() -> None:
    forgotten, kept = many_tasks(2, Status.RUNNING)
    with transaction.atomic():
        with transaction.atomic():
            operator_actions.cancel(question(forgotten))
            transaction.set_rollback(True)
        operator_actions.cancel(question(kept))
    assert [row.pk for row in Task.objects.exclude(cancel_requested_at=None)] == [kept.pk]
    assert not TaskRequest.objects.exists()


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_locked_tasks_do_not_block_the_requests_behind_theirs() -> None:
    rows = many_tasks(6, Status.RUNNING)
    _request_cancel(*rows)
    with transaction.atomic():
        list(question(*rows[:5]).select_for_update())
        assert on_another_connection(lambda: requests.apply_left(2)) == 1
    assert [row.pk for row in Task.objects.exclude(cancel_requested_at=None)] == [rows[5].pk]
    assert requests.apply_left(2) == 5


@pytest.mark.postgresql
@pytest.mark.parametrize("kind", [RequestKind.CANCEL, RequestKind.KEY])
def test_behind_a_pooler_requests_are_applied_within_time_limits(
    monkeypatch: pytest.MonkeyPatch, kind: RequestKind
) -> None:
    row = a_task(Status.RUNNING, key="nightly")
    TaskRequest.objects.create(kind=kind, task_id=row.pk, tenant_id=row.tenant_id, key="nightly")
    behind_a_pooler: dict[str, Any] = {
        **connection.settings_dict,
        "DISABLE_SERVER_SIDE_CURSORS": True,
    }
    monkeypatch.setitem(connections.settings, "default", behind_a_pooler)
    limits = list[tuple[str, ...]]()

    def look(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("DELETE"):
            with context["connection"].cursor() as cursor:
                cursor.execute(
                    "SELECT current_setting('lock_timeout'), current_setting('statement_timeout'),"
                    " current_setting('idle_in_transaction_session_timeout')"
                )
                limits.append(cursor.fetchone())
        return execute(sql, params, many, context)

    close_all()
    with dedicated_connection(), connections["default"].execute_wrapper(look):
        assert requests.apply_left(10) == 1
    close_all()
    assert limits == [("5s", "15s", "10s")]
