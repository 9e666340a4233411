"""A call creates a task in the caller's transaction, with the options of decorator and call, or
raises and writes nothing.
"""

from __future__ import annotations

import math
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone

from django_durable_tasks import conf, registry
from django_durable_tasks.choices import Status
from django_durable_tasks.exceptions import (
    IdempotencyConflict,
    InvalidArguments,
    InvalidOption,
    PayloadTooLarge,
    UnknownTask,
    UnserializableArguments,
)
from django_durable_tasks.models import DEFAULT_TENANT_ID, Task
from django_durable_tasks.states import inserts
from django_durable_tasks.store import tables
from django_durable_tasks.tasks import enqueue
from django_durable_tasks.tasks.options import Schedule
from tests.factories import QUEUE, a_task, a_tenant
from tests.project import tasks

pytestmark = pytest.mark.django_db


def _in(seconds: float) -> datetime:
    return timezone.now() + timedelta(seconds=seconds)


def test_a_task_stores_the_options_of_decorator_and_call() -> None:
    run_at = datetime(2027, 1, 1, tzinfo=UTC)
    given: dict[str, Any] = {"queue": QUEUE, "priority": 9, "max_attempts": 2}
    given |= {"timeout": 30, "lease": 100}
    calling = tasks.add.using(**given, expires_at=run_at + timedelta(days=1))
    row = calling.schedule(1, right=2, run_at=run_at)
    assert (row.name, row.queue) == ("tests.project.tasks.add", QUEUE)
    assert (row.priority, row.max_attempts, row.args, row.kwargs) == (9, 2, [1], {"right": 2})
    assert row.options == {"timeout": 30, "lease": 100, "max_attempts": 2}
    assert (row.status, row.run_at, row.due_at, row.epoch) == (Status.PENDING, run_at, run_at, 0)
    assert (row.expires_at, row.tenant_id) == (run_at + timedelta(days=1), DEFAULT_TENANT_ID)
    assert (row.attempts, row.failures, row.crashes, row.max_crashes) == (0, 0, 0, 3)
    assert row.dedupe_key == str(row.pk)


def test_the_decorators_options_are_the_defaults_of_the_call() -> None:
    row = tasks.urgent.schedule(run_at=_in(60))
    assert (row.queue, row.priority) == ("urgent", 7)
    row = tasks.perishable.schedule(run_at=_in(60))
    assert row.expires_at == row.run_at + timedelta(seconds=30)
    assert tasks.irreplaceable.schedule(run_at=_in(60)).on_orphan == "DEAD_LETTER"


def test_every_supported_value_is_returned_unchanged_by_the_row_and_by_the_start() -> None:
    numbers = [None, True, 0, -1, 2**63 - 1, -(2**63), 1.5, 1e308, 5e-324]
    values: list[Any] = [*numbers, "", "ünï ☃ 🎲", "'\"\\%s %(x)s", [], {}, {"ä": [1]}]
    row = tasks.echo.using(run_at=_in(60)).schedule(*values, named={"deep": values})
    assert row.args == values
    assert row.kwargs == {"named": {"deep": values}}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((math.nan,), UnserializableArguments),
        ((math.inf,), UnserializableArguments),
        (("a\x00b",), UnserializableArguments),
        (("\ud800",), UnserializableArguments),
        ((2**63,), UnserializableArguments),
        (({1: 2},), UnserializableArguments),
        ((object(),), UnserializableArguments),
        (("x" * 65_536,), PayloadTooLarge),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_invalid_arguments_are_refused_at_the_call_and_nothing_is_written(
    arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        tasks.echo.delay(*arguments)
    assert not Task.objects.exists()


def test_three_thousand_nesting_levels_are_refused_at_the_call() -> None:
    deep: list[Any] = []
    for _ in range(3_000):
        deep = [deep]
    with pytest.raises(UnserializableArguments, match="nested too deep"):
        tasks.echo.delay(deep)
    assert not Task.objects.exists()


def test_the_maximum_size_of_arguments_can_be_raised_to_256_kib() -> None:
    with override_settings(DURABLE_TASKS={"PAYLOAD_MAX_BYTES": 262_144}):
        row = tasks.echo.using(run_at=_in(60)).schedule("x" * 262_100)
        assert len(row.args[0]) == 262_100
        with pytest.raises(PayloadTooLarge):
            tasks.echo.delay("x" * 262_144)


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1,), {}), ((1, 2, 3), {}), ((1, 2), {"wrong": 3})]
)
def test_a_call_that_does_not_match_the_signature_is_refused(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArguments, match=r"tests\.project\.tasks\.add"):
        tasks.add.delay(*args, **kwargs)
    assert not Task.objects.exists()


