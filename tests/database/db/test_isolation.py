"""A row that cannot be written does not affect the other rows of its batch: deletions, lost runs,
retries.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.models.signals import pre_delete

from django_durable_tasks import durable_task
from django_durable_tasks.choices import FireOutcome, Status
from django_durable_tasks.models import LimitBucket, OccurrenceRecord, Task
from django_durable_tasks.models.cluster import LOCK
from django_durable_tasks.scheduler import reap_dead_nodes
from django_durable_tasks.scheduler.reap_dead_nodes import leases
from django_durable_tasks.schedules import ledger
from django_durable_tasks.states.machine import EndingKind, Outcome
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.errors import Isolation
from django_durable_tasks.task_values import uuid7
from django_durable_tasks.tasks import retention
from tests.database.transitions.transition_calls import end, question
from tests.factories import a_dead_letter, a_task, unavailable_database

pytestmark = pytest.mark.django_db


def _failing_query(failures: int) -> float:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nope FROM no_such_table")
    return float(failures)


@durable_task(name="tests.isolation.backoff", backoff=_failing_query)
def backs_off() -> None:
    """Have a ``backoff=`` callable whose query fails."""


@contextmanager
def _kept(model: Any, key: Any) -> Iterator[None]:
    """Make the deletion of the row with this key fail."""

    def keep(instance: Any, **_: Any) -> None:
        if instance.pk == key:
            raise RuntimeError("the project keeps this one")

    pre_delete.connect(keep, sender=model)
    try:
        yield
    finally:
        pre_delete.disconnect(keep, sender=model)


def test_a_task_that_a_receiver_keeps_does_not_stop_the_deletion_of_others() -> None:
    old = database_now() - timedelta(days=400)
    created_ms = int(old.timestamp() * 1000)
    ids = [uuid7(created_ms, uuid.uuid4().bytes[:10]) for _ in range(3)]
    kept, *_ = [a_task(Status.SUCCESS, id=task_id, completed_at=old) for task_id in ids]
    with _kept(Task, kept.pk):
        assert [retention.prune(database_now(), 100) for _ in range(2)] == [2, 0]
    assert [row.pk for row in Task.objects.all()] == [kept.pk]
    assert retention._tasks.postponed() == [kept.pk]


IMPOSSIBLE = {"postgresql": "infinity", "mysql": "0000-00-00 00:00:00", "sqlite": "never"}
"""Values that each database stores as an instant and Python cannot read or compare."""


def test_an_unreadable_ledger_entry_does_not_stop_the_deletion_of_others() -> None:
    now = database_now()
    entries = [
        OccurrenceRecord.objects.unguarded().create(
            recurring_task_id=uuid.uuid4(),
            fire_time=now,
            outcome=FireOutcome.MISSED,
            created_at=now - timedelta(days=5_000),
        )
        for _ in range(3)
    ]
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute("SET @before = @@sql_mode, sql_mode = ''")
        cursor.execute(
            "UPDATE durable_tasks_occurrence SET fire_time = %s WHERE id = %s",
            [IMPOSSIBLE[connection.vendor], entries[0].pk],
        )
        if connection.vendor == "mysql":
            cursor.execute("SET sql_mode = @before")
    assert [ledger.prune_ledger(now, 2) for _ in range(3)] == [1, 1, 0]
    assert list(OccurrenceRecord.objects.values_list("pk", flat=True)) == [entries[0].pk]


def test_items_that_are_not_reached_in_time_are_left_to_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_by_one, handled = Isolation[int]("item"), list[int]()
    monkeypatch.setattr("django_durable_tasks.store.errors._ALONE_FOR", -1.0)
    assert one_by_one.each([1, 2], handled.append) == []
    assert (handled, one_by_one.postponed()) == ([], [])
    monkeypatch.undo()
    assert one_by_one.each([1, 2], handled.append) == [None, None]
    assert handled == [1, 2]


def test_a_token_bucket_that_a_receiver_keeps_does_not_stop_the_deletion_of_others() -> None:
    for number in range(3):
        LimitBucket.objects.create(
            scope=f"key:{number}", tokens=0, refilled_at=database_now() - timedelta(days=5_000)
        )
    with _kept(LimitBucket, "key:0"):
        assert [retention.prune_buckets(database_now(), 100) for _ in range(2)] == [2, 0]
    assert list(LimitBucket.objects.exclude(scope=LOCK).values_list("pk", flat=True)) == ["key:0"]


def test_a_run_that_cannot_be_ended_does_not_stop_others_from_being_marked_lost() -> None:
    spoilt, *others = [a_task(Status.RUNNING, due=-1, on_orphan="DEAD_LETTER") for _ in range(3)]
    a_dead_letter(spoilt)  # the database refuses a second one
    keys = {row.pk for row in others}
    assert reap_dead_nodes.mark_lost(leases(), reap_dead_nodes.LEASE_EXPIRED) == keys
    assert reap_dead_nodes.mark_lost(leases(), reap_dead_nodes.LEASE_EXPIRED) == set()
    assert {row.pk for row in Task.objects.filter(status=Status.FAILED)} == keys
    assert Task.objects.get(pk=spoilt.pk).status == Status.RUNNING


def test_a_backoff_whose_query_fails_gets_the_default_delay() -> None:
    row = a_task(Status.RUNNING, name=backs_off.name)
    end(row, outcome=Outcome(kind=EndingKind.FAILED, error="Broken: broken", error_type="Broken"))
    assert question(row).get().status == Status.PENDING


def test_an_outage_is_raised_and_postpones_nothing() -> None:
    def fail(*_: Any) -> int:
        raise OperationalError("server closed the connection unexpectedly")

    isolation = Isolation[int]("item")
    with pytest.raises(OperationalError, match="server closed"):
        isolation.batch(fail, lambda: [1, 2], fail)
    assert isolation.postponed() == []


def test_a_postponed_item_is_skipped_until_it_works_again() -> None:
    isolation, tried, broken = Isolation[int]("item"), list[int](), {2}

    def alone(key: int) -> int:
        tried.append(key)
        if key in broken:
            raise ValueError("no")
        return key

    assert isolation.each([1, 2, 3], alone) == [1, 3]
    assert isolation.each([1, 2, 3], alone) == [1, 3]
    assert tried == [1, 2, 3, 1, 3]
    assert isolation.postponed() == [2]


def _exit() -> None:
    sys.exit("a receiver ends the process")


def _query_elsewhere() -> None:
    with unavailable_database().cursor() as cursor:
        cursor.execute("SELECT 1")


@pytest.mark.parametrize("code_of_the_project", [_exit, _query_elsewhere])
def test_project_code_that_exits_or_loses_another_database_affects_only_its_own_item(
    code_of_the_project: Callable[[], None],
) -> None:
    def batch() -> list[int]:
        return [alone(1), alone(2)]

    def alone(key: int) -> int:
        if key == 1:
            code_of_the_project()
        return key

    isolation = Isolation[int]("item")
    assert isolation.batch(batch, lambda: [1, 2], lambda key: [alone(key)]) == [[2]]
    assert isolation.postponed() == [1]
