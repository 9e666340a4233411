"""Bulk calls: many tasks in few statements, all or none, in constant memory. On PostgreSQL they are
written by COPY.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from django_durable_tasks import PerKey, Workflow, ports, registry
from django_durable_tasks.choices import Status
from django_durable_tasks.exceptions import InvalidArguments, InvalidOption
from django_durable_tasks.models import Task
from django_durable_tasks.registry import Registered
from django_durable_tasks.signals import tasks_transitioned
from django_durable_tasks.states import inserts
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import NewTask
from django_durable_tasks.tasks import enqueue
from django_durable_tasks.tasks.options import CallOptions
from tests.factories import QUEUE, a_tenant
from tests.project import tasks

pytestmark = pytest.mark.django_db
PART = 40
ODD = ["\\", "\\N", "a\tb\nc\rd", "\\.", '"\\u0001"', "grün 木", "'", "\x7f"]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write parts of 40 tasks, each by COPY if the database has it."""
    monkeypatch.setattr(enqueue, "BULK", PART)
    monkeypatch.setattr(inserts, "_COPIED", 10)


def _statements(act: Any) -> list[str]:
    found: list[str] = []

    def seen(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        found.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(seen):
        act()
    return found


def _numbers(number: int) -> Iterator[tuple[int, int]]:
    return ((one, 1) for one in range(number))


# What is written ----------------------------------------------------------------------------------


def _values(row: Task, but: set[str]) -> dict[str, Any]:
    names = {field.attname for field in Task._meta.concrete_fields}
    return {name: getattr(row, name) for name in names - but - {"id", "shard_key"}}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"run_at": datetime(2020, 1, 1, 12, tzinfo=UTC), "priority": 9, "weight": 3},
        {"expires_in": 90.5, "timeout": 30, "max_attempts": 7, "max_crashes": 2},
        {"expires_at": datetime(2031, 1, 1, tzinfo=UTC), "expected_duration": 0.25},
        {"headers": {"a": "\\x\t"}, "on_orphan": "DEAD_LETTER", "lease": 100},
    ],
)
def test_a_task_of_a_large_call_has_the_columns_of_one_of_a_small_call(
    options: dict[str, Any],
) -> None:
    using = tasks.add.using(queue=QUEUE, tenant=a_tenant(), **options)
    small, large = using.schedule_many([(1, 2)]), using.schedule_many([(1, 2)] * 12)
    times = {"run_at", "due_at", "expires_at", "created_at", "updated_at"}
    given = times & options.keys()
    one = _values(Task.objects.get(pk=small[0]), times - given)
    for row in Task.objects.filter(pk__in=large):
        assert _values(row, times - given) == one
        assert row.due_at == row.run_at
        if "expires_in" in options:
            assert row.expires_at == row.run_at + timedelta(seconds=90.5)
    assert len(large) == 12


def test_all_tasks_of_a_copy_have_one_time(vendor: str) -> None:
    tasks.add.schedule_many(_numbers(30))
    columns = ("run_at", "due_at", "created_at", "updated_at")
    rows = list(Task.objects.values_list(*columns))
    assert all(run_at == due_at for run_at, due_at, *_ in rows)
    if vendor == "postgresql":
        assert len({instant for row in rows for instant in row}) == 1


def test_texts_are_written_as_they_are() -> None:
    ids = tasks.echo.schedule_many([(text, {text: [text]}) for text in ODD] * 2)
    rows = Task.objects.in_bulk(ids)
    assert [rows[key].args for key in ids] == [[text, {text: [text]}] for text in ODD] * 2


def test_names_and_keys_are_written_as_they_are() -> None:
    wf = Workflow("odd")
    steps = {f"{place} {text}" for place, text in enumerate(ODD * 2) if text.isprintable()}
    for step in sorted(steps):
        wf.add(tasks.noop, step=step)
    wf.start()
    assert set(Task.objects.values_list("step", flat=True)) == steps
    new = [_new(f"{place}")._replace(limit_key=text) for place, text in enumerate(ODD * 2)]
    inserts.create_many(new)
    rows = Task.objects.in_bulk([one.id for one in new])
    assert [rows[one.id].limit_key for one in new] == ODD * 2


def _new(*args: Any) -> NewTask:
    call = enqueue.Call(registry.get(tasks.echo.name), args, {})
    return enqueue.new_task(call)