INVALID = [
    {"run_at": datetime(2027, 1, 1)},
    {"run_at": _in(400 * 86_400)},
    {"run_at": _in(60), "expires_at": _in(30)},
    {"priority": 10},
    {"max_attempts": 0},
    {"key": "k" * 201},
    {"idempotency_key": ""},
    {"queue": "no such queue"},
    {"depends_on": [1]},
    {"colour": "red"},
]
INVALID_IN_CELERY = [
    ({"countdown": math.nan}, "countdown=nan: give a number"),
    ({"eta": datetime(2027, 1, 1)}, "is naive: give it a time zone"),
    ({"eta": "tomorrow"}, "eta='tomorrow': give an aware datetime"),
    ({"expires": -5}, "expires=-5: it must be 0 seconds or more"),
    ({"link": "signature"}, "link=... cannot be kept by a durable task"),
    ({"chord": "signature"}, "chord=... cannot be kept by a durable task"),
    ({"exchange": "direct"}, "no queue of task_queues is bound to them"),
    ({"task_id": "not a uuid"}, "a durable task's id is a UUID"),
    ({"coutdown": 3}, r"no option 'coutdown'. Did you mean 'countdown'"),
    ({"key": "k"}, r"write .using\(key=...\).apply_async"),
    (
        {"idempotency_ky": "k"},
        r"no option 'idempotency_ky'. Did you mean .using\(idempotency_key=...\)\?",
    ),
    ({"countdown": 60, "expires": 30}, "could never start"),
    ({"headers": {"x": object()}}, "headers cannot be kept"),
    ({"headers": {"x": "y" * 9_000}}, "headers cannot be kept"),
    ({"headers": "x"}, "give a mapping"),
]


@pytest.mark.parametrize("options", INVALID, ids=str)
def test_invalid_options_are_refused_at_the_call_and_nothing_is_written(
    options: dict[str, Any],
) -> None:
    with pytest.raises(InvalidOption):
        tasks.noop.using(**options).schedule()
    assert not Task.objects.exists()


@pytest.mark.parametrize(("options", "words"), INVALID_IN_CELERY)
def test_celery_options_that_cannot_be_stored_are_refused(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidOption, match=words):
        tasks.noop.apply_async(**options)
    assert not Task.objects.exists()


def test_celery_options_become_columns() -> None:
    eta = _in(3600)
    row = tasks.add.apply_async(
        (1, 2), eta=eta, expires=eta + timedelta(1), priority=3, time_limit=9, soft_time_limit=8
    ).task
    assert (row.run_at, row.expires_at, row.priority) == (eta, eta + timedelta(1), 3)
    assert row.options == {"timeout": 9, "soft_timeout": 8}
    late = tasks.noop.apply_async(countdown=60, expires=90, headers={"x-tenant": "a"}).task
    assert late.expires_at is not None
    assert round((late.expires_at - late.run_at).total_seconds()) == 30
    assert late.options == {"headers": {"x-tenant": "a"}}


def test_message_options_and_stamps_have_no_effect() -> None:
    options: dict[str, Any] = {
        "serializer": "json",
        "retry": False,
        "ignore_result": True,
        "trace": "7",
    }
    options |= {"stamped_headers": ["trace"]}
    assert tasks.noop.apply_async(**options).task.options is None


def test_an_unknown_follow_up_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownTask, match=r"Did you mean 'tests\.project\.tasks\.noop'"):
        enqueue.planned_followups([Schedule("tests.project.tasks.nop")], DEFAULT_TENANT_ID)


def test_a_bulk_call_creates_tasks_for_the_next_poll() -> None:
    ids = tasks.add.using(queue=QUEUE, priority=4).schedule_many(
        [(number, 1) for number in range(50)]
    )
    rows = Task.objects.filter(pk__in=ids)
    assert {(row.status, row.queue, row.priority, row.epoch) for row in rows} == {
        (Status.PENDING, QUEUE, 4, 0)
    }
    assert sorted(row.args for row in rows) == [[number, 1] for number in range(50)]


