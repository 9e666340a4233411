"""Two transactions lock the same rows in opposite orders: the database aborts one of them, and it
is retried.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError, connection

from django_durable_tasks.limits import waitlist
from django_durable_tasks.models import Limit
from django_durable_tasks.models.cluster import LimitBucket
from django_durable_tasks.states import dependencies
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.errors import code_of, retry_on_deadlock
from tests.concurrency.racing import WITHIN, no_errors, race
from tests.factories import NOOP, QUEUE, a_task, many_tasks
from tests.messages import claim_due
from tests.process_state import new_process_state

pytestmark = [pytest.mark.postgresql, pytest.mark.mariadb]


class _Crossing:
    """A transaction that locks two rows, and the first time waits for its rival between them."""

    def __init__(self, meeting: threading.Barrier, first: uuid.UUID, second: uuid.UUID) -> None:
        self.meeting, self.first, self.second = meeting, first, second
        self.begun = 0

    def act(self) -> int:
        with tables.atomic():
            self.begun += 1
            dependencies.lock_rows([self.first])
            if self.begun == 1:
                self.meeting.wait()
            dependencies.lock_rows([self.second])
        return self.begun


def _rivals() -> list[_Crossing]:
    low, high = sorted([a_task().pk, a_task().pk])
    meeting = threading.Barrier(2, timeout=WITHIN)
    return [_Crossing(meeting, low, high), _Crossing(meeting, high, low)]


def test_an_operation_aborted_by_a_deadlock_is_retried() -> None:
    """The database may end both: the second one in a deadlock with the repetition of the first."""
    rivals = _rivals()
    begun = no_errors(race([retry_on_deadlock(rival.act) for rival in rivals]))
    assert max(begun) > 1


def test_without_the_retry_one_of_them_fails() -> None:
    answers = race([rival.act for rival in _rivals()])
    errors = [answer for answer in answers if isinstance(answer, OperationalError)]
    assert [code_of(error) for error in errors] in (["40P01"], [1213])


def _inside(rival: _Crossing) -> int:
    with tables.atomic():
        return retry_on_deadlock(rival.act)()


def test_inside_a_transaction_of_the_caller_the_deadlock_is_raised() -> None:
    answers = race([partial(_inside, rival) for rival in _rivals()])
    assert sum(isinstance(answer, OperationalError) for answer in answers) == 1


class _ClaimObserver:
    """Wraps the statements of a claim within limits: when it asks for the lock of the limits, it
    has locked its tasks.
    """

    def __init__(self) -> None:
        self.limits_locked, self.tasks_locked = threading.Event(), threading.Event()
        self.aborted = list[Any]()

    def __call__(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        if LimitBucket._meta.db_table in sql:
            self.tasks_locked.set()
        try:
            return execute(sql, params, many, context)
        except OperationalError as error:
            self.aborted.append(code_of(error))
            raise


def _lock_limits_then(task_id: uuid.UUID, observer: _ClaimObserver) -> None:
    """Lock the row of the limits, and then a task that the claim has locked.

    This transaction writes more rows than the claim, and on PostgreSQL it looks for deadlocks
    later, so that the database aborts the claim.
    """
    with tables.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL deadlock_timeout = '60s'")
        waitlist.lock_limits()
        many_tasks(50, queue="other")
        observer.limits_locked.set()
        assert observer.tasks_locked.wait(WITHIN)
        dependencies.lock_rows([task_id])


def test_a_claim_within_limits_that_is_aborted_by_a_deadlock_is_repeated() -> None:
    task, observer = many_tasks(1)[0], _ClaimObserver()
    Limit.objects.create(scope=f"task:{NOOP}", max_concurrency=5)
    new_process_state()

    def claimed() -> int:
        return len(claim_due(QUEUE, database_now(), 10, uuid.uuid4()))

    def claim_observed() -> int:
        assert observer.limits_locked.wait(WITHIN)
        with connection.execute_wrapper(observer):
            return claimed()

    rival = partial(_lock_limits_then, task.pk, observer)
    _, number = no_errors(race([rival, claim_observed]))
    # The repeated claim skips the task if the rival has not committed yet.
    assert number + claimed() == 1
    # It may also lock the task again before the rival does, which is a second deadlock.
    assert set(observer.aborted) == {"40P01" if connection.vendor == "postgresql" else 1213}