@pytest.mark.parametrize("copied", [10, 1_000], ids=["copied", "inserted"])
def test_tasks_that_differ_are_written_together(
    copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inserts, "_COPIED", copied)
    fire = datetime(2030, 1, 1, tzinfo=UTC)
    new = [
        _new(place)._replace(
            run_at=fire + timedelta(minutes=place),
            expires_in=60.0 if place % 2 else None,
            status=Status.BLOCKED if place % 3 == 0 else Status.PENDING,
            unresolved=1 if place % 3 == 0 else 0,
            wait=None if place % 3 == 0 else 1.5,
            has_dependents=place % 2 == 0,
            idempotency_key=f"key {place}",
            unique_key=f"unique {place}",
            expected_duration=place + 0.5,
        )
        for place in range(20)
    ]
    inserts.create_many(new)
    for place, row in enumerate(Task.objects.order_by("run_at")):
        blocked = place % 3 == 0
        assert row.due_at == (None if blocked else row.run_at + timedelta(seconds=1.5))
        assert (row.status == Status.BLOCKED, row.unresolved_dependencies_count) == (
            blocked,
            int(blocked),
        )
        assert (row.expires_at is not None, row.has_dependents) == (place % 2 == 1, place % 2 == 0)
        assert (row.idempotency_key, row.unique_key) == (f"key {place}", f"unique {place}")
        assert (row.open_unique_key, row.open_key) == (row.unique_key, None)
        assert row.expected_duration == timedelta(seconds=place + 0.5)


@pytest.mark.parametrize("copied", [10, 1_000], ids=["copied", "inserted"])
def test_tasks_that_differ_and_have_no_time_are_due_now(
    copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inserts, "_COPIED", copied)
    new = [
        _new(place)._replace(
            queue=f"queue {place % 2}", wait=place % 2 * 1.5, expires_in=60.0 if place % 3 else None
        )
        for place in range(20)
    ]
    before = database_now()
    inserts.create_many(new)
    after = database_now()
    rows = Task.objects.in_bulk([one.id for one in new])
    for place, one in enumerate(new):
        row = rows[one.id]
        assert before <= row.run_at <= after
        assert row.due_at == row.run_at + timedelta(seconds=one.wait or 0)
        expiry = row.run_at + timedelta(seconds=60)
        assert (row.queue, row.expires_at) == (f"queue {place % 2}", expiry if place % 3 else None)


@pytest.mark.postgresql
def test_a_connection_with_another_encoding_inserts() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL client_encoding TO 'LATIN1'")
        found = _statements(lambda: tasks.echo.schedule_many([("grün",)] * (PART - 1)))
        cursor.execute("SET LOCAL client_encoding TO 'UTF8'")
    assert not [sql for sql in found if sql.startswith("COPY")]
    assert {row.args[0] for row in Task.objects.all()} == {"grün"}


@pytest.mark.postgresql
def test_a_duration_and_times_are_copied_exactly() -> None:
    instant = datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    latest = datetime.max.replace(tzinfo=UTC)
    new = [
        _new(place)._replace(run_at=instant, expires_at=latest, expected_duration=1.000001)
        for place in range(12)
    ]
    inserts.create_many(new)
    for row in Task.objects.all():
        assert (row.run_at, row.expires_at) == (instant, latest)
        assert row.expected_duration == timedelta(seconds=1, microseconds=1)


def test_a_large_call_sends_the_signal_for_each_part() -> None:
    seen: list[Any] = []

    def receive(**given: Any) -> None:
        seen.append((given["transition"], given["status"], given["task_ids"]))

    tasks_transitioned.connect(receive, sender=Task)
    try:
        ids = tasks.add.schedule_many(_numbers(PART + 5))
    finally:
        tasks_transitioned.disconnect(receive, sender=Task)
    assert [name for name, _, _ in seen] == ["create", "create"]
    assert [key for _, _, keys in seen for key in keys] == ids


# Statements ---------------------------------------------------------------------------------------


@pytest.mark.postgresql
def test_a_part_is_one_copy_and_the_reading_of_the_clock() -> None:
    clock, written = _statements(lambda: tasks.add.schedule_many(_numbers(PART - 1)))
    assert clock.startswith("SELECT clock_timestamp()")
    assert written.startswith("COPY durable_tasks_task")


def test_parts_are_written_in_one_transaction(vendor: str) -> None:
    found = _statements(lambda: tasks.add.schedule_many(_numbers(3 * PART)))
    assert len([sql for sql in found if sql.startswith("SAVEPOINT")]) == 1
    if vendor == "postgresql":
        assert len([sql for sql in found if sql.startswith("COPY")]) == 3


@pytest.mark.postgresql
def test_a_role_under_row_level_security_inserts() -> None:
    with connection.cursor() as cursor:
        for sql in (
            "CREATE ROLE durable_test_secured",
            "GRANT ALL ON ALL TABLES IN SCHEMA public TO durable_test_secured",
            "ALTER TABLE durable_tasks_task ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY everything ON durable_tasks_task USING (true)",
            "SET LOCAL ROLE durable_test_secured",
        ):
            cursor.execute(sql)
        found = _statements(lambda: tasks.add.schedule_many(_numbers(PART + 1)))
        cursor.execute("RESET ROLE")
    assert not [sql for sql in found if sql.startswith("COPY")]
    assert Task.objects.count() == PART + 1