def test_one_insert_writes_one_time_into_all_columns() -> None:
    ids = [tasks.noop.schedule().pk for _ in range(20)] + tasks.add.schedule_many([(1, 2)] * 20)
    expiring = tasks.noop.using(expires_in=60)
    ids += [expiring.schedule().pk, *expiring.schedule_many([()] * 2)]
    for row in Task.objects.filter(pk__in=ids):
        wait = conf.settings().REPUBLISH_AFTER if row.status == Status.QUEUED else 0
        assert row.due_at == row.run_at + timedelta(seconds=wait)
        assert {row.created_at, row.updated_at} == {row.run_at}
        assert row.expires_at in {None, row.run_at + timedelta(seconds=60)}


def test_one_invalid_call_of_a_bulk_creates_none() -> None:
    with pytest.raises(InvalidArguments):
        tasks.add.schedule_many([(1, 2), (3,)])
    assert not Task.objects.exists()


@pytest.mark.parametrize("options", [{"key": "k"}, {"idempotency_key": "i"}])
def test_a_bulk_call_accepts_no_key(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="one by one"):
        tasks.add.using(**options).schedule_many([(1, 2)])


# Idempotency --------------------------------------------------------------------------------------


def test_the_same_idempotency_key_and_payload_return_the_first_task_unchanged() -> None:
    first = tasks.add.using(idempotency_key="i", priority=1).schedule(1, 2)
    again = tasks.add.using(idempotency_key="i", priority=9).schedule(1, 2)
    assert (again.pk, again.priority, Task.objects.count()) == (first.pk, 1, 1)
    assert again.created_at == first.created_at
    assert first.dedupe_key == "i"


@pytest.mark.parametrize(
    "call", [lambda task: task.schedule(1, 3), lambda task: task.schedule(1, right=2)]
)
def test_another_payload_with_the_same_idempotency_key_conflicts(call: Any) -> None:
    tasks.add.using(idempotency_key="i").schedule(1, 2)
    with pytest.raises(IdempotencyConflict, match="idempotency_key='i' belongs to task"):
        call(tasks.add.using(idempotency_key="i"))
    assert Task.objects.count() == 1


def test_another_task_with_the_same_idempotency_key_conflicts() -> None:
    tasks.noop.using(idempotency_key="i").schedule()
    with pytest.raises(IdempotencyConflict):
        tasks.urgent.using(idempotency_key="i").schedule()


def test_an_idempotency_key_of_an_ended_task_counts_too() -> None:
    row = a_task(Status.SUCCESS, idempotency_key="i")
    assert tasks.noop.using(idempotency_key="i").schedule().pk == row.pk


def test_idempotency_keys_are_separate_per_tenant() -> None:
    tenant = a_tenant()
    rows = {
        tasks.noop.using(idempotency_key="i", tenant=who).schedule().pk
        for who in (None, tenant, tenant.pk)
    }
    assert len(rows) == 2


def test_a_celery_task_id_identifies_the_task_and_a_second_call_returns_it() -> None:
    task_id = str(uuid.uuid4())
    results = [tasks.add.apply_async((1, 2), task_id=task_id) for _ in range(2)]
    assert {result.id for result in results} == {task_id}
    with pytest.raises(IdempotencyConflict, match="task_id="):
        tasks.add.apply_async((1, 3), task_id=task_id)
    assert Task.objects.count() == 1


def test_a_refused_insert_is_not_mistaken_for_a_taken_key() -> None:
    a_task(Status.SUCCESS)
    call = enqueue.Call(registry.get("tests.project.tasks.noop"), (), {})
    new = enqueue.new_task(call)._replace(idempotency_key="i", status=Status.RUNNING)
    with pytest.raises(Exception, match=r"(?i)check|constraint"), tables.atomic():
        inserts.create(new)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"run_at": datetime(2027, 1, 1, tzinfo=UTC), "priority": 3},
        {"queue": QUEUE, "timeout": 30, "expires_at": datetime(2028, 1, 1, tzinfo=UTC)},
        {"idempotency_key": "one"},
        {"key": "one"},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_the_returned_row_equals_the_stored_one(options: dict[str, Any]) -> None:
    given = {name: value for name, value in options.items() if name != "run_at"}
    row = tasks.add.using(**given).schedule(1, right=2, run_at=options.get("run_at"))
    stored = tables.tasks().get(pk=row.pk)
    for field in Task._meta.concrete_fields:
        returned = getattr(row, field.attname)
        assert returned == getattr(stored, field.attname), field.name
        assert type(returned) is type(getattr(stored, field.attname)), field.name
    assert not row._state.adding
    assert row._state.db == tables.database()
