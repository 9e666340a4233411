"""Two transactions lock the same rows in opposite orders: the database aborts one of them, and it
is retried.
"""

from __future__ import annotations

import threading
import uuid
from functools import partial

import pytest
from django.db import OperationalError

from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.deadlocks import code_of, retry_on_deadlock
from tests.concurrency.racing import WITHIN, no_errors, race
from tests.factories import a_task

pytestmark = [pytest.mark.postgresql, pytest.mark.mariadb]


class _Crossing:
    """A transaction that locks two rows, and the first time waits for its rival between them."""

    def __init__(self, meeting: threading.Barrier, first: uuid.UUID, second: uuid.UUID) -> None:
        self.meeting, self.first, self.second = meeting, first, second
        self.begun = 0

    def act(self) -> int:
        with tables.atomic():
            self.begun += 1
            transitions.lock_rows([self.first])
            if self.begun == 1:
                self.meeting.wait()
            transitions.lock_rows([self.second])
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