# All or none --------------------------------------------------------------------------------------


class _Stop(Exception):
    """Raised by an iterable of a test."""


def _failing(after: int, error: Exception) -> Iterator[tuple[int, int]]:
    yield from _numbers(after)
    raise error


@pytest.mark.parametrize("before", [0, 5, PART, 2 * PART + 7])
def test_a_call_with_an_invalid_tuple_creates_none(before: int) -> None:
    calls: list[tuple[int, ...]] = [*_numbers(before), (1,), *_numbers(3)]
    with transaction.atomic():
        with pytest.raises(InvalidArguments):
            tasks.add.schedule_many(calls)
        assert not Task.objects.exists()
        tasks.noop.schedule()
    assert Task.objects.count() == 1


@pytest.mark.parametrize("before", [5, PART, 2 * PART + 7])
def test_a_generator_that_raises_creates_none(before: int) -> None:
    with pytest.raises(_Stop):
        tasks.add.schedule_stream(_failing(before, _Stop()))
    assert not Task.objects.exists()


def test_a_progress_function_that_raises_creates_none() -> None:
    def stop(number: int) -> None:
        if number > PART:
            raise _Stop

    with pytest.raises(_Stop):
        tasks.add.schedule_stream(_numbers(3 * PART), progress=stop)
    assert not Task.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_without_a_transaction_a_failed_call_creates_none() -> None:
    with pytest.raises(_Stop):
        tasks.add.schedule_stream(_failing(PART + 3, _Stop()))
    with pytest.raises(InvalidArguments):
        tasks.add.schedule_many([*_numbers(PART), ()])
    assert not Task.objects.exists()
    assert tasks.add.schedule_stream(_numbers(PART + 3)) == PART + 3
    assert Task.objects.count() == PART + 3


def test_a_taken_id_is_an_integrity_error() -> None:
    new = [_new(place) for place in range(12)]
    inserts.create_many(new[:1])
    with pytest.raises(IntegrityError), transaction.atomic():
        inserts.create_many(new)
    assert Task.objects.count() == 1


@pytest.mark.parametrize("options", [{"key": "k"}, {"idempotency_key": "i"}])
def test_a_stream_accepts_no_key(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="one by one"):
        tasks.add.using(**options).schedule_stream(_numbers(1))
    with pytest.raises(InvalidOption, match="one by one"):
        tasks.unique.schedule_stream([("subject",)])


# Streams ------------------------------------------------------------------------------------------


def test_a_stream_reads_two_parts_ahead_at_most_and_reports_its_progress() -> None:
    read, ahead, seen = 0, [], []

    def calls() -> Iterator[tuple[int, int]]:
        nonlocal read
        for call in _numbers(5 * PART + 1):
            read += 1
            yield call

    def progress(number: int) -> None:
        seen.append(number)
        ahead.append(read - number)

    assert tasks.add.schedule_stream(calls(), progress=progress) == 5 * PART + 1
    assert seen == [PART * part for part in range(1, 6)] + [5 * PART + 1]
    assert max(ahead) <= PART
    assert Task.objects.count() == 5 * PART + 1


def test_the_generator_may_use_the_connection() -> None:
    tasks.noop.schedule_many([()] * (2 * PART + 3))
    rows = Task.objects.order_by("pk").values_list("pk", flat=True)
    number = tasks.echo.schedule_stream((str(key),) for key in rows.iterator(chunk_size=7))
    assert number == 2 * PART + 3
    assert Task.objects.filter(name=tasks.echo.name).count() == number


def test_a_router_may_use_the_connection(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def queue_of(name: str, queue: str | None, args: Any = (), kwargs: Any = None) -> str:
        return f"{QUEUE}-{Task.objects.count() and args[0] % 3}"

    monkeypatch.setattr(ports, "queue_of", queue_of)
    monkeypatch.setattr(ports, "routes_by_arguments", lambda queue: True)
    ids = tasks.add.schedule_many(_numbers(2 * PART))
    rows = Task.objects.in_bulk(ids)
    queues = [rows[key].queue for key in ids]
    assert queues[PART:] == [f"{QUEUE}-{number % 3}" for number in range(PART, 2 * PART)]


def test_a_stream_of_nothing_creates_nothing() -> None:
    assert tasks.add.schedule_stream(iter(())) == 0
    assert tasks.add.schedule_many([]) == []


def test_a_limit_key_is_that_of_each_call() -> None:
    registered = registry.get(tasks.echo.name)
    options = dataclasses.replace(registered.options, max_concurrency=PerKey(1, key="{0}"))
    limited = Registered(options, registered.signature, registered.function)
    ids = enqueue.schedule_many(limited, CallOptions(), [(f"k{one}",) for one in range(20)])
    rows = Task.objects.in_bulk(ids)
    assert [rows[key].limit_key for key in ids] == [f"k{one}" for one in range(20)]
