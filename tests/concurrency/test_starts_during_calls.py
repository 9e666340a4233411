"""A task that starts while a caller's transaction waits for its row does not stay locked by that
transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_durable_tasks.choices import Status
from django_durable_tasks.models import Task
from django_durable_tasks.states.guarded_update import TRIES
from django_durable_tasks.task_values import Run
from django_durable_tasks.tasks import attempts, operator_actions
from tests.concurrency.racing import (
    a_transaction_waits_for_a_lock,
    no_errors,
    on_another_connection,
    race,
)
from tests.database.dependencies.worker_and_leader import begin, recount, resolve_all, statuses
from tests.factories import QUEUE, a_task
from tests.project.tasks import noop
from tests.waiting import until

# InnoDB keeps a lock for which it had to wait: docs/explanation/limits.md.
pytestmark = pytest.mark.postgresql
KEY = "nightly"


def _beat(run: Run) -> bool:
    """Renew the lease of a run and return whether its cancellation is requested."""
    asked = attempts.heartbeat([(run.task_id, run.epoch, run.run_id, 60.0)])
    return asked[run.run_id]


def _continues(run: Run) -> None:
    """Renew the lease of a run and end it, without waiting for a lock."""
    assert on_another_connection(lambda: _beat(run)) is False
    assert on_another_connection(lambda: attempts.succeed(run, None, "w"))


def _depends_on(row: Task) -> None:
    noop.using(queue=QUEUE, depends_on=[row, a_task()]).schedule()


def _cancel(row: Task) -> None:
    assert Task.objects.cancel(KEY) == 1


def _reschedule(row: Task) -> None:
    assert Task.objects.reschedule(KEY, timezone.now()) == 0


@pytest.mark.parametrize("wish", [_depends_on, _cancel, _reschedule])
def test_a_task_that_starts_while_a_transaction_waits_for_its_lock_does_not_stay_locked(
    wish: Callable[[Task], None],
) -> None:
    row = a_task(Status.QUEUED, key=KEY)
    begun, runs = threading.Event(), list[Run]()

    def start_slowly() -> None:
        with transaction.atomic():
            runs.append(begin(row))
            begun.set()
            until(a_transaction_waits_for_a_lock, within=30)

    def request_meanwhile() -> None:
        assert begun.wait(30)
        with transaction.atomic():
            wish(row)
            _continues(runs[0])

    no_errors(race([start_slowly, request_meanwhile]))
    resolve_all()
    assert (statuses(row), recount()) == (["SUCCESS"], [])


def test_tasks_that_start_at_every_attempt_to_lock_them_do_not_stay_locked() -> None:
    rows, runs, starters = (
        [a_task(Status.QUEUED) for _ in range(9)],
        list[Run](),
        list[threading.Thread](),
    )

    def start_slowly(row: Task, begun: threading.Event) -> None:
        with transaction.atomic():
            runs.append(begin(row))
            begun.set()
            until(a_transaction_waits_for_a_lock, within=30)
        connection.close()

    def start_another_one(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.endswith("FOR NO KEY UPDATE") and len(starters) < TRIES + 1:
            begun = threading.Event()
            starters.append(
                threading.Thread(
                    target=start_slowly, args=(rows[len(starters)], begun), daemon=True
                )
            )
            starters[-1].start()
            assert begun.wait(30)
        return execute(sql, *rest)

    with transaction.atomic():
        with connection.execute_wrapper(start_another_one):
            done = operator_actions.cancel(Task.objects.filter(pk__in=[row.pk for row in rows]))
        assert (done.at_once, done.stop_requested) == (3, 6)
        for starter in starters:
            starter.join(30)
        for run in runs:
            _continues(run)
    assert statuses(*rows) == ["SUCCESS"] * 6 + ["CANCELLED"] * 3
