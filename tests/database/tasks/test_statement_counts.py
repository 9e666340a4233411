"""A batch needs as many statements as one task, a creation one INSERT, a run from gate to ending
two statements.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable_tasks.choices import LogStatus, Status
from django_durable_tasks.limits import backpressure, config, release
from django_durable_tasks.limits.backpressure import heads
from django_durable_tasks.models import DeadLetter, Limit, LimitBucket, Task
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.scheduler import reap_dead_nodes
from django_durable_tasks.scheduler.reap_dead_nodes import leases
from django_durable_tasks.states import claims, endings
from django_durable_tasks.store import connections as ours
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import attempts, claim, operator_actions
from django_durable_tasks.tasks.attempts import Refusal
from django_durable_tasks.tasks.options import Schedule
from django_durable_tasks.workflows import runs
from tests.database.transitions.transition_calls import (
    CRASH,
    FAILURE,
    HOPELESS,
    PLACE,
    end,
    question,
)
from tests.delivery import deliver
from tests.factories import NOOP, QUEUE, a_node, a_run, a_task, many_tasks, take_these
from tests.insert_statements import insert_statements
from tests.messages import claim_due
from tests.process_state import new_process_state
from tests.project import tasks

pytestmark = pytest.mark.django_db


class _Meter:
    """Counts what every engine connection sends and commits, by wrapping the connections."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.commits = 0

    def wrap(self, wrapper: BaseDatabaseWrapper) -> None:
        """Count everything that this connection sends from now on."""
        wrapper.execute_wrappers.append(self.execute)
        commit = wrapper._commit  # type: ignore[attr-defined]

        def counted() -> None:
            self.commits += 1
            commit()

        wrapper._commit = counted  # type: ignore[attr-defined]

    def execute(
        self, execute: Any, sql: str, params: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        """Count one statement."""
        if sql.startswith("BEGIN"):
            return execute(sql, params, many, context)
        self.statements.append(sql)
        autocommits = not context["connection"].in_atomic_block
        self.commits += autocommits and sql.split(None, 1)[0] in ("INSERT", "UPDATE", "WITH")
        return execute(sql, params, many, context)


NODE = uuid.UUID(int=9)
Rows = Sequence[Task]


def _claim(rows: Rows) -> Any:
    return claim_due(QUEUE, database_now(), 100, NODE)


@pytest.fixture(autouse=True)
def cached_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the limits in force and the state of the queues before the measurement. They are read
    about once a second, which is no cost of a claim or a creation.
    """
    monkeypatch.setattr(config, "FRESH", float("inf"))
    monkeypatch.setattr(backpressure, "_USABLE", float("inf"))


OPERATIONS: dict[str, tuple[Status, Callable[[Rows], Any]]] = {
    "claim": (Status.PENDING, _claim),
    "take": (Status.PENDING, lambda rows: take_these(question(*rows), 100, PLACE)),
    "skip": (Status.PENDING, lambda rows: endings.skip(question(*rows), "a test")),
    "move": (Status.QUEUED, lambda rows: operator_actions.move(question(*rows), database_now())),
    "edit": (
        Status.QUEUED,
        lambda rows: operator_actions.edit(question(*rows), priority=7, args=[], by="bob"),
    ),
    "republish": (
        Status.QUEUED,
        lambda rows: claim.republish(question(*rows), database_now(), 100),
    ),
    "return_to_pending": (
        Status.QUEUED,
        lambda rows: claim.return_to_pending(claims.messages_for(_columns(rows))),
    ),
    "expire": (Status.QUEUED, lambda rows: endings.expire(question(*rows), 100)),
    "cancel": (Status.QUEUED, lambda rows: operator_actions.cancel(question(*rows))),
    "ask to cancel": (Status.RUNNING, lambda rows: operator_actions.cancel(question(*rows))),
    "heartbeat": (
        Status.RUNNING,
        lambda rows: attempts.heartbeat(
            [(row.pk, row.epoch, row.run_id, 60.0) for row in rows if row.run_id]
        ),
    ),
    "retry": (Status.RUNNING, lambda rows: end(*rows, outcome=FAILURE)),
    "exhaust": (Status.RUNNING, lambda rows: end(*rows, outcome=HOPELESS)),
    "lose": (Status.RUNNING, lambda rows: end(*rows, outcome=CRASH)),
    "replay": (Status.FAILED, lambda rows: operator_actions.replay(question(*rows), by="bob")),
    "discard": (
        Status.FAILED,
        lambda rows: operator_actions.discard_letters(
            DeadLetter.objects.all(), by="bob", reason=""
        ),
    ),
    "force_complete": (
        Status.FAILED,
        lambda rows: operator_actions.force_complete(question(*rows), by="bob"),
    ),
}


def _columns(rows: Rows) -> list[Any]:
    return claims.claimed_tasks(question(*rows))


def _cost(act: Callable[[], Any]) -> list[str]:
    """Return the statements that the function sends on the registered connection, without BEGIN and
    COMMIT.
    """
    meter = _Meter()
    with connection.execute_wrapper(meter.execute):
        act()
    return meter.statements


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_needs_as_many_statements_for_fifty_tasks_as_for_one(operation: str) -> None:
    status, act = OPERATIONS[operation]
    costs = []
    config.limits_in_force()
    for number in (1, 50):
        rows = many_tasks(number, status)
        costs.append(_cost(partial(act, rows)))
        Task.objects.unguarded().all().delete()
    assert len(costs[0]) == len(costs[1]), costs


def test_a_claim_needs_no_additional_statement_without_limits(vendor: str) -> None:
    config.limits_in_force()
    rows = many_tasks(3)
    statements = [
        sql for sql in _cost(partial(_claim, rows)) if "clock_timestamp()" not in sql[:40]
    ]
    assert not [sql for sql in statements if "durable_tasks_limit" in sql], statements
    assert vendor != "postgresql" or len(statements) == 1


def test_a_limited_claim_needs_as_many_statements_for_fifty_tasks_as_for_one() -> None:
    Limit.objects.create(scope=f"task:{NOOP}", max_concurrency=60, rate="60/s")
    new_process_state()
    config.limits_in_force()
    costs = []
    for number in (1, 50):
        rows = many_tasks(number)
        costs.append(_cost(partial(_claim, rows)))
        Task.objects.unguarded().all().delete()
        LimitBucket.objects.all().delete()
    assert len(costs[0]) == len(costs[1]), costs


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_a_limited_claim_needs_as_many_statements_for_fifty_scopes_as_for_one() -> None:
    scopes = [f"key:customer-{number}" for number in range(50)]
    Limit.objects.bulk_create([Limit(scope=scope, max_concurrency=60) for scope in scopes])
    costs = []
    for number in (1, 50):
        rows = [a_task(limit_key=f"customer-{n % number}") for n in range(50)]
        new_process_state()
        config.limits_in_force()
        costs.append(_cost(partial(_claim, rows)))
        assert Task.objects.queued().count() == 50
        Task.objects.unguarded().all().delete()
    # SQLite has no UNION of limited SELECTs: there each waitlist needs a query.
    assert len(costs[1]) == len(costs[0]), costs


def test_releasing_needs_as_many_statements_for_fifty_waitlists_as_for_one(
    vendor: str, settings: Any
) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUEUE_WINDOW": 200}
    new_process_state()
    config.limits_in_force()
    backpressure.snapshot()
    costs = []
    for number in (1, 50):
        for line in range(number):
            many_tasks(
                2, due_at=NEVER, waiting_for_limit=f"task:line-{line:02}", name=f"line-{line:02}"
            )
        costs.append(_cost(lambda: release.release_waiting(database_now(), 500)))
        assert not Task.objects.waiting_for_limit().exists()
        Task.objects.unguarded().all().delete()
    extra = (
        49 if vendor == "sqlite" else 0
    )  # SQLite has no UNION of limited SELECTs: there each waitlist needs a query
    assert len(costs[1]) == len(costs[0]) + extra, costs


def test_fifty_tasks_are_created_with_the_statements_of_one() -> None:
    one, fifty = (_cost(partial(tasks.add.schedule_many, [(1, 2)] * number)) for number in (1, 50))
    assert len(one) == 1
    assert len(fifty) == insert_statements(Task, 50)


def test_many_follow_ups_are_created_with_as_many_statements_as_few() -> None:
    few, many = (
        _cost(
            partial(
                runs.succeed,
                a_run(a_task(Status.RUNNING)),
                None,
                "worker",
                [
                    Schedule([tasks.add, tasks.noop][one % 2], (one, 1)[: 2 - one % 2 * 2])
                    for one in range(number)
                ],
            )
        )
        for number in (200, 400)
    )
    if connection.vendor == "sqlite":  # Django sends it at most 999 parameters in one INSERT
        few, many = (
            [sql for sql in statements if not sql.startswith("INSERT")]
            for statements in (few, many)
        )
    assert len(many) == len(few)
    assert Task.objects.filter(status__in=[Status.PENDING, Status.QUEUED]).count() == 600


def test_the_runs_of_a_dead_node_are_lost_with_the_statements_of_one() -> None:
    costs = []
    for number in (1, 50):
        node = a_node()
        many_tasks(number, Status.RUNNING, node=node.pk)
        costs.append(_cost(partial(reap_dead_nodes.mark_lost, leases(), reap_dead_nodes.NODE_DEAD)))
    assert len(costs[0]) == len(costs[1])


def test_the_next_due_times_need_one_statement_and_the_snapshot_three() -> None:
    for number in range(20):
        a_task(queue=f"queue-{number}")
    assert len(_cost(heads)) == 1
    assert len(_cost(backpressure.snapshot)) == 3


# Creation -----------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_delay_is_one_insert_and_no_other_statement_in_the_callers_transaction() -> None:
    tasks.add.using(queue=QUEUE).delay(1, 2)
    with transaction.atomic():
        for _ in range(3):
            (sql,) = _cost(partial(tasks.add.using(queue=QUEUE).delay, 1, 2))
            assert sql.startswith("INSERT INTO")


@pytest.mark.django_db(transaction=True)
def test_a_delay_outside_a_transaction_is_one_insert(vendor: str) -> None:
    tasks.add.using(queue=QUEUE).delay(1, 2)
    insert, *later = _cost(partial(tasks.add.using(queue=QUEUE).delay, 1, 2))
    assert insert.startswith("INSERT")
    # After the COMMIT a task that was not published may wake a scheduler, once in 50 ms.
    assert [sql for sql in later if "pg_notify" not in sql] == []
    assert len(later) <= 1


# Runs ---------------------------------------------------------------------------------------------


@contextmanager
def _metered() -> Iterator[_Meter]:
    meter = _Meter()
    with ours.dedicated_connection():
        meter.wrap(connections["default"])
    assert ours.count() == 1, "the meter must hold the only connection of ours"
    try:
        yield meter
    finally:
        ours.close_all()


BUDGET = {"postgresql": 2, "sqlite": 5, "mariadb": 6}


@pytest.mark.django_db(transaction=True)
def test_a_run_from_gate_to_ending_needs_two_commits_and_few_statements(vendor: str) -> None:
    rows = many_tasks(3, Status.QUEUED)
    deliver(rows[0])
    ours.close_all()
    with _metered() as meter:
        for row in rows[1:]:
            meter.statements.clear()
            meter.commits = 0
            deliver(row)
            assert len(meter.statements) <= BUDGET[vendor], meter.statements
            assert meter.commits == 2
    assert set(Task.objects.values_list("status", flat=True)) == {Status.SUCCESS}


@pytest.mark.django_db(transaction=True)
def test_a_task_opens_no_connection_after_the_first() -> None:
    rows = many_tasks(10, Status.QUEUED)
    deliver(rows[0])
    opened = ours.count()
    for row in rows[1:]:
        deliver(row)
    assert ours.count() == opened == 1


@pytest.mark.django_db(transaction=True)
def test_a_run_does_not_use_the_registered_connection() -> None:
    rows = many_tasks(2, Status.QUEUED)
    deliver(rows[0])
    assert _cost(partial(deliver, rows[1])) == []


@pytest.mark.django_db(transaction=True)
def test_a_run_leaves_one_log_entry_and_no_lease() -> None:
    row = a_task(Status.QUEUED, name="tests.project.tasks.add", args=[1, 2])
    assert deliver(row) == 3
    row.refresh_from_db()
    assert (row.status, row.result, row.lease_until) == (Status.SUCCESS, 3, None)
    assert [log.status for log in row.executions.all()] == [LogStatus.SUCCESS]


# Refusal ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unique_for", [None, 60.0])
@pytest.mark.parametrize("status", [None, *sorted(set(Status) - {Status.QUEUED})])
def test_a_message_that_starts_nothing_costs_one_statement(
    status: Status | None, unique_for: float | None
) -> None:
    row = a_task(status or Status.QUEUED)
    epoch = row.epoch if status else row.epoch - 1
    refused = list[object]()

    def start() -> None:
        refused.append(attempts.open_run(row.pk, epoch, PLACE, "id", unique_for))

    assert len(_cost(start)) == 1
    assert refused[0] in (Refusal.STALE, Refusal.TERMINAL)
